package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

func TestIdentity(t *testing.T) {
	self, err := Identify(os.Getpid())
	if err != nil || !self.Alive() {
		t.Fatalf("Identify(self) = %+v, %v: want a live process", self, err)
	}
	if reused := (Identity{PID: self.PID, Start: self.Start + 1}); reused.Alive() {
		t.Errorf("%+v.Alive() = true, want false for another start time", reused)
	}
	if (Identity{}).Alive() {
		t.Error("Identity{}.Alive() = true, want false")
	}
}

func TestStartAndEnd(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	p, err := Start(log, []string{"GREETING=hello"}, "/bin/sh", "-c", "echo $GREETING; exec sleep 60")
	if err != nil {
		t.Fatal(err)
	}
	if err := Poll(t.Context(), func() error {
		if !strings.Contains(Tail(log, 5), "hello") {
			return errors.New("no output yet")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	known := Known(p.Identity)
	if !p.Running() || !known.Running() {
		t.Fatalf("Running() = %t, of the known process %t, want true, true", p.Running(), known.Running())
	}
	// Also one that is stopped ends.
	if err := p.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.End(t.Context(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if p.Running() || known.Running() || Known(p.Identity) != nil {
		t.Errorf("after End: Running() = %t, of the known process %t, Known() = %v, want false, false, nil",
			p.Running(), known.Running(), Known(p.Identity))
	}
	if err := p.End(t.Context(), syscall.SIGTERM); err != nil {
		t.Errorf("End of a process that has ended: %v, want no error", err)
	}
}

// TestEndSession: what a process has started ends with it.
func TestEndSession(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	p, err := Start(log, nil, "sh", "-c", "sleep 1000 & echo $!; exec sleep 1000")
	if err != nil {
		t.Fatal(err)
	}
	var child Identity
	if err := Poll(t.Context(), func() error {
		text, err := os.ReadFile(log)
		if err != nil {
			return err
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err == nil {
			child, err = Identify(pid)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := p.EndSession(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p.Alive() || child.Alive() {
		t.Errorf("after EndSession: Alive() = %t, of the child %t, want false, false", p.Alive(), child.Alive())
	}
	if err := p.EndSession(t.Context()); err != nil {
		t.Errorf("EndSession of one that has ended: %v, want no error", err)
	}
	if err := p.End(t.Context(), syscall.SIGKILL); err != nil { // it is reaped
		t.Error(err)
	}
}

// TestPause: anyone who has paused a process that is busy finds it stopped, each time.
func TestPause(t *testing.T) {
	p, err := Start(filepath.Join(t.TempDir(), "log"), nil, "sh", "-c", "while :; do :; done")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.End(context.Background(), syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}()
	for range 200 {
		if err := p.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := p.stopped(); err != nil {
			t.Fatalf("stopped() after Pause: %v, want nil", err)
		}
		if err := p.Resume(); err != nil {
			t.Fatal(err)
		}
		if err := p.stopped(); err == nil {
			t.Fatal("stopped() after Resume = nil, want an error")
		}
	}
	if err := p.End(t.Context(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := p.Pause(t.Context()); err == nil {
		t.Error("Pause of a process that has ended = nil, want an error")
	}
}

func TestPoll(t *testing.T) {
	boom := errors.New("boom")
	if err := Poll(t.Context(), func() error { return Fatal(boom) }); !errors.Is(err, boom) {
		t.Errorf("Poll with a fatal error = %v, want boom", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := Poll(ctx, func() error { return boom })
	if !errors.Is(err, boom) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Poll without success = %v, want the deadline and boom", err)
	}
}
