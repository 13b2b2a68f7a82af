// Guest runs in a test's virtual machine and does there what the test asks for; see package guestapi.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/edgecore-io/edgecore/test/vm/guestapi"
)

// reopen is how long to wait for a host when there is none: the port reads as ended at once.
const reopen = 50 * time.Millisecond

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	for ctx.Err() == nil {
		if err := serve(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "guest:", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(reopen):
		}
	}
}

func serve(ctx context.Context) error {
	port, err := os.OpenFile("/dev/virtio-ports/"+guestapi.Port, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer port.Close()
	stop := context.AfterFunc(ctx, func() { _ = port.Close() })
	defer stop()
	return guestapi.Serve(ctx, port)
}
