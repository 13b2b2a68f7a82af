// Command edgecore is a node agent for edge devices: it runs pods on a container runtime, with or without a
// cloud.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/edgecore-io/edgecore/local/localexec"
	_ "github.com/edgecore-io/edgecore/pkg/footprint/noprofile" // before other packages allocate
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newRootCommand().ExecuteContext(ctx); err != nil {
		stop()
		// what a container's command has to say, it has said
		if ended, ok := errors.AsType[*localexec.ExitError](err); ok {
			os.Exit(ended.Code)
		}
		fmt.Fprintln(os.Stderr, "edgecore:", err)
		os.Exit(1)
	}
}
