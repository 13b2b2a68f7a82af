package cgroups

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

// TestKernelAt: a container gets a value only where the kernel has a file for it.
func TestKernelAt(t *testing.T) {
	for name, c := range map[string]struct {
		files   []string
		self    string
		unified bool
		want    [2]bool // swap, oomGroup
	}{
		"v1": {
			files: []string{"memory/memory.memsw.limit_in_bytes"}, want: [2]bool{true, false},
		},
		"v1 without swap accounting": {files: []string{"memory/memory.limit_in_bytes"}},
		"v2": {
			files:   []string{"a.slice/b/memory.swap.max", "a.slice/b/memory.oom.group"},
			self:    "/a.slice/b",
			unified: true,
			want:    [2]bool{true, true},
		},
		"v2 without swap": {
			files:   []string{"a.slice/b/memory.oom.group"},
			self:    "/a.slice/b",
			unified: true,
			want:    [2]bool{false, true},
		},
		"v2 at the top of a container's": {
			files:   []string{"kubepods/memory.swap.max", "kubepods/memory.oom.group"},
			self:    "/",
			unified: true,
			want:    [2]bool{true, true},
		},
		"v2 before there is any group": {files: []string{"cgroup.controllers"}, self: "/", unified: true},
		"v2 with memory of another's only": {
			files:   []string{"x/memory.oom.group"},
			self:    "/none",
			unified: true,
			want:    [2]bool{false, true},
		},
	} {
		mount := t.TempDir()
		for _, f := range c.files {
			file := filepath.Join(mount, f)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte("max\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		k := kernelAt(mount, c.self, c.unified)
		if got := [2]bool{k.swap, k.oomGroup}; got != c.want || k.unified != c.unified {
			t.Errorf("%s: swap and oomGroup = %v, unified %v; want %v, %v", name, got, k.unified, c.want, c.unified)
		}
	}
}

// TestWeight: the weights of two groups have the ratio of their shares, as the kubelet makes them.
func TestWeight(t *testing.T) {
	for shares, want := range map[uint64]uint64{0: 0, 1: 1, 2: 1, 102: 4, 1024: 39, 10240: 391, 262144: 10000,
		1 << 40: 10000} {
		if got := weight(shares); got != want {
			t.Errorf("weight(%d) = %d, want %d", shares, got, want)
		}
	}
}

// TestUnifiedResources: what containers are given besides cpu and memory on each kind of kernel.
func TestUnifiedResources(t *testing.T) {
	v2 := kernel{unified: true, swap: true, oomGroup: true}
	burstable := resources("memory=100Mi", "memory=200Mi")
	swap := ResourceOptions{LimitedSwap: true, SwapCapacity: 500 << 20}
	for name, c := range map[string]struct {
		kernel   kernel
		opts     ResourceOptions
		r        v1.ResourceRequirements
		priority int32
		unified  map[string]string
		swapV1   int64
		may      bool
	}{
		"v1":                         {kernel: kernel{swap: true}, r: burstable, swapV1: 200 << 20},
		"v1, no limit":               {kernel: kernel{swap: true}, r: resources("", "")},
		"v1 without swap accounting": {r: burstable},
		"v1, swap is v2's":           {kernel: kernel{swap: true}, opts: swap, r: burstable, swapV1: 200 << 20},
		"v2": {
			kernel: v2, r: burstable, unified: map[string]string{fileOOMGroup: "1", fileSwapMax: "0"},
		},
		"v2, no limit":   {kernel: v2, unified: map[string]string{fileOOMGroup: "1", fileSwapMax: "0"}},
		"v2, old kernel": {kernel: kernel{unified: true}, r: burstable},
		"single processes": {
			kernel:  v2,
			opts:    ResourceOptions{SingleProcessOOMKill: true},
			r:       burstable,
			unified: map[string]string{fileSwapMax: "0"},
		},
		"swap": {
			kernel:  v2,
			opts:    swap,
			r:       burstable,
			unified: map[string]string{fileOOMGroup: "1", fileSwapMax: "52428800"},
			may:     true,
		},
		"swap, guaranteed": {
			kernel:  v2,
			opts:    swap,
			r:       resources("", "cpu=1 memory=1Mi"),
			unified: map[string]string{fileOOMGroup: "1", fileSwapMax: "0"},
		},
		"swap, best effort": {
			kernel: v2, opts: swap, unified: map[string]string{fileOOMGroup: "1", fileSwapMax: "0"},
		},
		"swap, request is limit": {
			kernel:  v2,
			opts:    swap,
			r:       resources("cpu=1 memory=1Mi", "memory=1Mi"),
			unified: map[string]string{fileOOMGroup: "1", fileSwapMax: "0"},
		},
		"swap, critical": {
			kernel:   v2,
			opts:     swap,
			r:        burstable,
			priority: priorityNodeCritical,
			unified:  map[string]string{fileOOMGroup: "1", fileSwapMax: "0"},
		},
		"swap, more than there is": {
			kernel:  v2,
			opts:    swap,
			r:       resources("memory=1Ti", ""),
			unified: map[string]string{fileOOMGroup: "1", fileSwapMax: "0"},
			may:     true,
		},
	} {
		c.opts.MemoryCapacity = 1000 << 20
		p := pod("1", c.r)
		p.Spec.Priority = ptr.To(c.priority)
		got := containerResources(p, &p.Spec.Containers[0], c.opts, c.kernel)
		if diff := cmp.Diff(c.unified, got.Unified); diff != "" {
			t.Errorf("%s: values of files (-want +got):\n%s", name, diff)
		}
		if got.MemorySwapLimitInBytes != c.swapV1 {
			t.Errorf("%s: limit of memory and swap %d, want %d", name, got.MemorySwapLimitInBytes, c.swapV1)
		}
		m := &Manager{opts: Options{ResourceOptions: c.opts}, kernel: c.kernel}
		if got := m.MaySwap(p, &p.Spec.Containers[0]); got != c.may {
			t.Errorf("%s: MaySwap = %v, want %v", name, got, c.may)
		}
	}
}

// TestPodLevelLimits: a container without a limit has its pod's, and shares from it.
func TestPodLevelLimits(t *testing.T) {
	opts := ResourceOptions{CFSQuota: true, HugePageSizes: []int64{2 << 20}}
	p := pod("1", resources("", ""), resources("cpu=100m", "memory=16Mi hugepages-2Mi=2Mi"))
	p.Spec.Resources = ptr.To(resources("", "cpu=500m memory=64Mi hugepages-2Mi=8Mi"))
	for i, want := range []*runtimeapi.LinuxContainerResources{
		{
			CpuShares:          512,
			CpuPeriod:          100000,
			CpuQuota:           50000,
			MemoryLimitInBytes: 64 << 20,
			HugepageLimits:     []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 8 << 20}},
		},
		{
			CpuShares:          102,
			CpuPeriod:          100000,
			CpuQuota:           50000,
			MemoryLimitInBytes: 16 << 20,
			HugepageLimits:     []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 2 << 20}},
		},
	} {
		got := containerResources(p, &p.Spec.Containers[i], opts, kernel{})
		got.OomScoreAdj = 0
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("container %d (-want +got):\n%s", i, diff)
		}
	}
}
