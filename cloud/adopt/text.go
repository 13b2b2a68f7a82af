package adopt

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
)

// Print writes the plan for anyone who decides on it.
func (p *Plan) Print(out io.Writer) {
	line := func(format string, args ...any) { fmt.Fprintln(out, printable(fmt.Sprintf(format, args...))) }
	if p.Found.Server != "" {
		line("kube-apiserver: %s", p.Found.Server)
	}
	if p.Nothing {
		line("There is no Deployment %s of KubeEdge's in the namespace %s. A cloudcore that runs as a process, or in "+
			"another namespace, is replaced by hand (docs/kubeedge.md).", name, Namespace)
		return
	}
	p.printFound(line)
	line("Written (edgecore's manifests: %s, image %s):", strings.Join(p.Overlays, ", "), p.Image)
	for _, s := range p.Steps {
		line("  %-18s %s", s.Verb, s.Ref)
	}
	line("Kept: secret/%s, which devices trust, the namespace, and all objects of the CRDs", caSecret)
	if len(p.Found.Left) > 0 {
		line("Left as they are:")
	}
	for _, l := range leftObjects() {
		for _, ref := range p.Found.Left {
			if ref == l.ref {
				line("  %s %s. To remove it: %s", l.ref, l.why, l.ref.deleteCommand())
			}
		}
	}
	for _, list := range []struct {
		title string
		lines []string
	}{{"Not as it was with KubeEdge:", p.Notes}, {"Warnings:", p.Warnings}} {
		if len(list.lines) > 0 {
			line("%s", list.title)
		}
		for _, text := range list.lines {
			line("  %s", text)
		}
	}
	for _, r := range p.Refusals {
		line("REFUSED: %s", r.Reason)
		line("  remedy: %s", r.Remedy)
	}
	if len(p.Refusals) == 0 {
		line("What is deleted or replaced is first saved in secret/%s. `cloudcore adopt undo` goes back.", journalName)
	}
}

// count names a number of things.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// printable returns a text for a terminal, with escapes for characters that control it. Further lines are indented, so
// that what was read of a cluster cannot begin a line.
func printable(text string) string {
	var out strings.Builder
	for _, r := range text {
		switch {
		case r == '\n':
			out.WriteString("\n    ")
		case unicode.IsPrint(r):
			out.WriteRune(r)
		default:
			out.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return out.String()
}

func (p *Plan) printFound(line func(string, ...any)) {
	d := p.Found.Deployment
	image := "no image"
	if c := d.Spec.Template.Spec.Containers; len(c) > 0 {
		image = c[0].Image
	}
	replicas := int32(1)
	if d.Spec.Replicas != nil {
		replicas = *d.Spec.Replicas
	}
	way := "its pods' network"
	if p.hostNetwork() {
		way = "the host's network"
	}
	line("KubeEdge's cloudcore in the namespace %s: %s, replicas %d, %s", Namespace, image, replicas, way)
	if s := p.Found.Service; s != nil {
		var ports []string
		for _, at := range s.Spec.Ports {
			text := fmt.Sprintf("%s %d", at.Name, at.Port)
			if at.NodePort != 0 {
				text += fmt.Sprintf(" (node port %d)", at.NodePort)
			}
			ports = append(ports, text)
		}
		line("Service of type %s: %s", s.Spec.Type, strings.Join(ports, ", "))
	}
	if dialed := append(append([]string{}, p.Addresses...), p.DNSNames...); len(dialed) > 0 {
		line("Devices dial %s", strings.Join(dialed, ", "))
	}
}
