package edged

import (
	"context"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/podstatus"
	"github.com/edgecore-io/edgecore/edged/podsync"
	"github.com/edgecore-io/edgecore/edged/prober"
	"github.com/edgecore-io/edgecore/pkg/version"
)

// newSyncer makes what the pod workers do.
func (e *Edged) newSyncer() *podsync.Syncer {
	return podsync.New(podsync.Options{
		Desired:       e.desired,
		Statuses:      e.statuses,
		PodStatus:     e.podStatus,
		Gate:          &e.gate,
		Waiters:       &e.terminations,
		Deadlines:     &e.deadlines,
		Recorder:      e.recorder,
		PLEG:          e.pleg,
		Runtime:       e.runtime,
		Stopper:       e.stopper,
		Allocations:   e.allocations,
		Volumes:       e.volumes,
		Inputs:        e.inputs,
		Prober:        e.prober,
		Store:         e.meta,
		Reports:       e.reporter,
		PodDir:        e.podDir,
		NetworkFor:    e.runtimeStatus.NetworkFor,
		Prepared:      e.limits.Added,
		RemoveCgroup:  e.cgroups.RemovePod,
		ReleaseUserNS: e.userns.Release,
		FreeDevices:   e.devices.Free,
		ImagesUsed:    e.garbage.ImagesUsed,
		Freed:         e.capacityFreed.Notify,
	})
}

// newPodStatus makes the part that makes the statuses of pods.
func (e *Edged) newPodStatus(ctx context.Context) *podstatus.Maker {
	return podstatus.New(podstatus.Options{
		Desired:     e.desired,
		Statuses:    e.statuses,
		Results:     &e.results,
		PLEG:        e.pleg,
		Prober:      e.prober,
		Allocations: e.allocations,
		Stopper:     e.stopper,
		Devices:     e.devices,
		Addresses:   e.addresses,
		RuntimeName: func() string {
			name, _ := e.runtimeVersion.Get()
			return name
		},
		RecursiveReadOnly: func(pod *v1.Pod) bool { return e.runtime.RecursiveReadOnly(ctx, pod) },
		LogsChanged:       e.logs.Changed,
	})
}

// newProber makes the prober of the node's pods.
func (e *Edged) newProber() *prober.Prober {
	parts := strings.Split(strings.TrimPrefix(version.Kubernetes(), "v"), ".")
	agent := "kube-probe/" + strings.Join(parts[:min(2, len(parts))], ".")
	return prober.New(prober.Options{Exec: e.client, Recorder: e.recorder, Changed: e.probeChanged, UserAgent: agent})
}

// probeChanged is called when a probe has changed its result. The pod's worker acts on it, unless the pod ends.
func (e *Edged) probeChanged(uid types.UID, ending bool) {
	if ending {
		e.podStatus.Probed(uid)
		return
	}
	e.pool.Enqueue(uid)
}

// podDir is the folder of a pod, at the same place as the kubelet's.
func (e *Edged) podDir(uid types.UID) string {
	return filepath.Join(e.opts.RootDir, "pods", string(uid))
}
