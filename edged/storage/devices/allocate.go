package devices

import (
	"context"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Allocate gives a pod the devices that it asks for, all of them or none. It calls plugins, and so may take minutes;
// what it takes is taken at once, so that two pods never get one device.
func (m *Manager) Allocate(ctx context.Context, pod *v1.Pod) error {
	err := m.allocate(ctx, pod)
	if err != nil {
		m.Free(pod.UID)
	}
	return err
}

func (m *Manager) allocate(ctx context.Context, pod *v1.Pod) error {
	// What an init container leaves to those after it, by resource.
	left := map[string][]string{}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if err := m.allocateContainer(ctx, pod, c, left); err != nil {
			return err
		}
		for name, ids := range m.idsOf(pod.UID, c.Name) {
			if sidecar(c) {
				left[name] = without(left[name], ids)
			} else {
				left[name] = union(left[name], ids)
			}
		}
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if err := m.allocateContainer(ctx, pod, c, left); err != nil {
			return err
		}
		for name, ids := range m.idsOf(pod.UID, c.Name) {
			left[name] = without(left[name], ids)
		}
	}
	return nil
}

// allocateContainer assigns the devices that a container lacks, and asks their plugins how to use them.
func (m *Manager) allocateContainer(ctx context.Context, pod *v1.Pod, c *v1.Container, left map[string][]string) error {
	want := m.requested(c)
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if m.grantOf(pod.UID, c.Name, name) != nil {
			continue
		}
		if err := m.assignDevices(ctx, pod.UID, c.Name, name, want[name], left[name]); err != nil {
			return err
		}
		if err := m.allocateFrom(ctx, pod.UID, c.Name, name); err != nil {
			return err
		}
	}
	return nil
}

// assignDevices chooses free devices and assigns them to the container.
func (m *Manager) assignDevices(
	ctx context.Context, uid types.UID, container, name string, n int, left []string,
) error {
	m.mu.Lock()
	free, must, err := m.candidates(name, n, left)
	p := m.resources[name].plugin
	m.mu.Unlock()
	if err != nil {
		return err
	}
	preferred := preferred(ctx, p, free, must, n)
	m.mu.Lock()
	defer m.mu.Unlock()
	// Somebody may have taken devices meanwhile.
	if free, must, err = m.candidates(name, n, left); err != nil {
		return err
	}
	ids := choose(n, must, preferred, free)
	g := &grant{IDs: ids, NUMA: map[string][]int64{}}
	for _, id := range ids {
		if numa := m.resources[name].devices[id].numa; len(numa) > 0 {
			g.NUMA[id] = numa
		}
	}
	m.allocated.setGrant(uid, container, name, g)
	return nil
}

// candidates returns the healthy devices that a container may get: free ones, and those that it must reuse from an init
// container. The lock is held.
func (m *Manager) candidates(name string, n int, left []string) (free, must []string, err error) {
	p := m.resources[name]
	if p == nil || p.plugin == nil {
		return nil, nil, fmt.Errorf("cannot allocate unregistered device %s", name)
	}
	used := m.allocated.usedDevices(name)
	for id, d := range p.devices {
		if !d.healthy {
			continue
		}
		if slices.Contains(left, id) {
			must = append(must, id)
		} else if !used[id] {
			free = append(free, id)
		}
	}
	slices.Sort(free)
	slices.Sort(must)
	must = must[:min(len(must), n)]
	if len(p.devices) > 0 && len(free)+len(must) == 0 && !slices.ContainsFunc(slices.Collect(maps.Values(p.devices)),
		func(d device) bool { return d.healthy }) {
		return nil, nil, fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", name)
	}
	if len(free)+len(must) < n {
		return nil, nil, unavailable(name, n, len(free)+len(must))
	}
	return free, must, nil
}

// preferred asks a plugin which devices go well together; nil where it does not say.
func preferred(ctx context.Context, p *plugin, free, must []string, n int) []string {
	if !p.options.GetGetPreferredAllocationAvailable() || len(must) >= n {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, preferredTimeout)
	defer cancel()
	resp, err := p.client.GetPreferredAllocation(ctx, &api.PreferredAllocationRequest{
		ContainerRequests: []*api.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: union(must, free), MustIncludeDeviceIDs: must, AllocationSize: int32(n),
		}},
	})
	if err != nil || len(resp.ContainerResponses) == 0 {
		klog.ErrorS(err, "Device plugin does not say which devices it prefers; any will do", "resource", p.resource)
		return nil
	}
	return resp.ContainerResponses[0].GetDeviceIDs()
}

// choose picks n devices: first those that it must take, then the preferred ones, then any. It is pure; must and free
// have no device in common and n or more together.
func choose(n int, must, preferred, free []string) []string {
	ids := slices.Clone(must[:min(n, len(must))])
	allowed := make(map[string]bool, len(free))
	for _, id := range free {
		allowed[id] = true
	}
	for _, list := range [][]string{preferred, free} {
		for _, id := range list {
			if len(ids) < n && allowed[id] {
				ids = append(ids, id)
				delete(allowed, id)
			}
		}
	}
	slices.Sort(ids)
	return ids
}

// allocateFrom makes the plugin prepare a container's devices, and keeps its answer.
func (m *Manager) allocateFrom(ctx context.Context, uid types.UID, container, name string) error {
	m.mu.Lock()
	g, p := m.allocated[uid][container][name], m.resources[name].plugin
	m.mu.Unlock()
	if g == nil {
		return fmt.Errorf("devices of %s were given back meanwhile", name)
	}
	if p == nil {
		return fmt.Errorf("cannot allocate unregistered device %s", name)
	}
	call, cancel := context.WithTimeout(ctx, allocateTimeout)
	defer cancel()
	resp, err := p.client.Allocate(call, &api.AllocateRequest{
		ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: g.IDs}},
	})
	if err != nil {
		return fmt.Errorf("device plugin %s: allocate %v: %w", name, g.IDs, err)
	}
	if len(resp.ContainerResponses) != 1 {
		return fmt.Errorf("device plugin %s: the answer to Allocate is for %d containers, want 1", name,
			len(resp.ContainerResponses))
	}
	answer, err := newAnswer(resp.ContainerResponses[0])
	if err != nil {
		return fmt.Errorf("device plugin %s: %w", name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.allocated[uid][container][name] != g {
		return fmt.Errorf("devices of %s were given back meanwhile", name)
	}
	// Values are handed out: they are replaced, not changed.
	m.allocated[uid][container][name] = &grant{
		IDs:      g.IDs,
		NUMA:     g.NUMA,
		Answer:   answer,
		PreStart: p.options.GetPreStartRequired(),
		Boot:     m.opts.BootID,
	}
	return m.save()
}

// Container returns what a container's devices need in it, just before it is created. What is missing is allocated:
// after a reboot, or where the file was lost. An error makes the container wait.
func (m *Manager) Container(ctx context.Context, pod *v1.Pod, c *v1.Container) (Answer, error) {
	want := m.requested(c)
	if len(want) == 0 {
		return Answer{}, nil
	}
	var answers []*Answer
	for _, name := range slices.Sorted(maps.Keys(want)) {
		g := m.grantOf(pod.UID, c.Name, name)
		if g == nil {
			if err := m.assignDevices(ctx, pod.UID, c.Name, name, want[name], m.leftBy(pod, c, name)); err != nil {
				return Answer{}, err
			}
		}
		if g == nil || g.Answer == nil || g.Boot != m.opts.BootID {
			if err := m.prepareAgain(ctx, pod.UID, c.Name, name); err != nil {
				return Answer{}, err
			}
			g = m.grantOf(pod.UID, c.Name, name)
		}
		if g == nil {
			return Answer{}, fmt.Errorf("devices of %s were given back meanwhile", name)
		}
		if err := m.preStart(ctx, name, g); err != nil {
			return Answer{}, err
		}
		answers = append(answers, g.Answer)
	}
	return merge(answers), nil
}

// prepareAgain makes a plugin prepare devices that the container has already. They must exist and be healthy.
func (m *Manager) prepareAgain(ctx context.Context, uid types.UID, container, name string) error {
	m.mu.Lock()
	var bad []string
	p := m.resources[name]
	if g := m.allocated[uid][container][name]; g != nil && p.plugin != nil {
		for _, id := range g.IDs {
			if !p.devices[id].healthy {
				bad = append(bad, id)
			}
		}
	}
	m.mu.Unlock()
	if p.plugin == nil {
		return fmt.Errorf("the device plugin of %s has not registered since the machine started; the container "+
			"starts when it has", name)
	}
	if len(bad) > 0 {
		return fmt.Errorf("previously allocated devices are no longer healthy; cannot allocate unhealthy devices "+
			"%s: %v", name, bad)
	}
	return m.allocateFrom(ctx, uid, container, name)
}

// preStart calls PreStartContainer, if the plugin requires that.
func (m *Manager) preStart(ctx context.Context, name string, g *grant) error {
	m.mu.Lock()
	p := m.resources[name].plugin
	m.mu.Unlock()
	wanted := g.PreStart
	if p != nil {
		wanted = p.options.GetPreStartRequired()
	}
	if !wanted {
		return nil
	}
	if p == nil {
		return fmt.Errorf("the device plugin of %s, which prepares each start of a container, is not running; the "+
			"container starts when it is", name)
	}
	ctx, cancel := context.WithTimeout(ctx, preStartTimeout)
	defer cancel()
	if _, err := p.client.PreStartContainer(ctx, &api.PreStartContainerRequest{DevicesIds: g.IDs}); err != nil {
		return fmt.Errorf("device plugin %s: PreStartContainer %v: %w", name, g.IDs, err)
	}
	return nil
}

// leftBy are the devices of a resource that the pod's init containers have and no other container holds.
func (m *Manager) leftBy(pod *v1.Pod, of *v1.Container, name string) []string {
	var left []string
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		ids := m.idsOf(pod.UID, c.Name)[name]
		switch {
		case c.Name == of.Name:
		case sidecar(c):
			left = without(left, ids)
		default:
			left = union(left, ids)
		}
	}
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.Name != of.Name {
			left = without(left, m.idsOf(pod.UID, c.Name)[name])
		}
	}
	return left
}

func sidecar(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

func (m *Manager) grantOf(uid types.UID, container, name string) *grant {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.allocated[uid][container][name]
}

// idsOf are the devices of a container, by resource.
func (m *Manager) idsOf(uid types.UID, container string) map[string][]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	ids := map[string][]string{}
	for name, g := range m.allocated[uid][container] {
		ids[name] = g.IDs
	}
	return ids
}

func union(a, b []string) []string {
	out := slices.Concat(a, b)
	slices.Sort(out)
	return slices.Compact(out)
}

func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(id string) bool { return slices.Contains(b, id) })
}
