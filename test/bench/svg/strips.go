package svg

import (
	"fmt"
	"math"
)

// Strip is a row of samples.
type Strip struct {
	Name string
	// Color is the number of the row's color.
	Color   int
	Samples []float64
	// Low, Median and High are the quartiles.
	Low, Median, High float64
}

// The sizes of a strip plot.
const (
	stripWidth  = 460.0
	stripLeft   = 92.0
	stripRight  = 66.0
	stripHeight = 34.0
	axisHeight  = 24.0
)

// Strips draws distributions under each other on one axis that begins at 0: a point for each sample, a bar from the
// lower to the upper quartile, and the median as a line and a number.
func Strips(title string, rows []Strip, format Format) string {
	most := 0.0
	for _, r := range rows {
		for _, s := range r.Samples {
			most = max(most, s)
		}
	}
	ticks := Ticks(most, 5)
	x := Scale{Most: ticks[len(ticks)-1], From: stripLeft, To: stripWidth - stripRight}
	bottom := stripHeight * float64(len(rows))
	var d drawing
	d.begin(stripWidth, bottom+axisHeight, title)
	for _, t := range ticks {
		d.line(x.At(t), 0, x.At(t), bottom, "grid")
		d.text(x.At(t), bottom+16, "middle", "axis", format.Tick(t))
	}
	for i, r := range rows {
		y := stripHeight * (float64(i) + 0.5)
		d.text(stripLeft-10, y+4, "end", "name", r.Name)
		d.rect(x.At(r.Low), y-9, max(x.At(r.High)-x.At(r.Low), 1), 18, "box", r.Color,
			fmt.Sprintf("%s: half of all from %s to %s", r.Name, format.Value(r.Low), format.Value(r.High)))
		for n, s := range r.Samples {
			d.circle(x.At(s), y+jitter(n), 2.6, "dot", r.Color, r.Name+": "+format.Value(s))
		}
		d.rect(x.At(r.Median)-1.2, y-12, 2.4, 24, "median", r.Color, r.Name+": median "+format.Value(r.Median))
		d.text(stripWidth-stripRight+10, y+4, "start", "value", format.Value(r.Median))
	}
	d.end()
	return d.String()
}

// jitter is how far a sample is from the middle of its row, so that equal ones are seen beside each other.
func jitter(n int) float64 {
	_, part := math.Modf(float64(n) * 0.618034)
	return (part - 0.5) * 15
}

// Bar is a bar that is made of parts.
type Bar struct {
	Name  string
	Parts []Part
}

// Part is a part of a bar.
type Part struct {
	Name  string
	Color int
	Value float64
}

// Bars draws bars under each other on one axis that begins at 0, the parts of each one after another, and the sum as a
// number.
func Bars(title string, rows []Bar, format Format) string {
	most := 0.0
	for _, r := range rows {
		most = max(most, r.sum())
	}
	ticks := Ticks(most, 5)
	x := Scale{Most: ticks[len(ticks)-1], From: stripLeft, To: stripWidth - stripRight}
	const height = 28.0
	bottom := height * float64(len(rows))
	var d drawing
	d.begin(stripWidth, bottom+axisHeight, title)
	for _, t := range ticks {
		d.line(x.At(t), 0, x.At(t), bottom, "grid")
		d.text(x.At(t), bottom+16, "middle", "axis", format.Tick(t))
	}
	for i, r := range rows {
		y := height * (float64(i) + 0.5)
		d.text(stripLeft-10, y+4, "end", "name", r.Name)
		sum := 0.0
		for _, p := range r.Parts {
			from, to := x.At(sum), x.At(sum+p.Value)
			d.rect(from, y-9, max(to-from-1.5, 1), 18, "bar", p.Color, r.Name+", "+p.Name+": "+format.Value(p.Value))
			sum += p.Value
		}
		d.text(x.At(sum)+8, y+4, "start", "value", format.Value(sum))
	}
	d.end()
	return d.String()
}

func (b Bar) sum() float64 {
	sum := 0.0
	for _, p := range b.Parts {
		sum += p.Value
	}
	return sum
}
