// Package intake learns which pods the node is to run, from the store and from static manifests, and passes changes on.
//
// Pods come from two sources: the manifest folder, and the store. The store is read once, when the agent starts; after
// that metamanager forwards each change, once it is stored. A pod that is desired is handed to admission, which hands
// it to its worker. Nothing is handed over before both sources were asked and the runtime has answered: pods that run
// already are adopted then rather than started.
//
// Pods in the runtime that are not desired are stopped, but only while all desired pods are known (see package
// readiness).
package intake

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/edged/containers/pleg"
	"github.com/edgecore-io/edgecore/edged/pods/podworker"
	"github.com/edgecore-io/edgecore/edged/pods/termination"
	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/mirror"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/readiness"
	"github.com/edgecore-io/edgecore/edged/podstate/source"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/edged/storage/volume"
	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// Bus delivers the messages of metamanager.
type Bus interface {
	Receive(ctx context.Context, module string) (*model.Message, error)
}

// Store has the pods of the API server and the statuses of all pods; package metaclient implements it.
type Store interface {
	PodStatuses(ctx context.Context) (map[types.UID]v1.PodStatus, error)
	// Pods returns the pods that can be read, with an error if there are others.
	Pods(ctx context.Context) ([]*v1.Pod, error)
}

// Admission judges desired pods and hands them to their workers; see package podadmit.
type Admission interface {
	Admit(uid types.UID)
}

// Garbage is what pods leave behind; see package garbage.
type Garbage interface {
	Changed()
	ContainersChanged()
}

// Allocations are the resources of pods; see package allocation.
type Allocations interface {
	Forget(uid types.UID)
}

// Options are what an Intake needs.
type Options struct {
	NodeName string
	// Began is when the agent started.
	Began       time.Time
	Bus         Bus
	Store       Store
	Ready       *readiness.Tracker
	Desired     *desired.Pods
	Admission   Admission
	Workers     podworker.Interface
	PLEG        pleg.Interface
	Statuses    *status.Manager
	Garbage     Garbage
	Allocations Allocations
	Waiters     *termination.Waiters
	// Mirrors show the static pods to the cloud; nil without a cloud.
	Mirrors *mirror.Manager
	// Started is called by Run after pods were handed to their workers.
	Started func(ctx context.Context)
	// Freed is called when nothing is left of a pod, so that another may fit.
	Freed func()
	// Linked is called when there is a link to the cloud again, and Synced when the cloud has sent all that it had to.
	Linked, Synced func()
}

// Intake keeps the desired pods. Its methods may be called from any goroutine.
type Intake struct {
	opts Options
	// wake makes Run check whether the pods may start.
	wake notify.Signal
}

// New returns an Intake that knows no pods yet.
func New(o Options) *Intake { return &Intake{opts: o, wake: notify.NewSignal()} }

// Wake makes Run check again whether the pods may start: the runtime answers.
func (in *Intake) Wake() { in.wake.Notify() }

// Run starts the pods whenever the runtime answers and both sources were asked, until ctx ends.
func (in *Intake) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-in.wake:
			if in.opts.PLEG.Healthy() != nil || !in.opts.Ready.MayStart() {
				continue // a missing one registers when it is there
			}
			in.Start()
			in.opts.Started(ctx)
		}
	}
}

// Load reads the pods of the store and their last statuses, and tries again until it has them. Until then no running
// pod is taken for an orphan.
func (in *Intake) Load(ctx context.Context) error {
	retry.Until(ctx, 100*time.Millisecond, 30*time.Second, func(ctx context.Context) error {
		err := in.load(ctx)
		in.opts.Ready.StoreAsked()
		in.wake.Notify()
		return err
	}, func(err error, again time.Duration) {
		klog.ErrorS(err, "Stored pods not read; trying again", "in", again)
	})
	return nil
}

func (in *Intake) load(ctx context.Context) error {
	statuses, err := in.opts.Store.PodStatuses(ctx)
	if err != nil {
		return err
	}
	in.opts.Statuses.Restore(statuses)
	pods, err := in.opts.Store.Pods(ctx)
	if pods == nil && err != nil {
		return err
	}
	if err != nil {
		klog.ErrorS(err, "Stored pods left out")
	}
	for _, pod := range pods {
		if mirror.Is(pod) {
			in.opts.Mirrors.Seen(pod)
		}
		if in.runsHere(pod) {
			source.SetDefaults(pod)
			in.opts.Desired.Put(pod, true)
		}
	}
	klog.InfoS("Pods read from the store", "pods", len(pods))
	if err == nil {
		in.opts.Ready.StoreRead()
		in.mirrorsLoaded()
	}
	return nil
}

// runsHere reports whether a pod of the store is for this node to run. A mirror pod only shows a static pod to the
// cloud.
func (in *Intake) runsHere(pod *v1.Pod) bool {
	return !mirror.Is(pod) && (pod.Spec.NodeName == "" || pod.Spec.NodeName == in.opts.NodeName)
}

// SetStatic replaces the static pods by all pods of the manifest folder.
func (in *Intake) SetStatic(pods []*v1.Pod) {
	added, removed := in.opts.Desired.SetStatic(pods)
	for _, pod := range removed {
		klog.InfoS("Static pod removed", "pod", klog.KObj(pod), "podUID", pod.UID)
	}
	for _, pod := range added {
		klog.InfoS("Static pod added", "pod", klog.KObj(pod), "podUID", pod.UID)
	}
	in.showStatic()
	if in.opts.Ready.StaticRead() {
		in.wake.Notify()
		in.mirrorsLoaded()
	}
	if !in.opts.Ready.Started() {
		return // Start does the rest
	}
	for _, pod := range removed {
		in.opts.Workers.Remove(pod.UID)
	}
	for _, pod := range added {
		if !in.opts.Workers.Knows(pod.UID) {
			// It is the status of the pod that went, which may have ended while the agent was killed.
			in.opts.Statuses.Delete(pod.UID)
		}
		in.opts.Admission.Admit(pod.UID)
	}
	in.removeOrphans()
}

// Put adds or updates a pod of the store.
func (in *Intake) Put(pod *v1.Pod) {
	if mirror.Is(pod) {
		in.opts.Mirrors.Seen(pod)
	}
	if !in.runsHere(pod) {
		return
	}
	if in.opts.Desired.Put(pod, false) && in.opts.Ready.Started() {
		in.opts.Admission.Admit(pod.UID)
	}
}

// Remove ends a pod whose row was deleted. A pod that is deleted in order stays until this node says that it has ended;
// one that goes before was deleted by force, at any time while the node was offline. Its containers still have their
// preStop hooks and the grace period that they were promised: what they write has to be whole on the disk.
func (in *Intake) Remove(uid types.UID) {
	in.opts.Mirrors.Gone(uid)
	if pod := in.opts.Desired.Remove(uid); pod != nil {
		klog.InfoS("Pod deleted", "pod", klog.KObj(pod), "podUID", uid)
		in.opts.Workers.Remove(uid)
	}
}

// Start hands the desired pods to admission, once the runtime's own list is known. It is called again when the runtime
// comes back, the store was read, or a shutdown was called off.
func (in *Intake) Start() {
	first := in.opts.Ready.Start()
	all := in.opts.Desired.All()
	for _, w := range all {
		if w.Removed {
			in.opts.Workers.Remove(w.Pod.UID)
			continue
		}
		in.opts.Admission.Admit(w.Pod.UID)
	}
	if first {
		took := time.Since(in.opts.Began).Round(time.Millisecond)
		klog.InfoS("Pods handed to their workers", "pods", len(all), "sinceStart", took)
	}
	in.removeOrphans()
}

// removeOrphans stops the pods in the runtime that are not desired.
func (in *Intake) removeOrphans() {
	if !in.opts.Ready.AllPodsKnown() {
		return
	}
	for _, obs := range in.opts.PLEG.All() {
		in.removeIfOrphan(obs)
	}
}

func (in *Intake) removeIfOrphan(obs *observed.Pod) {
	if obs == nil || len(obs.Sandboxes)+len(obs.Containers) == 0 {
		return
	}
	if _, ok := in.opts.Desired.Get(obs.UID); ok || in.opts.Workers.Knows(obs.UID) {
		return
	}
	if !in.opts.Ready.AllPodsKnown() {
		return
	}
	in.opts.Workers.Remove(obs.UID)
}

// PodChanged is called when the runtime's state of a pod changed without the agent's doing.
func (in *Intake) PodChanged(uid types.UID) {
	in.opts.Garbage.ContainersChanged()
	if in.opts.Workers.Knows(uid) {
		in.opts.Workers.Enqueue(uid)
		return
	}
	in.removeIfOrphan(in.opts.PLEG.Get(uid))
}

// PodForgotten is called when nothing is left of a pod that is not desired.
func (in *Intake) PodForgotten(uid types.UID) {
	in.opts.Desired.Forget(uid)
	if _, ok := in.opts.Desired.Get(uid); !ok {
		in.opts.Allocations.Forget(uid) // others may have asked for it since its end was reported
	}
	in.opts.Waiters.Forget(uid)
	in.showStatic()
	in.opts.Freed()
}

// objectChanged syncs the pods that refer to a configmap or secret.
func (in *Intake) objectChanged(kind volume.Kind, namespace, name string) {
	for _, w := range in.opts.Desired.All() {
		if w.Pod.Namespace == namespace && volume.Refers(w.Pod, kind, name) {
			in.opts.Workers.Enqueue(w.Pod.UID)
		}
	}
}

// showStatic passes the static pods to the mirrors.
func (in *Intake) showStatic() {
	if in.opts.Mirrors != nil {
		in.opts.Mirrors.SetStatic(shown(in.opts.Desired.All()))
	}
}

// shown returns the static pods that the cloud is shown. One that is on its way out is shown until nothing is left of
// it, or until another has its name.
func shown(all []desired.Pod) []*v1.Pod {
	byName := map[types.NamespacedName]*v1.Pod{}
	for _, w := range all {
		name := types.NamespacedName{Namespace: w.Pod.Namespace, Name: w.Pod.Name}
		if w.Static && (!w.Removed || byName[name] == nil) {
			byName[name] = w.Pod
		}
	}
	pods := make([]*v1.Pod, 0, len(byName))
	for _, pod := range byName {
		pods = append(pods, pod)
	}
	return pods
}

// mirrorsLoaded starts the upkeep of the mirror pods, once both the static pods and the existing mirror pods are known.
func (in *Intake) mirrorsLoaded() {
	if in.opts.Ready.SourcesRead() {
		in.opts.Mirrors.Loaded()
	}
}
