package edgehub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inNetwork runs a function in a network namespace of its own, whose thread ends with it.
func inNetwork(t *testing.T, do func(t *testing.T) error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is of no use to others
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- do(t)
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestWatchNetwork: what may open a way to the cloud is told, and what pods do is not.
func TestWatchNetwork(t *testing.T) {
	inNetwork(t, func(t *testing.T) error {
		ctx, cancel := context.WithCancel(context.Background())
		changes, ended := make(chan struct{}, 100), make(chan error, 1)
		socket, err := subscribe()
		if err != nil {
			cancel()
			return err
		}
		go func() { ended <- socket.follow(ctx, func() { changes <- struct{}{} }) }()
		defer func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()
		return networkSteps(t, changes)
	})
}

// networkSteps does one thing after the other, and looks whether it was told.
func networkSteps(t *testing.T, changes <-chan struct{}) error {
	eth := &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}} // in every kernel, and no veth
	pod := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "vethpod"}, PeerName: "vethfar"}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 2), Mask: net.CIDRMask(24, 32)}}
	for _, step := range []struct {
		name string
		do   func() error
		told bool
	}{
		{"a pod's link", func() error {
			return errors.Join(netlink.LinkAdd(pod), netlink.LinkSetUp(pod), netlink.LinkSetUp(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: "vethfar"}}))
		}, false},
		{"a pod's route", func() error {
			whole := &net.IPNet{IP: net.IPv4(198, 51, 100, 7), Mask: net.CIDRMask(32, 32)}
			return netlink.RouteAdd(&netlink.Route{LinkIndex: pod.Attrs().Index, Dst: whole, Scope: netlink.SCOPE_LINK})
		}, false},
		{"a pod's link goes", func() error { return netlink.LinkDel(pod) }, false},
		{"a link that is down", func() error { return netlink.LinkAdd(eth) }, false},
		{"a link comes up", func() error { return netlink.LinkSetUp(eth) }, true},
		{"its name changes", func() error { return netlink.LinkSetAlias(eth, "uplink") }, false},
		{"an address", func() error { return netlink.AddrAdd(eth, addr) }, true},
		{"a default route", func() error {
			return netlink.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Gw: net.IPv4(192, 0, 2, 1)})
		}, true},
		{"the link goes down", func() error { return netlink.LinkSetDown(eth) }, true},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		told := false
		wait := time.Minute
		if !step.told {
			wait = 300 * time.Millisecond
		}
		select {
		case <-changes:
			told = true
		case <-time.After(wait):
		}
		if told != step.told {
			t.Errorf("%s: told is %v, want %v", step.name, told, step.told)
		}
		for settled := false; !settled; { // a step may have several changes
			select {
			case <-changes:
			case <-time.After(500 * time.Millisecond):
				settled = true
			}
		}
	}
	return nil
}
