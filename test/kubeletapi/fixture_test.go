// Package kubeletapi asks a node's authenticated port as the cluster's components do: with a real kube-apiserver behind
// it that says who someone is and what they may, and that signs its certificate; and while that cannot be asked.
package kubeletapi

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

var built = programs.Flags()

func TestMain(m *testing.M) { os.Exit(built.Run(m)) }

// fixture is a cluster with its cloudcore, and one node.
type fixture struct {
	*env.Node
	cluster *env.Cluster
}

const nodeName = "edge-1"

func start(t *testing.T) *fixture {
	t.Helper()
	c := env.StartCluster(t, built, env.ClusterOptions{
		Kube: kube.Options{ControllerManager: true},
		// The port itself is tested.
		Modules: map[string]any{"cloudStream": map[string]any{"tunnel": v1alpha1.TunnelNever}},
	})
	f := &fixture{
		cluster: c, Node: c.StartNode(t, nodeName, env.NodeOptions{Agent: agent.Options{Kubelet: map[string]any{
			"serverTLSBootstrap": true,
			"authorization":      map[string]any{"webhook": map[string]any{"cacheUnauthorizedTTL": "2s"}},
		}}}),
	}
	c.NodeUntil(nodeName, "to have its port", func(n *v1.Node) error {
		if got := n.Status.DaemonEndpoints.KubeletEndpoint.Port; got != int32(f.KubeletPort) {
			return fmt.Errorf("its port is %d, want %d", got, f.KubeletPort)
		}
		return nil
	})
	return f
}

// client is how someone asks: a user of the cluster, "" for nobody.
func (f *fixture) client(t *testing.T, who string, config *tls.Config) (*http.Client, string) {
	t.Helper()
	token := ""
	if who != "" {
		user, err := f.cluster.Kube.ConfigFor(who)
		env.Must(t, err)
		token = user.BearerToken
		if len(user.CertData) > 0 {
			pair, err := tls.X509KeyPair(user.CertData, user.KeyData)
			env.Must(t, err)
			config.Certificates = []tls.Certificate{pair}
		}
	}
	return &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}, Timeout: wait.Max(),
	}, token
}

// ask asks the node as someone, no matter who signed its certificate, and returns the code and the body.
func (f *fixture) ask(t *testing.T, who, method, path string) (string, error) {
	t.Helper()
	client, token := f.client(t, who, &tls.Config{InsecureSkipVerify: true})
	req, err := http.NewRequestWithContext(t.Context(), method, fmt.Sprintf("https://127.0.0.1:%d%s", f.KubeletPort,
		path), nil)
	env.Must(t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return fmt.Sprint(resp.StatusCode, " ", string(body)), err
}

// answers waits until the node answers someone as wanted: rights take a moment to be known.
func (f *fixture) answers(t *testing.T, who, method, path, begin, has string) {
	t.Helper()
	wait.Until(t, fmt.Sprintf("%q: %s %s", who, method, path), func() error {
		got, err := f.ask(t, who, method, path)
		if err == nil && (!strings.HasPrefix(got, begin) || !strings.Contains(got, has)) {
			err = fmt.Errorf("answered %.300q, want %s with %q", got, begin, has)
		}
		return err
	})
}
