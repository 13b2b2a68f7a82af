package nat_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/nat"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

func start(t *testing.T) *nat.Network {
	t.Helper()
	n, err := nat.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		checkGone(t, n.Name, n.Inside.String())
	})
	return n
}

// checkGone checks that nothing has the name of a network, and that there is no route to its inside.
func checkGone(t *testing.T, name, inside string) {
	t.Helper()
	for _, pattern := range []string{"/run", "/run/netns", "/sys/class/net"} {
		left, err := filepath.Glob(filepath.Join(pattern, name+"*"))
		if err != nil || len(left) > 0 {
			t.Errorf("after the removal of a network there are %v, %v; want nothing", left, err)
		}
	}
	if out, err := exec.Command("ip", "route", "show", "exact", inside).Output(); err != nil || len(out) > 0 {
		t.Errorf("ip route show exact %s = %q, %v; want no route", inside, out, err)
	}
}

// echo serves the addresses of those who connect, at an address of this machine.
func echo(t *testing.T, address string) string {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			_, _ = fmt.Fprintln(c, c.RemoteAddr()) // its reader checks it
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
	return l.Addr().String()
}

// TestNAT: the device connects from the router's address, in this process and in another one, and nobody connects to
// the device; two networks do not meet.
func TestNAT(t *testing.T) {
	a, b := start(t), start(t)
	if a.Inside.Overlaps(b.Inside) || a.Host == b.Host {
		t.Fatalf("two networks have the insides %v and %v and the hosts %s and %s, want none in common", a.Inside,
			b.Inside, a.Host, b.Host)
	}
	for _, n := range []*nat.Network{a, b} {
		conn, err := n.Dial(t.Context(), "tcp", echo(t, n.Host))
		if err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(conn).ReadString('\n')
		if from, _, _ := net.SplitHostPort(line); err != nil || from == n.Address || from == n.Host || from == "" {
			t.Errorf("the device at %s connects from %s, %v; want the router's address", n.Address, from, err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		program := filepath.Join(t.TempDir(), "device")
		if err := n.Wrap(program, "ip", "-brief", "address"); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(program, "show", "eth0").CombinedOutput()
		if err != nil || !strings.Contains(string(out), n.Address+"/24") {
			t.Errorf("ip -brief address show eth0 on the device = %q, %v; want its address %s", out, err, n.Address)
		}
		var l net.Listener
		if err := n.Do(func() (err error) { l, err = net.Listen("tcp", "0.0.0.0:0"); return err }); err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(l.Addr().String()) // it is a listener's address
		if c, err := net.Dial("tcp", net.JoinHostPort(n.Address, port)); !errors.Is(err, unix.EHOSTUNREACH) {
			t.Errorf("Dial of the device from outside = %v, %v; want %v", c, err, unix.EHOSTUNREACH)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestCut: no connection passes a router that drops all, and that of another network passes; Mend ends it.
func TestCut(t *testing.T) {
	a, b := start(t), start(t)
	if err := a.Cut(t.Context()); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("ip", "netns", "exec", a.Name+"-router", "iptables", "-S", "FORWARD").Output()
	if err != nil || strings.TrimSpace(string(out)) != "-P FORWARD DROP" {
		t.Errorf("the policy of the router that is cut = %q, %v; want that it drops all", out, err)
	}
	conn, err := b.Dial(t.Context(), "tcp", echo(t, b.Host))
	if err != nil {
		t.Fatalf("Dial in the network that is not cut: %v, want no error", err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if err := a.Mend(t.Context()); err != nil {
		t.Fatal(err)
	}
	if conn, err = a.Dial(t.Context(), "tcp", echo(t, a.Host)); err != nil {
		t.Fatalf("Dial after Mend: %v, want no error", err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
}

// TestSweep: a network whose owner was killed is removed by the next start of any other.
func TestSweep(t *testing.T) {
	if os.Getenv("NAT_ORPHAN") != "" {
		n, err := nat.Start(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("orphan", n.Name, n.Inside)
		_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSweep$")
	cmd.Env = append(os.Environ(), "NAT_ORPHAN=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var name, inside string
	if _, err := fmt.Fscanf(bufio.NewReader(stdout), "orphan %s %s\n", &name, &inside); err != nil {
		t.Fatalf("read from the orphan's owner: %v, want the name of its network", err)
	}
	owner, err := daemon.Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := nat.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	record := filepath.Join("/run", name, "nat.json")
	if _, err := os.Stat(record); err != nil || !owner.Alive() {
		t.Errorf("Sweep while the owner is alive (%v): %v, want that the network is left alone", owner.Alive(), err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	start(t)
	checkGone(t, name, inside)
}
