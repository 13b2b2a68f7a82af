// Package podstop stops pods that are still desired, for reasons of the node: pressure on its resources, room for a
// critical pod, a limit of the pod's own storage, a shutdown of the device.
//
// A pod that is stopped fails for good once nothing of it runs. Why it was stopped is known again after a restart of
// the agent, from the condition that its status has.
package podstop

import (
	"context"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/node/eviction"
	"github.com/edgecore-io/edgecore/edged/pods/podworker"
	"github.com/edgecore-io/edgecore/edged/pods/termination"
	"github.com/edgecore-io/edgecore/edged/podstate/admission"
	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
)

// Options are what a Stopper needs.
type Options struct {
	Desired  *desired.Pods
	Workers  podworker.Interface
	Statuses *status.Manager
	// Waiters are notified when pods end, for whatever reason.
	Waiters  *termination.Waiters
	Recorder *events.Recorder
}

// Interface is what other packages ask of a Stopper.
type Interface interface {
	Stop(pod *v1.Pod, why status.Stopped, annotations map[string]string)
	Ended(uid types.UID) <-chan struct{}
	Why(uid types.UID) *status.Stopped
}

// Stopper ends pods. Its methods may be called from any goroutine.
type Stopper struct {
	opts Options
	// runCtx ends with the run of the agent, and with it the watches.
	runCtx  context.Context
	watches sync.WaitGroup
}

// New returns a Stopper that watches how pods end until life ends.
func New(ctx context.Context, o Options) *Stopper { return &Stopper{opts: o, runCtx: ctx} }

// Stop ends a pod within the grace period of why. It interrupts a pull, a hook or a longer termination, and does
// nothing for a pod that is stopped already. It does not wait. annotations, which may be nil, are those of the event.
func (s *Stopper) Stop(pod *v1.Pod, why status.Stopped, annotations map[string]string) {
	if !s.opts.Desired.Stop(pod.UID, &why) {
		return
	}
	s.opts.Recorder.AnnotatedEventf(pod, annotations, v1.EventTypeWarning, why.Reason, "%s", why.Message)
	s.opts.Workers.Stop(pod.UID, why.Grace)
	s.watches.Go(func() {
		limit := termination.Timeout(pod, why.Grace)
		if !termination.Within(s.runCtx, s.Ended(pod.UID), limit) && s.runCtx.Err() == nil {
			s.opts.Recorder.Eventf(pod, v1.EventTypeWarning, termination.ReasonExceededGrace,
				termination.MessageExceededGrace)
		}
	})
}

// Ended returns a channel that is closed when nothing of a pod runs any more. A pod without a worker does not run.
func (s *Stopper) Ended(uid types.UID) <-chan struct{} {
	done := s.opts.Waiters.Wait(uid)
	if !s.opts.Workers.Knows(uid) {
		s.opts.Waiters.Forget(uid)
	}
	return done
}

// Why returns why a pod is being stopped; nil if it is not.
func (s *Stopper) Why(uid types.UID) *status.Stopped {
	if w, ok := s.opts.Desired.Get(uid); ok && w.Stopped != nil {
		return w.Stopped
	}
	before, _ := s.opts.Statuses.Get(uid)
	return whyBefore(before.Conditions)
}

// Wait returns when the last watch has ended, after life has.
func (s *Stopper) Wait() { s.watches.Wait() }

// whyBefore returns why a pod was being stopped when the agent ended, by the conditions of its status; nil if it was
// not.
func whyBefore(conditions []v1.PodCondition) *status.Stopped {
	find := func(wanted func(c v1.PodCondition) bool) *v1.PodCondition {
		i := slices.IndexFunc(conditions, func(c v1.PodCondition) bool {
			return c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue && wanted(c)
		})
		if i < 0 {
			return nil
		}
		return &conditions[i]
	}
	if c := find(func(c v1.PodCondition) bool { return c.Message == admission.DisruptionMessage }); c != nil {
		return &status.Stopped{Reason: admission.ReasonPreempting, Message: admission.MessagePreempted, Condition: c}
	}
	evicted := find(func(c v1.PodCondition) bool {
		return c.Reason == v1.PodReasonTerminationByKubelet && eviction.Was(c.Message)
	})
	if evicted != nil {
		return &status.Stopped{Reason: eviction.Reason, Message: evicted.Message, Condition: evicted}
	}
	return nil
}
