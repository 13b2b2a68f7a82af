package nodeallocatable

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/containers/cgroups"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

func gigabyte() v1.ResourceList {
	return v1.ResourceList{v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("1Gi"),
		v1.ResourceEphemeralStorage: resource.MustParse("10Gi"), v1.ResourcePods: resource.MustParse("110")}
}

// TestNew: what a node of 1 GB gives to pods, keeps from them, and enforces.
func TestNew(t *testing.T) {
	const mi, shares = 1 << 20, 2048
	for name, c := range map[string]struct {
		change func(*v1alpha2.Edged)
		memory int64 // MiB that are allocatable
		pods   cgroups.Resources
		limits []cgroups.Reserved
	}{
		"defaults": {
			func(*v1alpha2.Edged) {}, 924, cgroups.Resources{
				CPUShares: shares, Memory: 1024 * mi, Pids: cgroups.MaxPIDs(),
			}, nil,
		},
		"reserved": {func(e *v1alpha2.Edged) {
			e.TailoredKubeletConfig.SystemReserved = map[string]string{"memory": "124Mi", "cpu": "500m", "pid": "100"}
			e.TailoredKubeletConfig.KubeReserved = map[string]string{"memory": "100Mi"}
		}, 700, cgroups.Resources{CPUShares: 1536, Memory: 800 * mi, Pids: cgroups.MaxPIDs() - 100}, nil},
		"nothing enforced": {func(e *v1alpha2.Edged) {
			e.TailoredKubeletConfig.SystemReserved, e.TailoredKubeletConfig.EnforceNodeAllocatable = map[string]string{
				"memory": "124Mi",
			}, []string{"none"}
		}, 800, cgroups.Resources{CPUShares: shares}, nil},
		"no cgroups of pods": {func(e *v1alpha2.Edged) { e.TailoredKubeletConfig.CgroupsPerQOS = ptr.To(false) }, 924,
			cgroups.Resources{CPUShares: shares}, nil},
		"thresholds left out": {func(e *v1alpha2.Edged) { e.ExperimentalNodeAllocatableIgnoreEvictionThreshold = true },
			1024,
			cgroups.Resources{CPUShares: shares, Memory: 1024 * mi, Pids: cgroups.MaxPIDs()}, nil},
		"all enforced": {
			func(e *v1alpha2.Edged) {
				k := &e.TailoredKubeletConfig
				k.EnforceNodeAllocatable = []string{"system-reserved", "kube-reserved-compressible"}
				k.SystemReserved, k.SystemReservedCgroup = map[string]string{"memory": "124Mi", "pid": "100"},
					"/system.slice"
				k.KubeReserved, k.KubeReservedCgroup = map[string]string{"memory": "100Mi", "cpu": "250m"},
					"/kube.slice"
			}, 700, cgroups.Resources{CPUShares: shares}, []cgroups.Reserved{
				{
					Key: "enforceNodeAllocatable: system-reserved", Cgroup: "/system.slice",
					Resources: cgroups.Resources{Memory: 124 * mi, Pids: 100},
				},
				{
					Key: "enforceNodeAllocatable: kube-reserved-compressible", Cgroup: "/kube.slice",
					Resources: cgroups.Resources{CPUShares: 256},
				},
			},
		},
	} {
		cfg := v1alpha2.Default()
		c.change(&cfg.Modules.Edged)
		got, err := New(&cfg.Modules.Edged, gigabyte())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if memory := got.Allocatable.Memory().Value() / mi; memory != c.memory {
			t.Errorf("%s: %d Mi of memory are allocatable, want %d", name, memory, c.memory)
		}
		if diff := cmp.Diff(c.pods, got.Pods); diff != "" {
			t.Errorf("%s: all pods (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(c.limits, got.Reserved); diff != "" {
			t.Errorf("%s: reserved (-want +got):\n%s", name, diff)
		}
	}
	got, err := New(&v1alpha2.Default().Modules.Edged, gigabyte())
	if storage := got.Allocatable[v1.ResourceEphemeralStorage]; err != nil || storage.Value() != 9<<30 {
		t.Errorf("%s of the disk are allocatable, want 9Gi: nodefs.available keeps a tenth", storage.String())
	}
}

func TestEvictionSettings(t *testing.T) {
	signals := func(change func(*v1alpha2.Edged)) (string, time.Duration) {
		cfg := v1alpha2.Default()
		change(&cfg.Modules.Edged)
		got, err := New(&cfg.Modules.Edged, gigabyte())
		if err != nil {
			t.Fatal(err)
		}
		var list []string
		for _, th := range got.Eviction.Thresholds {
			list = append(list, string(th.Signal))
		}
		return strings.Join(list, " "), got.Eviction.Transition
	}
	own := map[string]string{"memory.available": "50Mi"}
	for name, c := range map[string]struct {
		change func(*v1alpha2.Edged)
		want   string
	}{
		"defaults": {
			func(*v1alpha2.Edged) {}, "memory.available allocatableMemory.available nodefs.available " +
				"nodefs.inodesFree imagefs.available imagefs.inodesFree",
		},
		"own": {func(e *v1alpha2.Edged) {
			e.TailoredKubeletConfig.EvictionHard = own
		}, "memory.available allocatableMemory.available"},
		"merged": {
			func(e *v1alpha2.Edged) {
				e.TailoredKubeletConfig.EvictionHard, e.TailoredKubeletConfig.MergeDefaultEvictionSettings = own,
					ptr.To(true)
			}, "memory.available allocatableMemory.available nodefs.available nodefs.inodesFree imagefs.available " +
				"imagefs.inodesFree",
		},
		"none": {func(e *v1alpha2.Edged) {
			e.TailoredKubeletConfig.EvictionHard, e.TailoredKubeletConfig.EvictionPressureTransitionPeriod.Duration =
				nil, 0
		}, ""},
	} {
		got, transition := signals(c.change)
		if got != c.want || transition != 5*time.Minute {
			t.Errorf("%s: signals = %q, %v; want %q, %v", name, got, transition, c.want, 5*time.Minute)
		}
	}
	if len(own) != 1 {
		t.Errorf("the user's own thresholds = %v, want the one of before", own)
	}
}

// TestReservedTooMuch: a node of which nothing is left for pods is refused in the user's words.
func TestReservedTooMuch(t *testing.T) {
	cfg := v1alpha2.Default()
	cfg.Modules.Edged.TailoredKubeletConfig.SystemReserved = map[string]string{"memory": "1Gi"}
	if _, err := New(&cfg.Modules.Edged, gigabyte()); err == nil ||
		!strings.Contains(err.Error(), "systemReserved and kubeReserved leave no memory") {
		t.Errorf("New = %v, want an error with %q", err, "systemReserved and kubeReserved leave no memory")
	}
}
