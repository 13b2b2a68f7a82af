package edged

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/eviction"
	"github.com/edgecore-io/edgecore/edged/nodestatus"
	"github.com/edgecore-io/edgecore/edged/runtimestatus"
)

// newRuntimeStatus makes the part that asks the runtime for its conditions.
func (e *Edged) newRuntimeStatus() *runtimestatus.Tracker {
	return runtimestatus.New(runtimestatus.Options{
		Runtime: e.runtime,
		Answers: e.pleg.Healthy,
		Health:  e.health,
		Version: &e.runtimeVersion,
		Learned: e.wakeNode,
		Changed: func() {
			if e.node != nil {
				e.node.Look()
			}
		},
		Recovered: func() {
			if e.ready.Started() {
				e.pool.EnqueueAll()
			}
		},
	})
}

// newNodeStatus makes the part that makes the status of the Node.
func (e *Edged) newNodeStatus(ctx context.Context) *nodestatus.Manager {
	return nodestatus.New(nodestatus.Options{
		Context:      ctx,
		NodeName:     e.opts.NodeName,
		System:       e.system,
		Capacity:     e.opts.Capacity,
		Allocatable:  e.opts.Allocatable,
		Devices:      e.devices.Capacity,
		Addresses:    e.addresses,
		Runtime:      e.runtimeVersion.Get,
		Features:     e.runtime.Known,
		Answers:      e.pleg.Healthy,
		Images:       e.client.Images,
		MaxImages:    e.opts.StatusImages,
		VolumesInUse: e.csi.VolumesInUse,
		Endpoints:    e.api.Endpoints,
		Pressures:    func() []v1.NodeCondition { return eviction.NodeConditions(e.evictions.Conditions()) },
		Health:       e.health,
		Recorder:     e.recorder,
	})
}

// unready says why this node cannot run pods; nil if it can.
func (e *Edged) unready() error { return e.runtimeStatus.Unready(e.gate.Closed()) }

// statusReported is called with each status that the API server took.
func (e *Edged) statusReported(status *v1.NodeStatus) {
	e.devices.Remember()
	e.csi.ReportedInUse(status.VolumesInUse)
}
