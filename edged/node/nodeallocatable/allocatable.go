// Package nodeallocatable splits a node's resources between pods, the system and the agent, as the configuration says:
// what the Node reports as allocatable, the limits of the cgroups, and the thresholds of evictions. It reads nothing
// but its arguments and changes nothing.
package nodeallocatable

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/containers/cgroups"
	"github.com/edgecore-io/edgecore/edged/node/eviction"
	"github.com/edgecore-io/edgecore/edged/node/node"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

// defaultTransition is what an evictionPressureTransitionPeriod of 0 means.
const defaultTransition = 5 * time.Minute

// Split is how a node's resources are divided.
type Split struct {
	// Eviction says when pods are evicted.
	Eviction eviction.Config
	// Allocatable is what the Node reports as allocatable.
	Allocatable v1.ResourceList
	// Pods limits all pods together.
	Pods cgroups.Resources
	// Reserved limits the cgroups of the system and of the agent.
	Reserved []cgroups.Reserved
}

// New returns the split of a node with the given capacity. An error names the key of the configuration.
func New(own *v1alpha2.Edged, capacity v1.ResourceList) (s Split, err error) {
	k := &own.TailoredKubeletConfig
	enforced := slices.Contains(k.EnforceNodeAllocatable, "pods") && ptr.Deref(k.CgroupsPerQOS, true)
	hard := k.EvictionHard
	if ptr.Deref(k.MergeDefaultEvictionSettings, false) {
		hard = maps.Clone(v1alpha2.Default().Modules.Edged.TailoredKubeletConfig.EvictionHard)
		maps.Copy(hard, k.EvictionHard)
	}
	s.Eviction = eviction.Config{
		Transition:  k.EvictionPressureTransitionPeriod.Duration,
		MaxPodGrace: int64(k.EvictionMaxPodGracePeriod),
	}
	if s.Eviction.Transition == 0 {
		s.Eviction.Transition = defaultTransition
	}
	if s.Eviction.Thresholds, err = eviction.Parse(eviction.Settings{
		Hard:        hard,
		Soft:        k.EvictionSoft,
		SoftGrace:   k.EvictionSoftGracePeriod,
		MinReclaim:  k.EvictionMinimumReclaim,
		PodsLimited: enforced,
	}); err != nil {
		return s, err
	}
	kept := eviction.Reserved(s.Eviction.Thresholds, capacity)
	if own.ExperimentalNodeAllocatableIgnoreEvictionThreshold {
		kept = nil
	}
	if s.Allocatable, err = node.Allocatable(capacity, k.SystemReserved, k.KubeReserved, kept); err != nil {
		return s, err
	}
	if enforced {
		if s.Pods, err = podsLimit(k, capacity); err != nil {
			return s, err
		}
	} else {
		// Without a weight of its own, the cgroup of all pods would weigh as much as a single core.
		s.Pods.CPUShares = cgroups.Shares(capacity.Cpu().MilliValue())
	}
	s.Reserved, err = reservedGroups(k)
	return s, err
}

// podsLimit returns the limit of all pods together: the capacity without what is reserved. Pods may use what the
// eviction thresholds hold back, until they are evicted for it.
func podsLimit(k *kubeletconfig.KubeletConfiguration, capacity v1.ResourceList) (cgroups.Resources, error) {
	var r cgroups.Resources
	for name, total := range map[string]int64{
		"cpu": capacity.Cpu().MilliValue(), "memory": capacity.Memory().Value(), "pid": cgroups.MaxPIDs(),
	} {
		left := total
		for _, list := range []map[string]string{k.SystemReserved, k.KubeReserved} {
			taken, err := amountOf(name, list)
			if err != nil {
				return r, err
			}
			left -= taken
		}
		if left <= 0 && total > 0 {
			return r, fmt.Errorf("systemReserved and kubeReserved leave no %s for pods; reserve less, "+
				"or remove pods from enforceNodeAllocatable", name)
		}
		switch name {
		case "cpu":
			r.CPUShares = cgroups.Shares(left)
		case "memory":
			r.Memory = left
		case "pid":
			r.Pids = max(left, 0)
		}
	}
	return r, nil
}

// amountOf returns a reserved amount: thousandths of a core for cpu, and units of every other resource.
func amountOf(name string, list map[string]string) (int64, error) {
	text, ok := list[name]
	if !ok {
		return 0, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, fmt.Errorf("reserved %s: %q is not a quantity: %w", name, text, err)
	}
	if name == "cpu" {
		return q.MilliValue(), nil
	}
	return q.Value(), nil
}

// reservedGroups returns the limits of the cgroups of the system and of the agent that enforceNodeAllocatable names.
func reservedGroups(k *kubeletconfig.KubeletConfiguration) ([]cgroups.Reserved, error) {
	var list []cgroups.Reserved
	for _, g := range []struct {
		what, cgroup string
		reserved     map[string]string
	}{
		{"system-reserved", k.SystemReservedCgroup, k.SystemReserved},
		{"kube-reserved", k.KubeReservedCgroup, k.KubeReserved},
	} {
		at := slices.IndexFunc(k.EnforceNodeAllocatable, func(s string) bool {
			return strings.TrimSuffix(s, "-compressible") == g.what
		})
		if at < 0 {
			continue
		}
		cpu, err := amountOf("cpu", g.reserved)
		if err != nil {
			return nil, err
		}
		r := cgroups.Reserved{Key: "enforceNodeAllocatable: " + k.EnforceNodeAllocatable[at], Cgroup: g.cgroup}
		if cpu > 0 {
			r.Resources.CPUShares = cgroups.Shares(cpu)
		}
		if k.EnforceNodeAllocatable[at] == g.what {
			if r.Resources.Memory, err = amountOf("memory", g.reserved); err != nil {
				return nil, err
			}
			if r.Resources.Pids, err = amountOf("pid", g.reserved); err != nil {
				return nil, err
			}
		}
		list = append(list, r)
	}
	return list, nil
}
