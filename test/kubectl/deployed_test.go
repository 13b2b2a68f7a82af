package kubectl

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// staticCloudcore goes into the image of cloudcore, which has no C library; the one that the tests run may need one.
var staticCloudcore = flag.String("static-cloudcore", "", "the static cloudcore to put into the image; built if empty")

// TestDeployedCloudcore: cloudcore runs from its image and its manifests, and each documented command that is executed
// in it works as it is written: through kube-apiserver, the node's port and the runtime.
func TestDeployedCloudcore(t *testing.T) {
	t.Parallel()
	c := env.StartCluster(t, built, env.ClusterOptions{
		Manifests: *manifests,
		Kube: kube.Options{
			ControllerManager: true, Scheduler: true,
			APIServerFlags: []string{"--kubelet-preferred-address-types=InternalIP"},
		},
	})
	n := c.StartNode(t, "edge", env.NodeOptions{})
	importCloudcore(t, n)
	c.Kubectl("apply", "-k", filepath.Join(*manifests, "setup"))
	c.Kubectl("apply", "-k", deployment(t, c))
	wait.Until(t, "the Deployment to be available", func() error {
		d, err := c.API.AppsV1().Deployments("kubeedge").Get(t.Context(), "cloudcore", metav1.GetOptions{})
		if err == nil && (d.Status.AvailableReplicas != 1 || d.Status.ObservedGeneration != d.Generation) {
			err = fmt.Errorf("%d of 1 are available: %+v", d.Status.AvailableReplicas, d.Status.Conditions)
		}
		return err
	})
	commands := documented(t)
	if len(commands) < 2 {
		t.Errorf("documented commands are %q, want those of docs/join.md", commands)
	}
	for _, command := range commands {
		out := c.Kubectl(command...)
		if strings.HasSuffix(strings.Join(command, " "), "cloudcore gettoken") && strings.TrimSpace(out) == "" {
			t.Errorf("kubectl %s prints %q, want a token", strings.Join(command, " "), out)
		}
	}
	token, err := c.Cloud.Token(t.Context())
	env.Must(t, err)
	// Both cloudcores have the CA and the key of tokens in common, and a token begins with the hash of the CA.
	deployed := c.Kubectl("-n", "kubeedge", "exec", "deploy/cloudcore", "--", "cloudcore", "gettoken")
	want, _, _ := strings.Cut(token, ".")
	if got, _, _ := strings.Cut(strings.TrimSpace(deployed), "."); got != want || want == "" {
		t.Errorf("the token is for the CA %q, want %q", got, want)
	}
}

// documented are the documented commands that are executed in cloudcore's Deployment, as arguments of kubectl.
func documented(t *testing.T) [][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(*manifests, "..", "..", "docs", "join.md"))
	env.Must(t, err)
	for _, help := range []string{"gettoken", "revoke"} {
		out, err := exec.CommandContext(t.Context(), built.Cloud, help, "--help").CombinedOutput()
		env.Must(t, err)
		text = append(append(text, '\n'), out...)
	}
	var commands [][]string
	for _, match := range regexp.MustCompile(`(?m)^ +kubectl (.*exec deploy/cloudcore -- [^>#\n]*)`).
		FindAllStringSubmatch(string(text), -1) {
		commands = append(commands, strings.Fields(match[1]))
	}
	return commands
}

// importCloudcore makes the image of cloudcore, as `make image` does, and puts it into the node's runtime.
func importCloudcore(t *testing.T, n *env.Node) {
	t.Helper()
	const image = "edgecore.local/cloudcore:latest"
	dir, binary := t.TempDir(), *staticCloudcore
	build := func(environment []string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Env = append(os.Environ(), environment...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v, want no error\n%s", strings.Join(args, " "), err, out)
		}
	}
	if binary == "" {
		binary = filepath.Join(dir, "cloudcore")
		build([]string{"CGO_ENABLED=0"}, "build", "-o", binary, "../../cmd/cloudcore")
	}
	archive := filepath.Join(dir, "image.tar")
	build(nil, "run", "../../hack/image", "-binary", binary, "-out", archive, "-name", image)
	args := []string{"--address", n.Containerd.Socket(), "--namespace", "k8s.io", "images", "import", archive}
	if out, err := exec.CommandContext(t.Context(), "ctr", args...).CombinedOutput(); err != nil {
		t.Fatalf("ctr %s: %v, want no error\n%s", strings.Join(args, " "), err, out)
	}
	wait.Until(t, "the runtime to list the image", func() error { // the CRI plugin learns of an import by an event
		req := &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image}}
		status, err := n.CRI.Images.ImageStatus(t.Context(), req)
		if err == nil && status.GetImage() == nil {
			err = fmt.Errorf("the runtime does not list %s", image)
		}
		return err
	})
}

// deployment is an overlay of hostnetwork for a node that is on this machine, on which kube-apiserver listens on the
// loopback: the pod has ports of its own, and may run on an edge node.
func deployment(t *testing.T, c *env.Cluster) string {
	t.Helper()
	ports := make([]int, 4)
	for i := range ports {
		var err error
		ports[i], err = daemon.FreePort()
		env.Must(t, err)
	}
	dir := t.TempDir()
	base, err := filepath.Abs(filepath.Join(*manifests, "hostnetwork"))
	env.Must(t, err)
	base, err = filepath.Rel(dir, base)
	env.Must(t, err)
	host, port, err := net.SplitHostPort(strings.TrimPrefix(c.Kube.URL(), "https://"))
	env.Must(t, err)
	text := fmt.Sprintf(`apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [%s]
patches:
- target: {kind: Deployment, name: cloudcore}
  patch: |
    - {op: remove, path: /spec/template/spec/affinity}
    - {op: replace, path: /spec/template/spec/containers/0/ports, value: [{name: metrics, containerPort: %d}]}
    - {op: add, path: /spec/template/spec/containers/0/env, value: [
        {name: KUBERNETES_SERVICE_HOST, value: "%s"}, {name: KUBERNETES_SERVICE_PORT, value: "%s"}]}
- target: {kind: ConfigMap, name: cloudcore}
  patch: |
    - op: replace
      path: /data/cloudcore.yaml
      value: |
        apiVersion: cloudcore.config.kubeedge.io/v1alpha1
        kind: CloudCore
        commonConfig: {monitorServer: {bindAddress: "127.0.0.1:%[2]d"}}
        modules:
          cloudHub:
            advertiseAddress: [127.0.0.1]
            dnsNames: [localhost]
            unixsocket: {enable: false}
            websocket: {enable: true, address: 127.0.0.1, port: %[5]d}
            https: {enable: true, address: 127.0.0.1, port: %[6]d}
            quic: {enable: true, address: 127.0.0.1, port: %[7]d}
`, base, ports[0], host, port, ports[1], ports[2], ports[3])
	env.Must(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600))
	return dir
}
