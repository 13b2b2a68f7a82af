package allocation

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
)

// DesiredPods implements Pods.
type DesiredPods struct {
	Desired  *desired.Pods
	Statuses *status.Manager
}

// Status implements Pods.
func (p DesiredPods) Status(uid types.UID) v1.PodStatus {
	st, _ := p.Statuses.Get(uid)
	return st
}

// Active implements Pods.
func (p DesiredPods) Active(uid types.UID) *v1.Pod {
	w, ok := p.Desired.Get(uid)
	if !ok || w.Removed || w.Stopped != nil || status.Terminal(p.Statuses.Phase(uid)) {
		return nil
	}
	return w.Pod
}
