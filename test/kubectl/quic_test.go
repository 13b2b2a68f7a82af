package kubectl

import (
	"bufio"
	"net"
	"os/exec"
	"strconv"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/env"
)

// TestTunnelQUIC: kubectl works with a device behind NAT through streams of its QUIC link. The device cannot reach a
// WebSocket port, and no tunnel is opened.
func TestTunnelQUIC(t *testing.T) {
	first, err := daemon.FreePort()
	env.Must(t, err)
	network := behindNAT(t)
	f := startWith(t, env.ClusterOptions{Address: network.Host, Modules: map[string]any{"cloudStream": map[string]any{
		"enable": true, "address": network.Host, "firstPort": first, "lastPort": first + 20,
	}}})
	env.Must(t, network.Refuse(t.Context(), f.Cloud.Link))
	ctrd, err := exec.LookPath("containerd")
	env.Must(t, err)
	at := func(port int) string { return net.JoinHostPort(network.Host, strconv.Itoa(port)) }
	n := f.startNodeWith(t, "overquic", env.NodeOptions{
		Runtime: testenv.Options{Binary: wrap(t, network, ctrd)},
		Agent: agent.Options{
			Binary: wrap(t, network, built.Edge), Dial: network.Dial,
			EdgeHub: map[string]any{
				"quic":      map[string]any{"enable": true, "server": at(f.Cloud.QUIC)},
				"websocket": map[string]any{"enable": false, "server": at(f.Cloud.Link)},
			},
		},
	})
	n.endpoint(t, network.Host)
	n.pods()
	t.Run("verbs", func(t *testing.T) {
		for verb, f := range map[string]func(*testing.T){
			"logs": n.testLogs, "follow": n.testFollow, "exec": n.testExec, "cp": n.testCopy, "attach": n.testAttach,
			"port-forward": n.testPortForward, "node proxy": n.testNodeProxy, "terminal": n.testTerminal,
		} {
			t.Run(verb, func(t *testing.T) { t.Parallel(); f(t) })
		}
	})
	t.Run("offline", n.testTunnelOffline)
	t.Run("link cut", func(t *testing.T) { n.testTunnelCut(t, network) })
	t.Run("no tunnel", n.testNoTunnel)
}

// testNoTunnel checks that connections reach the device as streams of its link, and that no tunnel was opened or tried.
func (n *node) testNoTunnel(t *testing.T) {
	follow := n.kubectl(t, "logs", "-f", "talker")
	out, err := follow.output()
	env.Must(t, err)
	env.Must(t, follow.Start())
	defer func() { _ = follow.Process.Kill(); _ = follow.Wait() }()
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "three" { // until the stream is under way
	}
	device, err := n.Get(t.Context(), "/metrics")
	env.Must(t, err)
	for name, want := range map[string]string{
		"edgecore_tunnels": "0", `edgecore_tunnel_opens_total{result="opened"}`: "0",
		`edgecore_tunnel_opens_total{result="failed"}`: "0", "edgecore_tunnel_link_streams_refused_total": "0",
	} {
		if got := value(device, name); got != want {
			t.Errorf("%s is %q, want %q: no tunnel is needed", name, got, want)
		}
	}
	cloud, err := n.fixture.Cloud.Get(t.Context(), "/metrics")
	env.Must(t, err)
	for name, text := range map[string]string{
		"edgecore_tunnel_link_streams": device, "cloudcore_tunnel_link_streams": cloud,
	} {
		if got := value(text, name); got == "" || got == "0" {
			t.Errorf("%s is %q, want the stream of logs -f", name, got)
		}
	}
}
