// Package svg draws the plots of the benchmark's page as inline SVG. The same numbers always give the same text. Colors
// are CSS variables of the page (--c1, --c2, ...), so that one plot serves light and dark. Each mark has a title, which
// browsers show as a tooltip.
package svg

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// Scale maps a number to a place between two others.
type Scale struct {
	// Least and Most are the ends of the numbers, From and To those of the places.
	Least, Most, From, To float64
	// Log scales by orders of magnitude. Least is greater than 0 then.
	Log bool
}

// At returns the place of a number. Numbers beyond an end are at that end.
func (s Scale) At(value float64) float64 {
	value = min(max(value, s.Least), s.Most)
	if s.Most <= s.Least {
		return s.From
	}
	part := (value - s.Least) / (s.Most - s.Least)
	if s.Log {
		part = math.Log(value/s.Least) / math.Log(s.Most/s.Least)
	}
	return s.From + part*(s.To-s.From)
}

// Ticks returns round numbers from 0 to at least most: about count steps of 1, 2 or 5 times a power of ten.
func Ticks(most float64, count int) []float64 {
	if most <= 0 || count < 1 {
		return []float64{0, 1}
	}
	rough := most / float64(count)
	power := math.Pow(10, math.Floor(math.Log10(rough)))
	step := 10 * power
	for _, m := range []float64{1, 2, 5} {
		if m*power >= rough*0.999 {
			step = m * power
			break
		}
	}
	var list []float64
	for i := 0; ; i++ {
		tick := round(float64(i) * step)
		list = append(list, tick)
		if tick >= most*0.999 {
			return list
		}
	}
}

// round removes what binary fractions add to a decimal one.
func round(value float64) float64 {
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(value, 'g', 10, 64), 64)
	return rounded
}

// Format prints numbers.
type Format struct {
	// Value prints one that was measured, Tick a round one of an axis.
	Value, Tick func(float64) string
}

// drawing gathers elements.
type drawing struct{ strings.Builder }

// begin opens a drawing that is as wide as its place.
func (d *drawing) begin(width, height float64, title string) {
	fmt.Fprintf(d, `<svg viewBox="0 0 %s %s" role="img" aria-label="%s">`, num(width), num(height),
		html.EscapeString(title))
}

func (d *drawing) end() { d.WriteString("</svg>") }

func (d *drawing) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(d, `<line x1="%s" y1="%s" x2="%s" y2="%s" class="%s"/>`, num(x1), num(y1), num(x2), num(y2), class)
}

// text writes a text whose anchor is start, middle or end.
func (d *drawing) text(x, y float64, anchor, class, text string) {
	fmt.Fprintf(d, `<text x="%s" y="%s" text-anchor="%s" class="%s">%s</text>`, num(x), num(y), anchor, class,
		html.EscapeString(text))
}

// circle is a mark; color is the number of one.
func (d *drawing) circle(x, y, r float64, class string, color int, title string) {
	fmt.Fprintf(d, `<circle cx="%s" cy="%s" r="%s" class="%s" style="--c:var(--c%d)">%s</circle>`, num(x), num(y),
		num(r), class, color, titled(title))
}

// rect is a mark.
func (d *drawing) rect(x, y, width, height float64, class string, color int, title string) {
	fmt.Fprintf(d, `<rect x="%s" y="%s" width="%s" height="%s" rx="2" class="%s" style="--c:var(--c%d)">%s</rect>`,
		num(x), num(y), num(width), num(height), class, color, titled(title))
}

func titled(text string) string {
	if text == "" {
		return ""
	}
	return "<title>" + html.EscapeString(text) + "</title>"
}

// num prints a place with a tenth of a pixel.
func num(value float64) string {
	return strconv.FormatFloat(math.Round(value*10)/10, 'f', -1, 64)
}
