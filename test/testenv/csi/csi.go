// Package csi runs a CSI driver of the tests (command hostpath beside it) as a process of its own.
package csi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/edgecore-io/edgecore/edged/storage/volume"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// Options say which driver to run.
type Options struct {
	// Binary is the driver; see Build.
	Binary string
	// Name is the driver's, Node that of the node.
	Name, Node string
	// Root is the agent's folder, Dir that of the volumes.
	Root, Dir string
	// Without are capabilities that it lacks; Args are more flags.
	Without []string
	Args    []string
}

// Driver is a driver with its files. Its methods must not be called at the same time.
type Driver struct {
	Options
	proc *daemon.Process
}

// Build builds the driver into a folder, and returns its path.
func Build(ctx context.Context, dir string) (string, error) {
	mod, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	out := filepath.Join(dir, "hostpath")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", out, "./test/testenv/csi/hostpath")
	cmd.Dir = filepath.Dir(strings.TrimSpace(string(mod)))
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the CSI driver: %w\n%s", err, text)
	}
	return out, nil
}

// Start runs a driver until the test ends.
func Start(t testing.TB, opts Options) *Driver {
	t.Helper()
	d := &Driver{Options: opts}
	if err := errors.Join(os.MkdirAll(filepath.Join(d.Root, "plugins_registry"), 0o750),
		os.MkdirAll(d.Dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.End(context.Background(), syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		d.sweep(t)
		if t.Failed() {
			t.Logf("the end of the log of driver %s:\n%s", d.Name, daemon.Tail(d.log(), 20))
		}
	})
	d.Run(t)
	return d
}

// sweep takes away what a test that failed has left.
func (d *Driver) sweep(t testing.TB) {
	for _, dir := range []string{d.staged(), d.Dir} {
		if err := volume.UnmountAll(dir); err != nil {
			t.Error(err)
		}
	}
	for _, file := range d.devices() {
		if out, err := exec.Command("losetup", "--detach", "/dev/"+filepath.Base(filepath.Dir(filepath.Dir(file)))).
			CombinedOutput(); err != nil {
			t.Errorf("losetup: %v: %s", err, out)
		}
	}
}

// staged is the folder in which the agent stages the driver's volumes.
func (d *Driver) staged() string {
	return filepath.Join(d.Root, "plugins", "kubernetes.io", "csi", d.Name)
}

// devices are the files that name the loop devices of the volumes.
func (d *Driver) devices() []string {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(files, func(file string) bool {
		data, err := os.ReadFile(file)
		return err != nil || !strings.HasPrefix(string(data), d.Dir+"/")
	})
}

// Socket is where the driver answers; Registration is where it registers.
func (d *Driver) Socket() string { return filepath.Join(d.Dir, "csi.sock") }

// Registration is the socket on which it registers.
func (d *Driver) Registration() string {
	return filepath.Join(d.Root, "plugins_registry", d.Name+"-reg.sock")
}

func (d *Driver) log() string { return filepath.Join(d.Dir, "driver.log") }

// Run starts the driver again.
func (d *Driver) Run(t testing.TB) {
	t.Helper()
	args := append([]string{
		"-name", d.Name, "-node", d.Node, "-dir", d.Dir, "-endpoint", d.Socket(), "-registry",
		filepath.Join(d.Root, "plugins_registry"),
		"-without", strings.Join(d.Without, ","),
	}, d.Args...)
	proc, err := daemon.Start(d.log(), nil, d.Binary, args...)
	if err != nil {
		t.Fatal(err)
	}
	d.proc = proc
}

// End ends the driver with a signal: SIGTERM takes its sockets with it, SIGKILL leaves them.
func (d *Driver) End(ctx context.Context, signal syscall.Signal) error {
	return d.proc.End(ctx, signal)
}

// Fault has a method hang ("hang"), fail with a text, or work again ("").
func (d *Driver) Fault(t testing.TB, method, what string) {
	t.Helper()
	data, err := json.Marshal(map[string]string{method: what})
	if err != nil {
		t.Fatal(err)
	}
	next := filepath.Join(d.Dir, "faults.next")
	if err := errors.Join(os.WriteFile(next, data, 0o600),
		os.Rename(next, filepath.Join(d.Dir, "faults.json"))); err != nil {
		t.Fatal(err)
	}
}

// Call is a call that the driver was asked.
type Call struct {
	Method  string          `json:"method"`
	Request json.RawMessage `json:"request"`
}

// Calls returns the calls of a method so far, all of them for "".
func (d *Driver) Calls(t testing.TB, method string) []Call {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(d.Dir, "calls.log"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var calls []Call
	for line := range bytes.Lines(data) {
		var c Call
		if err := json.Unmarshal(line, &c); err != nil {
			continue // of a driver that was killed
		}
		if method == "" || c.Method == method {
			calls = append(calls, c)
		}
	}
	return calls
}

// Controller calls the driver as a controller would.
func (d *Driver) Controller(t testing.TB, do func(context.Context, csi.ControllerClient) error) {
	t.Helper()
	d.call(t, func(ctx context.Context, conn *grpc.ClientConn) error { return do(ctx, csi.NewControllerClient(conn)) })
}

// Kubelet calls the driver as a kubelet would.
func (d *Driver) Kubelet(t testing.TB, do func(context.Context, csi.NodeClient) error) {
	t.Helper()
	d.call(t, func(ctx context.Context, conn *grpc.ClientConn) error { return do(ctx, csi.NewNodeClient(conn)) })
}

func (d *Driver) call(t testing.TB, do func(context.Context, *grpc.ClientConn) error) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///driver", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", d.Socket())
		}), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := do(wait.Context(t), conn); err != nil {
		t.Fatal(err)
	}
}

// Create makes a volume: kind is "" for a folder, "ext4" or "block".
func (d *Driver) Create(t testing.TB, id, kind string, size int64) {
	t.Helper()
	c := &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
	if kind == "block" {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: kind}}
	}
	d.Controller(t, func(ctx context.Context, client csi.ControllerClient) error {
		_, err := client.CreateVolume(ctx, &csi.CreateVolumeRequest{
			Name: id, VolumeCapabilities: []*csi.VolumeCapability{c},
			CapacityRange: &csi.CapacityRange{RequiredBytes: size},
		})
		return err
	})
}

// Expand grows a volume, but not what is on it.
func (d *Driver) Expand(t testing.TB, id string, size int64) {
	t.Helper()
	d.Controller(t, func(ctx context.Context, client csi.ControllerClient) error {
		_, err := client.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
			VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: size},
		})
		return err
	})
}

// Left says what is left of the driver's volumes on the machine: mounts, devices, and what the agent has staged.
func (d *Driver) Left() error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, d.Dir+"/") || strings.Contains(line, d.staged()+"/") {
			return fmt.Errorf("still mounted: %s", line)
		}
	}
	if left := d.devices(); len(left) > 0 {
		return fmt.Errorf("still a device: %s", left)
	}
	if entries, err := os.ReadDir(d.staged()); err == nil && len(entries) > 0 {
		return fmt.Errorf("still there: %s in %s", entries[0].Name(), d.staged())
	}
	return nil
}
