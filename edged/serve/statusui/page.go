// Package statusui makes the status page of the device: one HTML page without scripts or other files, for people at the
// device with a phone. It shows what `edgecore status` and `edgecore get` show.
//
// The page is written by hand: packages of templates have the linker keep every method of the program, which costs
// megabytes. In return the type of what is written as it stands (markup) keeps text from being taken for markup:
// whatever comes from a pod, the cloud or the runtime goes through text, which escapes it.
package statusui

import (
	"bytes"
	"context"
	"html"
	"net/http"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/serve/server"
)

// Source is what the page shows.
type Source interface {
	// Pods returns the pods with their newest status.
	Pods() []*v1.Pod
	Events() []v1.Event
	Info(ctx context.Context) server.Info
	// Gauges returns how full the device is; what cannot be read is left out.
	Gauges(ctx context.Context) []Gauge
	// Devices returns the devices that this node serves, in the order in which they are shown.
	Devices() []Device
}

// Device is a device that the node serves.
type Device struct {
	Namespace, Name string
	// State is "" if no mapper has reported one.
	State string
	// Message says why the device is in the state; "" if nobody has said why.
	Message string
	// Well is set if the state is one of a device that works.
	Well       bool
	Properties []Property
}

// Property is a property of a device; At is when it was read, and zero if it was not. Desired is shown if it differs.
type Property struct {
	Name, Value, Desired, Unit string
	At                         time.Time
	// Recent are the numbers of the last minutes, the oldest first.
	Recent []Point
}

// Point is a number at a time.
type Point struct {
	At    time.Time
	Value float64
}

// Gauge is something that can be full.
type Gauge struct {
	Name string
	// Used of Total is taken; they are bytes unless Plain says that they are counted.
	Used, Total uint64
	Plain       bool
	// Detail is where it is, say.
	Detail string
}

// policy lets the page have its own style, and nothing else from anywhere.
const policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; " +
	"frame-ancestors 'none'"

// Handler serves the page. It is made when it is asked for.
func Handler(source Source) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data := Render(View{
			Now:     time.Now(),
			Info:    source.Info(r.Context()),
			Pods:    source.Pods(),
			Events:  source.Events(),
			Gauges:  source.Gauges(r.Context()),
			Devices: source.Devices(),
		})
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Length", strconv.Itoa(len(data)))
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", policy)
		h.Set("Referrer-Policy", "no-referrer")
		if r.Method != http.MethodHead {
			_, _ = w.Write(data) // the client went away
		}
	})
}

// View is a moment of the device.
type View struct {
	Now     time.Time
	Info    server.Info
	Pods    []*v1.Pod
	Events  []v1.Event
	Gauges  []Gauge
	Devices []Device
}

// Render writes the page. It is pure.
func Render(v View) []byte {
	p := &writer{now: v.Now}
	p.head(v.Info.NodeName)
	p.banner(&v)
	p.markup("<main>")
	p.conditions(v.Info.Conditions)
	p.markup(`<div class="tiles">`)
	p.link(v.Info.Link)
	p.gauges(v.Gauges)
	p.markup("</div>")
	p.pods(v.Pods)
	p.devices(v.Devices)
	p.errors(v.Events)
	p.device(&v.Info)
	p.markup("</main></body></html>\n")
	return p.b.Bytes()
}

// markup is written as it stands: only constants are of this type.
type markup string

// writer writes HTML.
type writer struct {
	b   bytes.Buffer
	now time.Time
}

func (p *writer) markup(parts ...markup) {
	for _, m := range parts {
		p.b.WriteString(string(m))
	}
}

// text writes a text of anybody's, shortened where it is long.
func (p *writer) text(s string) {
	p.b.WriteString(html.EscapeString(clip(s)))
}

// element writes a text within an element.
func (p *writer) element(open markup, s string, end markup) {
	p.markup(open)
	p.text(s)
	p.markup(end)
}

// longest is how much of a text is shown: an event may hold the output of a program.
const longest = 500

func clip(s string) string {
	n := 0
	for i := range s {
		if n++; n > longest {
			return s[:i] + "…"
		}
	}
	return s
}
