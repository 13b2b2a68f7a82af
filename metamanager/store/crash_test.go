package store

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// crashEnv makes the test program the writer that is killed; its value is the path of the store.
	crashEnv = "EDGECORE_TEST_CRASH_STORE"
	// crashRounds is how often it is killed.
	crashRounds = 500
)

// crashWriter writes until it is killed, and prints each write that was acknowledged.
func crashWriter() {
	s, recovery, err := Open(context.Background(), os.Getenv(crashEnv), Options{})
	if err != nil || recovery != nil {
		fmt.Println("fail", recovery, err)
		os.Exit(1)
	}
	fmt.Println("open")
	round := time.Now().UnixNano()
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				key, value := fmt.Sprintf("a/pod/w%d-%d", w, i%50), fmt.Sprintf("%d.%d", round, i)
				padded := value + " " + strings.Repeat("x", 500)
				if err := s.Apply(context.Background(), Upsert(meta(key, padded)), OutboxPut(key, []byte(value))); err != nil {
					fmt.Println("fail", err)
					os.Exit(1)
				}
				// One write call a line: a kill never leaves half of one that counts.
				fmt.Printf("ack %s %s\n", key, value)
			}
		})
	}
	wg.Wait()
}

// TestKill9 kills a writer at 500 random moments. What it was told is on the disk is there afterwards, or a
// newer version of it; and the file is never damaged.
func TestKill9(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edgecore.db")
	acked := map[string]string{}
	acks := 0
	within := 20 * time.Millisecond
	if slow := 4 * paceOfWriter(t, path); slow > within { // on a slow disk little is done in that time
		within = min(slow, time.Second)
	}
	for round := range crashRounds {
		acks += killedWriter(t, path, acked, within)
		// Most often this test opens what was left, checks it, and closes it cleanly; sometimes the next writer
		// has to cope with it, which checks the file in its Open.
		if round%10 != 0 || round == crashRounds-1 {
			verify(t, path, acked)
		}
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
	t.Logf("%d acknowledged writes over %d kills", acks, crashRounds)
	if acks < crashRounds/10 {
		t.Errorf("only %d writes in %d rounds: the kills came too early to show anything", acks, crashRounds)
	}
}

// startWriter starts a writer, and returns what it says.
func startWriter(t *testing.T, path string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), crashEnv+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(out)
}

// paceOfWriter is how long a writer takes to ten acknowledged writes.
func paceOfWriter(t *testing.T, path string) time.Duration {
	t.Helper()
	cmd, lines := startWriter(t, path)
	var began time.Time
	acks := 0
	for acks < 10 && lines.Scan() {
		switch text := lines.Text(); {
		case text == "open":
			began = time.Now()
		case strings.HasPrefix(text, "ack "):
			acks++
		}
	}
	took := time.Since(began)
	_ = cmd.Process.Kill()
	if err := cmd.Wait(); err == nil || acks < 10 {
		t.Fatalf("the writer ended by itself, after %d writes", acks)
	}
	return took
}

// killedWriter runs a writer, kills it after a random time, and notes what it had acknowledged.
func killedWriter(t *testing.T, path string, acked map[string]string, within time.Duration) int {
	t.Helper()
	cmd, lines := startWriter(t, path)
	kill := func() { _ = cmd.Process.Kill() }
	early := rand.IntN(8) == 0 // while it opens the store, perhaps
	if early {
		timer := time.AfterFunc(time.Duration(rand.IntN(25_000))*time.Microsecond, kill)
		defer timer.Stop()
	}
	n := 0
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) == 1 && fields[0] == "open" && !early:
			timer := time.AfterFunc(rand.N(within), kill)
			defer timer.Stop()
		case len(fields) == 3 && fields[0] == "ack":
			acked[fields[1]] = fields[2]
			n++
		case len(fields) > 0 && fields[0] == "fail":
			t.Errorf("writer: %s", lines.Text())
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the writer ended by itself")
	}
	return n
}

// verify compares the store with what was acknowledged. A later write of the same key may have reached the
// disk without its acknowledgement having been read.
func verify(t *testing.T, path string, acked map[string]string) {
	t.Helper()
	s, recovery, err := Open(t.Context(), path, Options{})
	if err != nil || recovery != nil {
		t.Fatalf("recovery %v, err %v", recovery, err)
	}
	defer s.Close()
	for key, want := range acked {
		m, err := s.Get(t.Context(), key)
		if err != nil {
			t.Errorf("%s: acknowledged, and lost: %v", key, err)
			continue
		}
		got, _, _ := strings.Cut(string(m.Value), " ")
		if newer(want, got) {
			t.Errorf("%s: %s was acknowledged, the store has %s", key, want, got)
		}
	}
	reports, err := s.Outbox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	inOutbox := map[string]string{}
	for _, r := range reports {
		inOutbox[r.Key] = string(r.Value)
	}
	for key, want := range acked {
		if newer(want, inOutbox[key]) {
			t.Errorf("%s: report %s was acknowledged, the outbox has %q", key, want, inOutbox[key])
		}
	}
	var text string
	if err := s.read.QueryRow("PRAGMA integrity_check").Scan(&text); err != nil || text != "ok" {
		t.Errorf("integrity: %s, %v", text, err)
	}
}

// newer tells whether a is a later version than b; versions are "<time>.<n>".
func newer(a, b string) bool {
	var at, an, bt, bn int64
	if _, err := fmt.Sscanf(a, "%d.%d", &at, &an); err != nil {
		return true
	}
	if _, err := fmt.Sscanf(b, "%d.%d", &bt, &bn); err != nil {
		return true
	}
	return at > bt || at == bt && an > bn
}
