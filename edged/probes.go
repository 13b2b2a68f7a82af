package edged

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/observed"
	"github.com/edgecore-io/edgecore/edged/prober"
	"github.com/edgecore-io/edgecore/pkg/version"
)

// This file is how probes are brought together with pods.

// newProber makes the prober of the node's pods.
func (e *Edged) newProber() *prober.Prober {
	parts := strings.Split(strings.TrimPrefix(version.Kubernetes(), "v"), ".")
	agent := "kube-probe/" + strings.Join(parts[:min(2, len(parts))], ".")
	return prober.New(prober.Options{Exec: e.client, Recorder: e.recorder, Changed: e.probeChanged, UserAgent: agent})
}

// probe has the running containers of a pod probed, and returns what is known of them.
func (e *Edged) probe(pod *v1.Pod, obs *observed.Pod) observed.Probes {
	before, _ := e.statuses.Get(pod.UID)
	return e.prober.Sync(pod, obs, prober.View{Address: e.podAddress(pod, obs), Before: before})
}

// podAddress is where a pod is reached from the node.
func (e *Edged) podAddress(pod *v1.Pod, obs *observed.Pod) string {
	if pod.Spec.HostNetwork {
		return e.addresses.IP()
	}
	if box := obs.Sandbox(); box != nil && len(box.IPs) > 0 {
		return box.IPs[0]
	}
	return ""
}

// probeChanged is called when probes say something new of a pod. Its worker acts on it; the worker of a pod that is
// ending is busy until its containers are gone, so the pod's status is made here.
func (e *Edged) probeChanged(uid types.UID, ending bool) {
	if !ending {
		e.pool.Poke(uid)
		return
	}
	e.statusMu.Lock()
	defer e.statusMu.Unlock()
	if w, ok := e.desired.Get(uid); ok {
		if obs := e.pleg.Get(uid); obs.ContainersAlive() {
			e.makeStatus(w.Pod, obs, nil, false)
		}
	}
}
