package address

import (
	"context"
	"math"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// endpoints are the addresses that the tests use.
func endpoints() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr("169.254.30.10"), netip.MustParseAddr("fdec:30::10")}
}

// inNetwork runs a function in a network namespace of its own, whose thread ends with it.
func inNetwork(t *testing.T, do func(t *testing.T)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	done := make(chan error, 1)
	go func() {
		defer close(done)      // also when a Fatal ends the goroutine
		runtime.LockOSThread() // never unlocked: the thread is of no use to others
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		do(t)
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// on returns the addresses of an interface that are wanted ones, with the length of their prefix and their scope.
func on(t *testing.T, name string) []netlink.Addr {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	all, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	var ours []netlink.Addr
	for _, a := range all {
		for _, addr := range endpoints() {
			if a.IP.Equal(addr.AsSlice()) {
				ours = append(ours, a)
			}
		}
	}
	return ours
}

func put(t *testing.T, name string, addr netip.Addr) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{
		IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen()),
	}}); err != nil {
		t.Fatal(err)
	}
}

// addInterface adds an interface. It is of a kind that every kernel has.
func addInterface(t *testing.T, name string) {
	t.Helper()
	if err := netlink.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: name}}); err != nil {
		t.Fatal(err)
	}
}

func TestAddressComesAndGoes(t *testing.T) {
	inNetwork(t, func(t *testing.T) {
		for _, addr := range endpoints() {
			for range 2 { // the second time it is there already
				if err := Ensure(addr); err != nil {
					t.Fatal(err)
				}
			}
		}
		ours := on(t, "lo")
		if len(ours) != len(endpoints()) {
			t.Fatalf("lo has %v, want %v", ours, endpoints())
		}
		for _, a := range ours {
			source := a.Scope != unix.RT_SCOPE_HOST
			if a.IP.To4() == nil {
				source = a.Flags&unix.IFA_F_DEPRECATED == 0
			}
			if ones, bits := a.Mask.Size(); ones != bits || source || uint32(a.ValidLft) != math.MaxUint32 {
				t.Errorf("%v has scope %d, flags %x, valid for %d s; want a whole address for ever, and of no other "+
					"connections", a, a.Scope, a.Flags, a.ValidLft)
			}
		}
		for _, addr := range endpoints() {
			for range 2 { // the second time it is gone already
				if err := Remove(addr); err != nil {
					t.Fatal(err)
				}
			}
		}
		if ours := on(t, "lo"); len(ours) != 0 {
			t.Errorf("lo has %v after Remove, want none", ours)
		}
	})
}

// TestAddressOfKubeEdgeStays: a device that ran KubeEdge has it on edge-dummy0.
func TestAddressOfKubeEdgeStays(t *testing.T) {
	inNetwork(t, func(t *testing.T) {
		addInterface(t, "edge-dummy0")
		for _, addr := range endpoints() {
			put(t, "edge-dummy0", addr)
			if err := Ensure(addr); err != nil {
				t.Error(err)
			}
			if err := Remove(addr); err != nil {
				t.Error(err)
			}
		}
		if lo, dummy := on(t, "lo"), on(t, "edge-dummy0"); len(lo) != 0 || len(dummy) != len(endpoints()) {
			t.Errorf("lo has %v, edge-dummy0 has %v; want all on edge-dummy0", lo, dummy)
		}
	})
}

// TestAddressOfAnAdministratorStays: what somebody else put on lo is not ours to remove.
func TestAddressOfAnAdministratorStays(t *testing.T) {
	inNetwork(t, func(t *testing.T) {
		addr := endpoints()[0]
		put(t, "lo", addr)
		if err := Ensure(addr); err != nil {
			t.Error(err)
		}
		if err := Remove(addr); err != nil {
			t.Error(err)
		}
		if ours := on(t, "lo"); len(ours) != 1 {
			t.Errorf("lo has %v, want the address that was there before", ours)
		}
	})
}

func TestAddressOfAnotherInterfaceIsNamed(t *testing.T) {
	inNetwork(t, func(t *testing.T) {
		addInterface(t, "eth7")
		for _, addr := range endpoints() {
			put(t, "eth7", addr)
			if err := Ensure(addr); err == nil || !strings.Contains(err.Error(), "eth7") ||
				!strings.Contains(err.Error(), "dummyServer") {
				t.Errorf("Ensure(%s) = %v, want an error that names eth7 and the setting", addr, err)
			}
		}
		if ours := on(t, "lo"); len(ours) != 0 {
			t.Errorf("lo has %v, want none", ours)
		}
	})
}

// TestKeepPutsBack: an address that is removed comes back, and a conflict is reported until it is over.
func TestKeepPutsBack(t *testing.T) {
	inNetwork(t, func(t *testing.T) {
		addr := endpoints()[0]
		ctx, cancel := context.WithCancel(context.Background())
		reports, ended := make(chan error, 100), make(chan error, 1)
		started := make(chan struct{})
		self, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			cancel()
			t.Fatal(err)
		}
		defer self.Close()
		go func() {
			runtime.LockOSThread() // never unlocked: its thread is in the namespace
			err := unix.Setns(int(self.Fd()), unix.CLONE_NEWNET)
			close(started)
			if err == nil {
				err = Keep(ctx, []netip.Addr{addr}, func(err error) { reports <- err })
			}
			ended <- err
		}()
		defer func() {
			cancel()
			if err := wait.Receive(t, "the end of Keep", ended); err != nil {
				t.Error(err)
			}
		}()
		<-started
		if err := wait.Receive(t, "the first report", reports); err != nil {
			t.Errorf("first report: %v", err)
		}
		if err := Remove(addr); err != nil {
			t.Fatal(err)
		}
		wait.True(t, "the address to be back", func() bool { return len(on(t, "lo")) == 1 })
	})
}
