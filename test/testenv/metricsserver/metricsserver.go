package metricsserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
)

// APIService is the name of the object by which kube-apiserver finds metrics-server.
const APIService = "v1beta1.metrics.k8s.io"

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
metadata: {name: ` + APIService + `}
spec:
  service: {name: metrics-server, namespace: kube-system, port: %[1]d}
  group: metrics.k8s.io
  version: v1beta1
  insecureSkipTLSVerify: true
  groupPriorityMinimum: 100
  versionPriority: 100
`

// Server is a metrics-server.
type Server struct {
	dir  string
	proc *daemon.Process
}

// Launch runs a metrics-server for a cluster with Options.Aggregation, with its files in dir; see Build for the
// program. It reads the nodes every 10 seconds, and serves metrics after two readings. The caller stops it; if the
// caller is killed before that, it is removed together with the cluster.
func Launch(ctx context.Context, binary string, cluster *kube.Cluster, dir string) (*Server, error) {
	kubeconfig, err := cluster.AddUser(user)
	if err != nil {
		return nil, err
	}
	port, err := daemon.FreePort()
	if err != nil {
		return nil, err
	}
	if err := cluster.Apply(ctx, fmt.Sprintf(manifests, port)); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	s := &Server{dir: dir}
	if s.proc, err = daemon.Start(s.Log(), nil, binary,
		fmt.Sprintf("--secure-port=%d", port), "--bind-address=127.0.0.1", "--cert-dir="+dir,
		"--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
		kubeletTLS(cluster), "--kubelet-use-node-status-port", "--kubelet-preferred-address-types=InternalIP",
		"--metric-resolution=10s", "--kubelet-request-timeout=9s"); err != nil {
		return nil, fmt.Errorf("start metrics-server: %w", err)
	}
	if err := cluster.Host(user, kube.Guest{Process: s.proc.Identity, Dir: dir}); err != nil {
		return nil, errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// kubeletTLS is the flag for the certificates of nodes.
func kubeletTLS(cluster *kube.Cluster) string {
	if ca := cluster.KubeletCA(); ca != "" {
		return "--kubelet-certificate-authority=" + ca
	}
	return "--kubelet-insecure-tls"
}

// Log is what metrics-server writes.
func (s *Server) Log() string { return filepath.Join(s.dir, "metrics-server.log") }

// Stop ends metrics-server. Its files stay.
func (s *Server) Stop(ctx context.Context) error {
	if err := s.proc.End(ctx, syscall.SIGKILL); err != nil {
		return fmt.Errorf("stop metrics-server: %w", err)
	}
	return nil
}

// Lazy returns a function that starts a metrics-server for a cluster when it is called for the first time, from any
// goroutine, and returns the error of that each time. The server runs until t ends.
func Lazy(t testing.TB, cluster *kube.Cluster) (start func() error) {
	t.Helper()
	dir := t.TempDir()
	return sync.OnceValue(func() error {
		binary, err := Build(t.Context(), os.Stderr)
		if err != nil {
			return err
		}
		s, err := Launch(t.Context(), binary, cluster, dir)
		if err != nil {
			return err
		}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("the end of metrics-server's log:\n%s", daemon.Tail(s.Log(), 30))
			}
			if err := s.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		})
		return nil
	})
}
