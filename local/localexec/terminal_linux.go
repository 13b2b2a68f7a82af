package localexec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/serve/streaming/channels"
)

// terminal is this program's own, which hands on each key as it is until it is restored.
type terminal struct {
	fd     int
	before *term.State
	sizes  chan channels.Size
	cancel context.CancelFunc
	done   chan struct{}
}

// openTerminal takes over the terminal that the input is.
func openTerminal(ctx context.Context, in io.Reader) (*terminal, error) {
	f, ok := in.(*os.File)
	if !ok {
		return nil, errors.New("the input is not a terminal; leave out -t")
	}
	t := &terminal{fd: int(f.Fd()), sizes: make(chan channels.Size), done: make(chan struct{})}
	if !term.IsTerminal(t.fd) {
		return nil, errors.New("the input is not a terminal; leave out -t")
	}
	var err error
	if t.before, err = term.MakeRaw(t.fd); err != nil {
		return nil, fmt.Errorf("set the terminal: %w", err)
	}
	ctx, t.cancel = context.WithCancel(ctx)
	go t.watch(ctx)
	return t, nil
}

// watch tells of the size, and of each change of it.
func (t *terminal) watch(ctx context.Context) {
	defer close(t.done)
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, unix.SIGWINCH)
	defer signal.Stop(changed)
	for {
		if width, height, err := term.GetSize(t.fd); err == nil {
			select {
			case <-ctx.Done():
				return
			case t.sizes <- channels.Size{Width: uint16(width), Height: uint16(height)}:
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

func (t *terminal) restore() {
	t.cancel()
	<-t.done
	if err := term.Restore(t.fd, t.before); err != nil {
		klog.ErrorS(err, "Terminal not restored; run `reset`")
	}
}
