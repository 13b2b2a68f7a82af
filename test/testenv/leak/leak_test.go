package leak

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { VerifyTestMain(m) }

// tests stand in for those of a package.
type tests func() int

func (t tests) Run() int { return t() }

// TestRun: what ends in time is no leak, what does not is one, and tests that failed stay failed.
func TestRun(t *testing.T) {
	mine := goleak.IgnoreCurrent()
	late := func() int {
		go time.Sleep(2 * time.Second) // longer than goleak waits by itself
		return 0
	}
	if code := Run(tests(late), mine); code != 0 {
		t.Errorf("code %d although all ended", code)
	}
	forever := make(chan struct{})
	defer close(forever)
	go func() { <-forever }()
	if code := Run(tests(func() int { return 2 }), mine); code != 2 {
		t.Errorf("code %d, want that of the tests", code)
	}
	if err := find(time.Millisecond, mine); err == nil || !strings.Contains(err.Error(), "TestRun") {
		t.Errorf("%v, want the goroutine that does not end", err)
	}
}
