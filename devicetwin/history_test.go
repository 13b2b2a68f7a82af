package devicetwin

import (
	"fmt"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/devicetwin/twin"
)

// TestHistory: the numbers of the last minutes are kept, and no more.
func TestHistory(t *testing.T) {
	h := history{}
	now := time.Unix(1_000_000, 0)
	add := func(device, value string) { h.add(device, []twin.Report{{Name: "temp", Value: value}}, now) }
	for i := range 3 * historyPoints {
		add("a/b", fmt.Sprint(i))
		now = now.Add(time.Second)
		add("a/b", "1e9") // within the step: it replaces the value before
		add("a/b", fmt.Sprint(i))
		now = now.Add(historyStep)
	}
	points := h["a/b/temp"]
	if len(points) != historyPoints || points[historyPoints-1].Value != 3*historyPoints-1 ||
		points[0].Value != 2*historyPoints {
		t.Errorf("points %v, want the last %d", points, historyPoints)
	}
	for _, text := range []string{"", "on", "NaN", "Inf"} {
		add("c/d", text)
	}
	if len(h) != 1 {
		t.Errorf("history of %d properties, want 1: the others have no numbers", len(h))
	}
	for i := range 2 * historyProperties {
		add(fmt.Sprint("x/", i), "1")
	}
	if len(h) != historyProperties {
		t.Errorf("history of %d properties, want %d", len(h), historyProperties)
	}
	now = now.Add(-time.Hour)
	add("a/b", "7")
	if len(h["a/b/temp"]) != 1 {
		t.Errorf("points %v after the clock was set back, want the new one only", h["a/b/temp"])
	}
	h.remove("a/b")
	h.remove("x/1")
	if _, left := h["a/b/temp"]; left || len(h) != historyProperties-2 {
		t.Errorf("history of %d properties, want %d", len(h), historyProperties-2)
	}
}
