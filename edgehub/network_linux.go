package edgehub

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// watchNetwork calls changed for each change of a link, an address or a route that may open a way to the cloud,
// or close one, until ctx ends.
func watchNetwork(ctx context.Context, changed func()) error {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return fmt.Errorf("subscribe to changes of the network: %w", err)
	}
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
		case errors.Is(err, unix.ENOBUFS): // more happened than was read: something did
			changed()
			continue
		case err != nil:
			return fmt.Errorf("receive changes of the network: %w", err)
		}
		for _, m := range messages {
			if matters(up, m) {
				changed()
			}
		}
	}
}

// matters tells whether a change may concern the way to the cloud. Pods come and go with links of their own
// (veth), which do not; neither do the many messages about a link that is as it was. up holds, by index,
// links that can carry packets.
func matters(up map[int]bool, m syscall.NetlinkMessage) bool {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return linkMatters(up, m)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return len(m.Data) >= unix.SizeofIfAddrmsg && nl.DeserializeIfAddrmsg(m.Data).Scope < unix.RT_SCOPE_LINK
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		if len(m.Data) < unix.SizeofRtMsg {
			return false
		}
		route := nl.DeserializeRtMsg(m.Data)
		// A way to somewhere else: through a gateway, or the default. Those to the device's own nets come with their addresses.
		return route.Table == unix.RT_TABLE_MAIN && route.Scope == unix.RT_SCOPE_UNIVERSE && route.Type == unix.RTN_UNICAST
	}
	return false
}

func linkMatters(up map[int]bool, m syscall.NetlinkMessage) bool {
	if len(m.Data) < unix.SizeofIfInfomsg {
		return false
	}
	link, err := netlink.LinkDeserialize((*unix.NlMsghdr)(&m.Header), m.Data)
	if err != nil || link.Type() == "veth" || link.Attrs().RawFlags&unix.IFF_LOOPBACK != 0 {
		return false
	}
	index := link.Attrs().Index
	carries := m.Header.Type == unix.RTM_NEWLINK && link.Attrs().RawFlags&unix.IFF_UP != 0 && link.Attrs().RawFlags&unix.IFF_RUNNING != 0
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
