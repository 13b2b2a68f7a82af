package node

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// IP returns the address by which this node is known: the one from which the default route is used; "" without one. It
// asks the kernel only and sends nothing. ipv6 prefers the default route of IPv6.
func IP(ipv6 bool) string {
	// Connecting a UDP socket makes the kernel pick a source address, without a packet.
	targets := []struct{ network, address string }{{"udp4", "192.0.2.1:9"}, {"udp6", "[2001:db8::1]:9"}}
	if ipv6 {
		slices.Reverse(targets)
	}
	for _, to := range targets {
		conn, err := net.Dial(to.network, to.address)
		if err != nil {
			continue
		}
		a, ok := conn.LocalAddr().(*net.UDPAddr)
		_ = conn.Close()
		if ok && a.IP.IsGlobalUnicast() {
			return a.IP.String()
		}
	}
	return ""
}

// Capacity returns the node's cpu, memory, pods, storage for what pods write, and huge pages. Storage is that of the
// file system on which dir is, or will be.
func Capacity(maxPods int32, dir string) (v1.ResourceList, error) {
	memory, err := Memory()
	if err != nil {
		return nil, err
	}
	list := v1.ResourceList{
		v1.ResourceCPU:    *resource.NewQuantity(int64(goruntime.NumCPU()), resource.DecimalSI),
		v1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI),
		v1.ResourcePods:   *resource.NewQuantity(int64(maxPods), resource.DecimalSI),
	}
	if size := diskSize(dir); size > 0 {
		list[v1.ResourceEphemeralStorage] = *resource.NewQuantity(size, resource.BinarySI)
	}
	for size, count := range hugePages(hugePagesDir) {
		list[hugeName(size)] = *resource.NewQuantity(size*count, resource.BinarySI)
	}
	return list, nil
}

// diskSize is the size of the file system of a folder, or of the nearest one above it that is there.
func diskSize(dir string) int64 {
	for {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if err == nil {
			return int64(st.Blocks) * int64(st.Bsize)
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return 0
		}
		dir = parent
	}
}

// Allocatable is the capacity less what is reserved for the system and the agent, never below 0. Memory that is set
// aside for huge pages is for nothing else.
func Allocatable(capacity v1.ResourceList, reserved ...map[string]string) (v1.ResourceList, error) {
	left := capacity.DeepCopy()
	for _, r := range reserved {
		for name, text := range r {
			q, err := resource.ParseQuantity(text)
			if err != nil {
				return nil, fmt.Errorf("reserved %s: %q is not a quantity: %w", name, text, err)
			}
			have, ok := left[v1.ResourceName(name)]
			if !ok {
				continue
			}
			have.Sub(q)
			if have.Sign() < 0 {
				have.Set(0)
			}
			left[v1.ResourceName(name)] = have
		}
	}
	for name, q := range capacity {
		if memory, ok := left[v1.ResourceMemory]; ok && strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
			memory.Sub(q)
			if memory.Sign() < 0 {
				memory.Set(0)
			}
			left[v1.ResourceMemory] = memory
		}
	}
	return left, nil
}

// Memory returns the memory of the device, in bytes.
func Memory() (int64, error) { return memInfo("/proc/meminfo", "MemTotal") }

// memInfo reads a size of /proc/meminfo, in bytes.
func memInfo(path, name string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) >= 2 && fields[0] == name+":" {
			kb, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: %s: %w", path, name, err)
			}
			return kb << 10, nil
		}
	}
	return 0, fmt.Errorf("%s: no %s", path, name)
}

// LocalIPs returns addresses of a node without a default route: that of the first interface with hardware, and that of
// the first other one that does not lead to the node's own pods; "" where there is none.
func LocalIPs(ipv6 bool) (hardware, other string) {
	list, err := net.Interfaces()
	if err != nil {
		return "", ""
	}
	var up []string
	for _, i := range list {
		if i.Flags&net.FlagUp != 0 && i.Flags&net.FlagLoopback == 0 {
			up = append(up, i.Name)
		}
	}
	first := func(names []string) string {
		for _, name := range names {
			if ip := AddressOf(name, ipv6); ip != "" {
				return ip
			}
		}
		return ""
	}
	devices, others := externalInterfaces(netDir, up)
	return first(devices), first(others)
}

// netDir is where the kernel shows its network interfaces.
const netDir = "/sys/class/net"

// externalInterfaces returns those of some interfaces that lead out of the node: those that have hardware or are made
// of such (a bond, a VLAN, a bridge with a network card), and others that are neither a bridge nor a port of one, such
// as the interface of a container in which the agent runs.
func externalInterfaces(dir string, names []string) (hardware, others []string) {
	for _, name := range names {
		switch {
		case hasHardware(dir, name, 4):
			hardware = append(hardware, name)
		case exists(filepath.Join(dir, name, "bridge")), exists(filepath.Join(dir, name, "master")):
		default:
			others = append(others, name)
		}
	}
	return hardware, others
}

// hasHardware reports whether an interface, or one of those below it, is a device; depth ends a circle.
func hasHardware(dir, name string, depth int) bool {
	if exists(filepath.Join(dir, name, "device")) {
		return true
	}
	entries, err := os.ReadDir(filepath.Join(dir, name))
	if err != nil || depth == 0 {
		return false
	}
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		below, ok := strings.CutPrefix(e.Name(), "lower_")
		return ok && hasHardware(dir, below, depth-1)
	})
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// AddressOf returns the address of an interface by which the node is known: its first global one, of IPv4, or with ipv6
// of IPv6, where it has one. "" means that it has none (yet).
func AddressOf(name string, ipv6 bool) string {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return ""
	}
	addrs, err := i.Addrs()
	if err != nil {
		return ""
	}
	other := ""
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		switch {
		case !ok || !n.IP.IsGlobalUnicast():
		case (n.IP.To4() == nil) == ipv6:
			return n.IP.String()
		case other == "":
			other = n.IP.String()
		}
	}
	return other
}
