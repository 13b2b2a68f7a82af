package stats

import (
	"context"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/containers/cgroups"
)

// pod is one sample of a pod.
type pod struct {
	pod *v1.Pod
	usage
	// cgroup is its own, where it has one.
	cgroup     cgroups.Dirs
	links      []link
	containers []container
}

// container is one sample of a container that runs.
type container struct {
	name, id, image string
	started         time.Time
	usage
	// cgroup is its own; Path is "" where it has none on this machine.
	cgroup cgroups.Dirs
}

// readPods samples the pods that have not ended.
func (s *Stats) readPods(ctx context.Context) []*pod {
	var out []*pod
	complete := true
	for _, p := range s.opts.Pods() {
		if ended(p) {
			continue
		}
		one := s.readPod(p)
		out = append(out, one)
		complete = complete && !slices.ContainsFunc(one.containers, func(c container) bool { return !c.known() })
	}
	if !complete {
		s.fromRuntime(ctx, out)
	}
	for _, p := range out {
		p.addUp()
		p.nano = s.rates.addSample("pod/"+string(p.pod.UID), &p.usage)
		for i := range p.containers {
			c := &p.containers[i]
			c.nano = s.rates.addSample("container/"+c.id, &c.usage)
		}
	}
	s.rates.drop(time.Now())
	return out
}

// ended reports whether a pod uses nothing but the disk any more.
func ended(p *v1.Pod) bool {
	return p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed
}

// readPod samples a pod from the files of its cgroup.
func (s *Stats) readPod(p *v1.Pod) *pod {
	one := &pod{pod: p, containers: running(p)}
	if s.opts.PodCgroup == nil {
		return one
	}
	d, ok := s.opts.PodCgroup(p)
	if !ok {
		return one
	}
	one.cgroup = d
	one.usage = readCgroup(&d)
	names := below(&d)
	for i := range one.containers {
		c := &one.containers[i]
		if name := ofContainer(names, c.id); name != "" {
			c.cgroup = d.Child(name)
			c.usage = readCgroup(&c.cgroup)
		}
	}
	if !p.Spec.HostNetwork {
		one.links = podLinks(s.opts.Proc, &d, names)
	}
	return one
}

// running are the containers of a pod that its status says run.
func running(p *v1.Pod) []container {
	var out []container
	for _, list := range [][]v1.ContainerStatus{
		p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses,
	} {
		for _, st := range list {
			if st.State.Running == nil {
				continue
			}
			_, id, _ := strings.Cut(st.ContainerID, "://")
			out = append(out, container{
				name:    st.Name,
				id:      id,
				image:   st.Image,
				started: st.State.Running.StartedAt.Time,
			})
		}
	}
	return out
}

// fromRuntime asks the runtime for the containers that the cgroup files do not cover.
func (s *Stats) fromRuntime(ctx context.Context, pods []*pod) {
	byID, err := s.containerStats(ctx)
	if err != nil {
		klog.V(2).InfoS("Containers not measured; they are left out", "err", err)
		return
	}
	for _, p := range pods {
		for i := range p.containers {
			c := &p.containers[i]
			if got := byID[c.id]; !c.known() && got != nil {
				c.usage = usageOf(got)
			}
		}
	}
}

// containerStats asks the runtime for all containers, by id.
func (s *Stats) containerStats(ctx context.Context) (map[string]*runtimeapi.ContainerStats, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := s.opts.Runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
	if err != nil {
		return nil, err
	}
	byID := map[string]*runtimeapi.ContainerStats{}
	for _, got := range list.GetStats() {
		byID[got.GetAttributes().GetId()] = got
	}
	return byID, nil
}

// usageOf is what the runtime says of a container.
func usageOf(got *runtimeapi.ContainerStats) usage {
	value := func(v *runtimeapi.UInt64Value) *uint64 {
		if v == nil {
			return nil
		}
		return ptr.To(v.Value)
	}
	mem := got.GetMemory()
	u := usage{
		at:          time.Now(),
		cpu:         value(got.GetCpu().GetUsageCoreNanoSeconds()),
		memory:      value(mem.GetUsageBytes()),
		workingSet:  value(mem.GetWorkingSetBytes()),
		rss:         value(mem.GetRssBytes()),
		faults:      value(mem.GetPageFaults()),
		majorFaults: value(mem.GetMajorPageFaults()),
		swap:        value(got.GetSwap().GetSwapUsageBytes()),
	}
	if available := value(mem.GetAvailableBytes()); available != nil && *available > 0 && u.workingSet != nil {
		u.limit = ptr.To(*available + *u.workingSet)
	}
	if u.memory == nil {
		u.memory = u.workingSet
	}
	return u
}

// addUp makes the figures of a pod without a cgroup those of its containers together.
func (p *pod) addUp() {
	if p.known() {
		return
	}
	add := func(to **uint64, n *uint64) {
		if n != nil {
			*to = ptr.To(ptr.Deref(*to, 0) + *n)
		}
	}
	for i := range p.containers {
		c := &p.containers[i]
		p.at = c.at
		add(&p.cpu, c.cpu)
		add(&p.memory, c.memory)
		add(&p.workingSet, c.workingSet)
		add(&p.rss, c.rss)
		add(&p.swap, c.swap)
		add(&p.processes, c.processes)
	}
}

// uniqueByName leaves out pods whose name another pod has taken: a terminating pod and its successor. Metrics identify
// pods by name.
func uniqueByName(pods []*pod) []*pod {
	type name struct{ namespace, name string }
	by := map[name]int{}
	var out []*pod
	for _, p := range pods {
		key := name{p.pod.Namespace, p.pod.Name}
		at, twice := by[key]
		switch {
		case !twice:
			by[key] = len(out)
			out = append(out, p)
		case out[at].pod.DeletionTimestamp != nil && p.pod.DeletionTimestamp == nil:
			out[at] = p
		}
	}
	return out
}
