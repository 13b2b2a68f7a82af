package wire

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// unsentMax is how many bytes may wait in the kernel behind those in flight. They delay pings: without a limit a slow
// link that carries a large message looks like a silent one.
const unsentMax = 16 << 10

// tuneConn sets socket options that both ends use. Unsupported ones are ignored.
func tuneConn(c net.Conn) {
	s, ok := c.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentMax)
	})
}
