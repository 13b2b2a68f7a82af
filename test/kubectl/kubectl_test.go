package kubectl

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

const forever = "; trap 'exit 0' TERM; while true; do sleep 1 & wait; done"

// TestKubectl asks each verb of a node, on each runtime.
func TestKubectl(t *testing.T) {
	f := start(t)
	runtimes := map[string]testenv.Options{"containerd1": {}, "containerd2": {Containerd2: true}}
	var linked sync.WaitGroup // the nodes that need the cloud
	for name, runtime := range runtimes {
		t.Run(name, func(t *testing.T) {
			linked.Add(1) // each before any goes on; one that -run leaves out is not waited for
			t.Parallel()
			unlink := sync.OnceFunc(linked.Done)
			defer unlink()
			n := f.startNode(t, name, runtime)
			n.pods()
			t.Run("verbs", func(t *testing.T) {
				for verb, f := range map[string]func(*testing.T){
					"logs": n.testLogs, "follow": n.testFollow, "exec": n.testExec, "cp": n.testCopy,
					"attach":       n.testAttach,
					"port-forward": n.testPortForward, "debug": n.testDebug, "node proxy": n.testNodeProxy,
					"refused": n.testRefused, "top": n.testTop,
					"terminal": n.testTerminal, "static pod": n.testStatic, "direct": n.testDirect,
				} {
					t.Run(verb, func(t *testing.T) { t.Parallel(); f(t) })
				}
			})
			t.Run("death of the agent", n.testAgentDies)
			unlink()
			linked.Wait()
			t.Run("offline", n.testOffline)
		})
	}
}

// pods makes those of all cases.
func (n *node) pods() {
	interactive := func(p *v1.Pod) { p.Spec.Containers[0].Stdin = true }
	n.pod("web", "httpd -p 8080 -h /www"+forever)
	n.pod("greeter", `nc -ll -p 9000 -e sh -c 'read x; echo got $x'`)
	n.pod("talker", "echo one; echo two; sleep 2; echo bad >&2; sleep 2; echo three"+forever)
	n.pod("crasher", "echo attempt; exit 3")
	n.pod("stuck", "true", func(p *v1.Pod) { p.Spec.Containers[0].Image = "edgecore.local/none:1" })
	n.pod("ender", "echo start; until [ -f /tmp/go ]; do sleep 0.1; done; echo bye", func(p *v1.Pod) {
		p.Spec.RestartPolicy = v1.RestartPolicyNever
	})
	const asks = "while read x; do echo got $x; done" + forever
	n.pod("asker", asks, interactive)
	n.pod("terminal", asks, interactive, func(p *v1.Pod) { p.Spec.Containers[0].TTY = true })
	n.until(n.t, "web", running)
}

func (n *node) testLogs(t *testing.T) {
	const all = "one\ntwo\nbad\nthree\n"
	n.until(t, "talker", running)
	n.untilPrints(t, all, "logs", "talker")
	n.kubectl(t, "logs", "talker", "--tail=2").want(t, "bad\nthree\n")
	n.kubectl(t, "logs", "talker", "--limit-bytes=5").want(t, "one\nt")
	n.kubectl(t, "logs", "talker", "-c", "main", "--since=1h").want(t, all)
	n.kubectl(t, "logs", "talker", "--since-time="+time.Now().Add(time.Hour).Format(time.RFC3339)).want(t, "")
	n.kubectl(t, "get", "--raw", "/api/v1/namespaces/"+n.NodeName+"/pods/talker/log?stream=Stderr").want(t, "bad\n")
	c := n.kubectl(t, "logs", "talker", "--timestamps", "--tail=1")
	env.Must(t, c.Run())
	if stamped := regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}\S+ three\n$`); !stamped.MatchString(
		c.out.String()) {
		t.Errorf("logs --timestamps --tail=1 = %q, want a time and three", c.out.String())
	}
	n.kubectl(t, "logs", "talker", "--previous").
		fails(t, 1, `previous terminated container "main" in pod "talker" not found`)
	n.until(t, "stuck", func(p *v1.Pod) bool {
		return len(p.Status.ContainerStatuses) > 0 &&
			strings.Contains(p.Status.ContainerStatuses[0].State.Waiting.Reason, "Image")
	})
	n.kubectl(t, "logs", "stuck").fails(t, 1, `container "main" in pod "stuck" is waiting to start: `)
	n.until(t, "crasher", func(p *v1.Pod) bool {
		return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].RestartCount > 0
	})
	n.untilPrints(t, "attempt\n", "logs", "crasher") // one that has just begun has said nothing
	n.kubectl(t, "logs", "crasher", "--previous").want(t, "attempt\n")
}

// testFollow: kubectl logs -f ends when the container does.
func (n *node) testFollow(t *testing.T) {
	n.until(t, "ender", running)
	c := n.kubectl(t, "logs", "ender", "-f")
	out, err := c.output()
	env.Must(t, err)
	env.Must(t, c.Start())
	r := bufio.NewReader(out)
	if line, err := r.ReadString('\n'); line != "start\n" {
		t.Fatalf("logs -f = %q, %v, want start: %s", line, err, c.errOut.String())
	}
	n.kubectl(t, "exec", "ender", "--", "touch", "/tmp/go").want(t, "")
	rest, err := io.ReadAll(r)
	if string(rest) != "bye\n" || err != nil {
		t.Errorf("the rest of logs -f = %q, %v, want bye", rest, err)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("logs -f ended with %v, want no error: %s", err, c.errOut.String())
	}
}

// output is what a call prints while it runs.
func (c *call) output() (io.ReadCloser, error) { c.Stdout = nil; return c.StdoutPipe() }

// The protocols of kubectl: WebSocket is its default.
var protocols = map[string][]string{
	"WebSocket": nil,
	"SPDY":      {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false", "KUBECTL_PORT_FORWARD_WEBSOCKETS=false"},
}

// testStatic reaches a pod of the manifest folder by the name of its mirror pod.
func (n *node) testStatic(t *testing.T) {
	env.Must(t, n.WriteManifest("static.yaml", `apiVersion: v1
kind: Pod
metadata: {name: static, namespace: `+n.NodeName+`}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: "edgecore.local/demo:1", command: [sh, -c, "echo I am static`+forever+`"]}
`))
	name := "static-" + n.NodeName
	wait.Until(t, "the mirror pod runs", func() error {
		p, err := n.api.CoreV1().Pods(n.NodeName).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && !running(p) {
			err = fmt.Errorf("it is %s, want Running", p.Status.Phase)
		}
		return err
	})
	n.untilPrints(t, "I am static\n", "logs", name)
	n.kubectl(t, "exec", name, "--", "echo", "a").want(t, "a\n")
}

func (n *node) testExec(t *testing.T) {
	big := make([]byte, 3<<20)
	for i := range big {
		big[i] = byte(rand.Uint32())
	}
	for protocol, vars := range protocols {
		t.Run(protocol, func(t *testing.T) {
			n.kubectl(t, "exec", "web", "--", "echo", "a b").env(vars...).want(t, "a b\n")
			n.kubectl(t, "exec", "web", "--", "sh", "-c", "echo why >&2; exit 7").env(vars...).fails(t, 7, "why")
			n.kubectl(t, "exec", "-i", "web", "--", "sha256sum").env(vars...).input(bytes.NewReader(big)).
				want(t, fmt.Sprintf("%x  -\n", sha256.Sum256(big)))
			n.kubectl(t, "exec", "web", "--", "sh", "-c", "yes | head -c 5000000 | sha256sum; yes | head -c 100000").
				env(vars...).want(t,
				fmt.Sprintf("%x  -\n", sha256.Sum256(bytes.Repeat([]byte("y\n"), 2500000)))+
					strings.Repeat("y\n", 50000))
		})
	}
	n.kubectl(t, "exec", "web", "--", "/none").fails(t, 1, `"/none": stat /none: no such file or directory`)
	n.kubectl(t, "exec", "web", "-c", "other", "--", "ls").fails(t, 1, "other")
	n.until(t, "stuck", func(*v1.Pod) bool { return true })
	n.kubectl(t, "exec", "stuck", "--", "ls").fails(t, 1, "container not found")
}

func (n *node) testCopy(t *testing.T) {
	dir := t.TempDir()
	data := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
	env.Must(t, os.MkdirAll(filepath.Join(dir, "up", "below"), 0o755))
	env.Must(t, os.WriteFile(filepath.Join(dir, "up", "below", "file"), data, 0o644))
	for _, way := range [][2]string{
		{filepath.Join(dir, "up"), "web:/tmp/copy"}, {"web:/tmp/copy", filepath.Join(dir, "down")},
	} {
		c := n.kubectl(t, "cp", "-c", "main", way[0], way[1])
		if err := c.Run(); err != nil {
			t.Fatalf("cp %s: %v, want no error\n%s %s", way, err, c.out.String(), c.errOut.String())
		}
	}
	if back, err := os.ReadFile(filepath.Join(dir, "down", "below", "file")); err != nil || !bytes.Equal(back, data) {
		t.Errorf("%d bytes, %v; want the %d that were sent", len(back), err, len(data))
	}
}

func (n *node) testAttach(t *testing.T) {
	n.until(t, "asker", running)
	c := n.kubectl(t, "attach", "-i", "asker")
	c.talk(t)
	_ = c.Process.Kill()
	_ = c.Wait()
}

// talk starts a kubectl and says hello to what it has attached to, until there is the answer. It returns the kubectl's
// input.
func (c *call) talk(t *testing.T) io.Writer {
	t.Helper()
	typed, err := c.StdinPipe()
	env.Must(t, err)
	out, err := c.output()
	env.Must(t, err)
	env.Must(t, c.Start())
	stop := insist(func() error { _, err := io.WriteString(typed, "hello\n"); return err })
	defer stop()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "got hello\n" {
		t.Errorf("%s = %q, %v, want got hello: %s", strings.Join(c.Args[7:], " "), line, err, c.errOut.String())
	}
	return typed
}

// insist says something each second until stop is called: containerd 1.6 takes input a moment before it gives output,
// and what is answered in between goes to the log alone. What cannot be said has a stream that ended, which says why.
func insist(say func() error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for say() == nil {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
			}
		}
	}()
	return func() { cancel(); <-done }
}

func (n *node) testPortForward(t *testing.T) {
	n.until(t, "greeter", running)
	for protocol, vars := range protocols {
		t.Run(protocol, func(t *testing.T) {
			t.Run("HTTP", func(t *testing.T) {
				address := n.portForward(t, "web", "8080", vars)
				for range 3 { // each is a stream of its own on one connection
					client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: wait.Max()}
					resp, err := client.Get("http://" + address + "/index.html")
					env.Must(t, err)
					body, err := io.ReadAll(resp.Body)
					resp.Body.Close()
					if err != nil || string(body) != "edgecore demo\n" {
						t.Errorf("GET /index.html = %q, %v, want %q", body, err, "edgecore demo\n")
					}
				}
			})
			// The client closes its half of the connection before it reads. containerd carries an answer for one
			// second after that, which may be too short when the machine is busy.
			t.Run("half-close", func(t *testing.T) {
				address := n.portForward(t, "greeter", "9000", vars)
				wait.Until(t, "an answer after the end of the input", func() error {
					conn, err := net.Dial("tcp", address)
					if err != nil {
						return err
					}
					defer conn.Close()
					if err := conn.SetDeadline(time.Now().Add(wait.Max())); err != nil {
						return err
					}
					if _, err := io.WriteString(conn, "hello\n"); err != nil {
						return err
					}
					if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
						return err
					}
					got, err := io.ReadAll(conn)
					if err == nil && string(got) != "got hello\n" {
						err = fmt.Errorf("the answer is %q, want got hello", got)
					}
					return err
				})
			})
		})
	}
}

// portForward runs kubectl port-forward to a pod until the test ends, and returns the address where it listens.
func (n *node) portForward(t *testing.T, pod, port string, vars []string) (address string) {
	t.Helper()
	c := n.kubectl(t, "port-forward", "pod/"+pod, ":"+port).env(vars...)
	address = c.forwards(t)
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	return address
}

// forwards starts a kubectl port-forward and returns the address where it listens.
func (c *call) forwards(t *testing.T) (address string) {
	t.Helper()
	out, err := c.output()
	env.Must(t, err)
	env.Must(t, c.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if address = regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line); address == "" {
		t.Fatalf("port-forward = %q, %v, want an address: %s", line, err, c.errOut.String())
	}
	return address
}

// testDebug adds a container to a pod, and looks at the node from a pod.
func (n *node) testDebug(t *testing.T) {
	n.kubectl(t, "debug", "web", "-q", "--image=edgecore.local/demo:1", "-c", "dbg", "--target=main",
		"--profile=general", "--", "sh", "-c", "echo I see; tr '\\0' ' ' < /proc/1/cmdline; echo").want(t, "")
	wait.Until(t, "what the ephemeral container says", func() error {
		c := n.kubectl(t, "logs", "web", "-c", "dbg")
		if err := c.Run(); err != nil || !strings.Contains(c.out.String(), "I see\nsh -c httpd") {
			return fmt.Errorf("%w: %q %s", err, c.out.String(), c.errOut.String())
		}
		return nil
	})
	c := n.kubectl(t, "debug", "web", "-q", "-i", "--image=edgecore.local/demo:1", "-c", "dbg2", "--profile=general",
		"--", "sh", "-c", "while read x && [ $x != bye ]; do echo got $x; done")
	typed := c.talk(t)
	_, err := io.WriteString(typed, "bye\n") // the end of its input would have the runtime detach
	env.Must(t, err)
	if err := c.Wait(); err != nil {
		t.Errorf("debug -i: %v, want no error\n%s", err, c.errOut.String())
	}
	c = n.kubectl(t, "debug", "node/"+n.NodeName, "-q", "--image=edgecore.local/demo:1", "--profile=general", "--",
		"ls", "/host/etc/hostname")
	env.Must(t, c.Run())
	wait.Until(t, "what the pod on the node says", func() error {
		pods, err := n.kube.Kubectl(t.Context(), "-n", n.NodeName, "get", "pods", "-o", "name")
		if err != nil {
			return err
		}
		for name := range strings.FieldsSeq(pods) {
			if !strings.Contains(name, "node-debugger") {
				continue
			}
			c := n.kubectl(t, "logs", name)
			if err := c.Run(); err != nil || c.out.String() != "/host/etc/hostname\n" {
				return fmt.Errorf("%w: %q %s", err, c.out.String(), c.errOut.String())
			}
			return nil
		}
		return fmt.Errorf("no such pod among %s", pods)
	})
}

// testNodeProxy asks the node's port for what else it has, through kube-apiserver.
func (n *node) testNodeProxy(t *testing.T) {
	proxy := "/api/v1/nodes/" + n.NodeName + "/proxy"
	for path, want := range map[string]string{
		"/healthz": "ok", "/pods": `"kind":"PodList"`, "/runningpods/": `"name":"web"`, "/configz": "kubeletconfig",
		"/metrics":       "kubelet_running_pods",
		"/stats/summary": `"nodeName"`, "/metrics/resource": "node_memory_working_set_bytes",
	} {
		c := n.kubectl(t, "get", "--raw", proxy+path)
		if err := c.Run(); err != nil || !strings.Contains(c.out.String(), want) {
			t.Errorf("%s: %v %s: no %q in %.500s", path, err, c.errOut.String(), want, c.out.String())
		}
	}
	n.kubectl(t, "create", "--raw", proxy+"/run/"+n.NodeName+"/web/main?cmd=echo%20a%20b", "-f", "-").
		input(strings.NewReader("")).want(t, "a b\n")
}

// testAgentDies: streams are there again with the agent, and the device's own commands all the time.
func (n *node) testAgentDies(t *testing.T) {
	env.Must(t, n.Kill9(t.Context()))
	if out, err := n.exec(t, "echo", "without the agent"); err != nil || out != "without the agent\n" {
		t.Errorf("edgecore exec = %q, %v, want what echo prints", out, err)
	}
	if out, err := n.Run(t.Context(), "logs", "talker", "--tail=1"); err != nil || out != "three\n" {
		t.Errorf("edgecore logs = %q, %v, want three", out, err)
	}
	wait.Until(t, "kubectl to be refused", func() error { // an earlier connection may break first
		c := n.kubectl(t, "logs", "talker")
		if err := c.Run(); err == nil || !strings.Contains(c.errOut.String(), "refused") {
			return fmt.Errorf("logs without the agent: %v: %s, want refused", err, c.errOut.String())
		}
		return nil
	})
	env.Must(t, n.Start(t.Context()))
	n.reached(t)
}

// reached waits until kubectl gets logs and runs commands.
func (n *node) reached(t *testing.T) {
	t.Helper()
	n.untilPrints(t, "three\n", "logs", "talker", "--tail=1")
	n.untilPrints(t, "there\n", "exec", "web", "-c", "main", "--", "echo", "there")
}

// testOffline: without the cloud, what runs is reached on the device, and by those who were let in before.
func (n *node) testOffline(t *testing.T) {
	env.Must(t, n.stopCloud(t.Context()))
	n.reached(t)
	if out, err := n.exec(t, "sh", "-c", "echo here; exit 5"); err == nil || err.Error() != "exit status 5" ||
		out != "here\n" {
		t.Errorf("edgecore exec = %q, %v, want here and exit status 5", out, err)
	}
	if out, err := n.Run(t.Context(), "logs", "talker", "--tail=1"); err != nil || out != "three\n" {
		t.Errorf("edgecore logs = %q, %v, want three", out, err)
	}
	stranger := n.NodeName + "-late"
	_, err := n.kube.AddUser(stranger, "system:masters")
	env.Must(t, err)
	wait.Until(t, "an answer to a stranger", func() error {
		got, err := n.ask(t, n.user(t, stranger), "/containerLogs/"+n.NodeName+"/talker/main")
		if err == nil && strings.HasPrefix(got, "200") {
			t.Fatalf("a user who was never let in got %q, want no logs", got)
		}
		return err
	})
}
