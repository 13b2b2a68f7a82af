package devices

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Held is the devices of one resource, of a container or of the node.
type Held struct {
	Resource string
	IDs      []string
	// NUMA are the NUMA nodes of the devices; none where the plugin does not say.
	NUMA []int64
}

// Held returns the devices of a container, by resource; those of one resource that lie at different NUMA nodes apart.
func (m *Manager) Held(uid types.UID, container string) []Held {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Held
	resources := m.allocated[uid][container]
	for _, name := range slices.Sorted(maps.Keys(resources)) {
		g := resources[name]
		out = append(out, byNUMA(name, g.IDs, func(id string) []int64 { return g.NUMA[id] })...)
	}
	return out
}

// All returns the devices of the node that can be allocated: the healthy ones of plugins that are there.
func (m *Manager) All() []Held {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Held
	for _, name := range slices.Sorted(maps.Keys(m.resources)) {
		p := m.resources[name]
		if p.plugin == nil {
			continue
		}
		var ids []string
		for id, d := range p.devices {
			if d.healthy {
				ids = append(ids, id)
			}
		}
		slices.Sort(ids)
		out = append(out, byNUMA(name, ids, func(id string) []int64 { return p.devices[id].numa })...)
	}
	return out
}

// byNUMA sorts devices by where they are.
func byNUMA(name string, ids []string, numa func(string) []int64) []Held {
	var out []Held
	for _, id := range ids {
		at := numa(id)
		i := slices.IndexFunc(out, func(h Held) bool { return slices.Equal(h.NUMA, at) })
		if i < 0 {
			i, out = len(out), append(out, Held{Resource: name, NUMA: at})
		}
		out[i].IDs = append(out[i].IDs, id)
	}
	return out
}

// Health returns how the devices of a pod's containers are, for allocatedResourcesStatus; nil for a pod without
// devices. What a plugin that is away would say is unknown.
func (m *Manager) Health(uid types.UID) map[string][]v1.ResourceStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	containers := m.allocated[uid]
	if len(containers) == 0 {
		return nil
	}
	out := map[string][]v1.ResourceStatus{}
	for container, resources := range containers {
		for _, name := range slices.Sorted(maps.Keys(resources)) {
			st := v1.ResourceStatus{Name: v1.ResourceName(name)}
			for _, id := range resources[name].IDs {
				st.Resources = append(st.Resources, v1.ResourceHealth{
					ResourceID: v1.ResourceID(id), Health: m.healthOf(name, id),
				})
			}
			out[container] = append(out[container], st)
		}
	}
	return out
}

func (m *Manager) healthOf(name, id string) v1.ResourceHealthStatus {
	p := m.resources[name]
	if p == nil || p.plugin == nil {
		return v1.ResourceHealthStatusUnknown
	}
	switch d, ok := p.devices[id]; {
	case !ok:
		return v1.ResourceHealthStatusUnknown
	case d.healthy:
		return v1.ResourceHealthStatusHealthy
	}
	return v1.ResourceHealthStatusUnhealthy
}
