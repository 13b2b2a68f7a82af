package prober

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// counted is one probe of a container, whichever attempt of the container it was.
type counted struct {
	container string
	kind      kind
}

// count is what the attempts of a probe came to since the agent began, and how long they took. It goes with the pod.
type count struct {
	namespace, pod, uid string
	results             [4]uint64
	// buckets count those that took no longer than each of bounds, and longer than the one before.
	buckets [len(bounds)]uint64
	took    time.Duration
}

// bounds are in seconds: those that Prometheus takes for durations.
var bounds = [...]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// count takes an attempt.
func (w *watches) count(r *probe, got result, took time.Duration) {
	key := counted{r.watch.container.Name, r.kind}
	c := w.counts[key]
	if c == nil {
		pod := r.watch.pod
		c = &count{namespace: pod.Namespace, pod: pod.Name, uid: string(pod.UID)}
		if w.counts == nil {
			w.counts = map[counted]*count{}
		}
		w.counts[key] = c
	}
	c.results[got]++
	c.took += took
	for i, bound := range bounds {
		if took.Seconds() <= bound {
			c.buckets[i]++
			break
		}
	}
}

var (
	probeTotal = prometheus.NewDesc("prober_probe_total", "Cumulative number of a liveness, readiness or startup probe for a container by result.",
		[]string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"}, nil)
	probeDuration = prometheus.NewDesc("prober_probe_duration_seconds", "Duration in seconds for a probe response.",
		[]string{"probe_type", "container", "pod", "namespace"}, nil)
)

// Describe implements prometheus.Collector.
func (p *Prober) Describe(ch chan<- *prometheus.Desc) {
	ch <- probeTotal
	ch <- probeDuration
}

// Collect implements prometheus.Collector: it tells what /metrics/probes has.
func (p *Prober) Collect(ch chan<- prometheus.Metric) {
	p.mu.Lock()
	defer p.mu.Unlock()
	type name struct {
		counted
		namespace, pod string
	}
	seen := map[name]bool{}
	for _, w := range p.pods {
		for key, c := range w.counts {
			c.tellTotals(ch, key)
			// A pod and its successor have one name, which is all that this metric knows of them.
			if n := (name{key, c.namespace, c.pod}); !seen[n] {
				seen[n] = true
				c.tellDurations(ch, key)
			}
		}
	}
}

func (c *count) tellTotals(ch chan<- prometheus.Metric, key counted) {
	for result, n := range map[string]uint64{"successful": c.results[success] + c.results[warning], "failed": c.results[failure], "unknown": c.results[unknown]} {
		if n > 0 {
			ch <- prometheus.MustNewConstMetric(probeTotal, prometheus.CounterValue, float64(n), key.kind.String(), result, key.container, c.pod, c.namespace, c.uid)
		}
	}
}

func (c *count) tellDurations(ch chan<- prometheus.Metric, key counted) {
	total, upTo := uint64(0), make(map[float64]uint64, len(bounds))
	for i, bound := range bounds {
		total += c.buckets[i]
		upTo[bound] = total
	}
	all := uint64(0)
	for _, n := range c.results {
		all += n
	}
	ch <- prometheus.MustNewConstHistogram(probeDuration, all, c.took.Seconds(), upTo, key.kind.String(), key.container, c.pod, c.namespace)
}
