// Package podadmit admits desired pods, prepares what they need to start, and hands them to their workers. Package
// admission decides which ones are admitted.
//
// Most pods start at once. One that needs devices, resources of pods that have to be preempted, or the Node's labels
// from the cloud is prepared in a goroutine of its own, so that no pod waits for another's device plugin.
//
// A pod that was admitted before the agent started, or that runs, is not decided again: a restart must not stop what
// worked.
package podadmit

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers/pleg"
	"github.com/edgecore-io/edgecore/edged/node/node"
	"github.com/edgecore-io/edgecore/edged/pods/podstop"
	"github.com/edgecore-io/edgecore/edged/pods/podworker"
	"github.com/edgecore-io/edgecore/edged/pods/resize"
	"github.com/edgecore-io/edgecore/edged/pods/termination"
	"github.com/edgecore-io/edgecore/edged/podstate/admission"
	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/source"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/pkg/refused"
)

// labelsWait is how long the cloud may take to say which labels the Node has; without it the scheduler is trusted.
const labelsWait = 5 * time.Second

// Devices are the node's devices; see package devices.
type Devices interface {
	Capacity() (capacity, allocatable v1.ResourceList)
	Serves(name v1.ResourceName) bool
	Wants(pod *v1.Pod) bool
	Allocate(ctx context.Context, pod *v1.Pod) error
	Free(uid types.UID)
}

// Allocations are what pods were given of the node's cpu and memory; see package allocation.
type Allocations interface {
	// Allocated returns a pod with the resources that it was given.
	Allocated(pod *v1.Pod) *v1.Pod
	// Retry decides again on resizes that were deferred.
	Retry(pod *v1.Pod)
}

// Options are what a Controller needs.
type Options struct {
	NodeName string
	// Allocatable is what pods may use of the node, without devices; Labels are those of the configuration.
	Allocatable v1.ResourceList
	Labels      map[string]string
	Desired     *desired.Pods
	Workers     podworker.Interface
	PLEG        pleg.Interface
	Statuses    *status.Manager
	Devices     Devices
	Stopper     podstop.Interface
	Recorder    *events.Recorder
	Allocations Allocations
	// Freed is received from when some of the node's resources may have become free.
	Freed <-chan struct{}
	// Closed reports whether nothing may start: the device shuts down.
	Closed func() bool
	// Pressure says why a node that is short of something takes no more of a pod; nil admits it.
	Pressure func(*v1.Pod) *observed.Reason
	// Checks are further reasons to reject a pod.
	Checks []func(*v1.Pod) *observed.Reason
	// Node asks the cloud for the Node; nil where there is no cloud.
	Node func(context.Context) (*v1.Node, error)
	// Rejected makes the status of a pod that was rejected.
	Rejected func(pod *v1.Pod, why observed.Reason)
}

// Controller admits pods. Its methods may be called from any goroutine.
type Controller struct {
	opts Options
	// runCtx ends with the run of the agent, and with it all preparations.
	runCtx context.Context
	// mu makes admissions and resizes one after another: each counts those before it.
	mu          sync.Mutex
	preparing   sync.WaitGroup
	preemptions *prometheus.CounterVec
}

// New returns a Controller that prepares pods until ctx ends.
func New(ctx context.Context, o Options) *Controller {
	return &Controller{opts: o, runCtx: ctx, preemptions: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kubelet_preemptions",
		Help: "Pods preempted by critical ones, by the resource that was short",
	}, []string{"preemption_signal"})}
}

// Collector counts preemptions.
func (c *Controller) Collector() prometheus.Collector { return c.preemptions }

// Wait returns when no pod is being made ready any more, after the context of New has ended.
func (c *Controller) Wait() { c.preparing.Wait() }

// Lock keeps admissions from being decided until Unlock is called.
func (c *Controller) Lock() { c.mu.Lock() }

// Unlock ends what Lock began.
func (c *Controller) Unlock() { c.mu.Unlock() }

// Probe returns once no admission is being decided.
func (c *Controller) Probe() {
	c.Lock()
	defer c.Unlock()
}

// Run decides again on rejected static pods and on deferred resizes whenever resources become free, until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.opts.Freed:
			c.RetryRejected()
			c.opts.Allocations.Retry(nil)
		}
	}
}

// Admit judges a desired pod that was not decided yet, and hands it to its worker.
func (c *Controller) Admit(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, ok := c.opts.Desired.Get(uid)
	if !ok || w.Removed || w.StaysRejected() {
		return
	}
	if !w.Admitted && w.Pod.DeletionTimestamp == nil {
		if c.opts.Closed() {
			return // it is decided after the boot
		}
		verdict, decided := c.decide(w)
		c.opts.Desired.SetAdmission(uid, verdict.Rejected)
		if verdict.Rejected != nil {
			c.reject(w, *verdict.Rejected)
			return
		}
		if decided && (verdict.Doubt || len(verdict.Victims) > 0 || c.opts.Devices.Wants(w.Pod)) {
			c.opts.Desired.SetPreparing(uid, true)
			c.preparing.Go(func() { c.makeReady(c.runCtx, w, verdict) })
			return
		}
		c.forgetRejection(w)
	} else if w.Preparing && w.Pod.DeletionTimestamp == nil {
		return // makeReady does the rest
	}
	c.opts.Workers.Update(w.Pod, c.predecessor(w.Pod))
}

// RetryRejected decides again on rejected static pods, which no controller replaces.
func (c *Controller) RetryRejected() {
	for _, w := range c.opts.Desired.All() {
		if w.Static && w.Rejected != nil && !w.Removed {
			c.Admit(w.Pod.UID)
		}
	}
}

// ActivePodsExcept returns the pods that were admitted and have not ended, except one. A pod that is being ended counts
// until nothing of it runs.
func (c *Controller) ActivePodsExcept(uid types.UID) []*v1.Pod {
	var others []*v1.Pod
	for _, o := range c.opts.Desired.All() {
		if o.Admitted && o.Pod.UID != uid && !status.Terminal(c.opts.Statuses.Phase(o.Pod.UID)) {
			others = append(others, c.opts.Allocations.Allocated(o.Pod))
		}
	}
	return others
}

// AdmitResize says why a pod does not get what it asks for; nil admits it. A node under pressure admits no resize.
// The caller has called Lock.
func (c *Controller) AdmitResize(pod *v1.Pod) *observed.Reason {
	if why := c.opts.Pressure(pod); why != nil {
		return why
	}
	return resize.Admit(pod, c.opts.Allocatable, c.ActivePodsExcept(pod.UID))
}

// decide decides on a pod's admission; decided is false where it was admitted before.
func (c *Controller) decide(w desired.Pod) (verdict admission.Verdict, decided bool) {
	if why := c.tooLarge(w.Pod); why != nil {
		return admission.Verdict{Rejected: why}, true
	}
	if w.Restored || c.opts.PLEG.Get(w.Pod.UID).Alive() {
		return admission.Verdict{}, false
	}
	return admission.Admit(c.node(), w.Pod, c.ActivePodsExcept(w.Pod.UID)), true
}

// tooLarge returns why metamanager refused a pod and stored a stub in its place; nil for a whole pod. A pod that ended
// before its stub was stored keeps its status.
func (c *Controller) tooLarge(pod *v1.Pod) *observed.Reason {
	stub, ok := refused.Of(pod.Annotations)
	if !ok {
		return nil
	}
	if before, ok := c.opts.Statuses.Get(pod.UID); ok && status.Terminal(before.Phase) && !status.WasRejected(&before) {
		return nil
	}
	return &observed.Reason{Reason: refused.Reason, Message: stub.Message}
}

// node is what is known of this node without asking anybody.
func (c *Controller) node() admission.Node {
	_, allocatable := c.opts.Devices.Capacity()
	for name, q := range c.opts.Allocatable {
		allocatable[name] = q
	}
	return admission.Node{
		Name:        c.opts.NodeName,
		Allocatable: allocatable,
		Devices:     c.opts.Devices.Serves,
		Labels:      node.Labels(c.opts.NodeName, c.opts.Labels),
		Checks:      c.opts.Checks,
	}
}

// makeReady does what an admitted pod needs before it starts, and starts it, or rejects it after all.
func (c *Controller) makeReady(ctx context.Context, w desired.Pod, verdict admission.Verdict) {
	uid := w.Pod.UID
	why := c.cloudsWord(ctx, w, verdict)
	if why == nil {
		c.makeRoom(ctx, w.Pod, verdict)
		if err := c.opts.Devices.Allocate(ctx, w.Pod); err != nil {
			why = &observed.Reason{
				Reason:  "UnexpectedAdmissionError",
				Message: fmt.Sprintf("Allocate failed due to %v, which is unexpected", err),
			}
		}
	}
	if ctx.Err() != nil {
		c.opts.Desired.ForgetAdmission(uid)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opts.Desired.SetPreparing(uid, false)
	now, ok := c.opts.Desired.Get(uid)
	switch {
	case !ok || now.Removed || now.Pod.DeletionTimestamp != nil:
		c.opts.Devices.Free(uid) // it was deleted meanwhile, and its worker ends it
	case why != nil:
		c.opts.Desired.SetAdmission(uid, why)
		c.reject(w, *why)
	default:
		c.forgetRejection(w)
		c.opts.Workers.Update(now.Pod, c.predecessor(now.Pod))
	}
}

// cloudsWord judges a pod by the labels and taints that the Node has now. Where the cloud cannot be asked the
// pod stays admitted: a scheduler that knew the Node has bound it.
func (c *Controller) cloudsWord(ctx context.Context, w desired.Pod, verdict admission.Verdict) *observed.Reason {
	if !verdict.Doubt || c.opts.Node == nil {
		return nil
	}
	call, cancel := context.WithTimeout(ctx, labelsWait)
	defer cancel()
	obj, err := c.opts.Node(call)
	if err != nil {
		klog.V(2).InfoS("Labels of the Node unknown; trusting the scheduler", "pod", klog.KObj(w.Pod), "err", err)
		return nil
	}
	known := c.node()
	known.Labels, known.Taints, known.Whole = obj.Labels, obj.Spec.Taints, true
	return admission.Admit(known, w.Pod, c.ActivePodsExcept(w.Pod.UID)).Rejected
}

// makeRoom ends pods for one that is critical, and returns when they have ended or take too long to: then the critical
// pod starts beside them.
func (c *Controller) makeRoom(ctx context.Context, pod *v1.Pod, verdict admission.Verdict) {
	var ended []<-chan struct{}
	for _, v := range verdict.Victims {
		klog.InfoS("Preempting a pod for a critical one", "pod", klog.KObj(v), "critical", klog.KObj(pod))
		c.opts.Stopper.Stop(v, status.Stopped{
			Reason:  admission.ReasonPreempting,
			Message: admission.MessagePreempted,
			Condition: &v1.PodCondition{
				Type:    v1.DisruptionTarget,
				Status:  v1.ConditionTrue,
				Reason:  v1.PodReasonTerminationByKubelet,
				Message: admission.DisruptionMessage,
			},
		}, nil)
		ended = append(ended, c.opts.Stopper.Ended(v.UID))
	}
	began := time.Now()
	for i, done := range ended {
		v := verdict.Victims[i]
		switch {
		case termination.Within(ctx, done, time.Until(began.Add(termination.Timeout(v, nil)))):
			c.preemptions.WithLabelValues(string(verdict.Lack)).Inc()
		case ctx.Err() == nil:
			klog.InfoS("Preempted pod takes too long to terminate; the critical one starts anyway",
				"pod", klog.KObj(v), "critical", klog.KObj(pod))
		}
	}
}

// reject records that a pod does not fit. A pod of the API server has failed then, and its owner makes another. A
// static pod is decided again whenever another pod goes or devices change.
func (c *Controller) reject(w desired.Pod, why observed.Reason) {
	if w.Rejected != nil && *w.Rejected == why {
		return
	}
	if before, _ := c.opts.Statuses.Get(w.Pod.UID); w.Restored && status.WasRejected(&before) {
		return // it was reported before the agent was restarted
	}
	klog.InfoS("Pod rejected", "pod", klog.KObj(w.Pod), "reason", why.Reason, "message", why.Message)
	c.opts.Recorder.Eventf(w.Pod, v1.EventTypeWarning, why.Reason, "%s", why.Message)
	c.opts.Rejected(w.Pod, why)
}

// forgetRejection drops the status of a static pod that was rejected, by this run of the agent or an earlier one, and
// now starts.
func (c *Controller) forgetRejection(w desired.Pod) {
	if before, _ := c.opts.Statuses.Get(w.Pod.UID); w.Static && status.WasRejected(&before) {
		c.opts.Statuses.Delete(w.Pod.UID)
	}
}

// predecessor returns the UID of an older pod of the same name that is still there: a static pod
// whose manifest changed, now or while the agent was down.
func (c *Controller) predecessor(pod *v1.Pod) types.UID {
	if !source.IsStatic(pod) {
		return ""
	}
	for _, obs := range c.opts.PLEG.All() {
		if obs.Name == pod.Name && obs.Namespace == pod.Namespace && obs.UID != pod.UID {
			if w, ok := c.opts.Desired.Get(obs.UID); !ok || w.Removed {
				c.opts.Workers.Remove(obs.UID)
				return obs.UID
			}
		}
	}
	return ""
}
