package edged

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/admission"
	"github.com/edgecore-io/edgecore/edged/allocation"
	"github.com/edgecore-io/edgecore/edged/desired"
	"github.com/edgecore-io/edgecore/edged/node"
	"github.com/edgecore-io/edgecore/edged/observed"
	"github.com/edgecore-io/edgecore/edged/resize"
	"github.com/edgecore-io/edgecore/edged/status"
	"github.com/edgecore-io/edgecore/edged/termination"
)

// This file is what happens between a pod's being wanted and its start. What decides is in package admission. Most
// pods start at once; one that needs devices, room that others have to leave, or the cloud's word on its labels is
// made ready in a goroutine of its own, so that no pod waits for another's device plugin.

// labelsWait is how long the cloud may take to say which labels the Node has; without it the scheduler is trusted.
const labelsWait = 5 * time.Second

// admitAndRun judges a pod that was not judged yet, and hands it to its worker.
func (e *Edged) admitAndRun(uid types.UID) {
	e.admitMu.Lock()
	defer e.admitMu.Unlock()
	w, ok := e.desired.Get(uid)
	if !ok || w.Removed || w.StaysRejected() {
		return
	}
	if !w.Admitted && w.Pod.DeletionTimestamp == nil {
		if e.gate.Closed() {
			return // it is judged after the boot
		}
		verdict, judged := e.judge(w)
		e.desired.SetAdmission(uid, verdict.Rejected)
		if verdict.Rejected != nil {
			e.reject(w, *verdict.Rejected)
			return
		}
		if judged && (verdict.Doubt || len(verdict.Victims) > 0 || e.devices.Wants(w.Pod)) {
			e.desired.SetPreparing(uid, true)
			e.preparing.Go(func() { e.makeReady(e.life, w, verdict) })
			return
		}
		e.forgetRejection(w)
	} else if w.Preparing && w.Pod.DeletionTimestamp == nil {
		return // makeReady does the rest
	}
	e.pool.Update(w.Pod, e.predecessor(w.Pod))
}

// judge decides on a pod's admission. Pods that were admitted before the agent started, or that run,
// are not judged again: a restart must not stop what worked.
func (e *Edged) judge(w desired.Pod) (verdict admission.Verdict, judged bool) {
	if w.Restored || e.pleg.Get(w.Pod.UID).Alive() {
		return admission.Verdict{}, false
	}
	return admission.Admit(e.admissionNode(), w.Pod, e.beside(w.Pod.UID)), true
}

// beside returns the pods that were admitted and have not ended, except one. A pod that is being ended counts until
// nothing of it runs.
func (e *Edged) beside(uid types.UID) []*v1.Pod {
	var others []*v1.Pod
	for _, o := range e.desired.All() {
		if o.Admitted && o.Pod.UID != uid && !status.Terminal(e.statuses.Phase(o.Pod.UID)) {
			others = append(others, e.allocations.Allocated(o.Pod))
		}
	}
	return others
}

// admissionNode is what is known of this node without asking anybody.
func (e *Edged) admissionNode() admission.Node {
	_, allocatable := e.devices.Capacity()
	for name, q := range e.opts.Allocatable {
		allocatable[name] = q
	}
	return admission.Node{
		Name: e.opts.NodeName, Allocatable: allocatable, Devices: e.devices.Serves,
		Labels: node.Labels(e.opts.NodeName, e.opts.Labels), Checks: e.admissionChecks(),
	}
}

// makeReady does what an admitted pod needs before it starts, and starts it, or rejects it after all.
func (e *Edged) makeReady(ctx context.Context, w desired.Pod, verdict admission.Verdict) {
	uid := w.Pod.UID
	why := e.cloudsWord(ctx, w, verdict)
	if why == nil {
		e.makeRoom(ctx, w.Pod, verdict)
		if err := e.devices.Allocate(ctx, w.Pod); err != nil {
			why = &observed.Reason{Reason: "UnexpectedAdmissionError", Message: fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)}
		}
	}
	if ctx.Err() != nil {
		e.desired.ForgetAdmission(uid)
		return
	}
	e.admitMu.Lock()
	defer e.admitMu.Unlock()
	e.desired.SetPreparing(uid, false)
	now, ok := e.desired.Get(uid)
	switch {
	case !ok || now.Removed || now.Pod.DeletionTimestamp != nil:
		e.devices.Free(uid) // it was deleted meanwhile, and its worker ends it
	case why != nil:
		e.desired.SetAdmission(uid, why)
		e.reject(w, *why)
	default:
		e.forgetRejection(w)
		e.pool.Update(now.Pod, e.predecessor(now.Pod))
	}
}

// cloudsWord judges a pod by the labels and taints that the Node has now. Where the cloud cannot be asked the
// pod stays admitted: a scheduler that knew the Node has bound it.
func (e *Edged) cloudsWord(ctx context.Context, w desired.Pod, verdict admission.Verdict) *observed.Reason {
	if !verdict.Doubt || e.node == nil {
		return nil
	}
	call, cancel := context.WithTimeout(ctx, labelsWait)
	defer cancel()
	obj, err := e.meta.Node(call, e.opts.NodeName)
	if err != nil {
		klog.V(2).InfoS("Labels of the Node not known; the scheduler is trusted", "pod", klog.KObj(w.Pod), "err", err)
		return nil
	}
	known := e.admissionNode()
	known.Labels, known.Taints, known.Whole = obj.Labels, obj.Spec.Taints, true
	return admission.Admit(known, w.Pod, e.beside(w.Pod.UID)).Rejected
}

// makeRoom ends pods for one that is critical, and returns when they have ended or take too long to: then the critical
// pod starts beside them.
func (e *Edged) makeRoom(ctx context.Context, pod *v1.Pod, verdict admission.Verdict) {
	var ended []<-chan struct{}
	for _, v := range verdict.Victims {
		klog.InfoS("Pod makes room for a critical one", "pod", klog.KObj(v), "critical", klog.KObj(pod))
		e.stopper.Stop(v, status.Stopped{Reason: admission.ReasonPreempting, Message: admission.MessagePreempted, Condition: &v1.PodCondition{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet, Message: admission.DisruptionMessage,
		}}, nil)
		ended = append(ended, e.stopper.Ended(v.UID))
	}
	began := time.Now()
	for i, done := range ended {
		v := verdict.Victims[i]
		switch {
		case termination.Within(ctx, done, time.Until(began.Add(termination.Timeout(v, nil)))):
			e.preemptions.WithLabelValues(string(verdict.Lack)).Inc()
		case ctx.Err() == nil:
			klog.InfoS("Pod takes too long to end; the critical one starts beside it", "pod", klog.KObj(v), "critical", klog.KObj(pod))
		}
	}
}

// newPreemptions makes the metric of pods that ended for critical ones.
func newPreemptions() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kubelet_preemptions", Help: "Pods that ended to make room for critical ones, by the resource that was short.",
	}, []string{"preemption_signal"})
}

// newAllocations makes the part that resizes pods.
func (e *Edged) newAllocations() *allocation.Manager {
	return allocation.New(allocation.Options{
		Runtime:   e.client,
		Cgroups:   e.cgroups,
		Recorder:  e.recorder,
		Status:    e.lastStatus,
		Active:    e.resizable,
		Judge:     e.judgeResize,
		Admission: &e.admitMu,
		Enqueue:   e.pool.Poke,
		Freed:     e.capacityFreed.Notify,
	})
}

// lastStatus returns the newest status of a pod; the zero value if it has none.
func (e *Edged) lastStatus(uid types.UID) v1.PodStatus {
	st, _ := e.statuses.Get(uid)
	return st
}

// judgeResize says why a pod does not get what it asks for; nil admits it. A node under pressure admits no resize.
func (e *Edged) judgeResize(pod *v1.Pod) *observed.Reason {
	if why := e.evictions.Admit(pod); why != nil {
		return why
	}
	return resize.Judge(pod, e.opts.Allocatable, e.beside(pod.UID))
}

// resizable returns a pod that may be resized; nil if it is not desired, is being stopped, or has ended.
func (e *Edged) resizable(uid types.UID) *v1.Pod {
	w, ok := e.desired.Get(uid)
	if !ok || w.Removed || w.Stopped != nil || status.Terminal(e.statuses.Phase(uid)) {
		return nil
	}
	return w.Pod
}

// ended tells whoever waits that nothing of a pod runs any more.
func (e *Edged) ended(uid types.UID) {
	e.terminations.Ended(uid)
	e.capacityFreed.Notify()
}

// reject records that a pod does not fit. A pod of the API server has failed then, and its owner makes another. A static
// pod, which nobody replaces, is judged again whenever another pod goes or devices change.
func (e *Edged) reject(w desired.Pod, why observed.Reason) {
	if w.Rejected != nil && *w.Rejected == why {
		return
	}
	klog.InfoS("Pod rejected", "pod", klog.KObj(w.Pod), "reason", why.Reason, "message", why.Message)
	e.recorder.Eventf(w.Pod, v1.EventTypeWarning, why.Reason, "%s", why.Message)
	in := e.statusInputs(w.Pod, nil)
	in.Rejected = &why
	made, _ := status.Generate(in)
	e.statuses.Set(w.Pod, made)
}

// forgetRejection drops the status of a static pod that was rejected, by this run of the agent or an earlier one, and now
// starts.
func (e *Edged) forgetRejection(w desired.Pod) {
	if before, _ := e.statuses.Get(w.Pod.UID); w.Static && status.WasRejected(&before) {
		e.statuses.Delete(w.Pod.UID)
	}
}

// retryRejected judges the rejected static pods again.
func (e *Edged) retryRejected() {
	for _, w := range e.desired.All() {
		if w.Static && w.Rejected != nil && !w.Removed {
			e.admitAndRun(w.Pod.UID)
		}
	}
}

// devicesChanged is told when devices come, go, or change their health.
func (e *Edged) devicesChanged() {
	e.wakeNode()
	e.capacityFreed.Notify()
	for _, uid := range e.devices.Pods() {
		e.pool.Poke(uid)
	}
}
