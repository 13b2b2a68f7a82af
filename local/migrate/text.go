package migrate

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/edgecore-io/edgecore/deploy/systemd"
)

// Print writes what a plan does, for anyone who decides on it.
func (t *Migration) Print(out io.Writer, p *Plan) {
	line := func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
	k := &p.Config.Modules.Edged.TailoredKubeletConfig
	line("Node %s, of KubeEdge's %s", p.Config.Modules.Edged.HostnameOverride, t.From)
	line("Pods stay in %s, their logs in %s, manifests in %s, the runtime is %s (%s)",
		p.Config.Modules.Edged.RootDirectory, k.PodLogsDir, k.StaticPodPath, k.ContainerRuntimeEndpoint, k.CgroupDriver)
	if p.Findings != nil {
		line("%s", p.Findings.Summary())
		for _, name := range p.Findings.Idle {
			line("  %s does not run now", name)
		}
		for _, l := range p.Findings.Lost {
			line("  NOT KEPT: %s", l)
		}
	}
	line("Steps:")
	line("  1. write configuration %s, with certificates of KubeEdge in %s", t.Config, t.certs())
	switch {
	case !t.Service.Present:
		line("  2. (systemd does not run here: KubeEdge's agent has to be stopped by hand)")
	case p.unit.path == "":
		line("  2. (KubeEdge has no unit here: its agent has to be stopped by hand)")
	default:
		line("  2. stop %s of %s", systemd.Name, p.unit.path)
	}
	line("  3. make store %s of %s", t.Store, p.before.Database.DataSource)
	if t.Service.Present {
		own, packaged := t.ownUnit()
		what := "write"
		if packaged {
			what = "use the package's"
		}
		if p.unit.path != "" {
			line("  4. move that unit aside (%s), %s %s, enable and start it", p.unit.path+aside, what, own)
		} else {
			line("  4. %s %s, enable and start it", what, own)
		}
		if p.unit.program != "" && filepath.Base(p.unit.program) == filepath.Base(t.Service.Program) {
			line("  5. rename KubeEdge's program to %s, so that `%s` is this one", p.unit.program+aside,
				filepath.Base(p.unit.program))
		}
	}
	notes := append(p.Config.Notes, p.Stored.Notes...)
	if len(notes) > 0 {
		line("Not as it was with KubeEdge:")
		for _, n := range notes {
			line("  %s", n)
		}
	}
	for _, w := range p.Warnings {
		line("warning: %s", w)
	}
	line("KubeEdge's files stay as they are. `edgecore adopt --undo` goes back.")
}
