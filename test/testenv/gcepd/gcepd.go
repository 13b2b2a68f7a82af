// Package gcepd runs the CSI driver of Google's persistent disks for tests, whose disks are loop devices. It is the one
// that test/gcepd pins.
package gcepd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/edgecore-io/edgecore/edged/storage/volume"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/pinned"
)

// BinaryEnv names a driver that was built before.
const BinaryEnv = "EDGECORE_TEST_GCEPD"

// Build returns the path of the driver.
func Build(ctx context.Context, progress io.Writer) (string, error) {
	return pinned.Program{
		Name:   "gcepd",
		Folder: "gcepd",
		Target: ".",
		Env:    BinaryEnv,
		Takes:  "3 minutes",
	}.Build(ctx, progress)
}

// Options say which driver to run.
type Options struct {
	// Name is the driver's, Node that of the node, Root the agent's folder.
	Name, Node, Root string
	// Disk is the name of its disk, of Size bytes.
	Disk string
	Size int64
}

// Handle is how a PersistentVolume names a disk.
func Handle(disk string) string {
	return "projects/test-project/zones/country-region-zone/disks/" + disk
}

// Start runs a driver with one disk until the test ends.
func Start(t testing.TB, opts Options) {
	t.Helper()
	binary, err := Build(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "gcepd") // t.TempDir is too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	disks := filepath.Join(dir, "disks")
	if err := errors.Join(os.MkdirAll(filepath.Join(opts.Root, "plugins_registry"), 0o750),
		os.MkdirAll(disks, 0o755)); err != nil {
		t.Fatal(err)
	}
	device := attach(t, filepath.Join(dir, "disk"), opts.Size)
	if err := os.Symlink(device, filepath.Join(disks, opts.Disk)); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(dir, "driver.log")
	proc, err := daemon.Start(log, nil, binary, "-name", opts.Name, "-node", opts.Node, "-disks", disks,
		"-endpoint", filepath.Join(dir, "csi.sock"), "-registry", filepath.Join(opts.Root, "plugins_registry"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := errors.Join(proc.End(context.Background(), syscall.SIGKILL),
			// what a test that failed has left
			volume.UnmountAll(filepath.Join(opts.Root, "plugins", "kubernetes.io", "csi", opts.Name)))
		if err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the end of the log of driver %s:\n%s", opts.Name, daemon.Tail(log, 30))
		}
	})
}

// attach makes a file a disk until the test ends.
func attach(t testing.TB, file string, size int64) (device string) {
	t.Helper()
	f, err := os.Create(file)
	if err == nil {
		err = errors.Join(f.Truncate(size), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "losetup", "--find", "--show", file).CombinedOutput()
	if err != nil {
		t.Fatalf("losetup: %v: %s", err, out)
	}
	device = strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil {
			t.Error(fmt.Errorf("losetup --detach %s: %w: %s", device, err, out))
		}
	})
	return device
}
