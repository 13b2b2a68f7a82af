package store

import (
	"bufio"
	"context"
	"flag"
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
	// crashRounds is how often it is killed, and longCrashRounds how often with -long.
	crashRounds     = 20
	longCrashRounds = 500
)

// testGap is the MaxGap of tests with small files: a whole damaged table is still passed over row by row. With -long it
// is the default.
func testGap() int64 {
	if *long {
		return 0
	}
	return 3 * filledRows
}

var long = flag.Bool("long", false, "run the tests of random faults and operations for longer")

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
				if err := s.Apply(context.Background(), Upsert(meta(key, padded)),
					OutboxPut(key, []byte(value))); err != nil {
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

// TestKill9 kills a writer at random moments. What was acknowledged to it is on the disk afterwards, or a
// newer version of it; and the file is never damaged.
func TestKill9(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edgecore.db")
	acked := map[string]string{}
	acks, rounds := 0, crashRounds
	if *long {
		rounds = longCrashRounds
	}
	for round := range rounds {
		acks += killedWriter(t, path, acked)
		// Most often this test opens what was left, checks it, and closes it cleanly; sometimes the next writer
		// has to cope with it, which checks the file in its Open.
		if round%10 != 0 || round == rounds-1 {
			verify(t, path, acked)
		}
		if t.Failed() {
			t.Fatalf("failed in round %d, want all %d to pass", round, rounds)
		}
	}
	t.Logf("%d acknowledged writes over %d kills", acks, rounds)
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

// killedWriter runs a writer, kills it a random moment after a random number of acknowledged writes, and notes all that
// it acknowledged. One writer in eight is killed at a random moment after its start instead: while it opens the store,
// perhaps.
func killedWriter(t *testing.T, path string, acked map[string]string) int {
	t.Helper()
	cmd, lines := startWriter(t, path)
	killAfter := func(within time.Duration) {
		timer := time.AfterFunc(rand.N(within), func() { _ = cmd.Process.Kill() })
		t.Cleanup(func() { timer.Stop() })
	}
	enough := rand.IntN(40)
	if rand.IntN(8) == 0 {
		enough = -1
		killAfter(25 * time.Millisecond)
	}
	n := 0
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) == 3 && fields[0] == "ack":
			acked[fields[1]] = fields[2]
			n++
		case len(fields) > 0 && fields[0] == "fail":
			t.Errorf("the writer printed %q, want acknowledged writes only", lines.Text())
		case len(fields) != 1 || fields[0] != "open":
			continue // a line that the kill cut off
		}
		if n == enough {
			enough = -1
			killAfter(2 * time.Millisecond)
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the writer ended by itself, want it killed")
	}
	return n
}

// verify compares the store with what was acknowledged. A later write of the same key may have reached the
// disk without its acknowledgement having been read.
func verify(t *testing.T, path string, acked map[string]string) {
	t.Helper()
	s, recovery, err := Open(t.Context(), path, Options{MaxGap: testGap()})
	if err != nil || recovery != nil {
		t.Fatalf("Open: recovery %v, err %v; want neither", recovery, err)
	}
	defer s.Close()
	for key, want := range acked {
		m, err := s.Get(t.Context(), key)
		if err != nil {
			t.Errorf("Get(%s) = %v, want %s or newer: it was acknowledged", key, err, want)
			continue
		}
		got, _, _ := strings.Cut(string(m.Value), " ")
		if newer(want, got) {
			t.Errorf("%s: the store has %s, want %s or newer: it was acknowledged", key, got, want)
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
			t.Errorf("%s: the outbox has %q, want %s or newer: it was acknowledged", key, inOutbox[key], want)
		}
	}
	var text string
	if err := s.read.QueryRow("PRAGMA integrity_check").Scan(&text); err != nil || text != "ok" {
		t.Errorf("integrity_check = %s, %v; want ok", text, err)
	}
}

// newer reports whether a is a later version than b; versions are "<time>.<n>".
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
