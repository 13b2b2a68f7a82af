package kubectl

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestPorts: with fewer ports than nodes, those that have one work, the others say so in an event, and get the port of
// a Node that is deleted.
func TestPorts(t *testing.T) {
	first, err := daemon.FreePort()
	env.Must(t, err)
	network := behindNAT(t)
	f := startWith(t, env.ClusterOptions{Address: network.Host, Modules: map[string]any{"cloudStream": map[string]any{
		"address": network.Host, "firstPort": first, "lastPort": first,
	}}})
	has := f.startNodeWith(t, "has-a-port", env.NodeOptions{})
	if port := has.endpoint(t, network.Host); port != int32(first) {
		t.Errorf("its port is %d, want %d, which is the only one", port, first)
	}
	ctrd, err := exec.LookPath("containerd")
	env.Must(t, err)
	waits := f.startNodeWith(t, "waits", env.NodeOptions{
		Runtime: testenv.Options{Binary: wrap(t, network, ctrd)},
		Agent:   agent.Options{Binary: wrap(t, network, built.Edge), Dial: network.Dial},
	})
	f.EventsUntil("TunnelFailed", fmt.Sprintf("Node/waits: node waits gets no port for kubectl logs, exec and the "+
		"like: no port from %d to %d is free: 1 nodes have them; enlarge the range", first, first))
	f.NodeUntil("waits", "to have its own port", func(obj *v1.Node) error {
		if port := obj.Status.DaemonEndpoints.KubeletEndpoint.Port; port != int32(waits.KubeletPort) {
			return fmt.Errorf("its port is %d, want %d", port, waits.KubeletPort)
		}
		return nil
	})
	metrics, err := f.Cloud.Get(t.Context(), "/metrics")
	env.Must(t, err)
	if got := value(metrics, "cloudcore_tunnel_nodes_waiting"); got != "1" {
		t.Errorf("cloudcore_tunnel_nodes_waiting is %q, want 1", got)
	}
	has.pods()
	waits.pods()
	has.reached(t)
	env.Must(t, has.Kill9(t.Context()))
	wait.Until(t, "kubectl to be told that the first node is offline", func() error {
		c := has.kubectl(t, "logs", "talker")
		if err := c.Run(); err == nil || !strings.Contains(c.errOut.String(), "node has-a-port is offline since") {
			return errors.New(c.errOut.String())
		}
		return nil
	})
	env.Must(t, f.API.CoreV1().Nodes().Delete(t.Context(), "has-a-port", metav1.DeleteOptions{}))
	if port := waits.endpoint(t, network.Host); port != int32(first) {
		t.Errorf("the port of the node that waited is %d, want %d", port, first)
	}
	waits.reached(t)
}
