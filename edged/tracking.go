package edged

import (
	"context"

	"github.com/edgecore-io/edgecore/edged/containers/garbage"
	"github.com/edgecore-io/edgecore/edged/containers/gc"
	"github.com/edgecore-io/edgecore/edged/containers/imagegc"
	"github.com/edgecore-io/edgecore/edged/pods/podstop"
)

// tracking is what removes pods and their leftovers.
type tracking struct {
	stopper *podstop.Stopper
	garbage *garbage.Manager
}

func (e *Edged) buildTracking(ctx context.Context) {
	o := &e.opts
	e.stopper = podstop.New(ctx, podstop.Options{
		Desired:  e.podstate.Desired,
		Workers:  e.pool,
		Statuses: e.podstate.Statuses,
		Waiters:  &e.terminations,
		Recorder: e.podstate.Recorder,
	})
	e.garbage = garbage.New(garbage.Options{
		Policy:   o.GC,
		Ready:    e.podstate.Ready,
		Desired:  e.podstate.Desired,
		Runtime:  e.runtime,
		Images:   &imagegc.CRI{Client: e.client},
		PLEG:     e.pleg,
		Workers:  e.pool,
		Statuses: e.podstate.Statuses,
		Store:    e.podstate.Meta,
		Repairs:  e.repairer,
		Leftovers: gc.Sources{
			"folder": e.storage.Volumes.Pods,
			"cgroup": e.cgroups.Pods,
			"logs":   e.runtime.LoggedPods,
		},
		KeepFile: imagegc.KeepFile(o.RootDir),
		Recorder: e.podstate.Recorder,
		Health:   e.health,
	})
}
