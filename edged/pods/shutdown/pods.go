package shutdown

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/containers/pleg"
	"github.com/edgecore-io/edgecore/edged/containers/runtimelimit"
	"github.com/edgecore-io/edgecore/edged/pods/podstop"
	"github.com/edgecore-io/edgecore/edged/pods/podworker"
	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

const (
	reasonTerminated  = "Terminated"
	messageTerminated = "Pod was terminated in response to imminent node shutdown."
	// haltLook is how often a pod that is halted is looked at, whose worker may be in the middle of something.
	haltLook = 100 * time.Millisecond
)

// Runtime stops and removes the containers of a pod; see package runtime.
type Runtime interface {
	KillPod(ctx context.Context, uid types.UID, pod *v1.Pod, obs *observed.Pod, grace *int64) error
	RemovePod(ctx context.Context, obs *observed.Pod) error
}

// Pods are the pods of the node, which a shutdown ends:
//
//   - The containers of a pod that is to run always end in good order, and are started again after the boot, or when
//     the shutdown is called off. A kubelet fails such pods for others to take their place; here they belong to this
//     device, which may find no cloud when it comes up.
//   - One that runs once fails as under a kubelet, with the reason Terminated and the condition DisruptionTarget: its
//     exit code after SIGTERM is not its result, and its owner decides whether to replace it. A static pod that is
//     repeated until it succeeds starts again.
//
// That nothing starts meanwhile is the work of the Gate.
type Pods struct {
	Desired  *desired.Pods
	PLEG     pleg.Interface
	Workers  podworker.Interface
	Statuses *status.Manager
	Runtime  Runtime
	Stopper  podstop.Interface
	// Flush stores the newest status of a pod.
	Flush func(ctx context.Context, uid types.UID) error
	// Report makes the status of a pod from what the runtime has of it.
	Report func(pod *v1.Pod, obs *observed.Pod)
}

// Alive returns the desired pods that have running containers.
func (p *Pods) Alive() []*v1.Pod {
	var pods []*v1.Pod
	for _, w := range p.Desired.All() {
		if p.PLEG.Get(w.Pod.UID).Alive() || p.Workers.Busy(w.Pod.UID) {
			pods = append(pods, w.Pod)
		}
	}
	return pods
}

// End ends a pod, and returns when nothing of it runs any more or ctx has ended.
func (p *Pods) End(ctx context.Context, pod *v1.Pod, grace time.Duration) {
	seconds := int64(grace / time.Second)
	w, ok := p.Desired.Get(pod.UID)
	switch {
	case !ok:
		return
	case w.Removed || w.Stopped != nil || status.Terminal(p.Statuses.Phase(pod.UID)):
		p.untilEnded(ctx, pod.UID) // it is on its way
	case startsAgain(pod, w.Static):
		p.halt(ctx, pod, seconds)
	default:
		p.fail(ctx, pod, seconds)
	}
}

// startsAgain reports whether a pod is to start again after the boot, rather than fail.
func startsAgain(pod *v1.Pod, static bool) bool {
	switch pod.Spec.RestartPolicy {
	case v1.RestartPolicyNever:
		return false
	case v1.RestartPolicyOnFailure:
		return static
	}
	return true
}

// fail ends a pod that runs once, and stores its end.
func (p *Pods) fail(ctx context.Context, pod *v1.Pod, seconds int64) {
	why := status.Stopped{
		Reason:  reasonTerminated,
		Message: messageTerminated,
		Grace:   ptr.To(seconds),
		Condition: &v1.PodCondition{
			Type:    v1.DisruptionTarget,
			Status:  v1.ConditionTrue,
			Reason:  v1.PodReasonTerminationByKubelet,
			Message: messageTerminated,
		},
	}
	p.Stopper.Stop(pod, why, nil)
	p.untilEnded(ctx, pod.UID)
	if err := p.Flush(context.WithoutCancel(ctx), pod.UID); err != nil {
		klog.ErrorS(err, "Termination of a pod not reported", "pod", klog.KObj(pod))
	}
}

// untilEnded waits until nothing of a pod runs, and its worker has done what follows from that.
func (p *Pods) untilEnded(ctx context.Context, uid types.UID) {
	ended := p.Stopper.Ended(uid)
	for p.PLEG.Get(uid).Alive() || p.Workers.Busy(uid) ||
		p.Stopper.Why(uid) != nil && !status.Terminal(p.Statuses.Phase(uid)) {
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
func (p *Pods) halt(ctx context.Context, pod *v1.Pod, seconds int64) {
	klog.InfoS("Pod stopped until the device is up again", "pod", klog.KObj(pod), "podUID", pod.UID)
	ctx = runtimelimit.Urgent(ctx)
	p.Workers.Enqueue(pod.UID) // so that a sync under way is followed by one that finds out
	for ctx.Err() == nil {
		obs, err := p.PLEG.Refresh(ctx, pod.UID)
		if err == nil && !obs.Alive() && !p.Workers.Busy(pod.UID) {
			p.halted(ctx, pod, obs)
			return
		}
		if err == nil && obs.Alive() {
			err = p.Runtime.KillPod(ctx, pod.UID, pod, obs, ptr.To(seconds))
		}
		if err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "Pod not stopped; trying again", "pod", klog.KObj(pod))
		}
		retry.Sleep(ctx, haltLook)
	}
}

// halted is called when nothing of a pod runs that is to start again.
func (p *Pods) halted(ctx context.Context, pod *v1.Pod, obs *observed.Pod) {
	if pod.Spec.RestartPolicy == v1.RestartPolicyAlways {
		p.Report(pod, obs)
		return
	}
	// A container that exits with 0 after SIGTERM would count as completed.
	if err := p.Runtime.RemovePod(ctx, obs); err != nil {
		klog.ErrorS(err, "Containers of a stopped pod not removed", "pod", klog.KObj(pod))
		return
	}
	if _, err := p.PLEG.Refresh(ctx, pod.UID); err != nil {
		klog.V(2).InfoS("Pod not checked after it was stopped", "pod", klog.KObj(pod), "err", err)
	}
}
