package statusui

import (
	"fmt"
	"math"
	"strings"
)

// shownDevices and shownProperties bound the page.
const shownDevices, shownProperties = 50, 50

// devices shows the devices that the node serves, with the last values of their properties.
func (p *writer) devices(list []Device) {
	if len(list) == 0 {
		return
	}
	well := 0
	for _, d := range list {
		if d.Well {
			well++
		}
	}
	p.element(`<section id="devices"><h2>Devices</h2><p>`, fmt.Sprintf("%d of %d online", well, len(list)), "</p><ul>")
	for i, d := range list {
		if i == shownDevices {
			p.element("<li>", fmt.Sprint(len(list)-i, " more: edgecore get devices"), "</li>")
			break
		}
		p.served(&d)
	}
	p.markup("</ul></section>")
}

func (p *writer) served(d *Device) {
	state := d.State
	switch {
	case d.Well:
		p.markup(`<li><i class="dot ok"></i>`)
	case state == "":
		state = "no mapper yet"
		p.markup(`<li><i class="dot warn"></i>`)
	default:
		p.markup(`<li><i class="dot bad"></i>`)
	}
	p.element("<b>", d.Name, "</b>")
	p.element(` <span class="status">`, state, "</span>")
	if d.Message != "" {
		p.element(` <small class="why">`, d.Message, "</small>")
	}
	p.element("<p><small>", d.Namespace, "</small></p><dl class=\"values\">")
	for i, v := range d.Properties {
		if i == shownProperties {
			p.element("<dt>", fmt.Sprint(len(d.Properties)-i, " more"), "</dt><dd></dd>")
			break
		}
		p.value(&v)
	}
	p.markup("</dl></li>")
}

func (p *writer) value(v *Property) {
	p.element("<dt>", v.Name, "</dt><dd>")
	switch {
	case v.At.IsZero() && v.Value == "":
		p.markup("<b>–</b>")
	default:
		p.element("<b>", strings.TrimSpace(v.Value+" "+v.Unit), "</b>")
	}
	if !v.At.IsZero() {
		p.element(" <small>", p.since(v.At)+" ago", "</small>")
	}
	if v.Desired != "" && v.Desired != v.Value {
		p.element(` <small class="why">desired: `, v.Desired, "</small>")
	}
	p.plot(v.Recent)
	p.markup("</dd>")
}

// The size of a plot, in its own units.
const plotWidth, plotHeight = 120, 24

// plot draws numbers over time.
func (p *writer) plot(points []Point) {
	if len(points) < 2 {
		return
	}
	first, last := points[0].At, points[len(points)-1].At
	low, high := math.Inf(1), math.Inf(-1)
	for _, x := range points {
		low, high = min(low, x.Value), max(high, x.Value)
	}
	p.element(`<svg class="plot" viewBox="0 0 120 24" preserveAspectRatio="none" role="img"><title>`,
		fmt.Sprintf("%g to %g in the last %s", low, high, p.since(first)), `</title><polyline points="`)
	for _, x := range points {
		at, y := 1.0, 0.5
		if span := last.Sub(first); span > 0 {
			at = float64(x.At.Sub(first)) / float64(span)
		}
		if half := high/2 - low/2; half > 0 { // the difference itself may be too large for a float64
			y = (x.Value/2 - low/2) / half
		}
		fmt.Fprintf(&p.b, "%.1f,%.1f ", at*plotWidth, 1+(1-y)*(plotHeight-2))
	}
	p.markup(`"/></svg>`)
}
