package edged

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/mirror"
)

// newMirrors makes what shows the static pods in the cloud; nil on a device without one.
func (e *Edged) newMirrors() *mirror.Manager {
	if e.opts.Node == nil {
		return nil
	}
	m := mirror.New(mirror.Options{Cloud: e.meta, NodeName: e.opts.NodeName, Status: e.shownStatus})
	m.Link(e.opts.Link != nil && e.opts.Link().Connected) // of a link that was there before this module news may not come
	return m
}

// shownStatus is the status of a static pod as a mirror pod shows it.
func (e *Edged) shownStatus(uid types.UID) (v1.PodStatus, bool) { return e.statuses.Get(uid) }

// showStatic tells the mirrors which static pods there are. One that is on its way out is shown until nothing is left of
// it, or until another has its name.
func (e *Edged) showStatic() {
	if e.mirrors == nil {
		return
	}
	shown := map[types.NamespacedName]*v1.Pod{}
	for _, w := range e.desired.All() {
		name := types.NamespacedName{Namespace: w.Pod.Namespace, Name: w.Pod.Name}
		if w.Static && (!w.Removed || shown[name] == nil) {
			shown[name] = w.Pod
		}
	}
	pods := make([]*v1.Pod, 0, len(shown))
	for _, pod := range shown {
		pods = append(pods, pod)
	}
	e.mirrors.SetStatic(pods)
}

// mirrorsLoaded lets the mirrors be kept, once what is to be shown and what is shown are known.
func (e *Edged) mirrorsLoaded() {
	if e.ready.SourcesRead() {
		e.mirrors.Loaded()
	}
}
