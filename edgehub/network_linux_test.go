package edgehub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// inNetwork runs a function in a network namespace of its own, whose thread ends with it.
func inNetwork(t *testing.T, do func(t *testing.T) error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		defer close(done)      // also when a Fatal ends the goroutine
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

// TestFollowNetwork: a change is reported while the context lasts.
func TestFollowNetwork(t *testing.T) {
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
				t.Errorf("follow: %v", err)
			}
		}()
		eth := &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}}
		if err := errors.Join(netlink.LinkAdd(eth), netlink.LinkSetUp(eth)); err != nil {
			return err
		}
		wait.Receive(t, "the change to be told", changes)
		return nil
	})
}

// TestWatchNetwork: what may open a way to the cloud matters, and what pods do does not.
func TestWatchNetwork(t *testing.T) {
	inNetwork(t, func(t *testing.T) error {
		socket, err := subscribe()
		if err != nil {
			return err
		}
		defer socket.Close()
		messages, stop := make(chan syscall.NetlinkMessage), make(chan struct{})
		defer close(stop)
		go func() {
			for {
				batch, _, err := socket.Receive()
				if err != nil {
					return
				}
				for _, m := range batch {
					select {
					case messages <- m:
					case <-stop:
						return
					}
				}
			}
		}()
		return networkSteps(t, messages)
	})
}

// networkSteps does one thing after the other, and looks at what the kernel says until it has said that which matters,
// or until it speaks of a link that was made after the step.
func networkSteps(t *testing.T, messages <-chan syscall.NetlinkMessage) error {
	seen := links{}
	eth := &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}} // in every kernel, and no veth
	pod := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "vethpod"}, PeerName: "vethfar"}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "cni0"}}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 2), Mask: net.CIDRMask(24, 32)}}
	for i, step := range []struct {
		name string
		do   func() error
		told bool
	}{
		{
			"a pod's link", func() error {
				return errors.Join(netlink.LinkAdd(pod), netlink.LinkSetUp(pod),
					netlink.LinkSetUp(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: "vethfar"}}))
			}, false,
		},
		{"a pod's route", func() error {
			whole := &net.IPNet{IP: net.IPv4(198, 51, 100, 7), Mask: net.CIDRMask(32, 32)}
			return netlink.RouteAdd(&netlink.Route{LinkIndex: pod.Attrs().Index, Dst: whole, Scope: netlink.SCOPE_LINK})
		}, false},
		{"the bridge of pods", func() error {
			return errors.Join(netlink.LinkAdd(bridge), netlink.LinkSetMaster(pod, bridge))
		}, false},
		{"the bridge comes up", func() error { return netlink.LinkSetUp(bridge) }, true},
		{"a pod's link leaves the bridge", func() error { return netlink.LinkSetNoMaster(pod) }, true},
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
		mark := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("mark%d", i)}, PeerName: fmt.Sprintf("peer%d", i),
		}
		if err := netlink.LinkAdd(mark); err != nil {
			return err
		}
		told := false
		for marked := false; !marked || step.told && !told; {
			m := wait.Receive(t, step.name+": word of it, and of the link after it", messages)
			told = seen.isRelevant(m) || told
			marked = marked || speaksOf(m, mark.Name)
		}
		if told != step.told {
			t.Errorf("%s: told is %v, want %v", step.name, told, step.told)
		}
	}
	return nil
}

// speaksOf reports whether a message is about the link with a name.
func speaksOf(m syscall.NetlinkMessage, name string) bool {
	if m.Header.Type != unix.RTM_NEWLINK {
		return false
	}
	link, err := netlink.LinkDeserialize((*unix.NlMsghdr)(&m.Header), m.Data)
	return err == nil && link.Attrs().Name == name
}
