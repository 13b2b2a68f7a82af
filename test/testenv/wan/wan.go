// Package wan connects a network namespace, in which a device runs, with this machine by two paths: a cable (veth),
// which is as fast as the machine, and a slow path with delay, limited bandwidth and losses. Both carry packets between
// the same two addresses, so that connections survive a change of the path.
//
// The packets of the slow path go through TUN devices and this process (path.go), because not every kernel has netem.
// TCP at both ends is the kernel's own: its windows, retransmissions and congestion control are real. The slow path has
// no reordering, no jitter, no losses in bursts and no segmentation offload; each packet costs this process some time.
package wan

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/edgecore-io/edgecore/test/testenv/netns"
)

// Host and Device are the addresses of this machine and of the namespace.
const (
	Host   = "198.18.78.1"
	Device = "198.18.78.2"
)

// Names of the namespace and of the ends of both paths.
const (
	namespace           = "ec-wan-device"
	hostCable, hostSlow = "ec-wan-cable", "ec-wan-slow"
	inCable, inSlow     = "cable", "slow"
)

// Network is the namespace with its paths.
type Network struct {
	host, device *os.File
	path         path
	wg           sync.WaitGroup
}

// Start creates the network, with the cable as its path. There can be only one at a time; Start removes one that a
// killed run has left. The caller stops it.
func Start(ctx context.Context) (*Network, error) {
	clean()
	err := netns.Run(ctx,
		[]string{"ip", "netns", "add", namespace},
		[]string{"ip", "addr", "add", Host + "/32", "dev", "lo"},
		[]string{"ip", "link", "add", hostCable, "type", "veth", "peer", "name", inCable, "netns", namespace},
		[]string{"ip", "link", "set", hostCable, "up"},
		[]string{"ip", "-n", namespace, "link", "set", "lo", "up"},
		[]string{"ip", "-n", namespace, "addr", "add", Device + "/32", "dev", "lo"},
		[]string{"ip", "-n", namespace, "link", "set", inCable, "up"},
	)
	if err != nil {
		clean()
		return nil, err
	}
	n := &Network{}
	if n.host, err = openTUN(hostSlow); err == nil {
		n.device, err = openTUN(inSlow)
	}
	if err == nil {
		err = netns.Run(ctx,
			[]string{"ip", "link", "set", hostSlow, "up"},
			[]string{"ip", "link", "set", inSlow, "netns", namespace},
			[]string{"ip", "-n", namespace, "link", "set", inSlow, "up"},
		)
	}
	if err == nil {
		err = n.Cable(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, n.Stop(ctx))
	}
	n.wg.Go(func() { n.path.forward(n.device, n.host) })
	n.wg.Go(func() { n.path.forward(n.host, n.device) })
	return n, nil
}

// Stop removes the network.
func (n *Network) Stop(context.Context) error {
	var errs []error
	for _, f := range []*os.File{n.host, n.device} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	n.wg.Wait()
	clean()
	return errors.Join(errs...)
}

func clean() {
	for _, args := range [][]string{
		{"netns", "del", namespace}, {"link", "del", hostCable}, {"addr", "del", Host + "/32", "dev", "lo"},
	} {
		_ = exec.Command("ip", args...).Run() // there may be none
	}
}

// Cable switches to the cable.
func (n *Network) Cable(ctx context.Context) error { return route(ctx, hostCable, inCable) }

// Slow switches to a slow path of the given quality.
func (n *Network) Slow(ctx context.Context, q Quality) error {
	n.path.set(q)
	return route(ctx, hostSlow, inSlow)
}

func route(ctx context.Context, host, device string) error {
	return netns.Run(ctx,
		[]string{"ip", "route", "replace", Device + "/32", "dev", host, "src", Host},
		[]string{"ip", "-n", namespace, "route", "replace", Host + "/32", "dev", device, "src", Device},
		[]string{"ip", "-n", namespace, "route", "replace", "default", "dev", device, "src", Device},
	)
}

// Wrap writes a script into a folder that runs a program in the namespace, and returns its path.
func (n *Network) Wrap(dir, program string) (string, error) {
	return netns.Wrap(dir, namespace, program)
}

// Dial connects as a program in the namespace does.
func (n *Network) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return netns.Dial(ctx, namespace, network, address)
}

// openTUN makes a network device whose packets are read from and written to a file.
func openTUN(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	ifr, err := unix.NewIfreq(name)
	if err == nil {
		ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("make network device %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
