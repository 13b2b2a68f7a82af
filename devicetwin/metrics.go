package devicetwin

import (
	"github.com/prometheus/client_golang/prometheus"

	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
)

// Descriptions of the metrics.
type descs struct{ devices, unreported, mappers, behind *prometheus.Desc }

func newDescs() descs {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("edgecore_"+name, help, labels, nil)
	}
	return descs{
		devices:    desc("devices", "Devices that are bound to this node, by state; none has no mapper yet", "state"),
		unreported: desc("devices_unreported", "Devices with values or a state that the cloud has not confirmed"),
		mappers:    desc("mappers", "Registered mappers"),
		behind: desc("mappers_behind", "Mappers that do not have all their devices: they are away, hang or "+
			"refuse one"),
	}
}

// Describe implements prometheus.Collector.
func (m *Module) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.descs.devices, m.descs.unreported, m.descs.mappers, m.descs.behind} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Module) Collect(ch chan<- prometheus.Metric) {
	states := map[string]int{}
	for _, s := range []string{
		"none", devices.StateOnline, devices.StateOffline, devices.StateOK, devices.StateUnknown,
		devices.StateUnhealthy,
	} {
		states[s] = 0
	}
	unreported := 0
	m.mu.Lock()
	for _, e := range m.devices {
		if e.device == nil {
			continue
		}
		state := e.twin.State
		if state == "" {
			state = "none"
		}
		states[state]++
		if e.report.due() {
			unreported++
		}
	}
	m.mu.Unlock()
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	for state, n := range states {
		gauge(m.descs.devices, n, state)
	}
	gauge(m.descs.unreported, unreported)
	mappers, behind := m.server.Mappers(), 0
	for _, x := range mappers {
		if x.Problem != "" {
			behind++
		}
	}
	gauge(m.descs.mappers, len(mappers))
	gauge(m.descs.behind, behind)
}
