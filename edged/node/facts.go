package node

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// IP returns the address by which this node is known: of the interface that has the default
// route, else of the first interface that is up and no loopback. It asks the kernel only and sends
// nothing. "" means that the node has no network (yet).
func IP() string {
	// Connecting a UDP socket makes the kernel pick a source address, without a packet.
	if conn, err := net.Dial("udp4", "192.0.2.1:9"); err == nil {
		defer conn.Close()
		if a, ok := conn.LocalAddr().(*net.UDPAddr); ok && !a.IP.IsLoopback() && !a.IP.IsUnspecified() {
			return a.IP.String()
		}
	}
	ifaces, err := net.Interfaces()
	if err != nil {
		return ""
	}
	for _, i := range ifaces {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
				return n.IP.String()
			}
		}
	}
	return ""
}

// Capacity returns the node's cpu, memory, pods, storage for what pods write, and huge pages. Storage is that of the
// file system on which dir is, or will be.
func Capacity(maxPods int32, dir string) (v1.ResourceList, error) {
	memory, err := memInfo("/proc/meminfo", "MemTotal")
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

// memInfo reads a size, in bytes, of those that the kernel tells of its memory.
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

// AddressOf returns the address of an interface by which the node is known: its first global one, of IPv4 where it has
// one. "" means that it has none (yet).
func AddressOf(name string) string {
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
		case n.IP.To4() != nil:
			return n.IP.String()
		case other == "":
			other = n.IP.String()
		}
	}
	return other
}
