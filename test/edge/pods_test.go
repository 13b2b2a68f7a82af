package edge

import (
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/mattn/go-sqlite3" // opens the store
	"github.com/opencontainers/cgroups"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
)

// TestPodsRunAsTheySay walks through what a pod can ask for, and looks at it from inside the container.
func TestPodsRunAsTheySay(t *testing.T) {
	n := newNode(t, testenv.Options{}, agent.Options{})
	host := t.TempDir()
	if err := os.WriteFile(filepath.Join(host, "given"), []byte("from the node\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	n.manifest("web.yaml", fmt.Sprintf(`apiVersion: v1
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
	pods := n.until("the pod runs", running("web"))
	p := pods["web"]
	var out string
	testenv.Poll(t, patience, func() error {
		if out = n.logged(p, "main"); !strings.Contains(out, " mem:") {
			return fmt.Errorf("the script is not done: %s", out)
		}
		return nil
	})
	cpu := "shares: 102"
	if cgroups.IsCgroup2UnifiedMode() {
		cpu = "shares: 4" // cpu.weight has another scale
	}
	for _, want := range []string{
		"order: 1 2", "dir: /shared", "host: my-host", "env: " + p.Name + " " + p.Status.PodIP + " $(NAME) 32", "given: from the node",
		"ro: touch: /host/x: Read-only file system", "fs: tmpfs", "dns: search example.org nameserver 192.0.2.53 options ndots:3", "hosts: 192.0.2.7 alias.example",
		"sub: 1", `info: app="web"`, cpu + " mem: 33554432",
	} {
		if !strings.Contains(strings.ReplaceAll(out, "\t", " "), want) {
			t.Errorf("the container does not say %q", want)
		}
	}
	if t.Failed() {
		t.Log(out)
	}
	testenv.Poll(t, patience, func() error {
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
	n.remove("web.yaml")
	n.until("the pod is gone", gone("web"))
	n.nothingLeft()
	if _, err := os.Stat(filepath.Join(host, "given")); err != nil {
		t.Error("a file of the node was removed with the pod:", err)
	}
}

// checkStatus compares a running pod's status with what a kubelet says of one.
func checkStatus(t *testing.T, p *v1.Pod) {
	t.Helper()
	s := p.Status
	if s.QOSClass != v1.PodQOSBurstable || s.StartTime == nil || len(s.PodIPs) != 1 || s.PodIPs[0].IP != s.PodIP {
		t.Errorf("status %+v", s)
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
	if !c.Ready || c.Started == nil || !*c.Started || c.RestartCount != 0 || c.State.Running == nil || !strings.HasPrefix(c.ContainerID, "containerd://") ||
		!strings.Contains(c.ImageID, "sha256:") || c.Image != "edgecore.local/demo:1" {
		t.Errorf("container status %+v", c)
	}
	for _, i := range s.InitContainerStatuses {
		if i.State.Terminated == nil || i.State.Terminated.Reason != "Completed" || !i.Ready {
			t.Errorf("init container status %+v", i)
		}
	}
}

// TestRestartPolicies: what ends well or badly is restarted as its pod says, with a growing wait.
func TestRestartPolicies(t *testing.T) {
	n := newNode(t, testenv.Options{}, agent.Options{})
	n.manifest("a.yaml", pod("done", "echo well", "  restartPolicy: Never"))
	n.manifest("b.yaml", pod("failed", "echo because > /dev/termination-log; exit 7", "  restartPolicy: Never"))
	n.manifest("c.yaml", pod("onfailure", "test -e /dev/shm/x && exit 0; exit 1", "  restartPolicy: OnFailure"))
	n.manifest("d.yaml", pod("always", "exit 3"))
	n.until("Never that ended well", func(pods map[string]*v1.Pod) error {
		p := pods["done"]
		if p == nil || p.Status.Phase != v1.PodSucceeded || p.Status.ContainerStatuses[0].State.Terminated.Reason != "Completed" {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
	n.until("Never that failed", func(pods map[string]*v1.Pod) error {
		p := pods["failed"]
		if p == nil || p.Status.Phase != v1.PodFailed {
			return fmt.Errorf("%+v", p)
		}
		end := p.Status.ContainerStatuses[0].State.Terminated
		if end == nil || end.ExitCode != 7 || end.Reason != "Error" || end.Message != "because\n" {
			return fmt.Errorf("terminated %+v", end)
		}
		return nil
	})
	n.until("crash loop", waits("always", "CrashLoopBackOff", "restarting failed container=main pod=always-node1_default("))
	n.until("restarts", func(pods map[string]*v1.Pod) error {
		c := pods["always"].Status.ContainerStatuses[0]
		if c.RestartCount < 1 || c.LastTerminationState.Terminated == nil || c.LastTerminationState.Terminated.ExitCode != 3 {
			return fmt.Errorf("%+v", c)
		}
		if pods["onfailure"].Status.ContainerStatuses[0].RestartCount < 1 {
			return fmt.Errorf("onfailure was not restarted")
		}
		return nil
	})
	n.kept("done", v1.PodSucceeded)
	n.kept("failed", v1.PodFailed)
	// What has ended stays so when the agent starts again, even with nothing left in the runtime.
	if err := n.Kill9(t.Context()); err != nil {
		t.Fatal(err)
	}
	reboot(t, n)
	n.until("a finished pod stays finished", func(pods map[string]*v1.Pod) error {
		if p := pods["done"]; p == nil || p.Status.Phase != v1.PodSucceeded {
			return fmt.Errorf("%+v", p)
		}
		if p := pods["failed"]; p == nil || p.Status.Phase != v1.PodFailed || p.Status.ContainerStatuses[0].State.Terminated.Message != "because\n" {
			return fmt.Errorf("%+v", p)
		}
		return waits("always", "CrashLoopBackOff", "")(pods)
	})
	for _, name := range []string{"done", "failed"} {
		for _, box := range n.sandboxesOf(name) {
			if box.State == runtimeapi.PodSandboxState_SANDBOX_READY || box.Metadata.Attempt > 0 {
				t.Errorf("%s was run again", name)
			}
		}
	}
}

// readStore opens the store to read beside the agent.
func (n *node) readStore() *sql.DB {
	n.t.Helper()
	db, err := sql.Open("sqlite3", "file:"+n.Store()+"?mode=ro&_busy_timeout=10000")
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = db.Close() })
	return db
}

// kept waits until the store has a phase of a pod, which is shown before.
func (n *node) kept(name string, want v1.PodPhase) {
	n.t.Helper()
	n.keptAs(name, "$.status.phase", string(want))
}

// keptAs waits until the store has a field of a pod's status, by its JSON path; true is "1".
func (n *node) keptAs(name, path, want string) {
	n.t.Helper()
	db := n.readStore()
	testenv.Poll(n.t, patience, func() error {
		var got sql.NullString
		key := "default/podpatch/" + name + "-" + n.NodeName
		err := db.QueryRowContext(n.t.Context(), "select json_extract(value, ?) from meta where key = ?", path, key).Scan(&got)
		if err == nil && got.String != want {
			err = fmt.Errorf("%s of pod %s is %q in the store, want %q", path, name, got.String, want)
		}
		return err
	})
}

func (n *node) sandboxesOf(name string) []*runtimeapi.PodSandbox {
	n.t.Helper()
	boxes, err := n.cri.ListPodSandbox(n.t.Context(), &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"io.kubernetes.pod.name": name + "-" + n.NodeName}},
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return boxes.Items
}

// TestGracefulEnd: a pod gets its grace and no more, and a pod that needs none is gone at once.
func TestGracefulEnd(t *testing.T) {
	n := newNode(t, testenv.Options{}, agent.Options{})
	n.manifest("quick.yaml", strings.Replace(pod("quick", forever), "terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 30", 1))
	n.manifest("deaf.yaml", strings.Replace(pod("deaf", "trap '' TERM; while true; do sleep 1; done"), "terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 3", 1))
	n.until("both run", running("quick", "deaf"))
	began := time.Now()
	n.remove("quick.yaml")
	n.remove("deaf.yaml")
	n.until("quick is gone", gone("quick"))
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("a pod that ends at once took %v", took)
	}
	n.until("deaf is gone", gone("deaf"))
	if took := time.Since(began); took < 2900*time.Millisecond || took > 25*time.Second {
		t.Errorf("a pod that does not listen took %v, want its grace of 3 s and a little", took)
	}
	n.nothingLeft()
}

// TestChangedManifest: the old pod ends before the new one starts; a changed comment changes nothing.
func TestChangedManifest(t *testing.T) {
	n := newNode(t, testenv.Options{}, agent.Options{})
	n.manifest("a.yaml", pod("a", forever))
	before := n.until("the pod runs", running("a"))["a"]
	lives := n.lives()
	n.manifest("a.yaml", "# another comment\n"+pod("a", forever))
	n.manifest("b.yaml", pod("b", forever)) // after which the first change was seen, too
	n.until("b runs", running("b"))
	for id := range lives {
		if n.lives()[id] == 0 {
			t.Error("a comment restarted the pod")
		}
	}
	n.manifest("a.yaml", pod("a", "echo new; "+forever))
	n.until("the new pod runs", func(pods map[string]*v1.Pod) error {
		if err := running("a")(pods); err != nil || pods["a"].UID == before.UID {
			return fmt.Errorf("uid %s: %w", pods["a"].UID, err)
		}
		return nil
	})
	if boxes := n.sandboxesOf("a"); len(boxes) != 1 {
		t.Errorf("%d sandboxes of a, want 1", len(boxes))
	}
}

// TestManifestComesBack: a pod that has ended begins anew when its manifest comes back, at once, also if it went while the
// agent was not there to see it.
func TestManifestComesBack(t *testing.T) {
	n := newNode(t, testenv.Options{}, agent.Options{})
	task := pod("task", "true", "  restartPolicy: OnFailure")
	ran := map[string]bool{}
	anew := func() {
		t.Helper()
		n.manifest("task.yaml", task)
		n.until("the task is done", func(pods map[string]*v1.Pod) error {
			p := pods["task"]
			if p == nil || p.Status.Phase != v1.PodSucceeded || ran[p.Status.ContainerStatuses[0].ContainerID] {
				return fmt.Errorf("%+v", p)
			}
			ran[p.Status.ContainerStatuses[0].ContainerID] = true
			return nil
		})
	}
	gone := func(map[string]*v1.Pod) error {
		left, err := os.ReadDir(filepath.Join(n.Dir, "root", "pods"))
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%s is left", left[0].Name())
		}
		return err
	}
	anew()
	if err := n.Kill9(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.remove("task.yaml")
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.until("what was left of it is removed", gone)
	anew()
	n.remove("task.yaml")
	n.until("it is gone", gone)
	anew()
}

// TestKilledProcess: its restart begins at once, not at the next poll.
func TestKilledProcess(t *testing.T) {
	n := newNode(t, testenv.Options{}, agent.Options{})
	n.manifest("a.yaml", pod("a", forever))
	n.until("the pod runs", running("a"))
	killMain(t, n)
	began := time.Now()
	n.until("it was restarted", func(pods map[string]*v1.Pod) error {
		c := pods["a"].Status.ContainerStatuses[0]
		if c.RestartCount != 1 || c.State.Running == nil || c.LastTerminationState.Terminated == nil || c.LastTerminationState.Terminated.ExitCode != 137 {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	t.Logf("restarted after %v", time.Since(began))
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("took %v", took)
	}
}
