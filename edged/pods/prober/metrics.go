package prober

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the outcomes of the attempts since the agent began, and how long they took. A pod's go with the pod.
type metrics struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newMetrics() metrics {
	return metrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prober_probe_total",
			Help: "Cumulative number of a liveness, readiness or startup probe for a container by result.",
		}, []string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "prober_probe_duration_seconds",
			Help: "Duration in seconds for a probe response.",
		}, []string{"probe_type", "container", "pod", "namespace"}),
	}
}

// observe counts an attempt of r.
func (m metrics) observe(r *probe, got result, took time.Duration) {
	pod, container, kind := r.watch.pod, r.watch.container.Name, r.kind.String()
	m.total.WithLabelValues(kind, got.label(), container, pod.Name, pod.Namespace, string(pod.UID)).Inc()
	m.duration.WithLabelValues(kind, container, pod.Name, pod.Namespace).Observe(took.Seconds())
}

// label is the result as the metrics name it.
func (r result) label() string {
	return [...]string{"unknown", "successful", "failed", "successful"}[r]
}

// forgetMetrics removes the metrics of a pod that p.pods no longer has. p.mu is held.
func (p *Prober) forgetMetrics(pod *watches) {
	p.metrics.total.DeletePartialMatch(prometheus.Labels{"pod_uid": string(pod.uid)})
	for _, other := range p.pods {
		// A pod and its successor share a name, and the durations have no UID: they stay with the successor.
		if other.namespace == pod.namespace && other.name == pod.name {
			return
		}
	}
	p.metrics.duration.DeletePartialMatch(prometheus.Labels{"pod": pod.name, "namespace": pod.namespace})
}

// Describe implements prometheus.Collector.
func (p *Prober) Describe(ch chan<- *prometheus.Desc) {
	p.metrics.total.Describe(ch)
	p.metrics.duration.Describe(ch)
}

// Collect implements prometheus.Collector: it returns the metrics of /metrics/probes.
func (p *Prober) Collect(ch chan<- prometheus.Metric) {
	p.metrics.total.Collect(ch)
	p.metrics.duration.Collect(ch)
}
