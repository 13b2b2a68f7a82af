package edgecontroller

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

func TestMetrics(t *testing.T) {
	w := newFixture(t)
	registry := prometheus.NewRegistry()
	if err := w.metrics.register(registry); err != nil {
		t.Fatal(err)
	}
	w.add(fakes.Node("e1"))
	w.ask("e1", "query", "null/node/e1", "null")
	w.ask("e1", "query", "null/node/e2", "null")
	w.ask("e1", "patch", "null/nodepatch/e1", `"{}"`)
	w.ask("e1", "insert", "ns/event/e", "null")
	w.ask("e1", "made-up-1", "ns/made-up/e", "null")
	w.ask("e1", "query", "made-up-2", "null")
	want := []string{
		"cloudcore_edgecontroller_full_nodes 0",
		"cloudcore_edgecontroller_requests_total 0 insert event 1",
		"cloudcore_edgecontroller_requests_total 200 query node 1",
		"cloudcore_edgecontroller_requests_total 400 unknown unknown 2",
		"cloudcore_edgecontroller_requests_total 403 query node 1",
		"cloudcore_edgecontroller_requests_total 404 patch nodepatch 1",
		"cloudcore_edgecontroller_status_requests_total 0",
		"cloudcore_edgecontroller_withheld_pods change 0",
		"cloudcore_edgecontroller_withheld_pods references 0",
		"cloudcore_edgecontroller_withheld_pods room 0",
	}
	if diff := cmp.Diff(want, counters(t, registry)); diff != "" {
		t.Errorf("metrics mismatch (-want +got):\n%s", diff)
	}
	if _, err := New(Options{Clients: w.options.Clients, Registry: registry}); err == nil {
		t.Error("New with the registry of another controller = nil, want an error")
	}
}

// counters lists each counter with the values of its labels.
func counters(t *testing.T, registry *prometheus.Registry) []string {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, family := range families {
		for _, m := range family.GetMetric() {
			line := family.GetName()
			for _, label := range m.GetLabel() {
				line += " " + label.GetValue()
			}
			out = append(out, fmt.Sprintf("%s %v", line, m.GetCounter().GetValue()))
		}
	}
	slices.Sort(out)
	return out
}
