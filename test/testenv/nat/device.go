package nat

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Wrap writes a program to path that runs a command in the device's network and appends its own arguments. The command
// replaces the program's process.
func (n *Network) Wrap(path string, command ...string) error {
	script := "#!/bin/sh\nexec nsenter --net=" + n.namespace()
	for _, word := range command {
		script += " '" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return os.WriteFile(path, []byte(script+" \"$@\"\n"), 0o755)
}

func (n *Network) namespace() string { return filepath.Join(runDir, "netns", n.device()) }

// Do calls a function that opens sockets in the device's network; they may be used anywhere afterwards. The function
// must not open them in another goroutine.
func (n *Network) Do(open func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread, which is in the namespace, ends with the goroutine
		ns, err := os.Open(n.namespace())
		if err == nil {
			err = errors.Join(unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET), ns.Close())
		}
		if err != nil {
			done <- fmt.Errorf("enter the device's network: %w", err)
			return
		}
		done <- open()
	}()
	return <-done
}

// Dial connects as a program on the device does.
func (n *Network) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := n.Do(func() (err error) {
		var d net.Dialer
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}
