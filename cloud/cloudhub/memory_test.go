package cloudhub

import (
	"context"
	"errors"
	"net"
	"os"

	"google.golang.org/grpc/test/bufconn"
)

// memoryListener accepts connections that exist in memory only.
type memoryListener struct{ *bufconn.Listener }

func newMemoryListener() memoryListener { return memoryListener{bufconn.Listen(64 << 10)} }

func (l memoryListener) Accept() (net.Conn, error) { return inMemory(l.Listener.Accept()) }

func (l memoryListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	return inMemory(l.DialContext(ctx))
}

func inMemory(c net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	return memoryConn{c}, nil
}

// memoryConn names an exceeded deadline as sockets do.
type memoryConn struct{ net.Conn }

func (c memoryConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	return n, asSocket(err)
}

func (c memoryConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	return n, asSocket(err)
}

func asSocket(err error) error {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return os.ErrDeadlineExceeded
	}
	return err
}
