package pods

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/pods/intake"
	"github.com/edgecore-io/edgecore/edged/pods/podstop"
	"github.com/edgecore-io/edgecore/edged/pods/podworker"
	"github.com/edgecore-io/edgecore/edged/podstate"
)

// Workers are the goroutines that sync pods, and what stops pods that are still desired. They are made before the parts
// with which they work: these, from volumes to the node's status, notify them of changes.
type Workers struct {
	*podworker.Pool
	Stopper *podstop.Stopper

	// intake is set by New, which needs the parts that have the Workers already. Nothing calls it before these run.
	intake *intake.Intake
}

// NewWorkers makes workers that end with ctx. resync is how often they sync their pods at the latest. They work once
// New has set what they do.
func NewWorkers(ctx context.Context, resync time.Duration, state *State, parts *podstate.Parts) *Workers {
	w := &Workers{}
	w.Pool = podworker.New(ctx, podworker.Options{Resync: resync, Forgotten: w.forgotten})
	w.Stopper = podstop.New(ctx, podstop.Options{
		Desired:  parts.Desired,
		Workers:  w.Pool,
		Statuses: parts.Statuses,
		Waiters:  &state.Terminations,
		Recorder: parts.Recorder,
	})
	return w
}

// PodChanged is called when the runtime's state of a pod changed without the agent's doing.
func (w *Workers) PodChanged(uid types.UID) { w.intake.PodChanged(uid) }

// RuntimeAnswers is called when the runtime answers again.
func (w *Workers) RuntimeAnswers() { w.intake.Wake() }

func (w *Workers) forgotten(uid types.UID) { w.intake.PodForgotten(uid) }
