package edged

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/observed"
	"github.com/edgecore-io/edgecore/edged/shutdown"
	"github.com/edgecore-io/edgecore/edged/status"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// This file is what a shutdown of the device does to the pods.
//
//   - The containers of a pod that is to run always end in good order, and are started again after the boot, or when the
//     shutdown is called off. A kubelet fails such pods for others to take their place; here they belong to this device,
//     which may find no cloud when it comes up.
//   - One that runs once fails as under a kubelet, with the reason Terminated and the condition DisruptionTarget: what it
//     exits with when it is told to end is not its outcome, and who made it decides whether there is another. Only of a
//     static pod that is repeated until it succeeds everybody knows: it starts again.
//   - Nothing starts meanwhile. A pod that comes waits for the boot.

const (
	reasonTerminated  = "Terminated"
	messageTerminated = "Pod was terminated in response to imminent node shutdown."
	// haltLook is how often a pod that is halted is looked at, whose worker may be in the middle of something.
	haltLook = 100 * time.Millisecond
)

// newShutdown makes what waits for the device's shutdown.
func (e *Edged) newShutdown() *shutdown.Watcher {
	e.gate.Set(false)
	opts := e.opts.Shutdown
	opts.Pods, opts.End, opts.Began = e.alivePods, e.endForShutdown, e.shutdownBegan
	opts.Failed = func(err error) { e.health.SetError(health.ShutdownUnnoticed, "", err) }
	return shutdown.New(opts)
}

// alivePods are the wanted pods of which something runs.
func (e *Edged) alivePods() []*v1.Pod {
	var pods []*v1.Pod
	for _, w := range e.desired.All() {
		if e.pleg.Get(w.Pod.UID).Alive() || e.pool.Busy(w.Pod.UID) {
			pods = append(pods, w.Pod)
		}
	}
	return pods
}

// shutdownBegan has nothing start any more, or all that is wanted.
func (e *Edged) shutdownBegan(began bool) {
	e.gate.Set(began)
	e.wakeNode()
	if !began && e.ready.Started() {
		e.start()
		e.pool.PokeAll()
	}
}

// endForShutdown ends a pod, and returns when nothing of it runs any more or ctx has ended.
func (e *Edged) endForShutdown(ctx context.Context, pod *v1.Pod, grace time.Duration) {
	seconds := int64(grace / time.Second)
	w, ok := e.desired.Get(pod.UID)
	switch {
	case !ok:
		return
	case w.Removed || w.Stopped != nil || status.Terminal(e.statuses.Phase(pod.UID)):
		e.untilEnded(ctx, pod.UID) // it is on its way
	case startsAgain(pod, w.Static):
		e.halt(ctx, pod, seconds)
	default:
		e.stopPod(pod, status.Stopped{Reason: reasonTerminated, Message: messageTerminated, Grace: ptr.To(seconds), Condition: &v1.PodCondition{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet, Message: messageTerminated,
		}}, nil)
		e.untilEnded(ctx, pod.UID)
		if err := e.reporter.Flush(context.WithoutCancel(ctx), pod.UID); err != nil {
			klog.ErrorS(err, "End of a pod not reported", "pod", klog.KObj(pod))
		}
	}
}

// startsAgain tells whether a pod is to start again after the boot, rather than fail.
func startsAgain(pod *v1.Pod, static bool) bool {
	switch pod.Spec.RestartPolicy {
	case v1.RestartPolicyNever:
		return false
	case v1.RestartPolicyOnFailure:
		return static
	}
	return true
}

// untilEnded waits until nothing of a pod runs, and its worker has done what follows from that.
func (e *Edged) untilEnded(ctx context.Context, uid types.UID) {
	ended := e.waitEnded(uid)
	for e.pleg.Get(uid).Alive() || e.pool.Busy(uid) || e.stopped(uid) != nil && !status.Terminal(e.statuses.Phase(uid)) {
		select {
		case <-ctx.Done():
			return
		case <-ended:
			return
		case <-time.After(haltLook):
		}
	}
}

// halt stops the containers of a pod that is to run again.
func (e *Edged) halt(ctx context.Context, pod *v1.Pod, seconds int64) {
	klog.InfoS("Pod halted until the device is up again", "pod", klog.KObj(pod), "podUID", pod.UID)
	e.pool.Poke(pod.UID) // so that a sync under way is followed by one that finds out
	for ctx.Err() == nil {
		obs, err := e.pleg.Refresh(ctx, pod.UID)
		if err == nil && !obs.Alive() && !e.pool.Busy(pod.UID) {
			e.halted(ctx, pod, obs)
			return
		}
		if err == nil && obs.Alive() {
			err = e.runtime.KillPod(ctx, pod.UID, pod, obs, ptr.To(seconds))
		}
		if err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "Pod not halted; trying again", "pod", klog.KObj(pod))
		}
		retry.Sleep(ctx, haltLook)
	}
}

// halted is called when nothing of a pod runs that is to start again.
func (e *Edged) halted(ctx context.Context, pod *v1.Pod, obs *observed.Pod) {
	if pod.Spec.RestartPolicy == v1.RestartPolicyAlways {
		e.setStatus(pod, obs, nil)
		return
	}
	// A container that ended well because it was told to would count as done.
	if err := e.runtime.RemovePod(ctx, obs); err != nil {
		klog.ErrorS(err, "Containers of a halted pod not removed", "pod", klog.KObj(pod))
		return
	}
	if _, err := e.pleg.Refresh(ctx, pod.UID); err != nil {
		klog.V(2).InfoS("Pod not looked at after it was halted", "pod", klog.KObj(pod), "err", err)
	}
}
