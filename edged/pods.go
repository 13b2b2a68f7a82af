package edged

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/mirror"
	"github.com/edgecore-io/edgecore/edged/observed"
	"github.com/edgecore-io/edgecore/edged/volume"
)

// This file is what follows from a change of the wanted pods.

// staticPods takes over the pods of the manifest folder.
func (e *Edged) staticPods(pods []*v1.Pod) {
	added, removed := e.desired.SetStatic(pods)
	for _, pod := range removed {
		klog.InfoS("Static pod removed", "pod", klog.KObj(pod), "podUID", pod.UID)
	}
	for _, pod := range added {
		klog.InfoS("Static pod added", "pod", klog.KObj(pod), "podUID", pod.UID)
	}
	e.showStatic()
	if e.ready.StaticRead() {
		e.up.Notify()
		e.mirrorsLoaded()
	}
	if !e.ready.Started() {
		return // start does the rest
	}
	for _, pod := range removed {
		e.pool.Remove(pod.UID)
	}
	for _, pod := range added {
		if !e.pool.Knows(pod.UID) {
			e.statuses.Delete(pod.UID) // of the pod that went, which may have ended while the agent was killed
		}
		e.admissions.Admit(pod.UID)
	}
	e.removeOrphans()
}

// storedPod takes over a pod of the store that is new or changed.
func (e *Edged) storedPod(pod *v1.Pod) {
	if mirror.Is(pod) {
		e.mirrors.Seen(pod)
	}
	if !e.mine(pod) {
		return
	}
	if e.desired.Put(pod, false) && e.ready.Started() {
		e.admissions.Admit(pod.UID)
	}
}

// storedPodGone ends a pod whose row was deleted. A pod that is deleted in order stays until this node says that it has
// ended; one that goes before was deleted by force, at any time while the node was offline. Its containers still have
// their preStop hooks and the grace period that they were promised: what they write has to be whole on the disk.
func (e *Edged) storedPodGone(uid types.UID) {
	e.mirrors.Gone(uid)
	if pod := e.desired.Remove(uid); pod != nil {
		klog.InfoS("Pod deleted", "pod", klog.KObj(pod), "podUID", uid)
		e.pool.Remove(uid)
	}
}

// start hands the wanted pods to their workers, once the runtime's own list is known: pods that run already
// are adopted rather than started. It is called again when the runtime comes back or the store was read.
func (e *Edged) start() {
	first := e.ready.Start()
	all := e.desired.All()
	for _, w := range all {
		if w.Removed {
			e.pool.Remove(w.Pod.UID)
			continue
		}
		e.admissions.Admit(w.Pod.UID)
	}
	if first {
		klog.InfoS("Pods handed to their workers", "pods", len(all), "sinceStart", time.Since(e.began).Round(time.Millisecond))
	}
	e.removeOrphans()
}

// removeOrphans ends the pods that the runtime has and nobody wants. It does nothing before both
// sources have said what they want, nor while the store is not whole: what is not known to be
// unwanted is left alone.
func (e *Edged) removeOrphans() {
	if !e.ready.AllPodsKnown() {
		return
	}
	for _, obs := range e.pleg.All() {
		e.removeIfOrphan(obs)
	}
}

func (e *Edged) removeIfOrphan(obs *observed.Pod) {
	if obs == nil || len(obs.Sandboxes)+len(obs.Containers) == 0 {
		return
	}
	if _, ok := e.desired.Get(obs.UID); ok || e.pool.Knows(obs.UID) {
		return
	}
	if !e.ready.AllPodsKnown() {
		return
	}
	e.pool.Remove(obs.UID)
}

// podChanged is called when the runtime's state of a pod changed without the agent's doing.
func (e *Edged) podChanged(uid types.UID) {
	e.garbage.ContainersChanged()
	if e.pool.Knows(uid) {
		e.pool.Poke(uid)
		return
	}
	e.removeIfOrphan(e.pleg.Get(uid))
}

// podForgotten is called when nothing is left of a pod that nobody wants.
func (e *Edged) podForgotten(uid types.UID) {
	e.desired.Forget(uid)
	if _, ok := e.desired.Get(uid); !ok {
		e.allocations.Forget(uid) // others may have asked for it since its end was reported
	}
	e.terminations.Forget(uid)
	e.showStatic()
	e.capacityFreed.Notify()
}

// objectChanged syncs the pods that refer to a configmap or secret.
func (e *Edged) objectChanged(kind volume.Kind, namespace, name string) {
	for _, w := range e.desired.All() {
		if w.Pod.Namespace == namespace && volume.Refers(w.Pod, kind, name) {
			e.pool.Poke(w.Pod.UID)
		}
	}
}
