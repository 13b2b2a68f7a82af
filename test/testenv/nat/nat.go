// Package nat is a place for a device behind NAT: a network namespace whose only way out is a router that masquerades.
// Nothing outside has a route to it.
//
// A network has a name ("ec-" and eight hex digits), which its namespaces, its link and its folder /run/NAME share.
// Nothing else on the machine uses its addresses, so networks do not collide. If the owner of a network dies without
// stopping it, the next start of any network removes it (Sweep).
package nat

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/subnet"
)

const (
	runDir     = "/run"
	namePrefix = "ec-"
	recordName = "nat.json"
	// sysNet has an entry for each link of this machine's own network.
	sysNet = "/sys/class/net"
)

// The address ranges of the networks between router and device, and between router and host.
var (
	insides  = netip.MustParsePrefix("192.168.0.0/16")
	outsides = netip.MustParsePrefix("198.18.0.0/15") // which is for tests (RFC 2544)
)

// Network is a device's network. Its methods except Stop may be called concurrently.
type Network struct {
	// Address is the device's own address; Host is the one at which it reaches this machine.
	Address, Host string

	record
}

// record has the data that another process needs to remove a network.
type record struct {
	Name string `json:"name"`
	// Inside is the network between router and device.
	Inside netip.Prefix `json:"inside"`
	// Owner is the process that uses the network; after its death the network is removed.
	Owner daemon.Identity `json:"owner"`
}

// Start makes a network. On an error nothing is left behind. The caller stops it.
func Start(ctx context.Context) (*Network, error) {
	if err := Sweep(ctx); err != nil {
		return nil, err
	}
	var key [4]byte
	if _, err := rand.Read(key[:]); err != nil {
		return nil, err
	}
	owner, err := daemon.Identify(os.Getpid())
	if err != nil {
		return nil, err
	}
	n := &Network{record: record{Name: namePrefix + hex.EncodeToString(key[:]), Owner: owner}}
	if err := n.create(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("make a network behind NAT: %w", err), n.Stop(context.WithoutCancel(ctx)))
	}
	return n, nil
}

// create chooses the addresses, and claims them with the link and the route before anyone else can.
func (n *Network) create(ctx context.Context) error {
	unlock, err := subnet.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	if n.Inside, err = subnet.Choose(insides, 24, n.Name); err != nil {
		return err
	}
	outside, err := subnet.Choose(outsides, 30, n.Name)
	if err != nil {
		return err
	}
	if err := n.save(); err != nil {
		return err
	}
	host, routerInside := outside.Addr().Next(), n.Inside.Addr().Next()
	routerOutside, device := host.Next(), routerInside.Next()
	n.Host, n.Address = host.String(), device.String()
	with := func(a netip.Addr, network netip.Prefix) string { return netip.PrefixFrom(a, network.Bits()).String() }
	for _, command := range [][]string{
		{"ip", "netns", "add", n.router()},
		{"ip", "netns", "add", n.device()},
		{"ip", "link", "add", n.link(), "type", "veth", "peer", "name", "outside", "netns", n.router()},
		{"ip", "addr", "add", with(host, outside), "dev", n.link()},
		{"ip", "route", "add", "unreachable", n.Inside.String()}, // or the default route would be tried
		{"ip", "link", "set", n.link(), "up"},
		{"ip", "-n", n.router(), "addr", "add", with(routerOutside, outside), "dev", "outside"},
		{"ip", "-n", n.router(), "link", "set", "outside", "up"},
		{"ip", "-n", n.router(), "link", "add", "inside", "type", "veth", "peer", "name", "eth0", "netns", n.device()},
		{"ip", "-n", n.router(), "addr", "add", with(routerInside, n.Inside), "dev", "inside"},
		{"ip", "-n", n.router(), "link", "set", "inside", "up"},
		{"ip", "-n", n.device(), "addr", "add", with(device, n.Inside), "dev", "eth0"},
		{"ip", "-n", n.device(), "link", "set", "eth0", "up"},
		{"ip", "-n", n.device(), "link", "set", "lo", "up"},
		{"ip", "-n", n.device(), "route", "add", "default", "via", routerInside.String()},
		n.inRouter("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"),
		n.inRouter("iptables", "-w", "-t", "nat", "-A", "POSTROUTING", "-o", "outside", "-j", "MASQUERADE"),
	} {
		if err := run(ctx, command...); err != nil {
			return err
		}
	}
	return nil
}

// The names of the namespaces, and of the host's end of its link to the router.

func (n *Network) router() string { return n.Name + "-router" }
func (n *Network) device() string { return n.Name + "-device" }
func (n *Network) link() string   { return n.Name + "-nat" }

func (n *Network) dir() string { return filepath.Join(runDir, n.Name) }

// inRouter returns the command that runs another one on the router.
func (n *Network) inRouter(command ...string) []string {
	return append([]string{"ip", "netns", "exec", n.router()}, command...)
}

func run(ctx context.Context, command ...string) error {
	if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (n *Network) save() error {
	if err := os.Mkdir(n.dir(), 0o755); err != nil {
		return err
	}
	data, err := json.MarshalIndent(n.record, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(n.dir(), recordName), data, 0o644)
}

// Cut has the router drop all packets of the device.
func (n *Network) Cut(ctx context.Context) error { return n.forward(ctx, "DROP") }

// Mend makes the router forward packets again.
func (n *Network) Mend(ctx context.Context) error { return n.forward(ctx, "ACCEPT") }

// Refuse has the router refuse the device's TCP connections to a port.
func (n *Network) Refuse(ctx context.Context, port int) error {
	return run(ctx, n.inRouter("iptables", "-w", "-I", "FORWARD", "-p", "tcp", "--dport", strconv.Itoa(port), "-j",
		"REJECT")...)
}

func (n *Network) forward(ctx context.Context, policy string) error {
	return run(ctx, n.inRouter("iptables", "-w", "-P", "FORWARD", policy)...)
}

// Stop removes the network. Processes that still run in it keep its namespace, without a way out, until they exit. Stop
// may be called in any state, and repeatedly.
func (n *Network) Stop(ctx context.Context) error {
	var errs []error
	if exists(filepath.Join(sysNet, n.link())) { // before its other end, which would take it along a moment later
		errs = append(errs, run(ctx, "ip", "link", "delete", n.link()))
	}
	for _, name := range []string{n.device(), n.router()} {
		if exists(filepath.Join(runDir, "netns", name)) {
			errs = append(errs, run(ctx, "ip", "netns", "delete", name))
		}
	}
	if n.Inside.IsValid() {
		inside := n.Inside.String()
		routes, err := exec.CommandContext(ctx, "ip", "route", "show", "type", "unreachable", "exact", inside).Output()
		errs = append(errs, err)
		if len(routes) > 0 {
			errs = append(errs, run(ctx, "ip", "route", "delete", "unreachable", inside))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove the network %s: %w", n.Name, err)
	}
	return os.RemoveAll(n.dir())
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Sweep removes the networks whose owner has died without stopping them. It does not stop processes in them.
func Sweep(ctx context.Context) error {
	records, err := filepath.Glob(filepath.Join(runDir, namePrefix+"????????", recordName))
	if err != nil {
		panic(err) // a fixed pattern
	}
	for _, path := range records {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // removed just now
		}
		n := &Network{}
		if err := json.Unmarshal(data, &n.record); err != nil || n.Owner.Alive() {
			continue // being written, or wanted
		}
		if err := n.sweep(ctx, path); err != nil {
			return fmt.Errorf("its owner (process %d) died: %w", n.Owner.PID, err)
		}
	}
	return nil
}

// sweep removes the network of a record, or waits until another process has.
func (n *Network) sweep(ctx context.Context, path string) error {
	claim, err := daemon.Claim(ctx, path)
	if claim == nil {
		return err
	}
	defer claim.Close()
	return n.Stop(ctx)
}
