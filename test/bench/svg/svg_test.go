package svg

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		most  float64
		count int
		want  []float64
	}{
		{0, 4, []float64{0, 1}},
		{1, 4, []float64{0, 0.5, 1}},
		{0.563, 6, []float64{0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6}},
		{107e6, 4, []float64{0, 50e6, 100e6, 150e6}},
		{6, 6, []float64{0, 1, 2, 3, 4, 5, 6}},
		{0.00021, 2, []float64{0, 0.0002, 0.0004}},
	} {
		got := Ticks(c.most, c.count)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("Ticks(%v, %d) (-want +got):\n%s", c.most, c.count, diff)
		}
	}
}

func TestScale(t *testing.T) {
	linear := Scale{Least: 0, Most: 10, From: 100, To: 200}
	down := Scale{Least: 0, Most: 10, From: 200, To: 100}
	log := Scale{Least: 100, Most: 10000, From: 0, To: 100, Log: true}
	for _, c := range []struct {
		name  string
		scale Scale
		value float64
		want  float64
	}{
		{"middle", linear, 5, 150},
		{"upwards", down, 2, 180},
		{"below the least", linear, -3, 100},
		{"above the most", linear, 30, 200},
		{"one value only", Scale{Least: 4, Most: 4, From: 7, To: 9}, 4, 7},
		{"logarithmic", log, 1000, 50},
	} {
		if got := num(c.scale.At(c.value)); got != num(c.want) {
			t.Errorf("%s: At(%v) = %s, want %v", c.name, c.value, got, c.want)
		}
	}
}

var plain = Format{
	Value: func(v float64) string { return fmt.Sprint(v) }, Tick: func(v float64) string { return fmt.Sprint(v) },
}

// TestDrawings: each is XML on its own, has its texts escaped, and a mark for each sample.
func TestDrawings(t *testing.T) {
	const name = `a<b & "c"`
	for what, c := range map[string]struct {
		text  string
		marks map[string]int // elements by class
	}{
		"strips": {
			Strips(name, []Strip{{
				Name: name, Color: 1, Samples: []float64{1, 2, 3}, Low: 1.5, Median: 2, High: 2.5,
			}}, plain),
			map[string]int{"dot": 3, "box": 1, "median": 1},
		},
		"strips of nothing": {Strips(name, nil, plain), map[string]int{}},
		"bars": {
			Bars(name, []Bar{{name, []Part{{name, 1, 2}, {"two", 2, 3}}}, {"empty", nil}}, plain),
			map[string]int{"bar": 2},
		},
		"lines": {
			Lines(name, []Line{
				{Name: name, Color: 1, Points: []Point{{0, 1, 1, 1}, {10, 2, 1, 3}}},
				{Name: "two", Color: 2, Dashed: true, Points: []Point{{0, 1, 1, 1}}},
			}, Axis{X: "pods", Format: plain}),
			map[string]int{"point": 3, "line": 1, "line dashed": 1, "spread": 1, "label": 2},
		},
		"lines of nothing": {Lines(name, nil, Axis{Format: plain}), map[string]int{}},
	} {
		t.Run(what, func(t *testing.T) {
			marks := classes(t, c.text)
			for _, frame := range []string{"grid", "axis", "name", "value"} {
				delete(marks, frame)
			}
			if diff := cmp.Diff(c.marks, marks); diff != "" {
				t.Errorf("marks (-want +got):\n%s", diff)
			}
			if strings.Contains(c.text, "NaN") || strings.Contains(c.text, "Inf") {
				t.Errorf("the drawing has a place that is not a number: %s", c.text)
			}
		})
	}
}

// classes counts the elements of a drawing by their class.
func classes(t *testing.T, text string) map[string]int {
	t.Helper()
	found := map[string]int{}
	d := xml.NewDecoder(strings.NewReader(text))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatalf("the drawing is not XML: %v\n%s", err, text)
		}
		if start, ok := token.(xml.StartElement); ok {
			for _, a := range start.Attr {
				if a.Name.Local == "class" {
					found[a.Value]++
				}
			}
		}
	}
}

// TestNames: names at the ends of lines that are at the same place are under each other, and above the axis.
func TestNames(t *testing.T) {
	var lines []Line
	for i := range 4 {
		lines = append(lines, Line{Name: fmt.Sprint("line ", i), Color: i + 1, Points: []Point{{X: 1}}})
	}
	lines = append(lines, Line{Name: "top", Points: []Point{{X: 1, Y: 10}}})
	text := Lines("", lines, Axis{Format: plain})
	seen := map[string]bool{}
	for part := range strings.SplitSeq(text, "<text ") {
		if !strings.Contains(part, `class="label"`) {
			continue
		}
		var x, y float64
		if _, err := fmt.Sscanf(part, `x="%f" y="%f"`, &x, &y); err != nil {
			t.Fatalf("label %q: %v", part, err)
		}
		if y > lineHeight-lineBottom+5 || seen[num(y)] {
			t.Errorf("a label is at %v, want it above the axis, and on none of %v", y, seen)
		}
		seen[num(y)] = true
	}
	if len(seen) != len(lines) {
		t.Errorf("%d labels, want %d", len(seen), len(lines))
	}
}
