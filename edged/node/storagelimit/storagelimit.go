// Package storagelimit evicts pods that use more of the disk than their limits allow: more than the size limit of an
// emptyDir, or than the ephemeral-storage limits of their containers.
//
// Measuring costs reads, so only pods that have a limit are measured, and nothing runs while there is none.
package storagelimit

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

	"github.com/edgecore-io/edgecore/edged/containers/logdir"
	"github.com/edgecore-io/edgecore/edged/node/eviction"
	"github.com/edgecore-io/edgecore/edged/node/nodepressure"
	"github.com/edgecore-io/edgecore/edged/node/stats"
	"github.com/edgecore-io/edgecore/edged/podstate/admission"
	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/edged/storage/volume"
	"github.com/edgecore-io/edgecore/pkg/notify"
)

const (
	// period is how often pods with limits are measured: as often as the kubelet does it.
	period = 10 * time.Second
	// A round that took long is followed by a pause of pauseFactor times its duration, maxPause at most: on a busy
	// device a round may take long although it costs little.
	pauseFactor = 100
	maxPause    = time.Minute
	// grace is how long, in seconds, the containers of a pod over its limit may take to stop.
	grace = 1
)

// Options are what a Manager needs.
type Options struct {
	Desired *desired.Pods
	Phase   func(types.UID) v1.PodPhase
	// Node measures the file systems of the node.
	Node func(context.Context) (stats.NodeUsage, error)
	// Volumes returns the bytes in the volumes of a pod, by name.
	Volumes func(context.Context, *v1.Pod) (map[string]int64, error)
	Runtime runtimeapi.RuntimeServiceClient
	// LogDir returns the folder of a pod's logs, Files other files and folders that it writes.
	LogDir func(*v1.Pod) string
	Files  func(*v1.Pod) []string
	// Stop ends a pod. It is called after Evicted, which counts pods by the kind of their limit.
	Stop    func(*v1.Pod, status.Stopped)
	Evicted func(limit string)
}

// Manager measures pods and ends those over their limits.
type Manager struct {
	opts Options
	// added wakes Run: a pod with a limit was added.
	added notify.Signal
	// watching says that Run measures at intervals.
	watching atomic.Bool
}

// New returns a Manager that does nothing before Run.
func New(o Options) *Manager { return &Manager{opts: o, added: notify.NewSignal()} }

// Added is called for each pod before it starts. It may be called from any goroutine.
func (m *Manager) Added(pod *v1.Pod) {
	if limited(pod) && !m.watching.Load() {
		m.added.Notify()
	}
}

// limited reports whether a pod has a limit. Critical pods are not ended for theirs.
func limited(pod *v1.Pod) bool {
	return (volume.LimitedVolumes(pod) || volume.LimitedStorage(pod)) && !admission.Critical(pod)
}

// Run measures pods until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.added:
		case <-timer.C:
		}
		began := time.Now()
		m.watching.Store(true)
		if m.check(ctx) == 0 {
			// From here on Added wakes Run. The second check sees a pod that was added just before.
			m.watching.Store(false)
			if m.check(ctx) == 0 {
				timer.Stop()
				continue
			}
			m.watching.Store(true)
		}
		timer.Reset(min(max(period, pauseFactor*time.Since(began)), maxPause))
	}
}

// check ends the pods over their limits, and returns how many pods have one.
func (m *Manager) check(ctx context.Context) int {
	count := 0
	layout, known := eviction.Layout{}, false
	for _, p := range m.opts.Desired.All() {
		if !p.Admitted || p.Removed || p.Stopped != nil || !limited(p.Pod) || status.Terminal(m.opts.Phase(p.Pod.UID)) {
			continue
		}
		count++
		if !known {
			node, err := m.opts.Node(ctx)
			if err != nil {
				klog.V(2).InfoS("File systems of the node not measured; treated as one", "err", err)
			}
			layout, known = nodepressure.Layout(node), true
		}
		use, err := m.measure(ctx, p.Pod)
		if ctx.Err() != nil {
			return count
		}
		if err != nil { // what was measured counts
			klog.V(2).InfoS("Part of a pod's disk use not measured; trying again", "pod", klog.KObj(p.Pod), "err", err)
		}
		use.ImageFS = layout.Images
		if limit, why := volume.Exceeds(p.Pod, use); limit != "" {
			klog.InfoS("Pod evicted: it uses more of the disk than it may", "pod", klog.KObj(p.Pod), "message", why)
			m.opts.Evicted(string(limit))
			m.opts.Stop(p.Pod, status.Stopped{Reason: eviction.Reason, Message: why, Grace: ptr.To[int64](grace)})
		}
	}
	return count
}

// measure returns what a pod uses of the disk: all of it if its containers are limited, otherwise its volumes only. The
// error says what could not be measured; the rest was.
func (m *Manager) measure(ctx context.Context, pod *v1.Pod) (volume.DiskUse, error) {
	volumes, err := m.opts.Volumes(ctx, pod)
	use := volume.DiskUse{Volumes: volumes, Logs: map[string]int64{}}
	if !volume.LimitedStorage(pod) {
		return use, err
	}
	failed := []error{err}
	for _, path := range m.opts.Files(pod) {
		size, err := volume.DiskUsage(ctx, path)
		failed = append(failed, err)
		use.Other += size
	}
	use.Containers, err = m.writableLayers(ctx, pod.UID)
	failed = append(failed, err)
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		logs, err := logdir.Measure(ctx, filepath.Join(m.opts.LogDir(pod), c.Name))
		failed = append(failed, err)
		use.Logs[c.Name] = logs.Bytes
	}
	return use, errors.Join(failed...)
}

// writableLayers returns the bytes in the writable layers of a pod's containers by name, as the runtime measured them
// last.
func (m *Manager) writableLayers(ctx context.Context, uid types.UID) (map[string]int64, error) {
	list, err := m.opts.Runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{
		Filter: &runtimeapi.ContainerStatsFilter{
			LabelSelector: map[string]string{"io.kubernetes.pod.uid": string(uid)},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("container stats: %w", err)
	}
	if list == nil {
		return nil, errors.New("container stats: the runtime's answer is empty")
	}
	bytes := map[string]int64{}
	for _, s := range list.Stats {
		bytes[s.GetAttributes().GetMetadata().GetName()] += int64(s.GetWritableLayer().GetUsedBytes().GetValue())
	}
	return bytes, nil
}
