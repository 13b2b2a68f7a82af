package clock

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

// TestProcessAge: a process that begins between two readings of this one's age is no older than the time between them.
func TestProcessAge(t *testing.T) {
	own := func() time.Duration {
		age, err := ProcessAge(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		return age
	}
	before := own()
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // its context has ended by now, which kills it
		if err := cmd.Wait(); err == nil {
			t.Error("Wait of the sleeping process = nil, want the error of a killed one")
		}
	})
	young, err := ProcessAge(cmd.Process.Pid)
	after := own()
	// The kernel rounds the time at which a process began down to a tick.
	if limit := after - before + time.Second/ticks; err != nil || young > limit {
		t.Errorf("ProcessAge of a process that has just begun = %v, %v; want at most %v", young, err, limit)
	}
	if after < young || after < before {
		t.Errorf("ProcessAge of this process = %v, want at least %v and %v", after, before, young)
	}
	for _, pid := range []int{0, -1, 1 << 30} {
		if age, err := ProcessAge(pid); err == nil {
			t.Errorf("ProcessAge(%d) = %v, nil, want an error", pid, age)
		}
	}
}

func FuzzParseStart(f *testing.F) {
	for _, s := range []string{
		"1 (init) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 1 2",
		"1 (a) b) (c) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 1 2", "", ")", "1 (x) S",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, stat []byte) {
		if d, err := parseStart(stat); err == nil && d < 0 {
			t.Errorf("parseStart(%q) = %v, want 0 or more", stat, d)
		}
	})
}

func TestParseStart(t *testing.T) {
	for _, name := range []string{"init", "a) b (c"} {
		d, err := parseStart([]byte("1 (" + name + ") S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 1 2"))
		if err != nil || d != 42420*time.Millisecond {
			t.Errorf("parseStart of %q = %v, %v; want 42.42s", name, d, err)
		}
	}
}
