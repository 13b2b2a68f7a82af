package edgehub

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// watchNetwork calls changed for each change of a link, an address or a route that may open or close a way to the
// cloud, until ctx ends.
func watchNetwork(ctx context.Context, changed func()) error {
	s, err := subscribe()
	if err != nil {
		return err
	}
	return s.follow(ctx, changed)
}

// networkSocket reports changes of the network namespace in which it was created.
type networkSocket struct{ *nl.NetlinkSocket }

func subscribe() (networkSocket, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return networkSocket{}, fmt.Errorf("subscribe to changes of the network: %w", err)
	}
	return networkSocket{s}, nil
}

// follow reads the socket until ctx ends, then closes it.
func (s networkSocket) follow(ctx context.Context, changed func()) error {
	stop := context.AfterFunc(ctx, s.Close)
	defer func() {
		if stop() {
			s.Close()
		}
	}()
	up := map[int]bool{}
	for {
		messages, _, err := s.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS): // messages were lost: something changed
			changed()
			continue
		case err != nil:
			return fmt.Errorf("receive changes of the network: %w", err)
		}
		for _, m := range messages {
			if isRelevant(up, m) {
				changed()
			}
		}
	}
}

// isRelevant reports whether a change may affect the way to the cloud. Pods' links (veth) do not; neither do the many
// messages about an unchanged link. up holds, by index, links that can carry packets.
func isRelevant(up map[int]bool, m syscall.NetlinkMessage) bool {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return isRelevantLink(up, m)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return len(m.Data) >= unix.SizeofIfAddrmsg && nl.DeserializeIfAddrmsg(m.Data).Scope < unix.RT_SCOPE_LINK
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return isRelevantRoute(m.Data)
	}
	return false
}

// isRelevantRoute ignores the device's own addresses (other tables), those of pods (whole addresses without a gateway),
// and those of every link (link-local nets).
func isRelevantRoute(data []byte) bool {
	if len(data) < unix.SizeofRtMsg {
		return false
	}
	route := nl.DeserializeRtMsg(data)
	if route.Table != unix.RT_TABLE_MAIN || route.Type != unix.RTN_UNICAST {
		return false
	}
	attrs, err := nl.ParseRouteAttr(data[unix.SizeofRtMsg:])
	if err != nil {
		return false
	}
	gateway := false
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.RTA_GATEWAY, unix.RTA_VIA:
			gateway = true
		case unix.RTA_DST:
			if dst, ok := netip.AddrFromSlice(a.Value); ok && dst.IsLinkLocalUnicast() {
				return false
			}
		}
	}
	whole := uint8(32)
	if route.Family == unix.AF_INET6 {
		whole = 128
	}
	return gateway || route.Dst_len < whole
}

func isRelevantLink(up map[int]bool, m syscall.NetlinkMessage) bool {
	if len(m.Data) < unix.SizeofIfInfomsg {
		return false
	}
	link, err := netlink.LinkDeserialize((*unix.NlMsghdr)(&m.Header), m.Data)
	if err != nil || link.Type() == "veth" || link.Attrs().RawFlags&unix.IFF_LOOPBACK != 0 {
		return false
	}
	index := link.Attrs().Index
	carries := m.Header.Type == unix.RTM_NEWLINK && link.Attrs().RawFlags&unix.IFF_UP != 0 &&
		link.Attrs().RawFlags&unix.IFF_RUNNING != 0
	if up[index] == carries {
		return false
	}
	if carries {
		up[index] = true
	} else {
		delete(up, index)
	}
	return true
}
