package stats

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// series is one kind of figure of the metrics: its name, and how it is found.
type series struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func counter(name, help string, labels ...string) series {
	return series{prometheus.NewDesc(name, help, labels, nil), prometheus.CounterValue}
}

func gauge(name, help string, labels ...string) series {
	return series{prometheus.NewDesc(name, help, labels, nil), prometheus.GaugeValue}
}

// send sends a value with the time at which it was sampled. A nil value is unknown, and not sent.
func (s series) send(ch chan<- prometheus.Metric, at time.Time, value *float64, labels ...string) {
	if value != nil {
		ch <- prometheus.NewMetricWithTimestamp(at, prometheus.MustNewConstMetric(s.desc, s.kind, *value, labels...))
	}
}

// sendNow sends a value without a time.
func (s series) sendNow(ch chan<- prometheus.Metric, value float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(s.desc, s.kind, value, labels...)
}

// whole is a number as metrics have it.
func whole(n *uint64) *float64 {
	if n == nil {
		return nil
	}
	f := float64(*n)
	return &f
}

// seconds are nanoseconds as metrics have them.
func seconds(n *uint64) *float64 {
	if n == nil {
		return nil
	}
	f := float64(*n) / 1e9
	return &f
}

// scrapePatience bounds how long one answer may take.
const scrapePatience = 20 * time.Second

// collector collects a set of series, which are sampled on each request. It describes none: which exist depends on the
// node.
type collector struct {
	collect func(ctx context.Context, ch chan<- prometheus.Metric)
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapePatience)
	defer cancel()
	c.collect(ctx, ch)
}
