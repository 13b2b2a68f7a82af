package containerd

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/edgecore-io/edgecore/test/testenv/subnet"
)

// bridges is where the subnets of bridges are.
var bridges = netip.MustParsePrefix("10.64.0.0/10")

// makeNetwork chooses a subnet that nothing on the machine uses and takes it by making the bridge:
// the CNI bridge plugin would make it too, but only with the first pod.
func (i *Instance) makeNetwork(ctx context.Context) error {
	unlock, err := subnet.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	if !i.Subnet.IsValid() {
		if i.Subnet, err = subnet.Choose(bridges, 24, i.Name); err != nil {
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

// CNIConfig is the file of the instance's network. A containerd without it has none, which it notices as it runs.
func (i *Instance) CNIConfig() string { return filepath.Join(i.cniConfDir(), "10-"+i.Name+".conflist") }
