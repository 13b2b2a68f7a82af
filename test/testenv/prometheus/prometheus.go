package prometheus

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
)

// manifests are the account of Prometheus and what it may do, as in its example for Kubernetes.
const manifests = `apiVersion: v1
kind: ServiceAccount
metadata: {name: prometheus, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: prometheus}
rules:
- {apiGroups: [""], resources: [nodes, nodes/metrics, services, pods], verbs: [get, list, watch]}
- {nonResourceURLs: [/metrics], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: prometheus}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: prometheus}
subjects: [{kind: ServiceAccount, name: prometheus, namespace: default}]
`

// config has the jobs of that example for nodes: addresses and ports are those of discovery, certificates are verified.
// kubeconfig_file is what a Prometheus outside of the cluster needs.
const config = `global: {scrape_interval: 5s, scrape_timeout: 5s}
scrape_configs:
- job_name: kubernetes-nodes
  scheme: https
  metrics_path: /metrics/resource
  tls_config: {ca_file: ca.crt}
  authorization: {credentials_file: token}
  kubernetes_sd_configs: [{role: node, kubeconfig_file: %[1]s}]
  relabel_configs: [{action: labelmap, regex: __meta_kubernetes_node_label_(.+)}]
- job_name: kubernetes-cadvisor
  scheme: https
  metrics_path: /metrics/cadvisor
  tls_config: {ca_file: ca.crt}
  authorization: {credentials_file: token}
  kubernetes_sd_configs: [{role: node, kubeconfig_file: %[1]s}]
  relabel_configs: [{action: labelmap, regex: __meta_kubernetes_node_label_(.+)}]
`

// Server is a Prometheus.
type Server struct{ address string }

// Start starts a Prometheus for a cluster, and ends it when the test does. It scrapes each node every 5 seconds.
func Start(t testing.TB, cluster *kube.Cluster) *Server {
	t.Helper()
	binary, err := Build(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	if err := cluster.Apply(t.Context(), manifests); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := cluster.AddServiceAccount(t.Context(), "default", "prometheus")
	if err != nil {
		t.Fatal(err)
	}
	token, err := cluster.Kubectl(t.Context(), "create", "token", "prometheus")
	if err != nil {
		t.Fatalf("create a token: %v\n%s", err, token)
	}
	dir := t.TempDir()
	for name, content := range map[string]string{
		"prometheus.yaml": fmt.Sprintf(config, kubeconfig), "ca.crt": string(cluster.CA()),
		"token": strings.TrimSpace(token),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := &Server{}
	if s.address, err = daemon.FreeAddress(); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(dir, "prometheus.log")
	proc, err := daemon.Start(log, nil, binary, "--config.file="+filepath.Join(dir, "prometheus.yaml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+s.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of Prometheus' log:\n%s", daemon.Tail(log, 30))
		}
		if err := proc.End(context.Background(), syscall.SIGKILL); err != nil {
			t.Errorf("stop Prometheus: %v", err)
		}
	})
	return s
}

// Query returns the labels of each series that a query finds now.
func (s *Server) Query(ctx context.Context, query string) ([]map[string]string, error) {
	ctx, cancel := daemon.Within(ctx)
	defer cancel()
	address := "http://" + s.address + "/api/v1/query?query=" + url.QueryEscape(query)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct {
		Error string `json:"error"`
		Data  struct {
			Result []struct {
				Metric map[string]string `json:"metric"`
			} `json:"result"`
		} `json:"data"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("query %s: %s: %w", query, resp.Status, err)
	}
	if answer.Error != "" {
		return nil, fmt.Errorf("query %s: %s", query, answer.Error)
	}
	var series []map[string]string
	for _, r := range answer.Data.Result {
		series = append(series, r.Metric)
	}
	return series, nil
}
