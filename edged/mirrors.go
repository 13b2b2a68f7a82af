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
	// of a link that was there before this module news may not come
	m.Link(e.opts.Link != nil && e.opts.Link().Connected)
	return m
}

// shownStatus is the status of a static pod as a mirror pod shows it.
func (e *Edged) shownStatus(uid types.UID) (v1.PodStatus, bool) { return e.statuses.Get(uid) }
