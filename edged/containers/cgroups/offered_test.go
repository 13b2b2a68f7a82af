package cgroups

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestLimitsThatTheKernelLacks are left out, and the others stay.
func TestLimitsThatTheKernelLacks(t *testing.T) {
	p := pod("1", resources("cpu=100m memory=16Mi", "cpu=200m memory=32Mi"))
	for _, c := range []struct {
		missing []string
		want    [4]int64 // shares, quota, period, memory
	}{
		{nil, [4]int64{102, 20000, 100000, 32 << 20}},
		{[]string{"memory"}, [4]int64{102, 20000, 100000, 0}},
		{[]string{"cpu", "pids"}, [4]int64{0, 0, 0, 32 << 20}},
	} {
		m := New(Options{PerQOS: true, ResourceOptions: ResourceOptions{CFSQuota: true}})
		m.kernel = kernel{unified: true, swap: true, oomGroup: true, missing: c.missing}
		r := m.ContainerResources(p, &p.Spec.Containers[0])
		if diff := cmp.Diff(c.want, amounts(r)); diff != "" {
			t.Errorf("without %v (-want +got):\n%s", c.missing, diff)
		}
		if want := r.MemoryLimitInBytes > 0; want != (len(r.Unified) > 0) {
			t.Errorf("without %v: values of files %v; want some: %v", c.missing, r.Unified, want)
		}
	}
}

func amounts(r *runtimeapi.LinuxContainerResources) [4]int64 {
	return [4]int64{r.CpuShares, r.CpuQuota, r.CpuPeriod, r.MemoryLimitInBytes}
}
