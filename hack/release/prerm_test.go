package main

import "strings"

// runtimeRestarts: a removal has pods killed only if systemd neither runs nor starts the runtime of the configuration.
func runtimeRestarts(m *machine) {
	const containerd, crio = "unix:///run/containerd/containerd.sock", "unix:///run/crio/crio.sock"
	for _, c := range []struct {
		endpoint, unit, state string
		kills                 bool
	}{
		{containerd, "containerd.service", "active", false},
		{containerd, "containerd.service", "activating", false},
		{containerd, "containerd.service", "inactive", true},
		{containerd, "containerd.service", "failed", true},
		{containerd, "crio.service", "active", true},
		{crio, "crio.service", "activating", false},
		{crio, "containerd.service", "active", true},
	} {
		m.dpkg("-i /packages/v1.0.0.deb")
		m.sh("sed -i 's|^\\( *containerRuntimeEndpoint:\\).*|\\1 " + c.endpoint + "|' /etc/edgecore/edgecore.yaml")
		m.expect("grep -c '^ *containerRuntimeEndpoint: "+c.endpoint+"$' /etc/edgecore/edgecore.yaml", "1")
		m.sh("echo " + c.state + " >/" + c.unit)
		output, calls := m.dpkg("--remove edgecore")
		want := "edgecore end-pods --left-overs /var/lib/edgecore/left-overs --within 2m"
		if c.kills {
			want += " --kill"
		}
		if !strings.Contains(calls, want+"\n") {
			m.t.Errorf("%s, %s %s: calls %q, want %q among them:\n%s", c.endpoint, c.unit, c.state, calls, want, output)
		}
		m.sh("rm -f /" + c.unit)
	}
}
