package edged

import (
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/observed"
	"github.com/edgecore-io/edgecore/edged/shutdown"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// newShutdown makes what waits for the device's shutdown.
func (e *Edged) newShutdown() *shutdown.Watcher {
	e.gate.Set(false)
	pods := &shutdown.Pods{
		Desired:  e.desired,
		PLEG:     e.pleg,
		Workers:  e.pool,
		Statuses: e.statuses,
		Runtime:  e.runtime,
		Stopper:  e.stopper,
		Flush:    e.reporter.Flush,
		Report:   func(pod *v1.Pod, obs *observed.Pod) { e.podStatus.Update(pod, obs, nil) },
	}
	opts := e.opts.Shutdown
	opts.Pods, opts.End, opts.Began = pods.Alive, pods.End, e.shutdownBegan
	opts.Failed = func(err error) { e.health.SetError(health.ShutdownUnnoticed, "", err) }
	return shutdown.New(opts)
}

// shutdownBegan has nothing start any more, or all that is desired.
func (e *Edged) shutdownBegan(began bool) {
	e.gate.Set(began)
	e.wakeNode()
	if !began && e.ready.Started() {
		e.intake.Start()
		e.pool.EnqueueAll()
	}
}
