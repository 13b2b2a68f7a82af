package edged

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/admission"
	"github.com/edgecore-io/edgecore/edged/eviction"
	"github.com/edgecore-io/edgecore/edged/logdir"
	"github.com/edgecore-io/edgecore/edged/status"
	"github.com/edgecore-io/edgecore/edged/volume"
	"github.com/edgecore-io/edgecore/pkg/notify"
)

const (
	// limitsPeriod is how often the disk is measured that pods with limits of it use: as the kubelet does.
	limitsPeriod = 10 * time.Second
	// limitsShare bounds what measuring costs: a round that took long is followed by a pause of so many times that, and
	// of limitsPause at most: on a busy device a round takes long that costs little.
	limitsShare = 100
	limitsPause = time.Minute
	// reasonEvicted is the reason of a pod that took more of the disk than it may.
	reasonEvicted = "Evicted"
	// evictionGrace is how long, in seconds, the containers of such a pod have.
	evictionGrace = 1
)

// diskLimits ends pods that take more of the disk than they may. It measures only pods that have a limit, and sleeps while
// there is none.
type diskLimits struct {
	// begun wakes it: a pod with a limit has come.
	begun   notify.Signal
	watched atomic.Bool
}

func newDiskLimits() *diskLimits { return &diskLimits{begun: notify.NewSignal()} }

// saw is told of each pod that is made ready.
func (l *diskLimits) saw(pod *v1.Pod) {
	if diskLimited(pod) && !l.watched.Load() {
		l.begun.Notify()
	}
}

// diskLimited tells whether a pod may take only so much of the disk. Critical pods are not ended for it.
func diskLimited(pod *v1.Pod) bool {
	return (volume.LimitedVolumes(pod) || volume.LimitedStorage(pod)) && !admission.Critical(pod)
}

// keepDiskLimits is the goroutine of diskLimits.
func (e *Edged) keepDiskLimits(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.limits.begun:
		case <-timer.C:
		}
		began := time.Now()
		e.limits.watched.Store(true)
		if e.checkDiskLimits(ctx) == 0 {
			// From here on saw wakes us; a pod that came just before is in the second look.
			e.limits.watched.Store(false)
			if e.checkDiskLimits(ctx) == 0 {
				timer.Stop()
				continue
			}
			e.limits.watched.Store(true)
		}
		timer.Reset(min(max(limitsPeriod, limitsShare*time.Since(began)), limitsPause))
	}
}

// checkDiskLimits measures the pods that have limits, ends those that exceed theirs, and returns how many there are.
func (e *Edged) checkDiskLimits(ctx context.Context) int {
	limited := 0
	layout, known := eviction.Layout{}, false
	for _, w := range e.desired.All() {
		if !w.Admitted || w.Removed || w.Stopped != nil || !diskLimited(w.Pod) || status.Terminal(e.statuses.Phase(w.Pod.UID)) {
			continue
		}
		limited++
		if !known {
			node, err := e.stats.Node(ctx)
			if err != nil {
				klog.V(2).InfoS("File systems of the node not known; taken for one", "err", err)
			}
			layout, known = layoutOf(node), true
		}
		use, err := e.diskUse(ctx, w.Pod)
		if ctx.Err() != nil {
			return limited
		}
		if err != nil { // what was measured counts
			klog.V(2).InfoS("Part of a pod's disk use not measured; trying again", "pod", klog.KObj(w.Pod), "err", err)
		}
		use.ImageFS = layout.Images
		if limit, why := volume.Exceeds(w.Pod, use); limit != "" {
			klog.InfoS("Pod ended: it took more of the disk than it may", "pod", klog.KObj(w.Pod), "message", why)
			e.evictions.Count(string(limit))
			e.stopPod(w.Pod, status.Stopped{Reason: reasonEvicted, Message: why, Grace: ptr.To[int64](evictionGrace)}, nil)
		}
	}
	return limited
}

// diskUse measures what a pod takes of the disk: all of it where its containers are limited, else its volumes only. The
// error says what could not be measured; the rest is what was.
func (e *Edged) diskUse(ctx context.Context, pod *v1.Pod) (volume.DiskUse, error) {
	volumes, err := e.volumes.Usage(ctx, pod)
	use := volume.DiskUse{Volumes: volumes, Logs: map[string]int64{}}
	if !volume.LimitedStorage(pod) {
		return use, err
	}
	failed := []error{err}
	use.Other, err = volume.DiskUsage(ctx, filepath.Join(e.podDir(pod.UID), "etc-hosts"))
	failed = append(failed, err)
	use.Containers, err = e.writtenLayers(ctx, pod.UID)
	failed = append(failed, err)
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		logs, err := logdir.Measure(ctx, filepath.Join(e.runtime.LogDir(pod), c.Name))
		failed = append(failed, err)
		use.Logs[c.Name] = logs.Bytes
	}
	return use, errors.Join(failed...)
}

// writtenLayers returns what the containers of a pod wrote into their root file systems, by name, as the runtime last
// measured it.
func (e *Edged) writtenLayers(ctx context.Context, uid types.UID) (map[string]int64, error) {
	list, err := e.client.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{Filter: &runtimeapi.ContainerStatsFilter{
		LabelSelector: map[string]string{"io.kubernetes.pod.uid": string(uid)},
	}})
	if err != nil {
		return nil, fmt.Errorf("container stats: %w", err)
	}
	if list == nil {
		return nil, errors.New("container stats: the runtime answered nothing")
	}
	bytes := map[string]int64{}
	for _, s := range list.Stats {
		bytes[s.GetAttributes().GetMetadata().GetName()] += int64(s.GetWritableLayer().GetUsedBytes().GetValue())
	}
	return bytes, nil
}
