package edgehub

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

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
	seen := links{}
	for {
		messages, _, err := s.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS): // messages were lost: something changed
			clear(seen)
			changed()
			continue
		case err != nil:
			return fmt.Errorf("receive changes of the network: %w", err)
		}
		for _, m := range messages {
			if seen.isRelevant(m) {
				changed()
			}
		}
	}
}

// links are links that can carry packets, by index: true for those of pods, which do not matter.
type links map[int32]bool

// isRelevant reports whether a change may affect the way to the cloud. Pods' links (veth) do not; neither do the many
// messages about an unchanged link.
func (l links) isRelevant(m syscall.NetlinkMessage) bool {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return l.isRelevantLink(m)
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

// isRelevantLink parses the attributes of a link, which takes long, only when it begins to carry packets: the kernel
// sends dozens of messages for each pod that starts or ends.
func (l links) isRelevantLink(m syscall.NetlinkMessage) bool {
	if len(m.Data) < unix.SizeofIfInfomsg {
		return false
	}
	info := nl.DeserializeIfInfomsg(m.Data)
	// Messages of the family AF_BRIDGE are about a link as a port of a bridge.
	if info.Family != unix.AF_UNSPEC || info.Flags&unix.IFF_LOOPBACK != 0 {
		return false
	}
	ofPod, carried := l[info.Index]
	carries := m.Header.Type == unix.RTM_NEWLINK && info.Flags&unix.IFF_UP != 0 && info.Flags&unix.IFF_RUNNING != 0
	if carried == carries {
		return false
	}
	if carries {
		ofPod = kindOf(m.Data) == "veth"
		l[info.Index] = ofPod
	} else {
		delete(l, info.Index)
	}
	return !ofPod
}

// kindOf returns the kind of the link that a message is about, such as veth; empty if it has none.
func kindOf(data []byte) string {
	find := func(data []byte, wanted uint16) []byte {
		attrs, err := nl.ParseRouteAttr(data)
		if err != nil {
			return nil
		}
		for _, a := range attrs {
			if a.Attr.Type&nl.NLA_TYPE_MASK == wanted {
				return a.Value
			}
		}
		return nil
	}
	return unix.ByteSliceToString(find(find(data[unix.SizeofIfInfomsg:], unix.IFLA_LINKINFO), unix.IFLA_INFO_KIND))
}
