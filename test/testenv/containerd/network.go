package containerd

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// lock keeps other instances from choosing a network, or from clearing away what all instances
// share, until unlock is called.
func lock() (unlock func(), err error) {
	dir := filepath.Join(runDir, "lock")
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

// makeNetwork chooses a subnet that nothing on the machine uses and takes it by making the bridge:
// the CNI bridge plugin would make it too, but only with the first pod.
func (i *Instance) makeNetwork(ctx context.Context) error {
	unlock, err := lock()
	if err != nil {
		return err
	}
	defer unlock()
	if !i.Subnet.IsValid() {
		taken, err := takenSubnets()
		if err != nil {
			return err
		}
		seed := fnv.New32a()
		_, _ = seed.Write([]byte(i.Name))
		if i.Subnet, err = pickSubnet(taken, seed.Sum32()); err != nil {
			return err
		}
	}
	gateway := netip.PrefixFrom(i.Subnet.Addr().Next(), i.Subnet.Bits())
	for _, args := range [][]string{
		{"link", "add", i.Name, "type", "bridge"},
		{"address", "add", gateway.String(), "dev", i.Name},
		{"link", "set", i.Name, "up"},
	} {
		if err := ip(ctx, args...); err != nil {
			return err
		}
	}
	return i.save()
}

func ip(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func takenSubnets() ([]netip.Prefix, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var taken []netip.Prefix
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			taken = append(taken, p.Masked())
		}
	}
	f, err := os.Open("/proc/net/route")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if p, ok := parseRoute(lines.Text()); ok && p.Bits() > 0 {
			taken = append(taken, p)
		}
	}
	return taken, nil
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

// pickSubnet returns a /24 of 10.64.0.0/10 that overlaps none of taken, beginning at a place that
// seed decides, so that instances seldom reuse the addresses of one that has just gone.
func pickSubnet(taken []netip.Prefix, seed uint32) (netip.Prefix, error) {
	const count = 64 * 256
next:
	for n := range uint32(count) {
		k := (seed + n) % count
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(64 + k/256), byte(k % 256), 0}), 24)
		for _, t := range taken {
			if t.Overlaps(p) {
				continue next
			}
		}
		return p, nil
	}
	return netip.Prefix{}, fmt.Errorf("no free /24 in 10.64.0.0/10 for a bridge: all of it is in use on this machine")
}

// CNIConfig is the file of the instance's network. A containerd without it has none, which it notices as it runs.
func (i *Instance) CNIConfig() string { return filepath.Join(i.cniConfDir(), "10-"+i.Name+".conflist") }
