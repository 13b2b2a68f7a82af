package cgroups

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

func resources(requests, limits string) v1.ResourceRequirements {
	parse := func(text string) v1.ResourceList {
		list := v1.ResourceList{}
		for part := range strings.FieldsSeq(text) {
			name, value, _ := strings.Cut(part, "=")
			list[v1.ResourceName(name)] = resource.MustParse(value)
		}
		return list
	}
	return v1.ResourceRequirements{Requests: parse(requests), Limits: parse(limits)}
}

func pod(uid string, rs ...v1.ResourceRequirements) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}}
	for i, r := range rs {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: fmt.Sprint("c", i), Resources: r})
	}
	return p
}

// withInit adds a sidecar and an init container that ends.
func withInit(p *v1.Pod, sidecar, init v1.ResourceRequirements) *v1.Pod {
	always := v1.ContainerRestartPolicyAlways
	p.Spec.InitContainers = []v1.Container{
		{Name: "sidecar", Resources: sidecar, RestartPolicy: &always}, {Name: "init", Resources: init},
	}
	return p
}

func TestContainerResources(t *testing.T) {
	opts := ResourceOptions{CFSQuota: true, MemoryCapacity: 1000 << 20}
	for name, c := range map[string]struct {
		r        v1.ResourceRequirements
		priority int32
		want     *runtimeapi.LinuxContainerResources
	}{
		"none": {
			r: resources("", ""), want: &runtimeapi.LinuxContainerResources{
				CpuShares: 2, CpuPeriod: 100000, OomScoreAdj: 1000,
			},
		},
		"guaranteed": {r: resources("", "cpu=500m memory=64Mi"), want: &runtimeapi.LinuxContainerResources{
			CpuShares:          512,
			CpuPeriod:          100000,
			CpuQuota:           50000,
			MemoryLimitInBytes: 64 << 20,
			OomScoreAdj:        -997,
		}},
		"burstable": {
			r: resources("cpu=100m memory=100Mi", ""), want: &runtimeapi.LinuxContainerResources{CpuShares: 102,
				CpuPeriod: 100000, OomScoreAdj: 900},
		},
		"tiny limit": {r: resources("", "cpu=1m"), want: &runtimeapi.LinuxContainerResources{
			CpuShares:   2,
			CpuPeriod:   100000,
			CpuQuota:    1000,
			OomScoreAdj: 999,
		}},
		"zero request": {r: resources("cpu=0", "cpu=500m"), want: &runtimeapi.LinuxContainerResources{
			CpuShares:   2,
			CpuPeriod:   100000,
			CpuQuota:    50000,
			OomScoreAdj: 999,
		}},
		"critical": {
			r: resources("", ""), priority: priorityNodeCritical,
			want: &runtimeapi.LinuxContainerResources{CpuShares: 2, CpuPeriod: 100000, OomScoreAdj: -997},
		},
	} {
		p := pod("1", c.r)
		p.Spec.Priority = ptr.To(c.priority)
		if diff := cmp.Diff(c.want.String(), containerResources(p, &p.Spec.Containers[0], opts, kernel{}).
			String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestPodResources(t *testing.T) {
	opts := ResourceOptions{CFSQuota: true}
	for name, c := range map[string]struct {
		pod  *v1.Pod
		want Resources
	}{
		"best effort": {pod("1", resources("", "")), Resources{CPUShares: 2}},
		"all limited": {pod("1", resources("", "cpu=500m memory=1Mi"), resources("", "cpu=500m memory=2Mi")), Resources{
			CPUShares: 1024,
			CPUQuota:  100000,
			CPUPeriod: 100000,
			Memory:    3 << 20,
		}},
		"beside a sidecar, which limits what runs beside it": {
			withInit(pod("1", resources("", "cpu=500m memory=1Mi")), resources("", "cpu=500m memory=1Mi"),
				resources("", "")),
			Resources{CPUShares: 1024, CPUQuota: 100000, CPUPeriod: 100000, Memory: 2 << 20},
		},
		"one unlimted": {pod("1", resources("cpu=500m", "cpu=500m memory=1Mi"), resources("cpu=500m", "memory=1Mi")),
			Resources{CPUShares: 1024, Memory: 2 << 20}},
	} {
		if diff := cmp.Diff(c.want, PodResources(c.pod, opts, 0)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestHugePages(t *testing.T) {
	opts := ResourceOptions{CFSQuota: true, HugePageSizes: []int64{2 << 20, 1 << 30, 64 << 10}}
	one := resources("hugepages-2Mi=4Mi memory=1Mi", "hugepages-2Mi=4Mi memory=1Mi")
	p := pod("1", one, one, resources("", "hugepages-32Mi=32Mi"))
	want := map[string]uint64{"2MB": 8 << 20, "1GB": 0, "64KB": 0}
	if diff := cmp.Diff(want, PodResources(p, opts, 0).Huge); diff != "" {
		t.Errorf("pod (-want +got):\n%s", diff)
	}
	limits := []*runtimeapi.HugepageLimit{{PageSize: "1GB"}, {PageSize: "2MB", Limit: 4 << 20}, {PageSize: "64KB"}}
	got := containerResources(p, &p.Spec.Containers[0], opts, kernel{}).HugepageLimits
	if diff := cmp.Diff(limits, got, protocmp.Transform()); diff != "" {
		t.Errorf("container (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]uint64{"2MB": 0, "1GB": 0, "64KB": 0},
		PodResources(pod("2"), opts, 0).Huge); diff != "" {
		t.Errorf("a pod that asks for none may have none (-want +got):\n%s", diff)
	}
	if none := containerResources(p, &p.Spec.Containers[0], ResourceOptions{}, kernel{}).HugepageLimits; none != nil {
		t.Errorf("limits on a node without huge pages: %v, want none", none)
	}
	dir := t.TempDir()
	if hugetlb(dir) {
		t.Error("hugetlb(an empty folder) = true, want false")
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte("cpu hugetlb\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if !hugetlb(dir) {
		t.Error("hugetlb(cgroup v2 with the controller) = false, want true")
	}
	if err := os.Mkdir(filepath.Join(dir, "hugetlb"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "cgroup.controllers")); err != nil {
		t.Fatal(err)
	}
	if !hugetlb(dir) {
		t.Error("hugetlb(cgroup v1 with the hierarchy) = false, want true")
	}
}

// TestOOMScore: what "Node out of memory behavior" of the Kubernetes documentation says of the classes, of sidecars
// and of pod-level resources.
func TestOOMScore(t *testing.T) {
	always := v1.ContainerRestartPolicyAlways
	sidecar := pod("1", resources("memory=500Mi", ""), resources("memory=100Mi", ""))
	sidecar.Spec.InitContainers = []v1.Container{{Name: "s", RestartPolicy: &always}, {Name: "i"}}
	large := sidecar.DeepCopy()
	large.Spec.InitContainers[0].Resources = resources("memory=300Mi", "")
	level := pod("2", resources("memory=100Mi", ""), resources("", ""))
	level.Spec.Resources = ptr.To(resources("memory=500Mi", ""))
	inits := level.DeepCopy()
	inits.Spec.InitContainers = []v1.Container{{Name: "a"}, {Name: "b"}}
	critical := pod("3", resources("", ""))
	critical.Spec.Priority = ptr.To[int32](priorityNodeCritical)
	for name, c := range map[string]struct {
		pod       *v1.Pod
		container *v1.Container
		want      int64
	}{
		"first":            {sidecar, &sidecar.Spec.Containers[0], 500},
		"second":           {sidecar, &sidecar.Spec.Containers[1], 900},
		"sidecar":          {sidecar, &sidecar.Spec.InitContainers[0], 900},
		"large sidecar":    {large, &large.Spec.InitContainers[0], 700},
		"init":             {sidecar, &sidecar.Spec.InitContainers[1], 999},
		"pod-level, some":  {level, &level.Spec.Containers[0], 700},
		"pod-level, none":  {level, &level.Spec.Containers[1], 800},
		"pod-level, inits": {inits, &inits.Spec.Containers[0], 800},
		"critical":         {critical, &critical.Spec.Containers[0], -997},
	} {
		if got := oomScore(c.pod, c.container, 1000<<20); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestNames(t *testing.T) {
	burst := pod("12-ab", resources("cpu=1", ""))
	for _, c := range []struct{ driver, root, parent, dir string }{
		{DriverCgroupfs, "", "/kubepods/burstable/pod12-ab", "/kubepods/burstable/pod12-ab"},
		{DriverCgroupfs, "/a/b", "/a/b/kubepods/burstable/pod12-ab", "/a/b/kubepods/burstable/pod12-ab"},
		{
			DriverSystemd, "/", "kubepods-burstable-pod12_ab.slice",
			"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_ab.slice",
		},
		{
			DriverSystemd, "/my-root", "my_root-kubepods-burstable-pod12_ab.slice",
			"/my_root.slice/my_root-kubepods.slice/my_root-kubepods-burstable.slice/" +
				"my_root-kubepods-burstable-pod12_ab.slice",
		},
	} {
		m := New(Options{Root: c.root, Driver: c.driver, PerQOS: true})
		if got := m.PodParent(burst); got != c.parent {
			t.Errorf("%s at %q: parent %q, want %q", c.driver, c.root, got, c.parent)
		}
		p := m.podPath(burst)
		dir := p.cgroupfs()
		if c.driver == DriverSystemd {
			dir = p.systemdDir()
		}
		if dir != c.dir {
			t.Errorf("%s at %q: directory %q, want %q", c.driver, c.root, dir, c.dir)
		}
		if uid, ok := m.podUID(v1.PodQOSBurstable, filepath.Base(dir)); !ok || uid != "12-ab" {
			t.Errorf("%s: uid of %q = %q, %v; want 12-ab", c.driver, filepath.Base(dir), uid, ok)
		}
	}
}

func TestMissingControllers(t *testing.T) {
	dir := t.TempDir()
	if diff := cmp.Diff([]string{"cpu", "memory", "pids"}, missingControllers(dir)); diff != "" {
		t.Errorf("missingControllers of an empty folder mismatch (-want +got):\n%s", diff)
	}
	for _, name := range []string{"cpu", "memory", "pids"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "cgroup.procs"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "memory", "cgroup.procs")); err != nil { // an empty folder is no controller
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"memory"}, missingControllers(dir)); diff != "" {
		t.Errorf("missingControllers of v1 mismatch (-want +got):\n%s", diff)
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte("cpuset cpu io pids\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"memory"}, missingControllers(dir)); diff != "" {
		t.Errorf("missingControllers of v2 mismatch (-want +got):\n%s", diff)
	}
}
