package edged

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/gc"
	"github.com/edgecore-io/edgecore/edged/imagegc"
	"github.com/edgecore-io/edgecore/edged/status"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/notify"
)

// This file is how the node is kept clear of what nobody needs any more: see packages gc and imagegc.

const (
	// gcPeriod is how often is looked where nothing calls for it: as often as the kubelet looks for images. A look is a
	// few lists and one measurement of a file system.
	gcPeriod = 5 * time.Minute
	// gcSettle gathers news: containers that end, pods that go, images that come.
	gcSettle = 10 * time.Second
	// gcAgain is when is looked again after images could not make the room that they should: some were too young.
	gcAgain = time.Minute

	eventFreeDiskSpaceFailed = "FreeDiskSpaceFailed"
	eventImageGCFailed       = "ImageGCFailed"
)

// GCOptions say what may stay.
type GCOptions struct {
	Images     imagegc.Policy
	Containers gc.Policy
}

// garbage removes what nobody needs.
type garbage struct {
	images *imagegc.Collector
	pods   *gc.Collector
	// tidy: the store has no status of a pod that is gone, and from now on each goes with its pod.
	tidy atomic.Bool
	// tight: images could not make the room that they should, and that was told.
	tight bool
	// news wakes it: a container has ended, a pod has gone. pulled: an image has come.
	news, pulled notify.Signal
}

func (e *Edged) newGarbage() *garbage {
	state := &imagegc.CRI{Client: e.client}
	return &garbage{
		images: imagegc.New(imagegc.Options{State: state, Policy: e.opts.GC.Images, Wanted: e.wantedImages, KeepFile: imagegc.KeepFile(e.opts.RootDir)}),
		pods: gc.New(gc.Options{
			Runtime: e.runtime, Policy: e.opts.GC.Containers, Pods: e.observedPods, Refresh: e.pleg.Refresh,
		}),
		news: notify.NewSignal(), pulled: notify.NewSignal(),
	}
}

// imagesUsed notes that a pod used its images until now.
func (e *Edged) imagesUsed(pod *v1.Pod) {
	if pod != nil {
		e.garbage.images.Used(imagegc.PodImages(pod)...)
	}
}

// gcPolicy changes what may stay, and looks at it anew.
func (e *Edged) gcPolicy(o GCOptions) {
	e.garbage.images.SetPolicy(o.Images)
	e.garbage.pods.SetPolicy(o.Containers)
	e.runtime.SetDeadAttempts(deadAttempts(o.Containers))
	e.garbage.pulled.Notify()
}

// deadAttempts is how many ended attempts at a container its next start leaves.
func deadAttempts(p gc.Policy) int {
	if p.PerContainer < 0 {
		return int(^uint(0) >> 1)
	}
	return p.PerContainer
}

// collectGarbage is the goroutine of garbage.
func (e *Edged) collectGarbage(ctx context.Context) error {
	// news makes the small look due, pulled the full one; neither is put off by more of them.
	small := time.NewTimer(gcSettle)
	defer small.Stop()
	full := time.NewTimer(gcSettle)
	defer full.Stop()
	smallDue, fullDue := true, time.Now().Add(gcSettle)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.garbage.news:
			if !smallDue {
				small.Reset(gcSettle)
				smallDue = true
			}
		case <-e.garbage.pulled:
			if time.Until(fullDue) > gcSettle {
				fullDue = time.Now().Add(gcSettle)
				full.Reset(gcSettle)
			}
		case <-small.C:
			smallDue = false
			e.removeDeadContainers(ctx)
			e.forgetStatuses(ctx) // of pods that were on their way out when it was last called
		case <-full.C:
			e.removeDeadContainers(ctx)
			e.cleanDisk(ctx)
			e.keepRepairs()
			wait := e.removeImages(ctx)
			fullDue = time.Now().Add(wait)
			full.Reset(wait)
		}
	}
}

func (e *Edged) removeDeadContainers(ctx context.Context) {
	if !e.ready.Started() || e.pleg.Healthy() != nil {
		return
	}
	n, err := e.garbage.pods.Collect(ctx)
	if err != nil && ctx.Err() == nil {
		klog.ErrorS(err, "Dead containers not removed; trying again later")
	}
	if n > 0 {
		klog.InfoS("Dead containers and sandboxes removed", "count", n)
	}
}

// removeImages removes images as the configuration says, and returns when to look again.
func (e *Edged) removeImages(ctx context.Context) time.Duration {
	if e.pleg.Healthy() != nil {
		return gcPeriod
	}
	_, err := e.garbage.images.Collect(ctx)
	full, tight := errors.AsType[*imagegc.NotEnoughError](err)
	if tight {
		if !e.garbage.tight {
			e.recorder.NodeEventf(v1.EventTypeWarning, eventFreeDiskSpaceFailed, "%v", full)
		}
		e.garbage.tight = true
		e.health.Set(health.ImagesFillDisk, full.Usage.Mountpoint, full.Error())
		return gcAgain
	}
	switch {
	case err == nil:
		e.garbage.tight = false
		e.clearCondition(health.ImagesFillDisk)
	case errors.Is(err, imagegc.ErrUnknown):
		klog.V(2).InfoS("Images not looked at", "why", err)
		return gcAgain
	case ctx.Err() == nil:
		klog.ErrorS(err, "Images could not be collected; trying again later")
		e.recorder.NodeEventf(v1.EventTypeWarning, eventImageGCFailed, "%v", err)
	}
	return gcPeriod
}

// clearCondition ends a condition for all objects.
func (e *Edged) clearCondition(code health.Code) {
	for _, c := range e.health.Snapshot() {
		if c.Code == code {
			e.health.Clear(code, c.Object)
		}
	}
}

// reclaimContainers removes all dead containers and sandboxes from which nothing is decided any more: the node is short of
// disk.
func (e *Edged) reclaimContainers(ctx context.Context) error {
	_, err := e.garbage.pods.RemoveAllDead(ctx)
	return err
}

// reclaimImages removes images that nobody needs, the one first that was used least recently, until enough is true, nil: all
// of them. The node is short of disk.
func (e *Edged) reclaimImages(ctx context.Context, enough func(context.Context) bool) error {
	_, err := e.garbage.images.Free(ctx, enough)
	return err
}

// wantedImages returns the images that the pods of this node name; ok is false while not all pods are known. Those of pods that
// are on their way out are among them until nothing is left of the pod: then it is noted that they were used until now.
func (e *Edged) wantedImages() (names []string, ok bool) {
	if !e.ready.AllPodsKnown() {
		return nil, false
	}
	for _, w := range e.desired.All() {
		if w.Removed || imagegc.Wants(w.Pod, e.statuses.Phase(w.Pod.UID)) {
			names = append(names, imagegc.PodImages(w.Pod)...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), true
}

// observedPods returns what the runtime has of the pods that somebody wants. The others go as a whole; see removeOrphans.
func (e *Edged) observedPods() []gc.Pod {
	var pods []gc.Pod
	for _, obs := range e.pleg.All() {
		w, ok := e.desired.Get(obs.UID)
		if !ok || w.Removed {
			continue
		}
		ended := status.Terminal(e.statuses.Phase(obs.UID)) && !obs.Alive() && !e.pool.Busy(obs.UID)
		pods = append(pods, gc.Pod{Observed: obs, Ended: ended})
	}
	return pods
}

// cleanDisk removes what earlier pods left on the disk, in the mounts and in the cgroups: pods that ended while the agent was
// dead, or of which nobody knows any more.
func (e *Edged) cleanDisk(ctx context.Context) {
	if !e.ready.AllPodsKnown() {
		return
	}
	left, err := gc.Leftovers(gc.Sources{"folder": e.volumes.Pods, "cgroup": e.cgroups.Pods, "logs": e.runtime.LoggedPods}, func(uid types.UID) bool {
		_, wanted := e.desired.Get(uid)
		return wanted || e.pool.Knows(uid) || e.pleg.Get(uid) != nil
	})
	if err != nil {
		klog.ErrorS(err, "What is left of pods that are gone could not all be listed")
	}
	for uid, where := range left {
		if ctx.Err() != nil {
			return
		}
		klog.InfoS("Cleaning up after a pod that is gone", "podUID", uid, "left", where)
		e.pool.Remove(uid)
	}
	e.forgetStatuses(ctx)
	links, logs := e.runtime.LogDirs()
	if n, err := gc.RemoveDeadLinks(links, filepath.Clean(logs)); err != nil {
		klog.ErrorS(err, "Links to logs of pods that are gone not removed", "dir", links)
	} else if n > 0 {
		klog.InfoS("Removed links to logs that are gone", "dir", links, "count", n)
	}
}
