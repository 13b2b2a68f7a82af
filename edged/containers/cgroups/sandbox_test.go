package cgroups

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestSandboxResources: the sandbox is told of the whole pod, and apart from it of the overhead.
func TestSandboxResources(t *testing.T) {
	opts := ResourceOptions{CFSQuota: true}
	p := pod("1", resources("cpu=100m", "memory=16Mi"), resources("cpu=100m", "cpu=400m memory=16Mi"))
	p.Spec.Overhead = resources("cpu=250m memory=8Mi", "").Requests
	m := New(Options{ResourceOptions: opts})
	m.kernel = kernel{unified: true, oomGroup: true, swap: true}
	together := map[string]string{fileOOMGroup: "1"}
	whole := &runtimeapi.LinuxContainerResources{
		CpuShares:          204,
		CpuPeriod:          100000,
		CpuQuota:           40000,
		MemoryLimitInBytes: 32 << 20,
		Unified:            together,
	}
	more := &runtimeapi.LinuxContainerResources{
		CpuShares:          256,
		CpuPeriod:          100000,
		CpuQuota:           25000,
		MemoryLimitInBytes: 8 << 20,
		Unified:            together,
	}
	resources, overhead := m.SandboxResources(p)
	if diff := cmp.Diff([]any{whole, more}, []any{resources, overhead}, protocmp.Transform()); diff != "" {
		t.Errorf("SandboxResources (-want +got):\n%s", diff)
	}
	update, _ := m.SandboxUpdate(p)
	if diff := cmp.Diff(&runtimeapi.LinuxContainerResources{CpuShares: 204, MemoryLimitInBytes: 32 << 20}, update,
		protocmp.Transform()); diff != "" {
		t.Errorf("SandboxUpdate, where one container has no cpu limit (-want +got):\n%s", diff)
	}
	p.Spec.Overhead = nil
	if _, none := m.SandboxResources(p); none == nil || none.String() != "" {
		t.Errorf("overhead of a pod without one = %v, want an empty message", none)
	}
}
