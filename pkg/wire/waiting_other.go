//go:build !linux

package wire

import "net"

// waitingConn is for Linux; elsewhere reading waits where it reads.
type waitingConn struct{}

func newWaiting(net.Conn) *waitingConn { return nil }

func (*waitingConn) wait() error              { return nil }
func (*waitingConn) Read([]byte) (int, error) { return 0, errNothing }
