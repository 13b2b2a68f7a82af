package daemon

import (
	"net"
	"strconv"
	"testing"
)

// TestFreePort: it can be listened on, and the kernel gives it to nobody.
func TestFreePort(t *testing.T) {
	low, err := firstGiven()
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		port, err := FreePort()
		if err != nil {
			t.Fatal(err)
		}
		if low > 10000 && port >= low {
			t.Errorf("port %d is one that the kernel gives away", port)
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			t.Fatal(err)
		}
		if err := isFree(port); err == nil {
			t.Errorf("port %d is free while somebody listens", port)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}
