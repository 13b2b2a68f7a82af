package edged

import (
	"strings"

	"k8s.io/apimachinery/pkg/types"

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

// probeChanged is called when a probe has changed its result. The pod's worker acts on it, unless the pod ends.
func (e *Edged) probeChanged(uid types.UID, ending bool) {
	if ending {
		e.podStatus.Probed(uid)
		return
	}
	e.pool.Poke(uid)
}
