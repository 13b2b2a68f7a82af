package server

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// SLIs are the metrics of /metrics/slis: the results of the checks of /healthz. They are counted when the health is
// requested, under the names that all Kubernetes components use.
type SLIs struct {
	registry *prometheus.Registry
	newest   *prometheus.GaugeVec
	all      *prometheus.CounterVec
}

// NewSLIs makes them; both ports share them.
func NewSLIs() *SLIs {
	s := &SLIs{
		registry: prometheus.NewRegistry(),
		newest: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubernetes_healthcheck", Help: "Latest result of a health check: 1 is success, 0 is failure",
		}, []string{"name", "type"}),
		all: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubernetes_healthchecks_total", Help: "Results of health checks",
		}, []string{"name", "status", "type"}),
	}
	s.registry.MustRegister(s.newest, s.all)
	return s
}

// count notes what a check of /healthz said.
func (s *SLIs) count(name string, err error) {
	value, status := 1.0, "success"
	if err != nil {
		value, status = 0, "error"
	}
	s.newest.WithLabelValues(name, "healthz").Set(value)
	s.all.WithLabelValues(name, status, "healthz").Inc()
}

func (s *SLIs) handler() http.Handler {
	return promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}
