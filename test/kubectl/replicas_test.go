package kubectl

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/proxy"
)

// replicas are two cloudcores, which nodes reach at one address.
type replicas struct {
	clouds    []*env.Cluster
	addresses []string
	balancer  *proxy.Balancer
}

// startReplicas starts a second cloudcore beside the one that devices and callers reach at host, with an address of its
// own for callers, and the address of both for devices.
func startReplicas(t *testing.T, f *fixture, host string) *replicas {
	t.Helper()
	second := behindNAT(t).Host // an address of this machine that nobody else has
	first, err := daemon.FreePort()
	env.Must(t, err)
	r := &replicas{
		clouds: []*env.Cluster{f.Cluster, f.WithCloudOf(t, map[string]any{
			"address": second, "firstPort": first, "lastPort": first + 20,
		})},
		addresses: []string{host, second},
	}
	var links []string
	for _, c := range r.clouds {
		links = append(links, net.JoinHostPort(host, strconv.Itoa(c.Cloud.Link)))
	}
	r.balancer, err = proxy.StartBalancer(host, links...)
	env.Must(t, err)
	t.Cleanup(func() { env.Must(t, r.balancer.Close()) })
	return r
}

// holder waits until the Node has the address and a port of a cloudcore that runs, and returns which one it is.
func (r *replicas) holder(t *testing.T, n *node) (holder int) {
	t.Helper()
	n.fixture.With(t).NodeUntil(n.NodeName, "to have an endpoint of a cloudcore that runs", func(obj *v1.Node) error {
		a, port := obj.Status.Addresses, obj.Status.DaemonEndpoints.KubeletEndpoint.Port
		for holder = range r.clouds {
			if len(a) > 1 && a[0].Address == r.addresses[holder] && a[0].Type == v1.NodeInternalIP &&
				port != int32(n.KubeletPort) && r.clouds[holder].Cloud.PID() != 0 {
				return nil
			}
		}
		return fmt.Errorf("its addresses are %v, and its port is %d", a, port)
	})
	return holder
}

// refusals returns how many tunnels a cloudcore has refused that another one has asked for.
func (r *replicas) refusals(t *testing.T, cloud int) string {
	t.Helper()
	metrics, err := r.clouds[cloud].Cloud.Get(t.Context(), "/metrics")
	env.Must(t, err)
	return value(metrics, `cloudcore_cloudhub_refused_total{cause="tunnel"}`)
}

// TestReplicas: of two cloudcores behind one address, kubectl reaches a device through the one that it is connected to,
// also if the device's tunnel arrives at the other one first, and while the device moves between them.
func TestReplicas(t *testing.T) {
	first, err := daemon.FreePort()
	env.Must(t, err)
	network := behindNAT(t)
	f := startWith(t, env.ClusterOptions{Address: network.Host, Modules: map[string]any{"cloudStream": map[string]any{
		"address": network.Host, "firstPort": first, "lastPort": first + 20,
	}}})
	r := startReplicas(t, f, network.Host)
	ctrd, err := exec.LookPath("containerd")
	env.Must(t, err)
	n := f.startNodeWith(t, "moving", env.NodeOptions{
		Runtime: testenv.Options{Binary: wrap(t, network, ctrd)},
		Agent: agent.Options{
			Binary: wrap(t, network, built.Edge), Dial: network.Dial,
			EdgeHub: map[string]any{"websocket": map[string]any{"enable": true, "server": r.balancer.Addr()}},
		},
	})
	n.pods()
	t.Run("tunnel at the other one", func(t *testing.T) {
		other := 1 - r.holder(t, n)
		before := r.refusals(t, other)
		r.balancer.Next(other)
		n.reached(t)
		if after := r.refusals(t, other); after == before {
			t.Errorf("the other cloudcore has refused %q tunnels, want more than before", after)
		}
	})
	for name, end := range map[string]func(*env.Cluster, context.Context) error{
		"killed":      func(c *env.Cluster, ctx context.Context) error { return c.Cloud.Kill9(ctx) },
		"scaled down": func(c *env.Cluster, ctx context.Context) error { return c.Cloud.Stop(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			holder := r.holder(t, n)
			follow := n.kubectl(t, "logs", "-f", "talker")
			out, err := follow.output()
			env.Must(t, err)
			env.Must(t, follow.Start())
			lines := bufio.NewScanner(out)
			for lines.Scan() && lines.Text() != "three" { // until the stream is under way
			}
			env.Must(t, end(r.clouds[holder], t.Context()))
			for lines.Scan() { // until it ends
			}
			_ = follow.Wait() // its exit code depends on how the stream was cut
			if now := r.holder(t, n); now != 1-holder {
				t.Errorf("the node is at cloudcore %d, want the other one", now)
			}
			n.reached(t)
			env.Must(t, r.clouds[holder].Cloud.Start(t.Context()))
			n.reached(t) // also with two again, and an old one that was there before
		})
	}
}
