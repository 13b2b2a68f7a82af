package endpoint

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/edgecore-io/edgecore/metaserver/apirequest"
)

// Why requests and connections are refused: values of the label why.
const (
	whySource   = "source"
	whyConns    = "connections"
	whyNoToken  = "no_token"
	whyRate     = "rate"
	whyRequests = "requests"
	whyWatches  = "watches"
	whyBody     = "body"
)

// Where answers come from: values of the label from.
const (
	fromDevice  = "device"
	fromCluster = "cluster"
)

// metrics count what the endpoint does.
type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	refused  *prometheus.CounterVec
	watches  *prometheus.Desc
}

func newMetrics() *metrics {
	return &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "edgecore_api_requests_total",
			Help: "Requests to the API endpoint of this device, by verb, code, and where the answer came from",
		}, []string{"verb", "code", "from"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "edgecore_api_request_duration_seconds",
			Help:    "Duration of requests to the API endpoint that have an end",
			Buckets: []float64{0.005, 0.025, 0.1, 0.25, 1, 5, 30},
		}, []string{"verb"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "edgecore_api_refused_total",
			Help: "Connections and requests that the API endpoint refused, by reason",
		}, []string{"why"}),
		watches: prometheus.NewDesc("edgecore_api_watches", "Watches and other requests without an end under way", nil,
			nil),
	}
}

func (m *metrics) refuse(why string) { m.refused.WithLabelValues(why).Inc() }

// observe counts a request that has ended.
func (m *metrics) observe(info *apirequest.Info, code int, from string, took time.Duration) {
	verb := verbOf(info.Verb)
	m.requests.WithLabelValues(verb, strconv.Itoa(code), from).Inc()
	if !info.IsLong() {
		m.duration.WithLabelValues(verb).Observe(took.Seconds())
	}
}

// verbOf keeps clients from making up values of a label.
func verbOf(verb string) string {
	switch verb {
	case "get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "proxy", "post", "put",
		"head", "options":
		return verb
	}
	return "other"
}

// Describe implements prometheus.Collector.
func (e *Endpoint) Describe(ch chan<- *prometheus.Desc) {
	e.metrics.requests.Describe(ch)
	e.metrics.duration.Describe(ch)
	e.metrics.refused.Describe(ch)
	ch <- e.metrics.watches
}

// Collect implements prometheus.Collector.
func (e *Endpoint) Collect(ch chan<- prometheus.Metric) {
	e.metrics.requests.Collect(ch)
	e.metrics.duration.Collect(ch)
	e.metrics.refused.Collect(ch)
	ch <- prometheus.MustNewConstMetric(e.metrics.watches, prometheus.GaugeValue, float64(e.limits.watches.Taken()))
}
