package nodepressure

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/node/eviction"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// Stopper ends pods; see package podstop.
type Stopper interface {
	Stop(pod *v1.Pod, why status.Stopped, annotations map[string]string)
	Ended(uid types.UID) <-chan struct{}
}

// Garbage removes dead containers and unused images; see package garbage.
type Garbage interface {
	FreeContainers(ctx context.Context) error
	FreeImages(ctx context.Context, enough func(context.Context) bool) error
}

// evict stops a pod within grace seconds, because the node is short of resources. What it returns is closed when the
// pod has ended.
func evict(s Stopper, pod *v1.Pod, message string, annotations map[string]string, grace int64) <-chan struct{} {
	s.Stop(pod, status.Stopped{
		Reason:  eviction.Reason,
		Message: message,
		Grace:   &grace,
		Condition: &v1.PodCondition{
			Type:    v1.DisruptionTarget,
			Status:  v1.ConditionTrue,
			Reason:  v1.PodReasonTerminationByKubelet,
			Message: message,
		},
	}, annotations)
	return s.Ended(pod.UID)
}

// reclaimer makes room on the disk.
type reclaimer struct {
	stats   Stats
	garbage Garbage
}

// free removes unused data from the file system of a signal until enough returns true: dead containers, then images.
func (r *reclaimer) free(ctx context.Context, s eviction.Signal, enough func(context.Context) bool) error {
	use, err := r.stats.Node(ctx)
	if err != nil {
		return err
	}
	if err := r.garbage.FreeContainers(ctx); err != nil {
		return fmt.Errorf("dead containers: %w", err)
	}
	if Layout(use).Images && !strings.HasPrefix(string(s), "imagefs.") || enough(ctx) {
		return nil
	}
	if err := r.garbage.FreeImages(ctx, enough); err != nil {
		return fmt.Errorf("images: %w", err)
	}
	return nil
}

// show sets the node's pressure conditions in the agent's health, each with the threshold that was met.
func show(h *health.Registry, conditions []v1.NodeConditionType, met []eviction.Threshold, seen eviction.Observations) {
	held := map[v1.NodeConditionType]bool{}
	for _, kind := range conditions {
		held[kind] = true
	}
	for kind, code := range map[v1.NodeConditionType]health.Code{
		v1.NodeMemoryPressure: health.MemoryPressure,
		v1.NodeDiskPressure:   health.DiskPressure,
		v1.NodePIDPressure:    health.PIDPressure,
	} {
		if !held[kind] {
			h.Clear(code, "")
			continue
		}
		detail := ""
		for _, t := range met {
			if t.Signal.Condition() == kind {
				detail = t.Describe(seen)
				break
			}
		}
		h.Set(code, "", detail)
	}
}
