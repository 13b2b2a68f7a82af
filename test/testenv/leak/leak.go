// Package leak sees that the tests of a package leave no goroutines behind. It gives those that are about to end the
// time for it: a busy machine holds them up, and QUIC keeps what is closed for a while, for late packets.
package leak

import (
	"fmt"
	"os"
	"time"

	"go.uber.org/goleak"

	"github.com/edgecore-io/edgecore/test/testenv/limit"
)

// VerifyTestMain runs a package's tests and ends the process: as a failure also when goroutines are left after them.
func VerifyTestMain(m goleak.TestingM, options ...goleak.Option) { os.Exit(Run(m, options...)) }

// Run is VerifyTestMain for who has to clean up afterwards: it returns the code to exit with. So goleak.Cleanup is not
// among its options.
func Run(m goleak.TestingM, options ...goleak.Option) (code int) {
	if code = m.Run(); code != 0 {
		return code
	}
	if err := Find(options...); err != nil {
		fmt.Fprintf(os.Stderr, "goroutines are left after tests that passed: %v\n", err)
		return 1
	}
	return 0
}

// Find says which goroutines are there and do not end.
func Find(options ...goleak.Option) error { return find(limit.Wait, options...) }

func find(patience time.Duration, options ...goleak.Option) error {
	for end := time.Now().Add(patience); ; { // each look takes up to half a second
		err := goleak.Find(options...)
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}
