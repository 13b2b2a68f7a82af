package kubeedge

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// verbs has kubectl reach the pod web through the node's stream tunnel. KubeEdge's cloudcore has no port-forward, and
// before v1.14 no attach.
func (f *fixture) verbs(attach, forward bool) {
	f.t.Helper()
	run := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(f.t.Context(), 30*time.Second)
		defer cancel()
		return f.kube.Kubectl(ctx, args...)
	}
	contains := func(what, want string, args ...string) {
		f.t.Helper()
		out, err := run(args...)
		if err != nil || !strings.Contains(out, want) {
			f.t.Errorf("%s: %q, %v; want %q", what, out, err, want)
		}
	}
	wait.Until(f.t, "kubectl exec", func() error {
		out, err := run("exec", "web", "--", "echo", "hello")
		if err == nil && out != "hello\n" {
			err = fmt.Errorf("it printed %q", out)
		}
		return err
	})
	if _, err := run("exec", "web", "--", "sh", "-c", "exit 7"); err == nil ||
		!strings.Contains(err.Error(), "exit code 7") && !strings.Contains(err.Error(), "exit status 7") {
		f.t.Errorf("kubectl exec of a command that fails: %v, want its exit code", err)
	}
	big, err := run("exec", "web", "--", "sh", "-c", "dd if=/dev/zero bs=1k count=3000 2>/dev/null | tr '\\0' x")
	if err != nil || len(big) != 3000<<10 || strings.Trim(big, "x") != "" {
		f.t.Errorf("3000 KiB over exec: %d bytes, %v", len(big), err)
	}
	env.Must(f.t, f.sees("web", "echo a line >/proc/1/fd/1", "")())
	contains("kubectl logs", "a line", "logs", "web")
	contains("the metrics of the node", "container_", "get", "--raw", "/api/v1/nodes/"+node+"/proxy/metrics/cadvisor")
	if attach {
		f.attached()
	}
	if forward {
		wait.Until(f.t, "kubectl port-forward", f.forwarded)
	}
	contains("the summary of the node", `"nodeName"`, "get", "--raw", "/api/v1/nodes/"+node+"/proxy/stats/summary")
}

// attached reads what the pod web prints through kubectl attach.
func (f *fixture) attached() {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	c := exec.CommandContext(ctx, f.kube.KubectlPath(), "--kubeconfig", f.kube.Kubeconfig(kube.AdminUser), "attach",
		"web")
	out, err := c.StdoutPipe()
	env.Must(f.t, err)
	env.Must(f.t, c.Start())
	read := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(out).ReadString('\n')
		read <- line
	}()
	wait.Until(f.t, "kubectl attach", func() error {
		if err := f.sees("web", "echo attached >/proc/1/fd/1", "")(); err != nil {
			return err
		}
		select {
		case line := <-read:
			if line != "attached\n" {
				f.t.Errorf("kubectl attach prints %q, want attached", line)
			}
			return nil
		default:
			return errors.New("it has printed nothing yet")
		}
	})
	cancel()
	_ = c.Wait() // it was killed
}

// forwarded asks a server in the pod web through kubectl port-forward.
func (f *fixture) forwarded() error {
	ctx, cancel := context.WithTimeout(f.t.Context(), 30*time.Second)
	defer cancel()
	if _, err := f.kube.Kubectl(ctx, "exec", "web", "--", "sh", "-c",
		"echo through >/tmp/index.html; pidof httpd || httpd -p 8080 -h /tmp"); err != nil {
		return err
	}
	port, err := daemon.FreePort()
	if err != nil {
		return err
	}
	c := exec.CommandContext(ctx, f.kube.KubectlPath(), "--kubeconfig", f.kube.Kubeconfig(kube.AdminUser),
		"port-forward", "web", strconv.Itoa(port)+":8080")
	if err := c.Start(); err != nil {
		return err
	}
	defer func() { _ = c.Wait() }()
	defer cancel()
	var last error
	for ctx.Err() == nil {
		resp, err := http.Get("http://127.0.0.1:" + strconv.Itoa(port))
		if err != nil { // kubectl does not listen yet
			last = err
			continue
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err == nil && string(body) != "through\n" {
			err = fmt.Errorf("the answer is %q", body)
		}
		return err
	}
	return fmt.Errorf("%w: %w", ctx.Err(), last)
}

// strangers ask the node's port themselves: cloudcore refuses them, since the node would not.
func (f *fixture) strangers() {
	f.t.Helper()
	n, err := f.api.CoreV1().Nodes().Get(f.t.Context(), node, metav1.GetOptions{})
	env.Must(f.t, err)
	if n.Status.Addresses[0].Type != v1.NodeInternalIP {
		f.t.Fatalf("the Node's addresses are %v, want an InternalIP first", n.Status.Addresses)
	}
	at := "https://" + net.JoinHostPort(n.Status.Addresses[0].Address,
		strconv.Itoa(int(n.Status.DaemonEndpoints.KubeletEndpoint.Port)))
	answer, err := f.api.CoreV1().ServiceAccounts("default").CreateToken(f.t.Context(), "default",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	env.Must(f.t, err)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	for name, tc := range map[string]struct {
		token string
		want  int
	}{
		"nobody":                    {"", http.StatusUnauthorized},
		"a token of no one":         {"nonsense", http.StatusUnauthorized},
		"a pod's, without the role": {answer.Status.Token, http.StatusForbidden},
	} {
		r, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, at+"/pods", nil)
		env.Must(f.t, err)
		if tc.token != "" {
			r.Header.Set("Authorization", "Bearer "+tc.token)
		}
		resp, err := client.Do(r)
		env.Must(f.t, err)
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != tc.want {
			f.t.Errorf("%s gets %s: %s; want %d", name, resp.Status, body, tc.want)
		}
	}
}
