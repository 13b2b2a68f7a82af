// Package subnet finds networks that nothing on the machine uses, for the bridges and links of test environments.
package subnet

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Lock prevents other test environments from choosing a network or removing shared settings until unlock is called. The
// caller must claim a chosen network, with an address or a route, before it calls unlock.
func Lock() (unlock func(), err error) {
	const dir = "/run/lock"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "edgecore-testenv"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return func() { _ = f.Close() }, nil
}

// Choose returns a network of a size in bits within space that overlaps no address and no route of the machine. The
// search begins at a place derived from name, so that an environment seldom reuses the addresses of one that was just
// removed.
func Choose(space netip.Prefix, size int, name string) (netip.Prefix, error) {
	taken, err := taken()
	if err != nil {
		return netip.Prefix{}, err
	}
	seed := fnv.New32a()
	_, _ = seed.Write([]byte(name))
	return pick(space, size, taken, seed.Sum32())
}

// taken lists the networks of the machine's addresses and routes, except the default route.
func taken() ([]netip.Prefix, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var all []netip.Prefix
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			all = append(all, p.Masked())
		}
	}
	f, err := os.Open("/proc/net/route")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if p, ok := parseRoute(lines.Text()); ok && p.Bits() > 0 {
			all = append(all, p)
		}
	}
	return all, nil
}

// parseRoute reads the destination in a line of /proc/net/route: hex words in host byte order.
func parseRoute(line string) (netip.Prefix, bool) {
	fields := strings.Fields(line)
	if len(fields) < 8 {
		return netip.Prefix{}, false
	}
	dst, err := hex.DecodeString(fields[1])
	if err != nil || len(dst) != 4 {
		return netip.Prefix{}, false
	}
	mask, err := hex.DecodeString(fields[7])
	if err != nil || len(mask) != 4 {
		return netip.Prefix{}, false
	}
	var addr [4]byte
	binary.NativeEndian.PutUint32(addr[:], binary.BigEndian.Uint32(dst))
	ones := bits.OnesCount32(binary.BigEndian.Uint32(mask))
	return netip.PrefixFrom(netip.AddrFrom4(addr), ones), true
}

// pick returns a network within space, an IPv4 network, that overlaps none of taken. The search begins at a place
// derived from seed.
func pick(space netip.Prefix, size int, taken []netip.Prefix, seed uint32) (netip.Prefix, error) {
	first := space.Addr().As4()
	base, count := binary.BigEndian.Uint32(first[:]), uint32(1)<<(size-space.Bits())
next:
	for n := range count {
		var addr [4]byte
		binary.BigEndian.PutUint32(addr[:], base+(seed%count+n)%count<<(32-size))
		p := netip.PrefixFrom(netip.AddrFrom4(addr), size)
		for _, t := range taken {
			if t.Overlaps(p) {
				continue next
			}
		}
		return p, nil
	}
	return netip.Prefix{}, fmt.Errorf("no free /%d in %v: all of it is in use on this machine", size, space)
}
