// Command cloudcore connects edge nodes to kube-apiserver: it sends them what they are to run, and carries
// their reports into the API.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/edgecore-io/edgecore/pkg/footprint"
)

// timerSlack is how much later than needed a timer may fire. The thread with which Go's runtime monitors itself wakes
// less often with it: that saves an eighth of cloudcore's processor time. With 5 ms it would be a quarter, but with a
// thousand nodes, the slowest hundredth of changes would reach them 10 ms later.
const timerSlack = time.Millisecond

func main() {
	restartErr := footprint.Restart(timerSlack)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := newRootCommand(restartErr).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "cloudcore:", err)
		if status, ok := errors.AsType[*exitError](err); ok {
			os.Exit(status.code)
		}
		os.Exit(1)
	}
}
