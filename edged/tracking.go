package edged

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/containers/garbage"
	"github.com/edgecore-io/edgecore/edged/containers/gc"
	"github.com/edgecore-io/edgecore/edged/containers/imagegc"
	"github.com/edgecore-io/edgecore/edged/pods/podstop"
	"github.com/edgecore-io/edgecore/edged/podstate/mirror"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/edged/podstate/statusreport"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// tracking is what is known of pods, and what removes pods and their leftovers.
type tracking struct {
	mirrors  *mirror.Manager // nil without a cloud
	reporter *statusreport.Reporter
	statuses *status.Manager
	stopper  *podstop.Stopper
	garbage  *garbage.Manager
}

func (e *Edged) buildTracking(ctx context.Context) {
	o := &e.opts
	if o.Node != nil {
		e.mirrors = mirror.New(mirror.Options{
			Cloud:    e.meta,
			NodeName: o.NodeName,
			Status:   func(uid types.UID) (v1.PodStatus, bool) { return e.statuses.Get(uid) },
			Linked:   o.Link != nil && o.Link().Connected,
		})
	}
	e.reporter = statusreport.New(statusreport.Options{
		Store:        e.meta,
		Stored:       func(err error) { e.health.SetError(health.StoreFailing, "", err) },
		StaticStored: e.mirrors.Wake,
		Busy:         func() bool { return e.limiter.Busy() },
	})
	e.statuses = status.NewManager(e.reporter)
	e.stopper = podstop.New(ctx, podstop.Options{
		Desired:  e.desired,
		Workers:  e.pool,
		Statuses: e.statuses,
		Waiters:  &e.terminations,
		Recorder: e.recorder,
	})
	e.garbage = garbage.New(garbage.Options{
		Policy:   o.GC,
		Ready:    e.ready,
		Desired:  e.desired,
		Runtime:  e.runtime,
		Images:   &imagegc.CRI{Client: e.client},
		PLEG:     e.pleg,
		Workers:  e.pool,
		Statuses: e.statuses,
		Store:    e.meta,
		Repairs:  e.repairer,
		Leftovers: gc.Sources{
			"folder": e.volumes.Pods,
			"cgroup": e.cgroups.Pods,
			"logs":   e.runtime.LoggedPods,
		},
		KeepFile: imagegc.KeepFile(o.RootDir),
		Recorder: e.recorder,
		Health:   e.health,
	})
}
