package daemon

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
)

// portRange holds the ports that the kernel gives to connections, and to listeners that ask for any.
const portRange = "/proc/sys/net/ipv4/ip_local_port_range"

// FreePort returns a port of 127.0.0.1 that nobody has, for TCP and UDP. It is none of those that the kernel gives away by
// itself: between now and the caller's listening no connection of another program takes it.
func FreePort() (int, error) {
	const span = 8192
	low, err := firstGiven()
	if err != nil {
		return 0, err
	}
	if low < 1024+span { // the kernel gives away nearly all
		return anyPort()
	}
	for range 100 {
		port := low - span + rand.IntN(span)
		if err = isFree(port); err == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free port below %d: %w", low, err)
}

// firstGiven is the lowest port that the kernel gives away.
func firstGiven() (int, error) {
	text, err := os.ReadFile(portRange)
	if err != nil {
		return 0, err
	}
	var low, high int
	if _, err := fmt.Sscan(string(text), &low, &high); err != nil {
		return 0, fmt.Errorf("%s: %w", portRange, err)
	}
	return low, nil
}

func isFree(port int) error {
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	defer l.Close()
	p, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	return p.Close()
}

func anyPort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return 0, errors.New("no TCP address")
	}
	return addr.Port, nil
}
