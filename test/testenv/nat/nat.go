// Package nat is a place for a device behind NAT: a network namespace whose only way out is a router that masquerades.
// Nothing outside has a route to it.
package nat

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// The networks: of router and device, and of router and host. They exist once, in namespaces and between them.
const (
	inside        = "192.168.77.0/24"
	deviceAddress = "192.168.77.2"
	routerInside  = "192.168.77.1"
	routerOutside = "198.18.77.2"
	// Host is the address at which the device reaches this machine.
	Host = "198.18.77.1"
)

// Names of the router's namespace and of its end of the cable to the device.
const (
	router = "ec-nat-router"
	cable  = "ec-nat-cable"
)

// Network is the device's network.
type Network struct {
	// Address is the device's own address.
	Address string

	device string
}

// Start makes a network until the test ends. There can be one at a time.
func Start(t *testing.T) *Network {
	t.Helper()
	n := &Network{Address: deviceAddress, device: "ec-nat-device"}
	const out, in = "ec-nat-out", "ec-nat-in"
	clean := func() {
		for _, args := range [][]string{
			{"netns", "del", n.device}, {"netns", "del", router}, {"link", "del", out},
			{"route", "del", "unreachable", inside},
		} {
			_ = exec.Command("ip", args...).Run() // there may be none
		}
	}
	clean() // of a killed run
	t.Cleanup(clean)
	for _, command := range [][]string{
		{"ip", "netns", "add", router},
		{"ip", "netns", "add", n.device},
		{"ip", "link", "add", out, "type", "veth", "peer", "name", in, "netns", router},
		{"ip", "addr", "add", Host + "/30", "dev", out},
		{"ip", "route", "add", "unreachable", inside}, // or the default route would be tried
		{"ip", "link", "set", out, "up"},
		{"ip", "-n", router, "addr", "add", routerOutside + "/30", "dev", in},
		{"ip", "-n", router, "link", "set", in, "up"},
		{"ip", "-n", router, "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", n.device},
		{"ip", "-n", router, "addr", "add", routerInside + "/24", "dev", cable},
		{"ip", "-n", router, "link", "set", cable, "up"},
		{"ip", "-n", n.device, "addr", "add", n.Address + "/24", "dev", "eth0"},
		{"ip", "-n", n.device, "link", "set", "eth0", "up"},
		{"ip", "-n", n.device, "link", "set", "lo", "up"},
		{"ip", "-n", n.device, "route", "add", "default", "via", routerInside},
		{"ip", "netns", "exec", router, "sysctl", "-qw", "net.ipv4.ip_forward=1"},
		{"ip", "netns", "exec", router, "iptables", "-t", "nat", "-A", "POSTROUTING", "-o", in, "-j", "MASQUERADE"},
	} {
		if text, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", command, err, text)
		}
	}
	return n
}

// Cut has the router drop all packets of the device.
func (n *Network) Cut(t *testing.T) { t.Helper(); forward(t, "DROP") }

// Mend has the router pass packets again.
func (n *Network) Mend(t *testing.T) { t.Helper(); forward(t, "ACCEPT") }

func forward(t *testing.T, policy string) {
	t.Helper()
	if text, err := exec.CommandContext(t.Context(), "ip", "netns", "exec", router, "iptables", "-P", "FORWARD",
		policy).CombinedOutput(); err != nil {
		t.Fatalf("set the router's policy to %s: %v, want no error\n%s", policy, err, text)
	}
}

// Wrap returns a program that runs another one in the device's network.
func (n *Network) Wrap(t *testing.T, program string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(program))
	script := fmt.Sprintf("#!/bin/sh\nexec nsenter --net=/run/netns/%s %s \"$@\"\n", n.device, program)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// Dial connects as a program on the device does.
func (n *Network) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread, which is in the namespace, ends with the goroutine
		ns, err := os.Open("/run/netns/" + n.device)
		if err == nil {
			err = errors.Join(unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET), ns.Close())
		}
		if err != nil {
			done <- result{nil, fmt.Errorf("enter the device's network: %w", err)}
			return
		}
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, address)
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}
