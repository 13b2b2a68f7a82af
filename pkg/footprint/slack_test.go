package footprint

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestSecond(t *testing.T) {
	for name, c := range map[string]struct {
		tids []int
		want string
	}{
		"in order":      {[]int{100, 101, 102}, "101 <nil>"},
		"gap":           {[]int{100, 140, 120}, "120 <nil>"},
		"counted again": {[]int{7, 100, 9}, "7 <nil>"},
		"before that":   {[]int{7, 100, 999}, "999 <nil>"},
		"one":           {[]int{100}, "0 there is one thread only"},
	} {
		tid, err := second(c.tids, 100, 1000)
		if got := fmt.Sprint(tid, " ", err); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestRestart: all threads of a program that has restarted itself have the slack. It is the same process, with the same
// name, arguments and environment. The test runs itself for that.
func TestRestart(t *testing.T) {
	const ask = "FOOTPRINT_TEST_RESTART"
	if os.Getenv(ask) != "" {
		if err := Restart(3 * time.Millisecond); err != nil {
			t.Fatal(err)
		}
		tell(t)
		return
	}
	for name, c := range map[string]struct{ before, want time.Duration }{
		"default": {50 * time.Microsecond, 3 * time.Millisecond},
		"longer":  {4 * time.Millisecond, 4 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread() // the program inherits the slack of the thread that starts it
			defer runtime.UnlockOSThread()
			before, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
			if err == nil {
				err = setOwnSlack(int(c.before))
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = setOwnSlack(before) }()
			program := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRestart$", "-test.v")
			program.Env = append(os.Environ(), ask+"=1")
			out, err := program.Output()
			want := fmt.Sprintf("pid %d, name %.15s, arguments %q, set again %q, slack of all threads %v",
				program.Process.Pid, filepath.Base(os.Args[0]), program.Args[1:], "", c.want)
			if err != nil || !strings.Contains(string(out), want) {
				t.Errorf("the program says %s (%v), want %q in it", out, err, want)
			}
		})
	}
}

// TestRestartFails: a program that cannot be started again goes on as it was.
func TestRestartFails(t *testing.T) {
	const ask = "FOOTPRINT_TEST_RESTART_FAILS"
	state := func() string {
		var files unix.Rlimit
		slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
		if err := errors.Join(err, unix.Getrlimit(unix.RLIMIT_NOFILE, &files)); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("a slack of %d ns, %d files", slack, files.Cur)
	}
	if os.Getenv(ask) != "" {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		before := state()
		if err := os.Remove(os.Args[0]); err != nil {
			t.Fatal(err)
		}
		if err := Restart(3 * time.Millisecond); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("Restart without its file: %v, want os.ErrNotExist", err)
		}
		if after := state(); after != before {
			t.Errorf("after Restart failed: %s, want %s", after, before)
		}
		return
	}
	data, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(file, data, 0o700); err != nil {
		t.Fatal(err)
	}
	// A low soft limit, which Go raises when the program starts.
	program := exec.CommandContext(t.Context(), "sh", "-c", `ulimit -Sn 256; exec "$@"`, "sh", file,
		"-test.run=^TestRestartFails$", "-test.v")
	program.Env = append(os.Environ(), ask+"=1")
	if out, err := program.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS: TestRestartFails") {
		t.Errorf("%v\n%s", err, out)
	}
}

// tell prints what a program has kept, and the timer slack of its threads.
func tell(t *testing.T) {
	t.Helper()
	name, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil || len(threads) < 2 {
		t.Fatalf("%d threads, %v, want more than one", len(threads), err)
	}
	slacks := map[string]bool{}
	for _, thread := range threads {
		text, err := os.ReadFile("/proc/" + thread.Name() + "/timerslack_ns")
		if err != nil {
			t.Fatal(err)
		}
		slacks[strings.TrimSpace(string(text))+"ns"] = true
	}
	list := slices.Sorted(maps.Keys(slacks))
	slack, err := time.ParseDuration(list[0])
	if err != nil || len(list) > 1 {
		t.Fatalf("the threads have the slacks %v (%v), want one for all", list, err)
	}
	fmt.Printf("pid %d, name %s, arguments %q, set again %q, slack of all threads %v\n", os.Getpid(),
		strings.TrimSpace(string(name)), os.Args[1:], os.Getenv(restarted), slack)
}

// TestSetSlack: the thread that gets the slack is the one that sleeps while others work. No other thread of Go's does.
func TestSetSlack(t *testing.T) {
	if err := SetSlack(3 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	tid, err := thread()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(slackFile(tid)); err != nil || string(got) != "3000000\n" {
		t.Errorf("its slack is %q, %v, want 3000000", got, err)
	}
	wait.Until(t, "the thread to sleep", func() error { // the test's own work keeps it awake
		text, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/syscall", tid))
		if err == nil && !strings.HasPrefix(string(text), fmt.Sprint(unix.SYS_NANOSLEEP, " ")) {
			err = fmt.Errorf("its system call is %q, want nanosleep", text)
		}
		return err
	})
}
