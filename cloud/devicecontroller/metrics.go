package devicecontroller

import "github.com/prometheus/client_golang/prometheus"

// metrics counts what nodes report about devices.
type metrics struct {
	reports, refused, older, writes, delayed, failures prometheus.Counter
	states                                             *prometheus.CounterVec
}

func newMetrics() *metrics {
	const prefix = "cloudcore_devicecontroller_"
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + name, Help: help})
	}
	return &metrics{
		reports: counter("reports_total", "Reports of nodes on values and states of devices"),
		refused: counter("refused_reports_total", "Refused reports: the device is not bound to the node, or the "+
			"content is invalid"),
		older: counter("older_reports_total", "Reports with a value or state that was not written because the API has "+
			"a newer version of it"),
		writes:   counter("writes_total", "Writes to the API server"),
		delayed:  counter("delayed_writes_total", "Writes that were delayed by the rate limit of their node"),
		failures: counter("failed_writes_total", "Writes that the API server refused or did not answer"),
		states: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "state_changes_total", Help: "Changes of the state of devices, by the new state",
		}, []string{"state"}),
	}
}

func (m *metrics) register(r prometheus.Registerer) error {
	for _, c := range []prometheus.Collector{
		m.reports, m.refused, m.older, m.writes, m.delayed, m.failures, m.states,
	} {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}
