package leak

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { VerifyTestMain(m) }

// tests stand in for those of a package.
type tests func() int

func (t tests) Run() int { return t() }

// TestRun: what ends in time is no leak, what does not is one, and tests that failed stay failed.
func TestRun(t *testing.T) { synctest.Test(t, testRun) }

func testRun(t *testing.T) {
	mine := goleak.IgnoreCurrent()
	late := func() int {
		go time.Sleep(5 * time.Second) // longer than goleak waits by itself
		return 0
	}
	if got := Run(tests(late), mine); got != 0 {
		t.Errorf("Run of tests whose goroutines end = %d, want 0", got)
	}
	forever := make(chan struct{})
	defer close(forever)
	go func() { <-forever }()
	if got := Run(tests(func() int { return 2 }), mine); got != 2 {
		t.Errorf("Run of tests that failed and leave a goroutine = %d, want their 2", got)
	}
	if err := find(time.Millisecond, mine); err == nil || !strings.Contains(err.Error(), "testRun") {
		t.Errorf("find() = %v, want the goroutine that does not end", err)
	}
}
