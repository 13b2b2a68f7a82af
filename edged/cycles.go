package edged

import (
	"context"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/serve/server"
)

// Each New gets the parts that were made before it. What it needs of parts that are made after it are the functions in
// this file. None of them is called before build returns.

// busy reports whether pods start or end: the limiter of the runtime's calls knows it. The reports of statuses and
// events, which are parts of podstate, wait for a moment meanwhile.
func (e *Edged) busy() bool { return e.containers.Limiter.Busy() }

// recursiveReadOnly returns what asks the runtime how read-only it can make the volumes of a pod. The runtime gets the
// volumes from storage.
func (e *Edged) recursiveReadOnly(ctx context.Context) func(*v1.Pod) bool {
	return func(pod *v1.Pod) bool { return e.containers.Runtime.RecursiveReadOnly(ctx, pod) }
}

// activePods returns the pods whose devices storage lists for monitoring agents. The admission of pods allocates these
// devices.
func (e *Edged) activePods() []*v1.Pod { return e.pods.Admissions.ActivePodsExcept("") }

// endpoints returns where the cluster finds the node's port, for the status of the Node. The port serves the figures of
// the node.
func (e *Edged) endpoints() v1.NodeDaemonEndpoints { return e.serve.API.Endpoints() }

// linked retries what failed for want of the link. The intake of pods learns of a link, and the port is made after it:
// that shows the probes of pods.
func (e *Edged) linked() {
	e.self.Wake()
	e.storage.CSI.Linked()
	e.serve.API.Linked()
}

// contributed returns what all parts serve and measure. The ports are parts themselves.
func (e *Edged) contributed() (routes []server.Route, collectors []prometheus.Collector) {
	collectors = slices.Clone(e.opts.Collectors)
	for _, p := range e.list {
		routes, collectors = append(routes, p.routes...), append(collectors, p.collectors...)
	}
	return append(routes, e.opts.Routes...), collectors
}
