package edged

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/admission"
	"github.com/edgecore-io/edgecore/edged/observed"
	"github.com/edgecore-io/edgecore/edged/status"
	"github.com/edgecore-io/edgecore/edged/volume"
)

// This file is what follows from a change of the wanted pods.

// staticPods takes over the pods of the manifest folder.
func (e *Edged) staticPods(pods []*v1.Pod) {
	added, removed := e.wanted.setStatic(pods)
	for _, pod := range removed {
		klog.InfoS("Static pod removed", "pod", klog.KObj(pod), "podUID", pod.UID)
	}
	for _, pod := range added {
		klog.InfoS("Static pod added", "pod", klog.KObj(pod), "podUID", pod.UID)
	}
	if e.staticLoaded.CompareAndSwap(false, true) {
		poke(e.up)
	}
	if !e.started.Load() {
		return // start does the rest
	}
	for _, pod := range removed {
		e.pool.Remove(pod.UID, nil)
	}
	for _, pod := range added {
		e.admitAndRun(pod.UID)
	}
	e.removeOrphans()
}

// storedPod takes over a pod of the store that is new or changed.
func (e *Edged) storedPod(pod *v1.Pod) {
	if !e.mine(pod) {
		return
	}
	if e.wanted.put(pod, false) && e.started.Load() {
		e.admitAndRun(pod.UID)
	}
}

// storedPodGone ends a pod whose row was deleted.
func (e *Edged) storedPodGone(uid types.UID) {
	if pod := e.wanted.leave(uid); pod != nil {
		klog.InfoS("Pod deleted", "pod", klog.KObj(pod), "podUID", uid)
		e.pool.Remove(uid, nil)
	}
}

// start hands the wanted pods to their workers, once the runtime's own list is known: pods that run already
// are adopted rather than started. It is called again when the runtime comes back or the store was read.
func (e *Edged) start() {
	first := e.started.CompareAndSwap(false, true)
	all := e.wanted.all()
	for _, w := range all {
		if w.leaving {
			e.pool.Remove(w.pod.UID, nil)
			continue
		}
		e.admitAndRun(w.pod.UID)
	}
	if first {
		klog.InfoS("Pods handed to their workers", "pods", len(all), "sinceStart", time.Since(e.began).Round(time.Millisecond))
	}
	e.removeOrphans()
}

// admitAndRun judges a pod that was not judged yet, and hands it to its worker.
func (e *Edged) admitAndRun(uid types.UID) {
	e.admitMu.Lock()
	defer e.admitMu.Unlock()
	w, ok := e.wanted.get(uid)
	if !ok || w.leaving {
		return
	}
	if !w.admitted && w.pod.DeletionTimestamp == nil {
		rejected := e.judge(w)
		e.wanted.judge(uid, rejected)
		if rejected != nil {
			e.reject(w, *rejected)
			return
		}
		if w.rejected != nil {
			e.statuses.Delete(uid) // the rejection of before is history
		}
	}
	e.pool.Update(w.pod, e.predecessor(w.pod))
}

// judge decides on a pod's admission. Pods that were admitted before the agent started, or that run,
// are not judged again: a restart must not stop what worked.
func (e *Edged) judge(w want) *observed.Reason {
	if w.restored || e.pleg.Get(w.pod.UID).Alive() {
		return nil
	}
	var others []*v1.Pod
	for _, o := range e.wanted.all() {
		if o.admitted && o.pod.UID != w.pod.UID && !status.Terminal(e.statuses.Phase(o.pod.UID)) {
			others = append(others, o.pod)
		}
	}
	return admission.Admit(admission.Node{Allocatable: e.opts.Allocatable}, w.pod, others)
}

// reject records that a pod does not fit. A static pod, which nobody replaces, is judged again
// whenever another pod goes.
func (e *Edged) reject(w want, why observed.Reason) {
	if w.rejected != nil && *w.rejected == why {
		return
	}
	klog.InfoS("Pod rejected", "pod", klog.KObj(w.pod), "reason", why.Reason, "message", why.Message)
	e.recorder.Eventf(w.pod, v1.EventTypeWarning, why.Reason, "%s", why.Message)
	in := e.statusInputs(w.pod, nil)
	in.Rejected = &why
	e.statuses.Set(w.pod, status.Generate(in))
}

// retryRejected judges the rejected static pods again.
func (e *Edged) retryRejected() {
	for _, w := range e.wanted.all() {
		if w.static && w.rejected != nil && !w.leaving {
			e.admitAndRun(w.pod.UID)
		}
	}
}

// predecessor returns the UID of an older pod of the same name that is still there: a static pod
// whose manifest changed, now or while the agent was down.
func (e *Edged) predecessor(pod *v1.Pod) types.UID {
	if !isStatic(pod) {
		return ""
	}
	for _, obs := range e.pleg.All() {
		if obs.Name == pod.Name && obs.Namespace == pod.Namespace && obs.UID != pod.UID {
			if w, ok := e.wanted.get(obs.UID); !ok || w.leaving {
				e.pool.Remove(obs.UID, nil)
				return obs.UID
			}
		}
	}
	return ""
}

// removeOrphans ends the pods that the runtime has and nobody wants. It does nothing before both
// sources have said what they want, nor while the store is not whole: what is not known to be
// unwanted is left alone.
func (e *Edged) removeOrphans() {
	if !e.started.Load() || !e.staticLoaded.Load() || !e.storeLoaded.Load() {
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
	if _, ok := e.wanted.get(obs.UID); ok || e.pool.Knows(obs.UID) {
		return
	}
	if !e.started.Load() || !e.staticLoaded.Load() || !e.storeLoaded.Load() {
		return
	}
	e.pool.Remove(obs.UID, nil)
}

// podChanged is called when the runtime's state of a pod changed without the agent's doing.
func (e *Edged) podChanged(uid types.UID) {
	if e.pool.Knows(uid) {
		e.pool.Poke(uid)
		return
	}
	e.removeIfOrphan(e.pleg.Get(uid))
}

// podForgotten is called when nothing is left of a pod that nobody wants.
func (e *Edged) podForgotten(uid types.UID) {
	e.wanted.forget(uid)
	select {
	case e.roomMade <- struct{}{}:
	default:
	}
}

// objectChanged syncs the pods that refer to a configmap or secret.
func (e *Edged) objectChanged(kind volume.Kind, namespace, name string) {
	for _, w := range e.wanted.all() {
		if w.pod.Namespace == namespace && volume.Refers(w.pod, kind, name) {
			e.pool.Poke(w.pod.UID)
		}
	}
}

// cleanDisk removes what earlier pods left on the disk and in the cgroups: pods that ended while the
// agent was dead.
func (e *Edged) cleanDisk(ctx context.Context) {
	if !e.storeLoaded.Load() || !e.staticLoaded.Load() {
		return
	}
	left := map[types.UID]bool{}
	onDisk, err := e.volumes.Pods()
	if err != nil {
		klog.ErrorS(err, "Pod folders could not be listed", "dir", e.opts.RootDir)
	}
	inCgroups, err := e.cgroups.Pods()
	if err != nil {
		klog.ErrorS(err, "Pod cgroups could not be listed")
	}
	for _, uid := range append(onDisk, inCgroups...) {
		if _, ok := e.wanted.get(uid); !ok && !e.pool.Knows(uid) && e.pleg.Get(uid) == nil {
			left[uid] = true
		}
	}
	for uid := range left {
		if ctx.Err() != nil {
			return
		}
		klog.InfoS("Cleaning up after a pod that is gone", "podUID", uid)
		e.pool.Remove(uid, nil)
	}
}
