// Package kubeletapi asks a node's authenticated port as the cluster's components do: with a real kube-apiserver behind
// it that says who somebody is and what they may, and that signs its certificate; and while that cannot be asked.
package kubeletapi

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/cloud"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
)

// patience bounds every wait: these machines are shared.
const patience = 2 * time.Minute

var built = programs.Flags()

func TestMain(m *testing.M) { os.Exit(built.Run(m)) }

// site is a cluster, its cloudcore, and one node.
type site struct {
	*agent.Agent
	kube  *kube.Cluster
	api   kubernetes.Interface
	cloud *cloud.Cloud
}

const nodeName = "edge-1"

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{kube: kube.Start(t, kube.Options{ControllerManager: true})}
	s.api = s.kube.Client()
	s.cloud = cloud.Install(t, s.kube, cloud.InstallOptions{Binary: built.Cloud})
	s.Agent = testenv.StartAgent(t, testenv.StartContainerd(t, testenv.Options{}), agent.Options{
		Binary: built.Edge, NodeName: nodeName,
		EdgeHub: s.cloud.EdgeHub(t),
		Kubelet: map[string]any{
			"serverTLSBootstrap": true, "nodeStatusUpdateFrequency": "5s", "authorization": map[string]any{"webhook": map[string]any{"cacheUnauthorizedTTL": "2s"}},
		},
	})
	until(t, "the node has its port", func() error {
		node, err := s.api.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
		if err == nil && node.Status.DaemonEndpoints.KubeletEndpoint.Port != int32(s.KubeletPort) {
			err = fmt.Errorf("%+v", node.Status.DaemonEndpoints)
		}
		return err
	})
	return s
}

// who is how somebody asks: a user of the cluster, "" for nobody.
func (s *site) client(t *testing.T, who string, config *tls.Config) (*http.Client, string) {
	t.Helper()
	token := ""
	if who != "" {
		user, err := s.kube.ConfigFor(who)
		must(t, err)
		token = user.BearerToken
		if len(user.CertData) > 0 {
			pair, err := tls.X509KeyPair(user.CertData, user.KeyData)
			must(t, err)
			config.Certificates = []tls.Certificate{pair}
		}
	}
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}, Timeout: patience}, token
}

// ask asks the node as somebody, whoever signed its certificate, and returns the code and the body.
func (s *site) ask(t *testing.T, who, method, path string) (string, error) {
	t.Helper()
	client, token := s.client(t, who, &tls.Config{InsecureSkipVerify: true})
	req, err := http.NewRequestWithContext(t.Context(), method, fmt.Sprintf("https://127.0.0.1:%d%s", s.KubeletPort, path), nil)
	must(t, err)
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

// answers waits until the node answers somebody as wanted: rights take a moment to be known.
func (s *site) answers(t *testing.T, who, method, path, begin, has string) {
	t.Helper()
	until(t, fmt.Sprintf("%q: %s %s", who, method, path), func() error {
		got, err := s.ask(t, who, method, path)
		if err == nil && (!strings.HasPrefix(got, begin) || !strings.Contains(got, has)) {
			err = fmt.Errorf("answered %.300q, want %s with %q", got, begin, has)
		}
		return err
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func until(t testing.TB, what string, check func() error) {
	t.Helper()
	testenv.Poll(t, patience, func() error {
		if err := check(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
}
