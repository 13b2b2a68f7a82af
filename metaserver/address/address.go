// Package address keeps the address of the API endpoint on the loopback interface, so that pods reach the endpoint at
// the same address on each device, whatever its network is.
//
// The kernel does not choose the address as the source address of other connections: it has the scope host with IPv4,
// and is deprecated with IPv6. A device that ran KubeEdge has it on the interface edge-dummy0, where it stays.
package address

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/edgecore-io/edgecore/pkg/retry"
)

const (
	loopback = "lo"
	// dummy is the interface on which KubeEdge puts the address.
	dummy = "edge-dummy0"
	// label marks an IPv4 address that this package added. IPv6 addresses have no label.
	label = "lo:edgecore"
	// firstRetry and lastRetry bound how often a failed attempt is repeated, and an address put back.
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// found is an address of an interface.
type found struct {
	addr  netip.Addr
	index int
	label string
}

// Ensure puts an address on the loopback interface, unless it is there already, or on KubeEdge's edge-dummy0. If
// another interface has it, the error names that.
func Ensure(addr netip.Addr) error {
	have, err := find(addr)
	if err != nil {
		return fmt.Errorf("address %s of the API endpoint: %w", addr, err)
	}
	lo, err := net.InterfaceByName(loopback)
	if err != nil {
		return fmt.Errorf("address %s of the API endpoint: the interface %s: %w", addr, loopback, err)
	}
	for _, f := range have {
		if f.index == lo.Index {
			return nil
		}
		other, err := net.InterfaceByIndex(f.index)
		if err != nil {
			continue // it is gone since
		}
		if other.Name == dummy {
			return nil
		}
		return fmt.Errorf("address %s of the API endpoint is already on the interface %s: remove it there, or set "+
			"modules.metaManager.metaServer.dummyServer to another address", addr, other.Name)
	}
	if err := change(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, addr, lo.Index); err != nil &&
		!errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add address %s of the API endpoint to the interface %s: %w", addr, loopback, err)
	}
	return nil
}

// Remove removes an address that Ensure added. It leaves one that somebody else put on an interface; IPv6 addresses of
// the loopback interface cannot be told apart, and are removed.
func Remove(addr netip.Addr) error {
	have, err := find(addr)
	if err != nil {
		return fmt.Errorf("address %s of the API endpoint: %w", addr, err)
	}
	lo, err := net.InterfaceByName(loopback)
	if err != nil {
		return fmt.Errorf("address %s of the API endpoint: the interface %s: %w", addr, loopback, err)
	}
	for _, f := range have {
		if f.index != lo.Index || addr.Is4() && f.label != label {
			continue
		}
		if err := change(unix.RTM_DELADDR, unix.NLM_F_ACK, addr, lo.Index); err != nil &&
			!errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("remove address %s of the API endpoint from the interface %s: %w", addr, loopback, err)
		}
	}
	return nil
}

// change adds or removes an address of an interface.
func change(kind, flags int, addr netip.Addr, index int) error {
	req := nl.NewNetlinkRequest(kind, flags)
	msg := nl.NewIfAddrmsg(family(addr))
	msg.Prefixlen, msg.Scope, msg.Index = uint8(addr.BitLen()), unix.RT_SCOPE_HOST, uint32(index)
	if addr.Is6() {
		msg.Flags = unix.IFA_F_NODAD // the address is usable at once
	}
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFA_LOCAL, addr.AsSlice()))
	req.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, addr.AsSlice()))
	if addr.Is4() {
		req.AddData(nl.NewRtAttr(unix.IFA_LABEL, nl.ZeroTerminated(label)))
	} else {
		forever := nl.IfaCacheInfo{IfaCacheinfo: unix.IfaCacheinfo{Valid: math.MaxUint32}}
		req.AddData(nl.NewRtAttr(unix.IFA_CACHEINFO, forever.Serialize()))
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// find returns where an address is.
func find(addr netip.Addr) ([]found, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfAddrmsg(family(addr)))
	messages, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR)
	if err != nil {
		return nil, fmt.Errorf("list the addresses of this machine: %w", err)
	}
	var all []found
	for _, m := range messages {
		if f, ok := parse(m); ok && f.addr == addr {
			all = append(all, f)
		}
	}
	return all, nil
}

func family(addr netip.Addr) int {
	if addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// parse reads the content of a message about an address.
func parse(data []byte) (found, bool) {
	if len(data) < unix.SizeofIfAddrmsg {
		return found{}, false
	}
	f := found{index: int(nl.DeserializeIfAddrmsg(data).Index)}
	attrs, err := nl.ParseRouteAttr(data[unix.SizeofIfAddrmsg:])
	if err != nil {
		return found{}, false
	}
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.IFA_LOCAL:
			f.addr, _ = netip.AddrFromSlice(a.Value)
		case unix.IFA_ADDRESS: // for a link with a peer it is the peer's; then there is IFA_LOCAL, too
			if !f.addr.IsValid() {
				f.addr, _ = netip.AddrFromSlice(a.Value)
			}
		case unix.IFA_LABEL:
			f.label = unix.ByteSliceToString(a.Value)
		}
	}
	return f, f.addr.IsValid()
}

// Keep calls Ensure for addresses, and again when one of them is removed or comes to another interface, until ctx ends.
// It calls report with each result, and repeats what failed.
func Keep(ctx context.Context, addresses []netip.Addr, report func(error)) error {
	changes, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return fmt.Errorf("subscribe to changes of addresses: %w", err)
	}
	stop := context.AfterFunc(ctx, changes.Close)
	defer func() {
		if stop() {
			changes.Close()
		}
	}()
	for backoff := retry.NewBackoff(firstRetry, lastRetry); ; {
		var errs []error
		for _, addr := range addresses {
			errs = append(errs, Ensure(addr))
		}
		err := errors.Join(errs...)
		report(err)
		if err == nil {
			backoff.Reset()
			if err := await(changes, addresses); err != nil && ctx.Err() == nil {
				return err
			}
		}
		// Somebody who removes the address again and again does not keep the agent busy.
		if !backoff.Wait(ctx) {
			return nil
		}
	}
}

// await waits for a change of one of the addresses, or for changes that were lost.
func await(changes *nl.NetlinkSocket, addresses []netip.Addr) error {
	for {
		messages, _, err := changes.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS):
			return nil
		case err != nil:
			return fmt.Errorf("receive changes of addresses: %w", err)
		}
		for _, m := range messages {
			if f, ok := parse(m.Data); ok && slices.Contains(addresses, f.addr) {
				return nil
			}
		}
	}
}
