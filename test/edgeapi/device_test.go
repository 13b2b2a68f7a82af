package edgeapi

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/test/edgeapi/twin"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// device is a node with a pod that uses its endpoint.
type device struct {
	*env.Node
	// endpoint is the endpoint as a program in the pod finds it, and cluster kube-apiserver with the same token.
	endpoint, cluster twin.Side
}

// startDevice starts a node whose pod has the account's token.
func (f *fixture) startDevice(t *testing.T) *device {
	t.Helper()
	// An address that no interface of this machine has, and no other test.
	address := fmt.Sprintf("169.254.%d.%d", 1+rand.IntN(250), 1+rand.IntN(250))
	ports := make([]int, 2)
	for i := range ports {
		var err error
		ports[i], err = daemon.FreePort()
		env.Must(t, err)
	}
	t.Cleanup(func() { // the agent leaves it, for pods that run on without it
		_ = exec.Command("ip", "address", "delete", address+"/32", "dev", "lo").Run() // it may be gone
	})
	d := &device{Node: f.With(t).StartNode(t, "edge", env.NodeOptions{Agent: agent.Options{
		MetaServer: map[string]any{
			"enable":      true,
			"server":      fmt.Sprintf("127.0.0.1:%d", ports[0]),
			"dummyServer": fmt.Sprintf("%s:%d", address, ports[1]),
		},
	}})}
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: twin.Shared, Name: "client"},
		Spec: v1.PodSpec{
			NodeName:           "edge",
			ServiceAccountName: account,
			Containers: []v1.Container{{
				Name:    "main",
				Image:   images.Demo,
				Command: []string{"httpd", "-f", "-p", "80", "-h", "/www"},
				VolumeMounts: []v1.VolumeMount{{
					Name:      "tools",
					MountPath: "/tools",
					ReadOnly:  true,
				}},
			}},
			Volumes: []v1.Volume{{
				Name: "tools",
				VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{
					Path: filepath.Dir(f.Kube.KubectlPath()),
				}},
			}},
		},
	}
	_, err := f.API.CoreV1().Pods(twin.Shared).Create(t.Context(), pod, metav1.CreateOptions{})
	env.Must(t, err)
	f.With(t).PodsRunning(twin.Shared, "client")
	const secrets = "/var/run/secrets/kubernetes.io/serviceaccount/"
	token, ca := d.in(t, "cat", secrets+"token"), []byte(d.in(t, "cat", secrets+"ca.crt"))
	host := d.in(t, "sh", "-c", "echo $KUBERNETES_SERVICE_HOST")
	port := d.in(t, "sh", "-c", "echo $KUBERNETES_SERVICE_PORT")
	if host != address || port != fmt.Sprint(ports[1]) {
		t.Errorf("the pod finds the API at %s port %s, want the endpoint, %s port %d", host, port, address, ports[1])
	}
	url := "https://" + net.JoinHostPort(host, port)
	d.endpoint = side(t, "endpoint", url, ca, "twin-b", token)
	d.cluster = side(t, "kube-apiserver", f.Kube.URL(), f.Kube.CA(), "twin-a", token)
	return d
}

// in runs a command in the pod, and returns what it prints.
func (d *device) in(t *testing.T, command ...string) string {
	t.Helper()
	out, err := d.ExecIn("client", command...)
	env.Must(t, err)
	return strings.TrimSpace(out)
}

// kubectl runs kubectl in the pod, which finds the API by the pod's environment: requests, and what upgrades its
// connection.
func (d *device) kubectl(t *testing.T) {
	const kubectl = "/tools/kubectl --cache-dir=/tmp/kubectl "
	for name, tc := range map[string]struct{ script, want string }{
		"get":    {kubectl + "get configmap a -o jsonpath={.data.key}", "value of a"},
		"exec":   {kubectl + "exec client -- echo hello", "hello"},
		"stdin":  {"echo hello | " + kubectl + "exec -i client -- tr a-z A-Z", "HELLO"},
		"denied": {kubectl + "get secrets -n kube-system", "cannot list resource"},
		"port-forward": {kubectl + "port-forward client 8081:80 > /tmp/forward & " +
			"until grep -q Forwarding /tmp/forward; do sleep 0.1; done; wget -qO- http://127.0.0.1:8081/; kill $!",
			"demo"},
	} {
		t.Run(name, func(t *testing.T) {
			if out := d.in(t, "sh", "-c", tc.script); !strings.Contains(out, tc.want) {
				t.Errorf("%s: %q, want %q", tc.script, out, tc.want)
			}
		})
	}
}

// offline cuts the link: requests are answered at once with 503 and a time to try again, and are served again with the
// next link.
func (d *device) offline(t *testing.T, f *fixture) {
	get := twin.Request{Method: http.MethodGet, Path: "/api/v1/namespaces/" + twin.Shared + "/configmaps/a"}
	f.With(t).StopCloud()
	var answer *twin.Answer
	wait.Until(t, "the endpoint to be offline", func() (err error) {
		if answer, err = d.endpoint.Do(t.Context(), get); err == nil && answer.Code != http.StatusServiceUnavailable {
			err = fmt.Errorf("status %d, want 503: %v", answer.Code, answer.Body)
		}
		return err
	})
	again := answer.Header["Retry-After"]
	body, _ := answer.Body.(map[string]any)
	message, _ := body["message"].(string)
	if len(again) != 1 || again[0] != "5" || !strings.Contains(message, "no connection to its cluster since") {
		t.Errorf("offline: Retry-After %q, %q; want 5, and since when there is no connection", again, message)
	}
	health := twin.Request{Method: http.MethodGet, Path: "/readyz"}
	if answer, err := d.endpoint.Do(t.Context(), health); err != nil || answer.Code != http.StatusOK {
		t.Errorf("offline: /readyz is %+v, %v; want status 200", answer, err)
	}
	env.Must(t, f.Cloud.Start(t.Context()))
	wait.Until(t, "the endpoint to be served again", func() error {
		answer, err := d.endpoint.Do(t.Context(), get)
		if err == nil && answer.Code != http.StatusOK {
			err = fmt.Errorf("status %d, want 200: %v", answer.Code, answer.Body)
		}
		return err
	})
}
