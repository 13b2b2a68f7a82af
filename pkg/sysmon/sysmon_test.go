package sysmon

import (
	"fmt"
	"os"
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
