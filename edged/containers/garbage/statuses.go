package garbage

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/podstate/desired"
)

// forgetStatuses removes from the store the statuses of pods that went while the agent was not running: a manifest that
// was taken away, or a pod that was being ended when the agent was killed. Once there are none, each status goes with
// its pod. It does nothing while a pod may be missing.
func (m *Manager) forgetStatuses(ctx context.Context) {
	if m.statusesClean.Load() || !m.opts.Ready.AllPodsKnown() {
		return
	}
	stored, err := m.opts.Store.StatusOwners(ctx)
	if err != nil {
		klog.V(2).InfoS("Stored statuses not listed; trying again later", "err", err)
		return
	}
	clean := true
	for _, pod := range orphanedStatuses(stored, m.opts.Desired.All()) {
		if m.opts.Workers.Knows(pod.UID) || m.opts.PLEG.Get(pod.UID) != nil {
			clean = false // the pod is being ended
			continue
		}
		klog.V(2).InfoS("Deleting the status of a deleted pod", "pod", klog.KObj(pod), "podUID", pod.UID)
		m.opts.Statuses.Delete(pod.UID)
		if err := m.opts.Store.ForgetStatus(ctx, pod); err != nil {
			klog.V(2).InfoS("Status not deleted; trying again later", "pod", klog.KObj(pod), "err", err)
			clean = false
		}
	}
	m.statusesClean.Store(clean)
}

// orphanedStatuses returns the owners of stored statuses that are not in pods. A status is stored by the name of its
// pod: one of an earlier pod of a name that is in pods is not orphaned, since it will be overwritten. It is pure.
func orphanedStatuses(stored []*v1.Pod, pods []desired.Pod) []*v1.Pod {
	names := map[types.NamespacedName]bool{}
	for _, p := range pods {
		names[types.NamespacedName{Namespace: p.Pod.Namespace, Name: p.Pod.Name}] = true
	}
	var orphaned []*v1.Pod
	for _, pod := range stored {
		if !names[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] {
			orphaned = append(orphaned, pod)
		}
	}
	return orphaned
}
