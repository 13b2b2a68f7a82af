package daemon

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"syscall"
)

// portRange holds the ports that the kernel gives to connections, and to listeners that ask for any.
const portRange = "/proc/sys/net/ipv4/ip_local_port_range"

// firstPort is the first port that ReservePort reserves: above all that programs listen on by default, those that
// cloudcore gives to nodes included (20000 to 29999).
const firstPort = 30000

// Port is a port of 127.0.0.1 that no other holder of one has, in any process, until it is released or this process
// ends.
type Port struct {
	Number int
	// lock is a socket whose name is the port's: the kernel lets one have it, and takes it back by itself.
	lock int
}

// FreePort returns a port that is this process's until it ends; see ReservePort.
func FreePort() (int, error) {
	p, err := ReservePort()
	if err != nil {
		return 0, err
	}
	return p.Number, nil
}

// FreeAddress is FreePort with the address 127.0.0.1 before it.
func FreeAddress() (string, error) {
	port, err := FreePort()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), err
}

// ReservePort reserves a port of 127.0.0.1 that nobody has, for TCP and UDP. It is none of those that the kernel gives
// away by itself: whenever its holder does not listen, no connection of another program takes it.
func ReservePort() (*Port, error) {
	const least = 1024 // fewer ports are too few for the tests that run side by side
	low, err := firstGiven()
	if err != nil {
		return nil, err
	}
	next := func() (int, error) { return firstPort + rand.IntN(low-firstPort), nil }
	if low < firstPort+least { // the kernel gives away nearly all
		next = anyPort
	}
	var last error
	for range 100 {
		number, err := next()
		if err != nil {
			return nil, err
		}
		p, err := reserve(number)
		if err == nil {
			return p, nil
		}
		last = err
	}
	return nil, fmt.Errorf("no free port from %d to %d: %w", firstPort, low-1, last)
}

func reserve(number int) (*Port, error) {
	lock, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	p := &Port{Number: number, lock: lock}
	if err := syscall.Bind(lock, &syscall.SockaddrUnix{
		Name: fmt.Sprintf("@edgecore-test-port-%d", number),
	}); err != nil {
		return nil, errors.Join(fmt.Errorf("port %d is another's: %w", number, err), p.Release())
	}
	if err := isFree(number); err != nil {
		return nil, errors.Join(err, p.Release())
	}
	return p, nil
}

// Release lets others have the port. A nil Port is none.
func (p *Port) Release() error {
	if p == nil {
		return nil
	}
	return syscall.Close(p.lock)
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
