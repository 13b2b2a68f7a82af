package spool

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

// helperEnv makes the test's program append messages until it is killed.
const helperEnv = "EDGECORE_TEST_SPOOL"

func TestMain(m *testing.M) {
	if path := os.Getenv(helperEnv); path != "" {
		appendForever(path)
	}
	leak.VerifyTestMain(m)
}

// appendForever prints the number of each message after it was appended.
func appendForever(path string) {
	s, _, err := Open(path, Limits{Messages: 1 << 20, Bytes: 1 << 30})
	for i := 0; err == nil; i++ {
		if err = s.Append(message(i)); err == nil {
			fmt.Println(i)
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func message(i int) Message {
	return Message{Topic: fmt.Sprint("t/", i), Payload: bytes.Repeat([]byte{byte(i)}, i%200), Retain: i%3 == 0}
}

func open(t *testing.T, path string, l Limits) *Spool {
	t.Helper()
	s, lost, err := Open(path, l)
	if err != nil || lost != 0 {
		t.Fatalf("open: %v, %d bytes lost; want nil and 0", err, lost)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func add(t *testing.T, s *Spool, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		if err := s.Append(message(i)); err != nil {
			t.Fatal(err)
		}
	}
}

// has checks the whole queue.
func has(t *testing.T, s *Spool, from, to int) {
	t.Helper()
	var want []Message
	for i := from; i < to; i++ {
		want = append(want, message(i))
	}
	got, _, err := s.Peek(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	same := func(a, b Message) bool {
		return a.Topic == b.Topic && bytes.Equal(a.Payload, b.Payload) && a.Retain == b.Retain
	}
	if slices.EqualFunc(want, got, same) { // far faster than cmp
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

func ack(t *testing.T, s *Spool, n int) {
	t.Helper()
	_, seqs, err := s.Peek(n)
	if err == nil {
		err = s.Ack(seqs[n-1])
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestQueue(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "queue")
	s := open(t, path, Limits{})
	if _, err := os.Stat(filepath.Dir(path)); !os.IsNotExist(err) {
		t.Errorf("before the first message: %v, want that nothing is there", err)
	}
	add(t, s, 0, 100)
	ack(t, s, 10)
	has(t, s, 10, 100)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, Limits{})
	has(t, s, 10, 100)
	ack(t, s, 90)
	if info, err := os.Stat(path); err != nil || info.Size() != 0 {
		t.Errorf("file of an empty queue = %v, %v; want no bytes", info, err)
	}
	add(t, s, 100, 103)
	has(t, s, 100, 103)
	if err := s.Append(Message{Topic: "t", Payload: make([]byte, maxRecord)}); err == nil {
		t.Error("Append of 1 MiB = nil, want an error")
	}
	has(t, s, 100, 103)
}

// TestOldestDropped: number and bytes are bounded, also of the file, over restarts.
func TestOldestDropped(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue")
	s := open(t, path, Limits{Messages: 50})
	add(t, s, 0, 120)
	has(t, s, 70, 120)
	if n := s.Dropped(); n != 70 {
		t.Errorf("dropped = %d, want 70", n)
	}
	_ = s.Close()
	s = open(t, path, Limits{Messages: 50})
	has(t, s, 70, 120)
	_ = s.Close()

	limits := Limits{Bytes: 1 << 20}
	s = open(t, path, limits)
	large := Message{Topic: "large", Payload: make([]byte, 60_000)}
	for range 200 {
		if err := s.Append(large); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if n, size := s.Len(); size > limits.Bytes || info.Size() > 2*limits.Bytes+slack+60_100 {
			t.Fatalf("queue of %d messages, %d bytes, in a file of %d; want at most %d and twice that", n, size,
				info.Size(), limits.Bytes)
		}
	}
	if n, _ := s.Len(); n != 17 {
		t.Errorf("messages = %d, want 17 of 60,000 bytes in 1 MiB", n)
	}
}

// TestModel compares the queue with a slice, over random operations and restarts without Close, as after kill -9.
func TestModel(t *testing.T) {
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 1))
		path := filepath.Join(t.TempDir(), "queue")
		s := open(t, path, Limits{Messages: 100})
		from, to := 0, 0
		for range 300 {
			switch r.IntN(5) {
			case 0, 1:
				n := r.IntN(20)
				add(t, s, to, to+n)
				to += n
				from = max(from, to-100)
			case 2, 3:
				if n := r.IntN(20); n > 0 && n <= to-from {
					ack(t, s, n)
					from += n
				}
			case 4:
				crashed := s
				s = open(t, path, Limits{Messages: 100})
				_ = crashed.file.Close()
				got, _, err := s.Peek(1000)
				if err != nil {
					t.Fatal(err)
				}
				if again := len(got) - (to - from); again < 0 || again >= ackEvery+100 {
					t.Fatalf("seed %d: messages after the crash = %d, want %d or up to %d more", seed, len(got),
						to-from, ackEvery)
				}
				from = to - len(got)
			}
			has(t, s, from, to)
		}
	}
}

// TestKill9: every message whose Append has returned is there after the process was killed.
func TestKill9(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue")
	want := 0
	for round := range 5 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), helperEnv+"="+path)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		var printed bytes.Buffer
		if _, err := io.CopyN(&printed, out, int64(2000+round*517)); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Process.Kill()
		_, _ = io.Copy(&printed, out)
		_ = cmd.Wait()
		text := printed.String()
		lines := strings.Split(text[:strings.LastIndex(text, "\n")], "\n")
		last, err := strconv.Atoi(lines[len(lines)-1])
		if err != nil {
			t.Fatal(err)
		}
		want += last + 1
		s, lost, err := Open(path, Limits{Messages: 1 << 20, Bytes: 1 << 30})
		if err != nil {
			t.Fatal(err)
		}
		n, _ := s.Len()
		if n < want || n > want+1 {
			t.Errorf("round %d: messages = %d (%d bytes cut off), want %d or one more", round, n, lost, want)
		}
		want = n
		_ = s.Close()
	}
}

// TestDamage: whatever is at the end of a file, what comes before it is kept.
func TestDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue")
	s := open(t, path, Limits{})
	add(t, s, 0, 20)
	_ = s.Close()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range len(whole) {
		if err := os.WriteFile(path, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		s, _, err := Open(path, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		n, _ := s.Len()
		has(t, s, 0, n)
		add(t, s, n, n+1)
		_ = s.Close()
		s = open(t, path, Limits{})
		has(t, s, 0, n+1)
		_ = s.Close()
	}
}

func FuzzOpen(f *testing.F) {
	f.Add(append(encode(1, message(7)), encodeHead(1)...))
	f.Add(append(encode(9, message(3)), encode(2, message(300))...))
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "queue")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		s, _, err := Open(path, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		before, _ := s.Len()
		add(t, s, 1, 2)
		if n, _ := s.Len(); n != before+1 {
			t.Errorf("messages = %d, want %d", n, before+1)
		}
		if _, seqs, err := s.Peek(1 << 20); err != nil {
			t.Errorf("peek: %v", err)
		} else if err := s.Ack(seqs[len(seqs)-1]); err != nil {
			t.Errorf("ack: %v", err)
		}
		_ = s.Close()
	})
}

// TestRun: the file is flushed while messages come, and Run ends with its context.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, filepath.Join(t.TempDir(), "queue"), Limits{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		add(t, s, 0, 3)
		time.Sleep(DefaultSyncEvery)
		synctest.Wait()
		if len(s.dirty) != 0 {
			t.Error("after the interval: the file is not flushed, want it to be")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
}
