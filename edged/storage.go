package edged

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/csi"
	"github.com/edgecore-io/edgecore/edged/volume"
)

// storage makes the part that has the CSI drivers.
func (e *Edged) storage() *csi.Manager {
	o := csi.Options{
		Root:     e.opts.RootDir,
		NodeName: e.opts.NodeName,
		Objects:  e.objects,
		Tokens:   e.objects,
		Own: func(ctx context.Context, pod *v1.Pod, dir string) error {
			if own := volume.OwnershipOf(pod); own != nil {
				return volume.SetOwnership(ctx, dir, *own)
			}
			return nil
		},
		Event: func(pod *v1.Pod, eventType, reason, message string) {
			e.recorder.Eventf(pod, eventType, reason, "%s", message)
		},
		Claims:     e.objects,
		Grown:      e.objects.ClaimGrown,
		Others:     func(ctx context.Context) []csi.Usage { return csi.UsagesOf(e.volumes.ClaimUsages(ctx)) },
		Registered: func() { e.pool.EnqueueAll() },
		InUse:      e.wakeNode,
	}
	if e.opts.Node != nil {
		o.Cluster = e.meta
	}
	return csi.New(o)
}
