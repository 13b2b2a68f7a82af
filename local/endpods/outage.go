package endpods

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/edgecore-io/edgecore/pkg/retry"
)

// outage is the time during which a container runtime does not answer while pods end. All pods share one, so that they
// wait for a runtime that is gone side by side, and those whose turn comes later do not wait again.
type outage struct {
	endpoint string
	// wait is how long an outage may last, and interval is the pause between two attempts.
	wait, interval time.Duration
	// out is called once, when the wait begins.
	out io.Writer

	mu     sync.Mutex
	since  time.Time // zero while the runtime answers
	logged bool
}

// retry calls end until the runtime answers it. It returns the last error when the outage has lasted too long, or when
// ctx ends.
func (o *outage) retry(ctx context.Context, end func(context.Context) error) error {
	for {
		err := end(ctx)
		if !o.pause(err) || !retry.Sleep(ctx, o.interval) {
			return err
		}
	}
}

// pause notes whether the runtime has answered an attempt, and reports whether to pause for another one.
func (o *outage) pause(err error) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !restarting(err) {
		o.since = time.Time{}
		return false
	}
	if o.since.IsZero() {
		o.since = time.Now()
	}
	if time.Since(o.since)+o.interval > o.wait {
		return false
	}
	if !o.logged {
		o.logged = true
		fmt.Fprintf(o.out, "The container runtime at %s stopped answering, waiting for up to %s: %v\n", o.endpoint,
			o.wait, err)
	}
	return true
}

// restarting reports whether an error is that of a runtime that is stopped or starts. A call that the runtime has
// answered may have run hooks, and is not repeated.
func restarting(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable:
		return true
	case codes.Unknown: // as containerd 1 reports it
		return err != nil && strings.Contains(err.Error(), "server is not initialized yet")
	}
	return false
}
