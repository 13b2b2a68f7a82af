package metricsserver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
)

// user is who metrics-server is; manifests are what it may do, as its own deployment has it, and how kube-apiserver
// finds it.
const user = "metrics-server"

const manifests = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: system:metrics-server}
rules:
- {apiGroups: [""], resources: [nodes/metrics], verbs: [get]}
- {apiGroups: [""], resources: [pods, nodes], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: system:metrics-server}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:metrics-server}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: metrics-server}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: metrics-server:system:auth-delegator}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:auth-delegator}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: metrics-server}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: metrics-server-auth-reader, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: metrics-server}]
---
apiVersion: v1
kind: Service
metadata: {name: metrics-server, namespace: kube-system}
spec: {type: ExternalName, externalName: localhost, ports: [{port: %[1]d}]}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec:
  service: {name: metrics-server, namespace: kube-system, port: %[1]d}
  group: metrics.k8s.io
  version: v1beta1
  insecureSkipTLSVerify: true
  groupPriorityMinimum: 100
  versionPriority: 100
`

// Start starts a metrics-server for a cluster with Options.Aggregation, and ends it when the test does. It reads the
// nodes every 10 seconds; it tells what it has read twice.
func Start(t testing.TB, cluster *kube.Cluster) {
	t.Helper()
	binary, err := Build(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := cluster.AddUser(user)
	if err != nil {
		t.Fatal(err)
	}
	port, err := daemon.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	if err := cluster.Apply(t.Context(), fmt.Sprintf(manifests, port)); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	log := filepath.Join(dir, "metrics-server.log")
	proc, err := daemon.Start(log, nil, binary, fmt.Sprintf("--secure-port=%d", port), "--bind-address=127.0.0.1",
		"--cert-dir="+dir,
		"--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
		"--kubelet-insecure-tls", "--kubelet-use-node-status-port", "--kubelet-preferred-address-types=InternalIP",
		"--metric-resolution=10s", "--kubelet-request-timeout=9s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of metrics-server's log:\n%s", daemon.Tail(log, 30))
		}
		if err := proc.End(context.Background(), syscall.SIGKILL); err != nil {
			t.Errorf("stop metrics-server: %v", err)
		}
	})
}
