package daemon

import (
	"net"
	"strconv"
	"testing"
)

// TestFreePort: it can be listened on, the kernel gives it to nobody, and neither does a second call.
func TestFreePort(t *testing.T) {
	low, err := firstGiven()
	if err != nil {
		t.Fatal(err)
	}
	given := map[int]bool{}
	for range 50 {
		port, err := FreePort()
		if err != nil {
			t.Fatal(err)
		}
		if given[port] {
			t.Errorf("FreePort() = %d, want a port that it has not returned before", port)
		}
		given[port] = true
		if low >= firstPort+1024 && (port >= low || port < firstPort) {
			t.Errorf("FreePort() = %d, want %d to %d: the kernel gives away those above, and programs listen by "+
				"default below", port, firstPort, low-1)
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			t.Fatal(err)
		}
		if err := isFree(port); err == nil {
			t.Errorf("isFree(%d) while a listener has it = nil, want an error", port)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestReservePort: one that is reserved is nobody else's although nobody listens on it; one that is released may be had
// again.
func TestReservePort(t *testing.T) {
	p, err := ReservePort()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reserve(p.Number); err == nil {
		t.Errorf("reserve(%d), which is reserved, = nil, want an error", p.Number)
	}
	if err := p.Release(); err != nil {
		t.Fatal(err)
	}
	again, err := reserve(p.Number)
	if err != nil {
		t.Fatalf("reserve of a released port: %v, want no error", err)
	}
	if err := again.Release(); err != nil {
		t.Fatal(err)
	}
}
