// Command edgecore is a node agent for edge devices: it runs pods on a container runtime, with or without a
// cloud.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newRootCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "edgecore:", err)
		stop()
		os.Exit(1)
	}
}
