package edged

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/desired"
)

// forgetStatuses removes from the store the statuses of pods that went while the agent was not there to see it: a manifest
// that was taken away meanwhile, or one whose pod was being ended when the agent was killed. Once there are none, each status
// goes with its pod. It does nothing while a pod may be missing among those that are wanted.
func (e *Edged) forgetStatuses(ctx context.Context) {
	if e.garbage.tidy.Load() || !e.ready.AllPodsKnown() {
		return
	}
	stored, err := e.meta.StatusOwners(ctx)
	if err != nil {
		klog.V(2).InfoS("Stored statuses not looked through; trying again later", "err", err)
		return
	}
	left := leftStatuses(stored, e.desired.All())
	tidy := true
	for _, pod := range left {
		if e.pool.Knows(pod.UID) || e.pleg.Get(pod.UID) != nil {
			tidy = false // it is on its way out
			continue
		}
		klog.V(2).InfoS("Forgetting the status of a pod that is gone", "pod", klog.KObj(pod), "podUID", pod.UID)
		e.statuses.Delete(pod.UID)
		if err := e.meta.ForgetStatus(ctx, pod); err != nil {
			klog.V(2).InfoS("Status not forgotten; trying again later", "pod", klog.KObj(pod), "err", err)
			tidy = false
		}
	}
	e.garbage.tidy.Store(tidy)
}

// leftStatuses returns the pods of stored statuses that nobody wants. A status is stored by the name of its pod, so that one
// of an earlier pod of a name that is wanted again is left to be overwritten. It is pure.
func leftStatuses(stored []*v1.Pod, pods []desired.Pod) []*v1.Pod {
	names := map[types.NamespacedName]bool{}
	for _, w := range pods {
		names[types.NamespacedName{Namespace: w.Pod.Namespace, Name: w.Pod.Name}] = true
	}
	var left []*v1.Pod
	for _, pod := range stored {
		if !names[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] {
			left = append(left, pod)
		}
	}
	return left
}
