package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/subnet"
)

// politeTimeout bounds the wait for a runtime to remove its pods; after it they are killed.
const politeTimeout = 20 * time.Second

// Stop removes everything that the instance has made or run: pods, shims, mounts, network
// namespaces, the bridge, iptables rules, cgroups, folders. It may be called in any state, also on
// what is left of an instance, and again.
func (i *Instance) Stop(ctx context.Context) error {
	if i.Running() {
		_ = i.Resume()
		polite, cancel := context.WithTimeout(ctx, daemon.Scaled(politeTimeout))
		// Only the polite way: what it leaves is removed below.
		_ = i.removePods(polite)
		cancel()
		_ = i.Terminate(ctx)
	}
	if err := i.clear(ctx); err != nil {
		return err
	}
	// What is still mounted below may be a folder of the host: never delete through it.
	if left, err := mounts(i.Root, i.dir()); err != nil || len(left) > 0 {
		return errors.Join(err, fmt.Errorf("containerd %s: still mounted: %s", i.Name, strings.Join(left, ", ")))
	}
	return errors.Join(os.RemoveAll(i.Root), os.RemoveAll(i.dir()))
}

// clear takes away all that runs or is held by the kernel; the folders stay.
func (i *Instance) clear(ctx context.Context) error {
	ctx, cancel := daemon.Within(ctx)
	defer cancel()
	sockets := i.shimSockets()
	err := i.killProcesses(ctx)
	err = errors.Join(err, unmountUnder(i.Root, i.dir()))
	for _, socket := range sockets {
		_ = os.Remove(socket)
	}
	// A cgroup is busy until the last killed process has been reaped.
	err = errors.Join(err, i.stopSlice(ctx))
	err = errors.Join(err, daemon.Poll(ctx, func() error {
		var errs []error
		for _, tree := range i.cgroupTrees() {
			errs = append(errs, removeCgroups(tree))
		}
		return errors.Join(errs...)
	}))
	err = errors.Join(err, removeRules(ctx, i.Name))
	for _, path := range i.cniResults() {
		err = errors.Join(err, os.Remove(path))
	}
	return errors.Join(err, i.removeNetwork(ctx))
}

func (i *Instance) removeNetwork(ctx context.Context) error {
	unlock, err := subnet.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(filepath.Join("/sys/class/net", i.Name)); err == nil {
		if err := ip(ctx, "link", "delete", i.Name); err != nil {
			return err
		}
	}
	others, err := filepath.Glob(filepath.Join("/sys/class/net", namePrefix+"????????"))
	if err != nil || len(others) > 0 {
		return err
	}
	// The last one clears what instances share. Anyone who else uses it has something in it.
	rules, err := natRules(ctx)
	if err != nil {
		return err
	}
	for _, dir := range []string{"/run/containerd/s", "/run/containerd", "/var/lib/cni/results", "/var/lib/cni/cache",
		"/var/lib/cni"} {
		_ = syscall.Rmdir(dir) // only when empty
	}
	return restore(ctx, emptyShared(rules))
}

// cniResults are the files in which the CNI library remembers the networks of pods; containerd
// leaves no choice of the folder. The loopback network of all containerds has one name, so it is
// the path of the network namespace that tells whose they are.
func (i *Instance) cniResults() []string {
	files, err := filepath.Glob("/var/lib/cni/results/*")
	if err != nil {
		panic(err) // a fixed pattern
	}
	return slices.DeleteFunc(files, func(f string) bool {
		data, err := os.ReadFile(f)
		return err != nil || !bytes.Contains(data, []byte(i.dir()+"/"))
	})
}

// shimSockets are the sockets of the shims, which lie in a folder that all containerds share.
func (i *Instance) shimSockets() []string {
	var sockets []string
	for _, name := range []string{"address", "bootstrap.json"} {
		files, err := filepath.Glob(filepath.Join(i.stateDir(), "io.containerd.runtime.v2.task", "*", "*", name))
		if err != nil {
			panic(err) // a fixed pattern
		}
		for _, f := range files {
			data, err := os.ReadFile(f)
			if err != nil {
				continue
			}
			if _, rest, found := strings.Cut(string(data), "unix://"); found {
				socket, _, _ := strings.Cut(rest, `"`)
				sockets = append(sockets, strings.TrimSpace(socket))
			}
		}
	}
	return sockets
}

func (i *Instance) removePods(ctx context.Context) error {
	client, err := i.Dial()
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	return RemovePods(ctx, client, func(*runtimeapi.PodSandbox) bool { return true })
}

// RemovePods stops and removes the pods of a runtime for which match returns true.
func RemovePods(ctx context.Context, client *cri.Client, match func(*runtimeapi.PodSandbox) bool) error {
	list, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("list the pods of the runtime: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for _, s := range list.GetItems() {
		if !match(s) {
			continue
		}
		group.Go(func() error {
			if _, err := client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{
				PodSandboxId: s.GetId(),
			}); err != nil {
				return fmt.Errorf("stop pod %s: %w", s.GetMetadata().GetName(), err)
			}
			if _, err := client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{
				PodSandboxId: s.GetId(),
			}); err != nil {
				return fmt.Errorf("remove pod %s: %w", s.GetMetadata().GetName(), err)
			}
			return nil
		})
	}
	return group.Wait()
}
