package kube

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// The ports of servers lie below those that the kernel gives to clients: while an apiserver is
// down, no connection of anybody may take its port.
const (
	firstPort = 24000
	ports     = 4000
)

// port is a TCP port that no other cluster on the machine uses, until it is released or this
// process ends.
type port struct {
	number int
	lock   *os.File
}

// reservePort finds a port that is free on the loopback address.
func reservePort() (*port, error) {
	dir := filepath.Join(os.TempDir(), "edgecore-kube-ports")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	var last error
	for _, i := range rand.Perm(ports) {
		p, err := tryPort(dir, firstPort+i)
		if err == nil {
			return p, nil
		}
		last = err
	}
	return nil, fmt.Errorf("no port from %d to %d is free on 127.0.0.1: %w", firstPort, firstPort+ports-1, last)
}

func tryPort(dir string, number int) (*port, error) {
	lock, err := os.OpenFile(filepath.Join(dir, fmt.Sprint(number)), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, err
	}
	p := &port{number: number, lock: lock}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("port %d is another cluster's: %w", number, err), lock.Close())
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", number))
	if err != nil {
		return nil, errors.Join(err, p.release())
	}
	return p, l.Close()
}

// release lets others have the port.
func (p *port) release() error {
	if p == nil {
		return nil
	}
	return p.lock.Close()
}
