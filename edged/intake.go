package edged

import (
	"context"

	"github.com/edgecore-io/edgecore/edged/intake"
)

// newIntake makes the part that takes in which pods the node is to run.
func (e *Edged) newIntake() *intake.Intake {
	return intake.New(intake.Options{
		NodeName:    e.opts.NodeName,
		Began:       e.began,
		Bus:         e.opts.Bus,
		Store:       e.meta,
		Ready:       e.ready,
		Desired:     e.desired,
		Admission:   e.admissions,
		Workers:     e.pool,
		PLEG:        e.pleg,
		Statuses:    e.statuses,
		Garbage:     e.garbage,
		Allocations: e.allocations,
		Waiters:     &e.terminations,
		Mirrors:     e.mirrors,
		Started:     e.podsStarted,
		Freed:       e.capacityFreed.Notify,
		Linked:      e.linked,
		Synced:      func() { e.damaged.Store(false) },
	})
}

// podsStarted is called when the runtime's state is known and the desired pods were handed to their workers.
func (e *Edged) podsStarted(ctx context.Context) {
	e.runtimeStatus.Learn(ctx)
	e.garbage.CleanUp(ctx)
}

// linked has what failed for want of the link tried again.
func (e *Edged) linked() {
	e.wakeNode()
	e.csi.Linked()
	e.api.Linked()
}

// clockSet is told when somebody sets the clock.
func (e *Edged) clockSet() {
	if e.opts.ClockSet != nil {
		e.opts.ClockSet()
	}
	e.wakeNode()
}
