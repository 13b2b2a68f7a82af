package differential

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
)

// planted are cases that differ in one thing, and the path where that must show.
func planted() []struct {
	Case
	path string
} {
	const volume = "\nvolumes: [{name: v, downwardAPI: {defaultMode: 0644, items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]"
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
		one("event", "containers: [{name: main}]", "containers: [{name: main, imagePullPolicy: Never, image: 'edgecore.local/none:1'}]",
			`events/"Warning","ErrImageNeverPull"`, Settled()),
		one("env", "containers: [{name: main, env: [{name: A, value: x}]}]", "containers: [{name: main, env: [{name: A, value: y}]}]",
			"inside/2-inspect/main/env/A", Running(), Inspect()),
		one("identity", "containers: [{name: main}]", "containers: [{name: main, securityContext: {runAsUser: 7}}]",
			"inside/2-inspect/main/identity/Uid", Running(), Inspect()),
		one("limits", "containers: [{name: main}]", "containers: [{name: main, command: [sh, -c, 'ulimit -n 512; exec sleep 3600']}]",
			"inside/2-inspect/main/limits/Max open files", Running(), Inspect()),
		one("mount", "containers: [{name: main, volumeMounts: [{name: v, mountPath: /v}]}]"+volume,
			"containers: [{name: main, volumeMounts: [{name: v, mountPath: /w}]}]"+volume, "inside/2-inspect/main/mounts//v", Running(), Inspect()),
		one("file", "containers: [{name: main, volumeMounts: [{name: v, mountPath: /v}]}]"+volume,
			"containers: [{name: main, volumeMounts: [{name: v, mountPath: /v}]}]"+strings.Replace(volume, "0644", "0600", 1),
			"inside/2-inspect/main/files/v/..<dated folder>/name", Running(), Inspect()),
		one("cgroup", "containers: [{name: main, resources: {limits: {memory: 32Mi}}}]", "containers: [{name: main, resources: {limits: {memory: 64Mi}}}]",
			"inside/2-inspect/main/cgroup/<id>/memory.limit_in_bytes", Running(), Inspect()),
		one("log", "containers: [{name: main, command: [sh, -c, 'echo one; sleep 3600']}]", "containers: [{name: main, command: [sh, -c, 'echo two; sleep 3600']}]",
			"logs/main/0.log", Running(), Logged("main", "o")),
		one("cri", "containers: [{name: main, workingDir: /}]", "containers: [{name: main, workingDir: /tmp}]", "cri/CreateContainer/main.config.workingDir", Running()),
	}
	generation := one("generation", "containers: [{name: main}]", "containers: [{name: main}]", "pod.generation", Running())
	generation.Right = func(c *Case) { c.Steps = append(slices.Clone(c.Steps), Patch("spec: {activeDeadlineSeconds: 3600}")) }
	return append(list, generation)
}

// plantedAPI is a case in which answers of the right node's ports, and its Node, are changed, and the paths where each must show.
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
		{admin("/containerLogs/@POD@/main?tailLines=x"), func(a *Answer) { a.Status = "422 Unprocessable Entity" }, "/status"},
		{admin("/exec/@POD@/none?command=true&output=1"), func(a *Answer) { a.Status = "404 Not Found" }, "/status"},
		{admin("/metrics"), replace("(?m)^kubelet_node_name.*$", ""), "/series/kubelet_node_name"},
		{admin("/metrics/resource"), replace("(?m)^pod_cpu_usage_seconds_total.*$", ""), "/series/pod_cpu_usage_seconds_total"},
		{
			admin("/metrics/cadvisor"), replace(`(?m)^(container_memory_usage_bytes\{container="main".*\}) \S+`, "$1 1.5"),
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
		paths = append(paths, fmt.Sprintf("api/%s %s %s%s", one.request.user, one.request.method, one.request.path, one.path))
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
	paths = append(paths, "node.status.conditions[Ready].reason", "node.metadata.labels.kubernetes.io/arch", "node.status.allocatable.pods")
	c = apiCases()[0]
	ready := c.Steps[:slices.IndexFunc(c.Steps, func(s Step) bool { return s.Name == "requests" })]
	c.Steps = slices.Concat(ready, []Step{send(requests, nil), readNode(nil)})
	c.Right = func(c *Case) { c.Steps = slices.Concat(ready, []Step{send(requests, change), readNode(changeNode)}) }
	return c, paths
}

// TestLeftovers: a folder and a mount of a pod that is gone are found.
func TestLeftovers(t *testing.T) {
	const uid = "0c1a1b5e-0000-4000-8000-000000000000"
	s := &Side{Root: t.TempDir(), Containerd: &containerd.Instance{}}
	want := []string{}
	for _, step := range []string{"", "folder", "mount"} {
		volume := filepath.Join(s.Root, "pods", uid, "volumes")
		switch step {
		case "folder":
			env.Must(t, os.MkdirAll(volume, 0o755))
		case "mount":
			env.Must(t, unix.Mount("none", volume, "tmpfs", 0, ""))
			t.Cleanup(func() { env.Must(t, unix.Unmount(volume, 0)) })
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
					t.Errorf("differences = %v, want one at %s; left %s, right %s", found, c.path, show(l[c.path]), show(r[c.path]))
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
					t.Errorf("differences = %v, want one at %s; left %s, right %s", found, path, show(l[path]), show(r[path]))
				}
			}
		})
	})
}
