package node

import (
	"bufio"
	"fmt"
	"net"
	"os"
	goruntime "runtime"
	"strconv"
	"strings"

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

// Capacity returns the node's cpu, memory and pods.
func Capacity(maxPods int32) (v1.ResourceList, error) {
	memory, err := memTotal("/proc/meminfo")
	if err != nil {
		return nil, err
	}
	return v1.ResourceList{
		v1.ResourceCPU:    *resource.NewQuantity(int64(goruntime.NumCPU()), resource.DecimalSI),
		v1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI),
		v1.ResourcePods:   *resource.NewQuantity(int64(maxPods), resource.DecimalSI),
	}, nil
}

// Allocatable is the capacity less what is reserved for the system and the agent, never below 0.
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
	return left, nil
}

// memTotal reads the size of the memory, in bytes.
func memTotal(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) >= 2 && fields[0] == "MemTotal:" {
			kb, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: MemTotal: %w", path, err)
			}
			return kb << 10, nil
		}
	}
	return 0, fmt.Errorf("%s: no MemTotal", path)
}
