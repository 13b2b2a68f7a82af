package containerd

import (
	"context"
	"os"
	"path/filepath"
)

// Programs2Env names a folder with a containerd 2.x, its shim and ctr, which is used where there is no Go to build
// them.
const Programs2Env = "EDGECORE_TEST_CONTAINERD2"

// Build2 returns the path of a containerd 2.x with its shim and ctr beside it. The version is that of the module
// test/containerd2.
func Build2(ctx context.Context) (string, error) {
	if dir := os.Getenv(Programs2Env); dir != "" {
		return filepath.Join(dir, "containerd"), nil
	}
	const from = "github.com/containerd/containerd/v2/cmd/"
	dir, err := program{
		module: "containerd2", packages: []string{from + "containerd", from + "containerd-shim-runc-v2", from + "ctr"},
		// Snapshotters that nobody uses here would double the time.
		tags: "no_btrfs,no_devmapper,no_zfs,no_aufs,no_tracing,osusergo,netgo",
	}.build(ctx)
	return filepath.Join(dir, "containerd"), err
}
