package edgecontroller

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/desired"
)

// metrics counts the requests of nodes.
type metrics struct {
	requests    *prometheus.CounterVec
	tolerations *prometheus.CounterVec

	statusRequests prometheus.Counter
	withheld       []prometheus.Collector
}

func newMetrics(desired *desired.Objects) *metrics {
	const prefix = "cloudcore_edgecontroller_"
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
	}
	var gauges []prometheus.Collector
	for _, why := range []string{"room", "change", "references"} {
		gauges = append(gauges, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: prefix + "withheld_pods",
			Help: "Pods of edge nodes that are not sent to them, or whose changes are not: there is no room, their " +
				"namespace has grown too much there, or they name too many ConfigMaps and Secrets",
			ConstLabels: prometheus.Labels{"reason": why},
		}, func() float64 { return float64(desired.WithheldPods()[why]) }))
	}
	gauges = append(gauges, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: prefix + "full_nodes",
		Help: "Edge nodes that have no room for all of their pods, or for all changes of these",
	}, func() float64 { return float64(desired.FullCount()) }))
	return &metrics{
		withheld: gauges,
		requests: vec("requests_total", "Requests of nodes, by resource type and code of the answer",
			"type", "operation", "code"),
		tolerations: vec("toleration_patches_total", "Patches of the tolerations of pods on edges, by outcome",
			"outcome"),
		statusRequests: prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "status_requests_total",
			Help: "Requests to nodes to report a pod's status again because another writer has changed it",
		}),
	}
}

func (m *metrics) register(r prometheus.Registerer) error {
	for _, c := range append([]prometheus.Collector{m.requests, m.tolerations, m.statusRequests}, m.withheld...) {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}
