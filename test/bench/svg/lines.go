package svg

import (
	"fmt"
	"html"
	"slices"
	"strconv"
	"strings"
)

// Line is a line through points.
type Line struct {
	Name string
	// Color is the number of the line's color.
	Color int
	// Dashed is for lines that are not compared, such as a limit.
	Dashed bool
	Points []Point
}

// Point is a median with its quartiles.
type Point struct{ X, Y, Low, High float64 }

// Axis describes the axes of a line chart.
type Axis struct {
	// X is the unit of the horizontal axis.
	X string
	// Format prints numbers of the vertical one.
	Format Format
	// Log scales the horizontal axis by orders of magnitude.
	Log bool
}

// The sizes of a line chart.
const (
	lineWidth  = 460.0
	lineHeight = 250.0
	lineLeft   = 66.0
	lineRight  = 100.0
	lineTop    = 10.0
	lineBottom = 36.0
	// apart is the least distance between the names at the ends of lines.
	apart = 15.0
)

// Lines draws lines over one horizontal axis. Each has its name at its end, and a bar from the lower to the upper
// quartile at each point.
func Lines(title string, lines []Line, axis Axis) string {
	x, y, xs, ticks := scales(lines, axis.Log)
	var d drawing
	d.begin(lineWidth, lineHeight, title)
	for _, t := range ticks {
		d.line(lineLeft, y.At(t), lineWidth-lineRight, y.At(t), "grid")
		d.text(lineLeft-8, y.At(t)+4, "end", "axis", axis.Format.Tick(t))
	}
	last := -100.0
	for _, t := range xs {
		d.line(x.At(t), y.At(0), x.At(t), y.At(0)+4, "grid")
		if x.At(t)-last > 28 { // else the numbers would overlap
			d.text(x.At(t), y.At(0)+17, "middle", "axis", count(t))
			last = x.At(t)
		}
	}
	d.text((lineLeft+lineWidth-lineRight)/2, lineHeight-2, "middle", "axis", axis.X)
	for _, l := range lines {
		d.path(l, x, y, axis)
	}
	d.names(lines, x, y)
	d.end()
	return d.String()
}

// scales finds the ends of both axes, the horizontal numbers that have a point, and the ticks of the vertical axis.
func scales(lines []Line, log bool) (x, y Scale, xs, ticks []float64) {
	most := 0.0
	for _, l := range lines {
		for _, p := range l.Points {
			most = max(most, p.Y, p.High)
			xs = append(xs, p.X)
		}
	}
	slices.Sort(xs)
	xs = slices.Compact(xs)
	ticks = Ticks(most, 4)
	x = Scale{From: lineLeft, To: lineWidth - lineRight, Log: log}
	if len(xs) > 0 {
		x.Least, x.Most = xs[0], xs[len(xs)-1]
	}
	y = Scale{Most: ticks[len(ticks)-1], From: lineHeight - lineBottom, To: lineTop}
	return x, y, xs, ticks
}

func (d *drawing) path(l Line, x, y Scale, axis Axis) {
	var places []string
	for _, p := range l.Points {
		places = append(places, num(x.At(p.X))+","+num(y.At(p.Y)))
	}
	class := "line"
	if l.Dashed {
		class = "line dashed"
	}
	fmt.Fprintf(d, `<polyline points="%s" class="%s" style="--c:var(--c%d)"/>`, strings.Join(places, " "), class, l.Color)
	for _, p := range l.Points {
		if p.High > p.Low {
			fmt.Fprintf(d, `<line x1="%[1]s" y1="%[2]s" x2="%[1]s" y2="%[3]s" class="spread" style="--c:var(--c%[4]d)"/>`,
				num(x.At(p.X)), num(y.At(p.Low)), num(y.At(p.High)), l.Color)
		}
		d.circle(x.At(p.X), y.At(p.Y), 3.5, "point", l.Color,
			fmt.Sprintf("%s, %s %s: %s", l.Name, count(p.X), axis.X, axis.Format.Value(p.Y)))
	}
}

// names puts the name of each line beside its end, those that would overlap under each other.
func (d *drawing) names(lines []Line, x, y Scale) {
	type label struct {
		y    float64
		line Line
	}
	var labels []label
	for _, l := range lines {
		if len(l.Points) > 0 {
			labels = append(labels, label{y.At(l.Points[len(l.Points)-1].Y), l})
		}
	}
	slices.SortStableFunc(labels, func(a, b label) int { return int(a.y*10) - int(b.y*10) })
	for i := range labels {
		if i > 0 {
			labels[i].y = max(labels[i].y, labels[i-1].y+apart)
		}
	}
	// Names that were pushed below the axis push those above them back up.
	limit := lineHeight - lineBottom
	for i := len(labels) - 1; i >= 0; i-- {
		labels[i].y = min(labels[i].y, limit)
		limit = labels[i].y - apart
	}
	for _, l := range labels {
		fmt.Fprintf(d, `<text x="%s" y="%s" class="label" style="--c:var(--c%d)">%s</text>`,
			num(lineWidth-lineRight+8), num(l.y+4), l.line.Color, html.EscapeString(l.line.Name))
	}
}

// count prints a number of things.
func count(n float64) string {
	text := strconv.FormatFloat(n, 'f', -1, 64)
	if len(text) > 3 && !strings.Contains(text, ".") {
		return text[:len(text)-3] + "," + text[len(text)-3:]
	}
	return text
}
