package clock

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

// TestProcessAge: that of a process which has just begun is next to nothing, and this one's is older.
func TestProcessAge(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // its context has ended by now, which kills it
		if err := cmd.Wait(); err == nil {
			t.Error("it ended by itself")
		}
	})
	young, err := ProcessAge(cmd.Process.Pid)
	if err != nil || young > 30*time.Second {
		t.Errorf("%v, %v", young, err)
	}
	if own, err := ProcessAge(os.Getpid()); err != nil || own < young {
		t.Errorf("%v, %v", own, err)
	}
	for _, pid := range []int{0, -1, 1 << 30} {
		if _, err := ProcessAge(pid); err == nil {
			t.Errorf("process %d has an age", pid)
		}
	}
}

func FuzzParseStart(f *testing.F) {
	for _, s := range []string{
		"1 (init) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 1 2", "1 (a) b) (c) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 1 2", "", ")", "1 (x) S",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, stat []byte) {
		if d, err := parseStart(stat); err == nil && d < 0 {
			t.Errorf("%v", d)
		}
	})
}

func TestParseStart(t *testing.T) {
	for _, name := range []string{"init", "a) b (c"} {
		d, err := parseStart([]byte("1 (" + name + ") S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 1 2"))
		if err != nil || d != 42420*time.Millisecond {
			t.Errorf("%s: %v, %v", name, d, err)
		}
	}
}
