// Package netns runs programs and opens connections in network namespaces created with `ip netns add`.
package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Wrap writes a script into a folder that runs a program in a namespace, and returns the script's path. The program
// replaces the script's process, so that signals reach it.
func Wrap(dir, namespace, program string) (string, error) {
	path := filepath.Join(dir, filepath.Base(program))
	script := fmt.Sprintf("#!/bin/sh\nexec nsenter --net=/run/netns/%s %s \"$@\"\n", namespace, program)
	return path, os.WriteFile(path, []byte(script), 0o755)
}

// Dial connects as a program in the namespace does.
func Dial(ctx context.Context, namespace, network, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread, which is in the namespace, ends with the goroutine
		ns, err := os.Open("/run/netns/" + namespace)
		if err == nil {
			err = errors.Join(unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET), ns.Close())
		}
		if err != nil {
			done <- result{nil, fmt.Errorf("enter network namespace %s: %w", namespace, err)}
			return
		}
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, address)
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}

// Run runs commands one after the other until one fails.
func Run(ctx context.Context, commands ...[]string) error {
	for _, command := range commands {
		if text, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%q: %w\n%s", command, err, text)
		}
	}
	return nil
}
