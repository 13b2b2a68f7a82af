package kubectl

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/nat"
	"github.com/edgecore-io/edgecore/test/testenv/prometheus"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestTunnel: kubectl works with a device behind NAT, which the cluster cannot reach, through its tunnel. All callers
// verify the device's certificate.
func TestTunnel(t *testing.T) {
	first, err := daemon.FreePort()
	env.Must(t, err)
	network := behindNAT(t)
	f := startWith(t, env.ClusterOptions{
		Kube:    kube.Options{VerifyKubelets: true},
		Address: network.Host,
		Modules: map[string]any{"cloudStream": map[string]any{
			"enable": true, "address": network.Host, "firstPort": first, "lastPort": first + 20,
		}},
	})
	ctrd, err := exec.LookPath("containerd")
	env.Must(t, err)
	n := f.startNodeWith(t, "tunnelled", env.NodeOptions{
		Runtime: testenv.Options{Binary: wrap(t, network, ctrd)},
		Agent: agent.Options{
			Binary: wrap(t, network, built.Edge), Dial: network.Dial,
			Kubelet: map[string]any{"serverTLSBootstrap": true},
		},
	})
	if c, err := net.DialTimeout("tcp", net.JoinHostPort(network.Address, strconv.Itoa(n.KubeletPort)),
		time.Second); err == nil {
		_ = c.Close()
		t.Fatal("the device can be reached, want it behind NAT")
	}
	port := n.endpoint(t, network.Host)
	n.pods()
	n.kubectl(t, "logs", "talker").fails(t, 1, "tls: failed to verify certificate")
	n.approve(t, network.Host, port)       // soon: the device asks for its certificate ever more seldom
	t.Run("caller gone", n.testCallerGone) // before metrics-server, which keeps its connection to the device
	t.Run("verbs", func(t *testing.T) {
		for verb, f := range map[string]func(*testing.T){
			"logs": n.testLogs, "follow": n.testFollow, "exec": n.testExec, "cp": n.testCopy, "attach": n.testAttach,
			"port-forward": n.testPortForward, "debug": n.testDebug, "node proxy": n.testNodeProxy, "top": n.testTop,
			"terminal": n.testTerminal,
		} {
			t.Run(verb, func(t *testing.T) { t.Parallel(); f(t) })
		}
	})
	t.Run("Prometheus", n.testPrometheus)
	t.Run("offline", n.testTunnelOffline)
	t.Run("link cut", func(t *testing.T) { n.testTunnelCut(t, network) })
	t.Run("cloudcore killed", func(t *testing.T) {
		env.Must(t, f.Cloud.Kill9(t.Context()))
		env.Must(t, f.Cloud.Start(t.Context()))
		n.reached(t)
		if again := n.endpoint(t, network.Host); again != port {
			t.Errorf("the node's port is %d, want %d as before cloudcore was killed", again, port)
		}
	})
}

// behindNAT makes a network for a device until the test ends.
func behindNAT(t *testing.T) *nat.Network {
	t.Helper()
	network, err := nat.Start(t.Context())
	env.Must(t, err)
	t.Cleanup(func() {
		if err := network.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return network
}

// wrap returns a program that runs another one in a device's network.
func wrap(t *testing.T, network *nat.Network, program string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(program))
	env.Must(t, network.Wrap(path, program))
	return path
}

// endpoint waits until the Node has its endpoint at cloudcore's address and its own address, and returns the port.
func (n *node) endpoint(t *testing.T, cloud string) (port int32) {
	t.Helper()
	n.fixture.With(t).NodeUntil(n.NodeName, "to have its endpoint", func(obj *v1.Node) error {
		a := obj.Status.Addresses
		port = obj.Status.DaemonEndpoints.KubeletEndpoint.Port
		if len(a) < 2 || a[0].Address != cloud || port == int32(n.KubeletPort) {
			return fmt.Errorf("its addresses are %v, and its port is %d", a, port)
		}
		return nil
	})
	return port
}

// testPrometheus: Prometheus finds the node as any other, and scrapes it through its tunnel, with the jobs of its
// example for Kubernetes.
func (n *node) testPrometheus(t *testing.T) {
	server := prometheus.Start(t, n.kube)
	const web = `namespace="tunnelled",pod="web",container="main"`
	for _, query := range []string{
		`up{job="kubernetes-nodes"} == 1`, `up{job="kubernetes-cadvisor"} == 1`,
		`container_memory_working_set_bytes{job="kubernetes-cadvisor",` + web + `} > 0`,
		`container_memory_working_set_bytes{job="kubernetes-nodes",` + web + `} > 0`,
		`node_memory_working_set_bytes{job="kubernetes-nodes"} > 0`,
		`rate(container_cpu_usage_seconds_total{job="kubernetes-cadvisor",` + web + `}[1m])`, // two scrapes
	} {
		wait.Until(t, query, func() error {
			series, err := server.Query(t.Context(), query)
			if err == nil && (len(series) != 1 || series[0]["instance"] != n.NodeName) {
				err = fmt.Errorf("its series are %v, want one of instance %s", series, n.NodeName)
			}
			return err
		})
	}
}

// testTunnelOffline: kubectl says that the node is offline, and reaches it when it is back.
func (n *node) testTunnelOffline(t *testing.T) {
	follow := n.kubectl(t, "logs", "-f", "talker")
	out, err := follow.output()
	env.Must(t, err)
	env.Must(t, follow.Start())
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "three" { // until the stream is under way
	}
	env.Must(t, n.Kill9(t.Context()))
	for lines.Scan() { // until it ends
	}
	_ = follow.Wait() // its exit code depends on how the stream was cut
	wait.Until(t, "kubectl to be told that the node is offline", func() error {
		c := n.kubectl(t, "logs", "talker")
		want := "node " + n.NodeName + " is offline since"
		if err := c.Run(); err == nil || !strings.Contains(c.errOut.String(), want) {
			return fmt.Errorf("logs without the agent: %v: %s, want %q", err, c.errOut.String(), want)
		}
		return nil
	})
	env.Must(t, n.Start(t.Context()))
	n.reached(t)
}

// testTunnelCut: a link that drops packets in the middle of streams ends them, and leaves nothing behind. (kubectl
// succeeds: kube-apiserver tells it that the logs end, and that the command ends without a status.)
func (n *node) testTunnelCut(t *testing.T, network *nat.Network) {
	calls := []*call{
		n.kubectl(t, "logs", "-f", "talker"), n.kubectl(t, "exec", "talker", "--", "sh", "-c", "echo three; sleep 600"),
	}
	for _, c := range calls {
		c.Stdout = nil
		out, err := c.StdoutPipe()
		env.Must(t, err)
		env.Must(t, c.Start())
		lines := bufio.NewScanner(out)
		for lines.Scan() && lines.Text() != "three" { // until the stream is under way
		}
	}
	env.Must(t, network.Cut(t.Context()))
	for _, c := range calls {
		if err := c.Wait(); c.ProcessState.ExitCode() < 0 {
			t.Errorf("kubectl %s goes on after the link was cut (%v), want it to end", c.Args[7], err)
		}
	}
	env.Must(t, network.Mend(t.Context()))
	n.reached(t)
	n.streamsUntil(t, "both ends to have the same streams, those of callers that keep their connections",
		func(int) bool { return true })
}

// value returns the value of a metric without labels.
func value(metrics, name string) string {
	_, rest, _ := strings.Cut(metrics, "\n"+name+" ")
	text, _, _ := strings.Cut(rest, "\n")
	return text
}

// approve approves the node's certificate until callers can verify it at the tunnel's address.
func (n *node) approve(t *testing.T, cloud string, port int32) {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(n.kube.CA()) {
		t.Fatal("the cluster's CA cannot be read")
	}
	requests := n.api.CertificatesV1().CertificateSigningRequests()
	wait.Until(t, "a certificate of the cluster for "+cloud, func() error {
		list, err := requests.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, r := range list.Items {
			if r.Spec.SignerName == certificatesv1.KubeletServingSignerName && len(r.Status.Conditions) == 0 {
				if out, err := n.kube.Kubectl(t.Context(), "certificate", "approve", r.Name); err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
			}
		}
		c, err := tls.Dial("tcp", net.JoinHostPort(cloud, strconv.Itoa(int(port))), &tls.Config{RootCAs: roots})
		if err != nil {
			return err
		}
		return c.Close()
	})
}
