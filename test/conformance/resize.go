package conformance

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/test/testenv/env"
)

// In a container, what the kernel allows it: microseconds of cpu in a tenth of a second, and bytes of memory.
const (
	cpuQuota    = `cat /sys/fs/cgroup/cpu.max /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null | cut -d ' ' -f 1`
	memoryLimit = `cat /sys/fs/cgroup/memory.max 2>/dev/null || cat /sys/fs/cgroup/memory/memory.limit_in_bytes`
)

// resizeRows are about cpu and memory that change while a pod runs, and about those of a pod as a whole.
func resizeRows() []row {
	return []row{
		{
			name: "resize-in-place",
			spec: `
containers:
- {name: main, resources: {requests: {cpu: 20m, memory: 32Mi}, limits: {cpu: 200m, memory: 64Mi}}}
- {name: other}
`,
			check: func(p *pod) {
				p.running()
				p.says("main", cpuQuota, "20000")
				p.resize("main", "{requests: {cpu: 30m, memory: 48Mi}, limits: {cpu: 400m, memory: 96Mi}}")
				p.resized("main", 0, "30m", "48Mi", "400m", "96Mi")
				p.says("main", cpuQuota, "40000")
				p.says("main", memoryLimit, "100663296")
				p.resize("main", "{requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: 100m, memory: 48Mi}}")
				got := p.resized("main", 0, "10m", "16Mi", "100m", "48Mi")
				p.says("main", cpuQuota, "10000")
				p.says("main", memoryLimit, "50331648")
				if got.Status.ObservedGeneration != got.Generation {
					p.Errorf("observed generation = %d, want %d", got.Status.ObservedGeneration, got.Generation)
				}
				p.event("ResizeCompleted", "Pod resize completed")
			},
		},
		{
			name: "resize-restart",
			spec: `
containers:
- name: main
  resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired}, {resourceName: memory, restartPolicy: RestartContainer}]
  resources: {requests: {cpu: 10m, memory: 32Mi}, limits: {cpu: 100m, memory: 32Mi}}
`,
			check: func(p *pod) {
				p.running()
				p.resize("main", "{limits: {cpu: 200m}}")
				p.resized("main", 0, "10m", "32Mi", "200m", "32Mi")
				p.resize("main", "{requests: {memory: 64Mi}, limits: {memory: 64Mi}}")
				p.resized("main", 1, "10m", "64Mi", "200m", "64Mi")
				p.says("main", memoryLimit, "67108864")
				p.event("Killing", "Container main resize requires restart, will be restarted")
			},
		},
		{
			name: "resize-deferred",
			spec: `containers: [{name: main, resources: {requests: {cpu: 10m}, limits: {cpu: 2}}}]`,
			check: func(p *pod) {
				p.running()
				other := p.node.create(p.T, &v1.Pod{
					ObjectMeta: metav1.ObjectMeta{Name: p.name + "-other"},
					Spec: v1.PodSpec{Containers: []v1.Container{{
						Name: "main", Resources: v1.ResourceRequirements{
							Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("300m")},
						},
					}}},
				})
				other.running()
				p.resize("main", "{requests: {cpu: 1800m}}")
				got := p.status("it waits", func(s *v1.PodStatus) error {
					c := condition(s, v1.PodResizePending)
					if c == nil || c.Status != v1.ConditionTrue || c.Reason != v1.PodReasonDeferred ||
						!strings.Contains(c.Message, "Node didn't have enough resource: cpu, requested: 1800, used: ") {
						return fmt.Errorf("%+v", c)
					}
					return nil
				})
				if a := containerStatus(&got.Status, "main").AllocatedResources; a.Cpu().String() != "10m" {
					p.Errorf("allocated = %v, want cpu 10m", a)
				}
				// while the other is there: 1800m would leave nothing to other rows
				p.resize("main", "{requests: {cpu: 20m}}")
				p.resized("main", 0, "20m", "0", "2", "0")
				other.delete()
			},
		},
		{
			name: "pod-resources",
			spec: `
resources: {requests: {cpu: 50m, memory: 64Mi}, limits: {cpu: 300m, memory: 128Mi}}
containers:
- {name: main, resources: {requests: {cpu: 10m}}}
- {name: other}
`,
			check: func(p *pod) {
				got := p.running()
				r := got.Status.Resources
				if r == nil || r.Limits.Cpu().String() != "300m" || r.Requests.Memory().String() != "64Mi" ||
					got.Status.AllocatedResources.Cpu().String() != "50m" {
					p.Errorf("resources %+v, allocated %v, want cpu at most 300m, memory 64Mi, allocated cpu 50m",
						r, got.Status.AllocatedResources)
				}
				if got.Status.QOSClass != v1.PodQOSBurstable {
					p.Errorf("class = %s, want %s", got.Status.QOSClass, v1.PodQOSBurstable)
				}
				if limit := p.podCgroup("memory.max", "memory/memory.limit_in_bytes"); limit != "134217728" {
					p.Errorf("the pod's memory limit = %s, want 134217728", limit)
				}
				if quota, _, _ := strings.Cut(p.podCgroup("cpu.max", "cpu/cpu.cfs_quota_us"), " "); quota != "30000" {
					p.Errorf("the pod's CPU quota = %s, want 30000", quota)
				}
			},
		},
	}
}

// resize changes the resources of a container.
func (p *pod) resize(container, resources string) {
	p.Helper()
	p.patch("spec: {containers: [{name: "+container+", resources: "+resources+"}]}", "resize")
}

// resized waits until a container was started again so often and has these requests and limits, of cpu and of memory.
func (p *pod) resized(container string, restarts int32, cpu, memory, cpuLimit, memoryLimit string) *v1.Pod {
	p.Helper()
	return p.status("it is resized", func(s *v1.PodStatus) error {
		c := containerStatus(s, container)
		if c.State.Running == nil || c.RestartCount != restarts || c.Resources == nil {
			return fmt.Errorf("containers %s", states(s))
		}
		r := c.Resources
		got := fmt.Sprint(r.Requests.Cpu(), r.Requests.Memory(), r.Limits.Cpu(), r.Limits.Memory(),
			c.AllocatedResources.Cpu(), c.AllocatedResources.Memory())
		if want := strings.Join([]string{cpu, memory, cpuLimit, memoryLimit, cpu, memory}, " "); got != want {
			return fmt.Errorf("resources %s, want %s", got, want)
		}
		for _, kind := range []v1.PodConditionType{v1.PodResizePending, v1.PodResizeInProgress} {
			if c := condition(s, kind); c != nil {
				return fmt.Errorf("%+v", c)
			}
		}
		return nil
	})
}

// podCgroup reads a file of the pod's cgroup: its name on v2, or controller and name on v1.
func (p *pod) podCgroup(v2, v1 string) string {
	p.Helper()
	root, file := "/sys/fs/cgroup", v2
	if controller, name, _ := strings.Cut(v1, "/"); !exists(filepath.Join(root, "cgroup.controllers")) {
		root, file = filepath.Join(root, controller), name
	}
	plain, slice := "pod"+string(p.uid), "pod"+strings.ReplaceAll(string(p.uid), "-", "_")+".slice"
	found := ""
	env.Must(p, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil: // gone meanwhile
			return nil
		case d.IsDir() && (strings.HasSuffix(path, plain) || strings.HasSuffix(path, slice)):
			found = path
			return fs.SkipAll
		}
		return nil
	}))
	if found == "" {
		p.Fatalf("cgroups of pod %s below %s = none, want one", p.uid, root)
	}
	data, err := os.ReadFile(filepath.Join(found, file))
	env.Must(p, err)
	return strings.TrimSpace(string(data))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
