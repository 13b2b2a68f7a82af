// Package testenv gives tests the real parts they run against: a private containerd with the test
// images loaded, and edgecore on top of it. Whatever a test starts is removed when it ends, and the
// test fails when anything is left. A part that is missing on the machine fails the test.
package testenv

import (
	"context"
	"errors"
	"os"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cgroups"
	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// CgroupDriverEnv chooses the cgroup driver of containerd and edgecore; empty is cgroupfs.
const CgroupDriverEnv = "EDGECORE_TEST_CGROUP_DRIVER"

// Options say which containerd a test wants. The zero value is the machine's, with images.
type Options struct {
	// Containerd2 asks for containerd 2.x (which has CRI events and RuntimeConfig), built from
	// test/containerd2.
	Containerd2 bool
	// OwnUsers gives a containerd 2.x the handler containerd.OwnUsers, whose pods may have user namespaces.
	OwnUsers bool
	// DiscardLayers has containerd not keep the blobs of layers that it has unpacked.
	DiscardLayers bool
	// Binary is another containerd to run, or a program that runs one.
	Binary string
	// NoImages leaves the test images out.
	NoImages bool
	// Root is where the containerd keeps its images and containers, on a small file system say; empty is a folder of
	// its own.
	Root string
}

// StartContainerd starts a containerd for the test alone and removes it when the test ends.
func StartContainerd(t testing.TB, opts Options) *containerd.Instance {
	t.Helper()
	binary := opts.Binary
	if opts.Containerd2 {
		var err error
		if binary, err = containerd.Build2(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	runc := ""
	if opts.OwnUsers {
		var err error
		if runc, err = containerd.BuildRunc(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	instance, err := containerd.Start(t.Context(), containerd.Options{
		Root:          opts.Root,
		Binary:        binary,
		Runc:          runc,
		DiscardLayers: opts.DiscardLayers,
		SystemdCgroup: os.Getenv(CgroupDriverEnv) == cgroups.DriverSystemd,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, instance) })
	if opts.NoImages {
		return instance
	}
	if err := instance.LoadImages(t.Context()); err != nil {
		t.Fatal(err)
	}
	return instance
}

func remove(t testing.TB, instance *containerd.Instance) {
	if t.Failed() {
		t.Logf("the end of containerd's log:\n%s", daemon.Tail(instance.LogFile(), 40))
	}
	ctx, cancel := daemon.Within(context.Background())
	defer cancel()
	if err := instance.Stop(ctx); err != nil {
		t.Errorf("stop containerd %s: %v", instance.Name, err)
	}
	CheckNoLeaks(t, instance)
}

// CheckNoLeaks fails the test when anything of a stopped instance is left on the machine.
func CheckNoLeaks(t testing.TB, instance *containerd.Instance) {
	t.Helper()
	ctx, cancel := daemon.Within(context.Background())
	defer cancel()
	for _, left := range instance.Leaks(ctx) {
		t.Errorf("containerd %s is stopped, and this is left of it: %s", instance.Name, left)
	}
}

// Dial returns a client of the instance's CRI, closed when the test ends.
func Dial(t testing.TB, instance *containerd.Instance) *cri.Client {
	t.Helper()
	client, err := instance.Dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Errorf("close the CRI client: %v", err)
		}
	})
	return client
}

// RemoveSandboxes takes every sandbox and container of a runtime away, also while an agent makes new ones.
func RemoveSandboxes(t testing.TB, runtime runtimeapi.RuntimeServiceClient) {
	t.Helper()
	boxes, err := runtime.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, box := range boxes.GetItems() {
		wait.Until(t, "sandbox "+box.GetId()+" to go", func() error {
			if _, err := runtime.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{
				PodSandboxId: box.GetId(),
			}); err != nil {
				return err
			}
			_, err := runtime.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{
				PodSandboxId: box.GetId(),
			})
			return err
		})
	}
}

// StartAgent runs an edgecore on a containerd, and ends both when the test does: the agent's pods with it.
func StartAgent(t testing.TB, instance *containerd.Instance, opts agent.Options) *agent.Agent {
	t.Helper()
	if opts.Binary == "" {
		var err error
		if opts.Binary, err = agent.Build(t.Context(), t.TempDir()); err != nil {
			t.Fatal(err)
		}
	}
	if opts.Dir == "" {
		opts.Dir = t.TempDir()
	}
	opts.Endpoint, opts.CgroupRoot, opts.CgroupDriver = instance.Endpoint(), instance.CgroupRoot(),
		cgroups.DriverCgroupfs
	if instance.SystemdCgroup {
		opts.CgroupDriver = cgroups.DriverSystemd
	}
	a, err := agent.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	// Runs before the containerd's own clean-up, and before the folder is removed.
	t.Cleanup(func() {
		ctx, cancel := daemon.Within(context.Background())
		defer cancel()
		if err := a.Stop(ctx); err != nil {
			t.Errorf("stop edgecore: %v", err)
		}
		if t.Failed() {
			t.Logf("the end of edgecore's log:\n%s", daemon.Tail(a.Log(), 60))
		}
		if err := errors.Join(agent.Unmount(opts.Dir), a.RemoveLogLinks()); err != nil {
			t.Error(err)
		}
	})
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return a
}
