package statusui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/edgecore-io/edgecore/edged/serve/podprinter"
	"github.com/edgecore-io/edgecore/edged/serve/server"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// shownErrors is how many of the last errors are shown.
const shownErrors = 20

// banner says in a line how the device is.
func (p *writer) banner(v *View) {
	errors, warnings, unwell := 0, 0, 0
	for _, c := range v.Info.Conditions {
		if c.Severity == health.Error {
			errors++
		} else {
			warnings++
		}
	}
	for _, pod := range v.Pods {
		if !podprinter.Healthy(pod) {
			unwell++
		}
	}
	away := 0
	for _, d := range v.Devices {
		if !d.Well && d.State != "" {
			away++
		}
	}
	p.element(`<header><h1>`, v.Info.NodeName, `</h1>`)
	switch {
	case errors > 0:
		p.element(`<p class="state bad" id="state">`, count(errors, "thing needs", "things need")+" attention", "</p>")
	case warnings+unwell+away > 0:
		p.element(`<p class="state warn" id="state">`, mild(warnings, unwell, away), "</p>")
	case v.Info.Link.Down():
		p.markup(`<p class="state warn" id="state">Not connected to the cloud</p>`)
	default:
		p.markup(`<p class="state ok" id="state">All is well</p>`)
	}
	p.markup("</header>")
}

// mild says what is wrong and no error.
func mild(warnings, unwell, away int) string {
	var parts []string
	if warnings > 0 {
		parts = append(parts, count(warnings, "warning", "warnings"))
	}
	if unwell > 0 {
		parts = append(parts, count(unwell, "pod is", "pods are")+" not ready")
	}
	if away > 0 {
		parts = append(parts, count(away, "device is", "devices are")+" not online")
	}
	return strings.Join(parts, ", ")
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", many)
}

// conditions shows what is wrong with the agent, and what to do about it.
func (p *writer) conditions(list []health.Condition) {
	if len(list) == 0 {
		return
	}
	p.markup(`<section id="conditions"><h2>Needs attention</h2><ul>`)
	for _, c := range list {
		if c.Severity == health.Error {
			p.markup(`<li class="bad">`)
		} else {
			p.markup(`<li class="warn">`)
		}
		p.element("<b>", c.Title, "</b>")
		p.element(` <small>for `, p.since(c.Since), `</small>`)
		if c.Object != "" {
			p.element("<p><code>", c.Object, "</code></p>")
		}
		if c.Detail != "" {
			p.element("<p>", c.Detail, "</p>")
		}
		p.element(`<p class="remedy">`, c.Remedy, "</p></li>")
	}
	p.markup("</ul></section>")
}

// link shows the way to the cloud.
func (p *writer) link(l *server.Link) {
	p.markup(`<section class="tile" id="link"><h2>Cloud</h2>`)
	since := ""
	if l != nil && !l.Since.IsZero() {
		since = " for " + p.since(l.Since)
	}
	switch {
	case l == nil:
		p.markup(`<p class="big">None</p><p>This device has not joined a cloud; it runs its own pods.</p>`)
	case l.Connected:
		p.element(`<p class="big"><i class="dot ok"></i>Connected`, since, "</p>")
		p.element("<p>", l.Server+" by "+l.Protocol, "</p>")
	case l.Reason == "":
		p.markup(`<p class="big"><i class="dot warn"></i>Not connected yet</p>`)
	default:
		p.element(`<p class="big"><i class="dot bad"></i>Not connected`, since, "</p>")
		p.element("<p>", l.Reason, "</p><p>Pods keep running; reports are stored on the device.</p>")
	}
	if text := l.TunnelText(); text != "" {
		p.element("<p>", "Tunnel: "+text, "</p>")
	}
	p.markup("</section>")
}

// nearlyFull and full colour a gauge.
const nearlyFull, full = 80, 95

func (p *writer) gauges(list []Gauge) {
	for _, g := range list {
		if g.Total == 0 {
			continue
		}
		percent := int(min(float64(g.Used)/float64(g.Total), 1) * 100)
		p.element(`<section class="tile"><h2>`, g.Name, "</h2>")
		p.element(`<p class="big">`, fmt.Sprintf("%d %%", percent), "</p>")
		switch {
		case percent >= full:
			p.markup(`<div class="bar bad">`)
		case percent >= nearlyFull:
			p.markup(`<div class="bar warn">`)
		default:
			p.markup(`<div class="bar ok">`)
		}
		p.element(`<i style="width:`, fmt.Sprint(percent), `%"></i></div>`)
		p.element("<p>", size(g.Used, g.Plain)+" of "+size(g.Total, g.Plain), "")
		if g.Detail != "" {
			p.element(" <code>", g.Detail, "</code>")
		}
		p.markup("</p></section>")
	}
}

// size is a number of bytes as people write it.
func size(n uint64, plain bool) string {
	if plain {
		return fmt.Sprint(n)
	}
	const unit = 1 << 10
	if n < unit {
		return fmt.Sprint(n, " B")
	}
	f, i := float64(n)/unit, 0
	for ; f >= unit && i < len("KMGTPE")-1; i++ {
		f /= unit
	}
	if f < 10 {
		return fmt.Sprintf("%.1f %ciB", f, "KMGTPE"[i])
	}
	return fmt.Sprintf("%.0f %ciB", f, "KMGTPE"[i])
}

// pods shows the pods, those that need attention first.
func (p *writer) pods(pods []*v1.Pod) {
	sorted := slices.Clone(pods)
	rank := func(pod *v1.Pod) int {
		if podprinter.Healthy(pod) {
			return 1
		}
		return 0
	}
	well := 0
	for _, pod := range sorted {
		well += rank(pod)
	}
	smallsort.SortStableFunc(sorted, func(a, b *v1.Pod) int { return cmp.Compare(rank(a), rank(b)) })
	p.element(`<section id="pods"><h2>Pods</h2><p>`, fmt.Sprintf("%d of %d healthy", well, len(pods)), "</p><ul>")
	for _, pod := range sorted {
		p.pod(pod)
	}
	p.markup("</ul></section>")
}

func (p *writer) pod(pod *v1.Pod) {
	line, why := podprinter.Summarize(pod, p.now), ""
	switch {
	case podprinter.Healthy(pod):
		p.markup(`<li><i class="dot ok"></i>`)
	case starting(pod):
		p.markup(`<li><i class="dot warn"></i>`)
	default:
		why = podprinter.Why(pod)
		p.markup(`<li><i class="dot bad"></i>`)
	}
	p.element("<b>", pod.Name, "</b>")
	p.element(` <span class="status">`, line.Status, "</span>")
	p.element("<p><small>", fmt.Sprintf("%s · %d/%d ready · restarts: %s · %s old", pod.Namespace, line.Ready,
		line.Total, line.Restarts, line.Age), "")
	if pod.Status.PodIP != "" {
		p.element(" · ", pod.Status.PodIP, "")
	}
	p.markup("</small></p>")
	if why != "" {
		p.element(`<p class="why">`, why, "</p>")
	}
	p.markup("</li>")
}

// starting reports whether a pod is on its way and nothing is known against it.
func starting(pod *v1.Pod) bool {
	if pod.Status.Phase != v1.PodPending && pod.Status.Phase != "" || pod.Status.Reason != "" {
		return false
	}
	for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, s := range list {
			if w := s.State.Waiting; w != nil && w.Message != "" ||
				s.State.Terminated != nil && s.State.Terminated.ExitCode != 0 {
				return false
			}
		}
	}
	return true
}

// errors shows what went wrong lately, the newest first.
func (p *writer) errors(events []v1.Event) {
	var bad []v1.Event
	for _, e := range events {
		if e.Type == v1.EventTypeWarning {
			bad = append(bad, e)
		}
	}
	smallsort.SortStableFunc(bad, func(a, b v1.Event) int { return b.LastTimestamp.Compare(a.LastTimestamp.Time) })
	if len(bad) > shownErrors {
		bad = bad[:shownErrors]
	}
	p.markup(`<section id="errors"><h2>Last errors</h2>`)
	if len(bad) == 0 {
		p.markup("<p>None since the agent started.</p></section>")
		return
	}
	p.markup("<ul>")
	for i := range bad {
		e := &bad[i]
		p.element("<li><b>", e.Reason, "</b>")
		p.element(" <small>", p.since(e.LastTimestamp.Time)+" ago", "")
		if e.Count > 1 {
			p.element(" · ", fmt.Sprint(e.Count, " times"), "")
		}
		p.element("</small><p><small>", e.InvolvedObject.Name, "</small></p>")
		p.element("<p>", e.Message, "</p></li>")
	}
	p.markup("</ul></section>")
}

// device shows what this is.
func (p *writer) device(i *server.Info) {
	p.markup(`<section id="device"><h2>Device</h2><dl>`)
	for _, row := range [][2]string{
		{"Agent", "edgecore " + i.Version + ", running for " + p.since(i.Started)},
		{"Runtime", cmp.Or(i.Runtime, "unknown") + " " + i.RuntimeVersion + " at " + i.Endpoint},
		{"Manifests", i.StaticPodPath}, {"Store", i.Store}, {"Pod logs", i.PodLogsDir},
	} {
		p.element("<dt>", row[0], "</dt>")
		p.element("<dd>", row[1], "</dd>")
	}
	p.element(`</dl><p><small>As of `, p.now.UTC().Format(time.DateTime),
		" UTC by this device's clock; reloaded every 30 s.</small></p></section>")
}

// since says how long ago a time was.
func (p *writer) since(t time.Time) string { return duration.HumanDuration(max(p.now.Sub(t), 0)) }
