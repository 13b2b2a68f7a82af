package edge

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/cgroups"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestPodsRunAsTheySay walks through what a pod can ask for, and looks at it from inside the container.
func TestPodsRunAsTheySay(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{})
	host := t.TempDir()
	env.Must(t, os.WriteFile(filepath.Join(host, "given"), []byte("from the node\n"), 0o644))
	n.Manifest("web", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}, annotations: {note: "hello"}}
spec:
  terminationGracePeriodSeconds: 1
  hostname: my-host
  hostAliases: [{ip: 192.0.2.7, hostnames: [alias.example]}]
  dnsPolicy: None
  dnsConfig: {nameservers: [192.0.2.53], searches: [example.org], options: [{name: ndots, value: "3"}]}
  volumes:
  - {name: shared, emptyDir: {}}
  - {name: mem, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: host, hostPath: {path: %s, type: Directory}}
  - name: info
    downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}
  initContainers:
  - {name: first, image: "edgecore.local/demo:1", command: [sh, -c, "echo 1 >> /shared/order"], volumeMounts: [{name: shared, mountPath: /shared}]}
  - {name: second, image: "edgecore.local/demo:1", command: [sh, -c, "echo 2 >> /shared/order"], volumeMounts: [{name: shared, mountPath: /shared}]}
  containers:
  - name: main
    image: edgecore.local/demo:1
    workingDir: /shared
    command: [sh, -c]
    args:
    - |
      echo order: $(cat order); echo dir: $(pwd); echo host: $(hostname); echo env: $(NAME) $(IP) '$$(NAME)' $LIMIT
      echo given: $(cat /host/given); echo ro: $(touch /host/x 2>&1); echo fs: $(stat -f -c %%T /mem)
      echo dns: $(cat /etc/resolv.conf); echo hosts: $(grep alias /etc/hosts); echo sub: $(cat /sub/order | head -1)
      echo info: $(cat /info/labels)
      cd /sys/fs/cgroup; echo shares: $(cat cpu/cpu.shares 2>/dev/null || cat cpu.weight) mem: $(cat memory/memory.limit_in_bytes 2>/dev/null || cat memory.max); cd /shared
      echo bye > /dev/termination-log
      exec httpd -f -p 80 -h /shared
    env:
    - {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: LIMIT, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}
    ports: [{containerPort: 80}]
    resources: {requests: {cpu: 100m}, limits: {memory: 32Mi, cpu: 500m}}
    volumeMounts:
    - {name: shared, mountPath: /shared}
    - {name: mem, mountPath: /mem}
    - {name: host, mountPath: /host, readOnly: true}
    - {name: info, mountPath: /info}
    - {name: shared, mountPath: /sub, subPath: ./}
`, host))
	pods := n.Running("web")
	p := pods["web"]
	out := n.saysUntil(p, " mem:")
	cpu := "shares: 102"
	if cgroups.IsCgroup2UnifiedMode() {
		cpu = "shares: 4" // cpu.weight has another scale
	}
	for _, want := range []string{
		"order: 1 2", "dir: /shared", "host: my-host", "env: " + p.Name + " " + p.Status.PodIP + " $(NAME) 32",
		"given: from the node",
		"ro: touch: /host/x: Read-only file system", "fs: tmpfs",
		"dns: search example.org nameserver 192.0.2.53 options ndots:3", "hosts: 192.0.2.7 alias.example",
		"sub: 1", `info: app="web"`, cpu + " mem: 33554432",
	} {
		if !strings.Contains(strings.ReplaceAll(out, "\t", " "), want) {
			t.Errorf("the container says\n%s\nwant %q in it", out, want)
		}
	}
	wait.Until(t, "the pod to serve", func() error {
		resp, err := http.Get("http://" + p.Status.PodIP + "/order")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "1\n2\n" {
			return fmt.Errorf("the pod serves %q, %w", body, err)
		}
		return nil
	})
	checkStatus(t, p)
	n.Remove("web")
	n.Gone("web")
	n.NothingLeft()
	if _, err := os.Stat(filepath.Join(host, "given")); err != nil {
		t.Errorf("a file of the node after the pod was removed: %v, want it to stay", err)
	}
}

// checkStatus compares a running pod's status with what a kubelet says of one.
func checkStatus(t *testing.T, p *v1.Pod) {
	t.Helper()
	s := p.Status
	if s.QOSClass != v1.PodQOSBurstable || s.StartTime == nil || len(s.PodIPs) != 1 || s.PodIPs[0].IP != s.PodIP {
		t.Errorf("status is %+v, want Burstable with a start time and one address", s)
	}
	for _, c := range s.Conditions {
		if c.Status != v1.ConditionTrue {
			t.Errorf("condition %+v, want True", c)
		}
	}
	if len(s.Conditions) != 5 {
		t.Errorf("%d conditions, want 5", len(s.Conditions))
	}
	c := s.ContainerStatuses[0]
	if !c.Ready || c.Started == nil || !*c.Started || c.RestartCount != 0 || c.State.Running == nil ||
		!strings.HasPrefix(c.ContainerID, "containerd://") ||
		!strings.Contains(c.ImageID, "sha256:") || c.Image != "edgecore.local/demo:1" {
		t.Errorf("container status is %+v, want ready, started, running, with no restarts and the names of its image",
			c)
	}
	for _, i := range s.InitContainerStatuses {
		if i.State.Terminated == nil || i.State.Terminated.Reason != "Completed" || !i.Ready {
			t.Errorf("init container status is %+v, want Completed and ready", i)
		}
	}
}

// TestRestartPolicies: what ends well or badly is restarted as its pod says, with a growing wait.
func TestRestartPolicies(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{})
	n.Manifest("a", env.Pod("done", "echo well", "  restartPolicy: Never"))
	n.Manifest("b", env.Pod("failed", "echo because > /dev/termination-log; exit 7", "  restartPolicy: Never"))
	n.Manifest("c", env.Pod("onfailure", "test -e /dev/shm/x && exit 0; exit 1", "  restartPolicy: OnFailure"))
	n.Manifest("d", env.Pod("always", "exit 3"))
	n.Until("Never that ended well", func(pods map[string]*v1.Pod) error {
		p := pods["done"]
		if p == nil || p.Status.Phase != v1.PodSucceeded {
			return fmt.Errorf("pod done is %+v, want Succeeded", p)
		}
		if end := p.Status.ContainerStatuses[0].State.Terminated; end == nil || end.Reason != "Completed" {
			return fmt.Errorf("terminated %+v, want Completed", end)
		}
		return nil
	})
	n.Until("Never that failed", func(pods map[string]*v1.Pod) error {
		p := pods["failed"]
		if p == nil || p.Status.Phase != v1.PodFailed {
			return fmt.Errorf("pod failed is %+v, want Failed", p)
		}
		end := p.Status.ContainerStatuses[0].State.Terminated
		if end == nil || end.ExitCode != 7 || end.Reason != "Error" || end.Message != "because\n" {
			return fmt.Errorf("terminated %+v, want Error with exit code 7 and the message", end)
		}
		return nil
	})
	n.Until("crash loop",
		waiting("always", "CrashLoopBackOff", "restarting failed container=main pod=always-node1_default("))
	n.Until("restarts", func(pods map[string]*v1.Pod) error {
		c := pods["always"].Status.ContainerStatuses[0]
		if c.RestartCount < 1 || c.LastTerminationState.Terminated == nil ||
			c.LastTerminationState.Terminated.ExitCode != 3 {
			return fmt.Errorf("container of pod always is %+v, want restarts after exit code 3", c)
		}
		if pods["onfailure"].Status.ContainerStatuses[0].RestartCount < 1 {
			return fmt.Errorf("onfailure was not restarted")
		}
		return nil
	})
	n.kept("done", v1.PodSucceeded)
	n.kept("failed", v1.PodFailed)
	// What has ended stays so when the agent starts again, even with nothing left in the runtime.
	n.kill()
	reboot(t, n)
	n.Until("a finished pod stays finished", func(pods map[string]*v1.Pod) error {
		if p := pods["done"]; p == nil || p.Status.Phase != v1.PodSucceeded {
			return fmt.Errorf("pod done is %+v, want Succeeded", p)
		}
		p := pods["failed"]
		if p == nil || p.Status.Phase != v1.PodFailed {
			return fmt.Errorf("pod failed is %+v, want Failed", p)
		}
		if end := p.Status.ContainerStatuses[0].State.Terminated; end == nil || end.Message != "because\n" {
			return fmt.Errorf("terminated %+v, want the message of before", end)
		}
		return waiting("always", "CrashLoopBackOff", "")(pods)
	})
	for _, name := range []string{"done", "failed"} {
		for _, box := range n.sandboxesOf(name) {
			if box.State == runtimeapi.PodSandboxState_SANDBOX_READY || box.Metadata.Attempt > 0 {
				t.Errorf("sandbox of pod %s is %s, attempt %d; want NOTREADY, attempt 0", name, box.State,
					box.Metadata.Attempt)
			}
		}
	}
}

// TestGracefulEnd: a pod gets its grace and no more, and a pod that needs none is gone at once.
func TestGracefulEnd(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{})
	shared := t.TempDir()
	grace := func(manifest, seconds string) string {
		return strings.Replace(manifest, "terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: "+seconds,
			1)
	}
	// The test waits for less than an hour: of a pod with that grace no end is waited for longer than it needs.
	const hour = "3600"
	n.Manifest("quick", grace(env.Pod("quick", env.Forever), hour))
	n.Manifest("slow", grace(env.Pod("slow",
		"trap 'touch /shared/told; until [ -e /shared/go ]; do sleep 0.1; done; touch /shared/done; exit 0' TERM; "+
			"while true; do sleep 1 & wait; done",
		"  volumes: [{name: shared, hostPath: {path: "+shared+"}}]"), hour)+
		"    volumeMounts: [{name: shared, mountPath: /shared}]\n")
	n.Manifest("deaf", grace(env.Pod("deaf",
		"trap 'sleep 1; touch /shared/deaf' TERM; while true; do sleep 1 & wait; done",
		"  volumes: [{name: shared, hostPath: {path: "+shared+"}}]"), "3")+
		"    volumeMounts: [{name: shared, mountPath: /shared}]\n")
	n.Running("quick", "slow", "deaf")
	for _, name := range []string{"slow", "quick", "deaf"} {
		n.Remove(name)
	}
	n.Gone("quick", "deaf")
	exists := func(file string) func() error {
		return func() error {
			_, err := os.Stat(filepath.Join(shared, file))
			return err
		}
	}
	if err := exists("deaf")(); err != nil {
		t.Errorf("file of pod deaf, one second after SIGTERM: %v, want it: the grace is 3 seconds", err)
	}
	wait.Until(t, "SIGTERM of pod slow", exists("told"))
	// It runs on for as long as it takes.
	if ids := n.ContainersOf("slow-" + n.NodeName); len(ids) != 1 {
		t.Errorf("pod slow runs %d containers within its grace, want 1", len(ids))
	}
	env.Must(t, os.WriteFile(filepath.Join(shared, "go"), nil, 0o644))
	n.Gone("slow")
	if err := exists("done")(); err != nil {
		t.Errorf("file of pod slow at its end: %v, want it: its script has ended", err)
	}
	n.NothingLeft()
}

// TestChangedManifest: the old pod ends before the new one starts; a changed comment changes nothing.
func TestChangedManifest(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{})
	n.Manifest("a", env.Pod("a", env.Forever))
	before := n.Running("a")["a"]
	lives := n.RunningContainers()
	n.Manifest("a", "# another comment\n"+env.Pod("a", env.Forever))
	n.Manifest("b", env.Pod("b", env.Forever)) // after which the first change was seen, too
	n.Running("b")
	n.untouched(lives)
	n.Manifest("a", env.Pod("a", "echo new; "+env.Forever))
	n.Until("the new pod runs", func(pods map[string]*v1.Pod) error {
		if err := env.Running("a")(pods); err != nil || pods["a"].UID == before.UID {
			return fmt.Errorf("uid %s: %w", pods["a"].UID, err)
		}
		return nil
	})
	if boxes := n.sandboxesOf("a"); len(boxes) != 1 {
		t.Errorf("%d sandboxes of a, want 1", len(boxes))
	}
}

// TestManifestComesBack: a pod that has ended starts again when its manifest comes back, at once, also if it went while
// the agent was not there to see it.
func TestManifestComesBack(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{})
	task := env.Pod("task", "true", "  restartPolicy: OnFailure")
	ran := map[string]bool{}
	anew := func() {
		t.Helper()
		n.Manifest("task", task)
		n.Until("the task is done", func(pods map[string]*v1.Pod) error {
			p := pods["task"]
			if p == nil || p.Status.Phase != v1.PodSucceeded || ran[p.Status.ContainerStatuses[0].ContainerID] {
				return fmt.Errorf("pod task is %+v, want Succeeded in a new container", p)
			}
			ran[p.Status.ContainerStatuses[0].ContainerID] = true
			return nil
		})
	}
	noFolder := func() {
		t.Helper()
		wait.Until(t, "the pod's folder to go", func() error {
			left, err := os.ReadDir(filepath.Join(n.Dir, "root", "pods"))
			if err == nil && len(left) > 0 {
				err = fmt.Errorf("%s is left", left[0].Name())
			}
			return err
		})
	}
	anew()
	n.kill()
	n.Remove("task")
	n.start()
	noFolder()
	anew()
	n.Remove("task")
	noFolder()
	anew()
}

// TestKilledProcess: a process that dies is restarted. That nothing waits for a poll is shown in test/pleg.
func TestKilledProcess(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{})
	n.Manifest("a", env.Pod("a", env.Forever))
	n.Running("a")
	killMain(t, n)
	n.Until("the restart", restarted("a", 137))
}
