package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
)

// withoutMemory runs a program in mounts of its own, in which the memory cgroup is missing: what a Raspberry Pi shows
// that was booted with its own command line. The mounts of others are not touched.
const withoutMemory = `#!/bin/sh
exec unshare --mount --propagation private sh -c '
set -e
top=/sys/fs/cgroup
if [ -e $top/cgroup.controllers ]; then
  tr " " "\n" < $top/cgroup.controllers | grep -v -x memory | tr "\n" " " > %[1]s/controllers
  mount --bind %[1]s/controllers $top/cgroup.controllers
else
  umount $top/memory
fi
exec %[2]s "$@"' edgecore "$@"
`

// TestWithoutMemoryCgroup: pods with memory limits run, without them; the agent says so, and what to do about it.
func TestWithoutMemoryCgroup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program := filepath.Join(dir, "edgecore")
	if err := os.WriteFile(program, fmt.Appendf(nil, withoutMemory, dir, built.Edge), 0o755); err != nil {
		t.Fatal(err)
	}
	n := env.StartNode(t, &programs.Set{Edge: program}, env.NodeOptions{})
	n.Manifest("limited", env.Pod("limited", env.Forever)+limited)
	pod := n.Running("limited")["limited"]
	if got := pod.Status.ContainerStatuses[0].RestartCount; got != 0 {
		t.Errorf("restarts of pod limited = %d, want 0", got)
	}
	// Those that have ended are listed, too: no attempt before this one failed.
	list, err := n.CRI.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	env.Must(t, err)
	if len(list.Containers) != 1 {
		t.Fatalf("containers = %v, want 1", list.Containers)
	}
	st, err := n.CRI.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{
		ContainerId: list.Containers[0].Id,
		Verbose:     true,
	})
	env.Must(t, err)
	if strings.Contains(st.GetInfo()["info"], `"memory_limit_in_bytes":33554432`) {
		t.Errorf("the runtime was asked for a memory limit, want none, which it could not set on such a device: %s",
			st.GetInfo()["info"])
	}
	for command, want := range map[string][]string{
		"status": {"CgroupControllersMissing", "the kernel offers no memory cgroup", "cgroup_enable=memory"},
		"preflight": {
			"[warning] cgroups: cgroup v", "the kernel offers no memory controller: pods run",
			"cgroup_enable=memory cgroup_memory=1",
			"[ok]      pod network: the runtime has a network for pods, of " + n.Containerd.CNIConfig(),
		},
	} {
		out, err := n.Run(t.Context(), command)
		for _, text := range want {
			if !strings.Contains(out, text) {
				t.Errorf("%s = %s (%v)\nwant %q in it", command, out, err, text)
			}
		}
	}
	// Others have it as before.
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		if _, err := os.Stat("/sys/fs/cgroup/memory/cgroup.procs"); err != nil {
			t.Error(err)
		}
	}
}
