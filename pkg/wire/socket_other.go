//go:build !linux

package wire

import "net"

func tuneConn(net.Conn) {}
