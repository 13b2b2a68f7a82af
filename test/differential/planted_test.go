package differential

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
)

// planted are cases that differ in one thing, and the path where that must show.
func planted() []struct {
	Case
	path string
} {
	const volume = "\nvolumes: [{name: v, downwardAPI: {defaultMode: 0644, items: [{path: name, fieldRef: " +
		"{fieldPath: metadata.name}}]}}]"
	one := func(name, left, right, path string, steps ...Step) struct {
		Case
		path string
	} {
		return struct {
			Case
			path string
		}{Case{Name: "planted-" + name, Spec: left, Right: func(c *Case) { c.Spec = right }, Steps: steps}, path}
	}
	list := []struct {
		Case
		path string
	}{
		one("status", "{restartPolicy: Never, containers: [{name: main, command: [sh, -c, exit 3]}]}",
			"{restartPolicy: Never, containers: [{name: main, command: [sh, -c, exit 4]}]}",
			"pod.status.containerStatuses[main].state.terminated.exitCode", Phase(v1.PodFailed)),
		one("event", "containers: [{name: main}]",
			"containers: [{name: main, imagePullPolicy: Never, image: 'edgecore.local/none:1'}]",
			`events/"Warning","ErrImageNeverPull"`, Settled()),
		one("env", "containers: [{name: main, env: [{name: A, value: x}]}]",
			"containers: [{name: main, env: [{name: A, value: y}]}]",
			"inside/2-inspect/main/env/A", Running(), Inspect()),
		one("identity", "containers: [{name: main}]", "containers: [{name: main, securityContext: {runAsUser: 7}}]",
			"inside/2-inspect/main/identity/Uid", Running(), Inspect()),
		one("limits", "containers: [{name: main}]",
			// It is ready once the limit is set.
			"containers: [{name: main, command: [sh, -c, 'ulimit -n 512; exec sleep 3600'], readinessProbe: "+
				"{periodSeconds: 1, exec: {command: [grep, -q, 'Max open files  *512 ', /proc/1/limits]}}}]",
			"inside/2-inspect/main/limits/Max open files", Running(), Inspect()),
		one("mount", "containers: [{name: main, volumeMounts: [{name: v, mountPath: /v}]}]"+volume,
			"containers: [{name: main, volumeMounts: [{name: v, mountPath: /w}]}]"+volume,
			"inside/2-inspect/main/mounts//v", Running(), Inspect()),
		one("file", "containers: [{name: main, volumeMounts: [{name: v, mountPath: /v}]}]"+volume,
			"containers: [{name: main, volumeMounts: [{name: v, mountPath: /v}]}]"+
				strings.Replace(volume, "0644", "0600", 1),
			"inside/2-inspect/main/files/v/..<dated folder>/name", Running(), Inspect()),
		one("cgroup", "containers: [{name: main, resources: {limits: {memory: 32Mi}}}]",
			"containers: [{name: main, resources: {limits: {memory: 64Mi}}}]",
			"inside/2-inspect/main/cgroup/<id>/memory.limit_in_bytes", Running(), Inspect()),
		one("log", "containers: [{name: main, command: [sh, -c, 'echo one; sleep 3600']}]",
			"containers: [{name: main, command: [sh, -c, 'echo two; sleep 3600']}]",
			"logs/main/0.log", Running(), Logged("main", "o")),
		one("cri", "containers: [{name: main, workingDir: /}]", "containers: [{name: main, workingDir: /tmp}]",
			"cri/CreateContainer/main.config.workingDir", Running()),
	}
	main := func(name, more, path string) {
		list = append(list, one(name, "containers: [{name: main}]", "containers: [{name: main"+more,
			"inside/2-inspect/main/"+path, Running(), Inspect()))
	}
	main("hosts", "}]\nhostAliases: [{ip: 192.0.2.1, hostnames: [planted]}]", "files/etc/hosts")
	main("resolv-conf", "}]\ndnsConfig: {nameservers: [192.0.2.1]}", "files/etc/resolv.conf")
	main("hostname", "}]\nhostname: planted", "files/etc/hostname")
	main("groups", "}]\nsecurityContext: {supplementalGroups: [77]}", "identity/Groups")
	main("capabilities", ", securityContext: {capabilities: {add: [NET_ADMIN]}}}]", "identity/CapEff")
	main("seccomp", ", securityContext: {seccompProfile: {type: RuntimeDefault}}}]", "identity/Seccomp")
	main("oom-score", ", resources: {requests: {memory: 32Mi}}}]", "identity/oom_score_adj")
	main("masked", ", securityContext: {privileged: true}}]", "mounts//proc/keys")
	const disk = "containers: [{name: main, volumeMounts: [{name: v, mountPath: /v}]}]\nvolumes: [{name: v, " +
		"emptyDir: {}}]"
	list = append(list,
		one("mount-options", disk, strings.Replace(disk, "/v}", "/v, readOnly: true}", 1),
			"inside/2-inspect/main/mounts//v", Running(), Inspect()),
		one("setgid", disk, disk+"\nsecurityContext: {fsGroup: 77}", "inside/2-inspect/main/files/v", Running(),
			Inspect()),
		one("termination-message",
			"{restartPolicy: Never, containers: [{name: main, command: [sh, -c, echo one >/dev/termination-log]}]}",
			"{restartPolicy: Never, containers: [{name: main, command: [sh, -c, echo two >/dev/termination-log]}]}",
			"pod.status.containerStatuses[main].state.terminated.message", Phase(v1.PodSucceeded)),
		one("event-message", "containers: [{name: main, imagePullPolicy: Never, image: 'edgecore.local/none:1'}]",
			"containers: [{name: main, imagePullPolicy: Never, image: 'edgecore.local/none:2'}]",
			`events/"Warning","ErrImageNeverPull","kubelet","spec.containers{main}","Container image \"edgecore.local/none:2`, Settled()),
	)
	change := func(name, path string, right func(*Case)) {
		c := one(name, "containers: [{name: main}]", "", path, Running())
		c.Right = right
		list = append(list, c)
	}
	more := func(steps ...Step) func(*Case) {
		return func(c *Case) { c.Steps = slices.Concat(c.Steps, steps) }
	}
	change("event-count", `events/"Normal","Started"`, more(KillProcess("main"), Restarted("main", 1)))
	change("label", "cri/RunPodSandbox.config.labels.planted", func(c *Case) {
		c.Labels = map[string]string{"planted": "x"}
	})
	change("annotation", "cri/RunPodSandbox.config.annotations.planted", func(c *Case) {
		c.Annotations = map[string]string{"planted": "x"}
	})
	change("generation", "pod.generation", more(Patch("spec: {activeDeadlineSeconds: 3600}")))
	observed := more(Patch("spec: {activeDeadlineSeconds: 3600}"),
		Until("the generation is observed", func(p *v1.Pod) error {
			if p.Status.ObservedGeneration != p.Generation {
				return fmt.Errorf("observedGeneration = %d, want %d", p.Status.ObservedGeneration, p.Generation)
			}
			return nil
		}))
	change("observed-generation", "pod.status.observedGeneration", observed)
	source := one("event-source", "containers: [{name: main}]", "", `events/"Normal","Planted","other"`, Running(),
		emit("kubelet"))
	source.Right = func(c *Case) { c.Steps = []Step{Running(), emit("other")} }
	return append(list, source)
}

// emit creates an event about the pod that comes from a component.
func emit(component string) Step {
	return Step{Name: "emit", Do: func(ctx context.Context, s *Subject) error {
		_, err := s.API.CoreV1().Events(s.Name).Create(ctx, &v1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: s.Case.Name, Namespace: s.Name},
			InvolvedObject: v1.ObjectReference{Kind: "Pod", Namespace: s.Name, Name: s.Case.Name, UID: s.Pod.UID},
			Type:           v1.EventTypeNormal,
			Reason:         "Planted",
			Message:        "planted",
			Source:         v1.EventSource{Component: component, Host: s.Name},
		}, metav1.CreateOptions{})
		return err
	}}
}

// plantedAPI is a case in which answers of the right node's ports, and its Node, are changed, and the paths where each
// must show.
func plantedAPI() (c Case, paths []string) {
	replace := func(old, changed string) func(*Answer) {
		return func(a *Answer) { a.Body = regexp.MustCompile(old).ReplaceAll(a.Body, []byte(changed)) }
	}
	admin := func(path string) request { return request{kube.AdminUser, http.MethodGet, path} }
	list := []struct {
		request request
		change  func(*Answer)
		path    string
	}{
		{admin("/healthz"), func(a *Answer) { a.Status = "503 Service Unavailable" }, "/status"},
		{admin("/pods"), func(a *Answer) { a.Header.Set("Cache-Control", "no-store") }, "/header/Cache-Control"},
		{admin("/spec"), func(a *Answer) { a.Header.Set("Content-Type", "text/html") }, "/type"},
		{admin("/healthz/ping"), replace("ok", "OK"), "/body"},
		{admin("/containerLogs/none/none/none"), replace(".+", "not here"), "/error"},
		{admin("/containerLogs/@POD@/main?tailLines=x"), func(a *Answer) { a.Status = "422 Unprocessable Entity" },
			"/status"},
		{admin("/exec/@POD@/none?command=true&output=1"), func(a *Answer) { a.Status = "404 Not Found" }, "/status"},
		{admin("/metrics"), replace("(?m)^kubelet_node_name.*$", ""), "/series/kubelet_node_name"},
		{
			admin("/metrics/resource"), replace("(?m)^pod_cpu_usage_seconds_total.*$", ""),
			"/series/pod_cpu_usage_seconds_total",
		},
		{
			admin("/metrics/cadvisor"), replace(`(?m)^(container_memory_usage_bytes\{container="main".*\}) \S+`,
				"$1 1.5"),
			"/series/container_memory_usage_bytes{container=main",
		},
		{admin("/metrics/probes"), replace("$", "# TYPE prober_more_total counter\n"), "/type/prober_more_total"},
		{admin("/stats/summary"), replace("workingSetBytes", "workingSet"), "/field.node.memory.workingSetBytes"},
		{admin("/configz"), replace(`"maxPods":\s*500`, `"maxPods":501`), "/field.kubeletconfig.maxPods"},
		{request{nobody, http.MethodGet, "/stats/summary"}, func(a *Answer) { a.Status = "200 OK" }, "/status"},
		{request{"", http.MethodGet, "/pods"}, func(a *Answer) { a.Status = "403 Forbidden" }, "/status"},
		{request{kube.AdminUser, http.MethodDelete, "/pods"}, func(a *Answer) { a.Status = "200 OK" }, "/status"},
		{request{readOnly, http.MethodGet, "/pods"}, func(a *Answer) { a.Status = "403 Forbidden" }, "/status"},
	}
	var requests []request
	for _, one := range list {
		requests = append(requests, one.request)
		paths = append(paths, fmt.Sprintf("api/%s %s %s%s", one.request.user, one.request.method, one.request.path,
			one.path))
	}
	change := func(r request, a *Answer) {
		for _, one := range list {
			if one.request == r {
				one.change(a)
			}
		}
	}
	changeNode := func(n *v1.Node) {
		for i := range n.Status.Conditions {
			if c := &n.Status.Conditions[i]; c.Type == v1.NodeReady {
				c.Reason = "KubeletIsReady"
			}
		}
		n.Labels["kubernetes.io/arch"] = "none"
		delete(n.Status.Allocatable, v1.ResourcePods)
	}
	paths = append(paths, "node.status.conditions[Ready].reason", "node.metadata.labels.kubernetes.io/arch",
		"node.status.allocatable.pods")
	c = apiCases()[0]
	ready := c.Steps[:slices.IndexFunc(c.Steps, func(s Step) bool { return s.Name == "requests" })]
	c.Steps = slices.Concat(ready, []Step{send(requests, nil), readNode(nil)})
	c.Right = func(c *Case) { c.Steps = slices.Concat(ready, []Step{send(requests, change), readNode(changeNode)}) }
	return c, paths
}

// TestLeftovers: a folder, a mount and a cgroup of a pod that is gone are found.
func TestLeftovers(t *testing.T) {
	const uid = "0c1a1b5e-0000-4000-8000-000000000000"
	s := &Side{Root: t.TempDir(), Containerd: &containerd.Instance{}}
	s.Containerd.Name = "edgecore-leftovers-" + strconv.Itoa(os.Getpid())
	want := []string{}
	for _, step := range []string{"", "folder", "mount", "cgroup"} {
		volume := filepath.Join(s.Root, "pods", uid, "volumes")
		switch step {
		case "folder":
			env.Must(t, os.MkdirAll(volume, 0o755))
		case "mount":
			env.Must(t, unix.Mount("none", volume, "tmpfs", 0, ""))
			t.Cleanup(func() { env.Must(t, unix.Unmount(volume, 0)) })
		case "cgroup":
			hierarchy := "/sys/fs/cgroup"
			if _, err := os.Stat(filepath.Join(hierarchy, "pids")); err == nil {
				hierarchy = filepath.Join(hierarchy, "pids") // of version 1
			}
			dir := filepath.Join(hierarchy, s.Containerd.CgroupRoot())
			for _, child := range []string{"", "kubepods", "pod" + uid} {
				dir = filepath.Join(dir, child)
				made := dir
				env.Must(t, os.Mkdir(made, 0o755))
				t.Cleanup(func() { env.Must(t, unix.Rmdir(made)) })
			}
		}
		if step != "" {
			want = append(want, step)
		}
		got, err := s.leftovers(uid)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("leftovers after %q = %v, %v; want %v", step, got, err, want)
		}
	}
}

// TestRemains: a container that runs, a sandbox that is ready and a network namespace that is mounted are found.
func TestRemains(t *testing.T) {
	const mountinfo = "560 24 0:4 net:[4026532284] /run/netns/cni-1 rw shared:200 - nsfs nsfs rw\n"
	for _, c := range []struct {
		name string
		remains
		want []string
	}{
		{name: "nothing"},
		{
			name: "ended",
			remains: remains{
				containers: []*runtimeapi.Container{{State: runtimeapi.ContainerState_CONTAINER_EXITED}},
				sandboxes:  []*runtimeapi.PodSandbox{{State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY}},
				namespaces: map[string]bool{"/run/netns/cni-2": true},
			},
		},
		{
			name: "running",
			remains: remains{
				containers: []*runtimeapi.Container{{State: runtimeapi.ContainerState_CONTAINER_RUNNING}},
				sandboxes:  []*runtimeapi.PodSandbox{{State: runtimeapi.PodSandboxState_SANDBOX_READY}},
				namespaces: map[string]bool{"/run/netns/cni-1": true},
			},
			want: []string{"container", "sandbox", "network namespace"},
		},
		{
			name:    "never started",
			remains: remains{containers: []*runtimeapi.Container{{State: runtimeapi.ContainerState_CONTAINER_CREATED}}},
			want:    []string{"container"},
		},
	} {
		if got := c.left(mountinfo); !slices.Equal(got, c.want) {
			t.Errorf("%s: left = %v, want %v", c.name, got, c.want)
		}
	}
}

// TestNetworkNamespace: it is found in what containerd says of a sandbox.
func TestNetworkNamespace(t *testing.T) {
	for verbose, want := range map[string]string{
		`{"runtimeSpec":{"linux":{"namespaces":[{"type":"pid"},{"type":"network","path":"/run/netns/cni-1"}]}}}`: "/run/netns/cni-1",
		`{"runtimeSpec":{"linux":{"namespaces":[{"type":"pid"}]}}}`:                                              "",
	} {
		if got, err := networkNamespace(verbose); err != nil || got != want {
			t.Errorf("network namespace in %s = %q, %v; want %q", verbose, got, err, want)
		}
	}
	if _, err := networkNamespace("{"); err == nil {
		t.Error("network namespace in half an object: no error, want one")
	}
}

// TestPlanted: a difference of each kind is found where it is.
func TestPlanted(t *testing.T) {
	p := startPair(t, nil)
	t.Run("cases", func(t *testing.T) {
		for _, c := range planted() {
			t.Run(c.Name, func(t *testing.T) {
				t.Parallel()
				l, r, err := c.Run(t.Context(), p.left, p.right)
				env.Must(t, err)
				found := Unlisted(c.Name, Compare([]Trace{l}, []Trace{r}), Known())
				if !slices.ContainsFunc(found, func(d Difference) bool { return strings.HasPrefix(d.Path, c.path) }) {
					t.Errorf("differences = %v, want one at %s; left %s, right %s", found, c.path, show(l[c.path]),
						show(r[c.path]))
				}
			})
		}
		t.Run("api", func(t *testing.T) {
			t.Parallel()
			c, paths := plantedAPI()
			l, r, err := c.Run(t.Context(), p.left, p.right)
			env.Must(t, err)
			found := Unlisted(c.Name, Compare([]Trace{l}, []Trace{r}), Known())
			for _, path := range paths {
				if !slices.ContainsFunc(found, func(d Difference) bool { return strings.HasPrefix(d.Path, path) }) {
					t.Errorf("differences = %v, want one at %s; left %s, right %s", found, path, show(l[path]),
						show(r[path]))
				}
			}
		})
	})
}
