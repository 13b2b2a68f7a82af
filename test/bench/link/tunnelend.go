package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// endTunnel ends the node's tunnel, if there is one, and returns when both ends know.
func (s *tunnelSite) endTunnel(ctx context.Context) error {
	return until(ctx, "there is no tunnel", edgeTime, func() (bool, error) {
		in, err := s.cloud.Get(ctx, "/metrics")
		if err != nil {
			return false, err
		}
		out, err := s.edge.Get(ctx, "/metrics")
		if err != nil {
			return false, err
		}
		cloud, err := metric(in, "cloudcore_tunnels")
		if err != nil {
			return false, err
		}
		edge, err := metric(out, "edgecore_tunnels")
		if err != nil || cloud+edge == 0 {
			return true, err
		}
		return false, s.shutTunnels()
	})
}

// shutTunnels shuts down cloudcore's sockets of tunnels, since cloudcore has no command for that. It skips the sockets
// of links, whose ports prepare recorded before there was a tunnel.
func (s *tunnelSite) shutTunnels() error {
	return s.hubSockets(func(fd int, port uint16) error {
		if s.links[port] {
			return nil
		}
		if err := unix.Shutdown(fd, unix.SHUT_RDWR); err != nil && err != unix.ENOTCONN {
			return fmt.Errorf("shut the socket of a tunnel: %w", err)
		}
		return nil
	})
}

// hubSockets calls do for each socket at cloudcore's port for links and tunnels, with a copy of the socket and the port
// of its other end.
func (s *tunnelSite) hubSockets(do func(fd int, port uint16) error) error {
	process, err := unix.PidfdOpen(s.cloud.PID(), 0)
	if err != nil {
		return fmt.Errorf("open cloudcore's process: %w", err)
	}
	defer unix.Close(process)
	files, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(s.cloud.PID()), "fd"))
	if err != nil {
		return err
	}
	for _, f := range files {
		number, err := strconv.Atoi(f.Name())
		if err != nil {
			return err
		}
		fd, err := unix.PidfdGetfd(process, number, 0)
		if err != nil {
			continue // closed meanwhile
		}
		if near, ok := address(unix.Getsockname(fd)); ok && int(near.Port()) == s.cloud.Link {
			if far, ok := address(unix.Getpeername(fd)); ok {
				err = do(fd, far.Port())
			}
		}
		_ = unix.Close(fd)
		if err != nil {
			return err
		}
	}
	return nil
}

// address is the address of an IP socket.
func address(a unix.Sockaddr, err error) (netip.AddrPort, bool) {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)), err == nil
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)), err == nil
	}
	return netip.AddrPort{}, false
}
