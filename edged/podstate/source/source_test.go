package source

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/pkg/filewatch/filewatchtest"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/membound"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

const web = `apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  containers:
  - name: web
    image: example.com/web:1
    resources: {limits: {memory: 64Mi}}
`

func TestDecode(t *testing.T) {
	for name, c := range map[string]struct {
		in    string
		names []string
		err   string
		warn  string
	}{
		"yaml": {in: web, names: []string{"web-node1"}},
		"json": {
			in: `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"j"},"spec":{"containers":[{"name":"c","image":"i"}]}}`, names: []string{
				"j-node1",
			},
		},
		"several documents": {in: "---\n" + web + "---\n---\n" + strings.ReplaceAll(web, "name: web", "name: two"),
			names: []string{"web-node1", "two-node1"}},
		"list": {
			in: `{"apiVersion":"v1","kind":"PodList","items":[{"metadata":{"name":"j"},"spec":{"containers":[{"name":"c","image":"i"}]}}]}`, names: []string{
				"j-node1",
			},
		},
		"repeated key": {
			in:    web + "  restartPolicy: Never\n  restartPolicy: Always\n",
			names: []string{"web-node1"}, warn: "document 1: ",
		},
		"field in another case": {
			in:    web + "  restartpolicy: Never\n",
			names: []string{"web-node1"}, warn: "restartpolicy",
		},
		"unknown field": {in: web + "  restartPolcy: Never\n", names: []string{"web-node1"}, warn: "restartPolcy"},
		"a service": {
			in:  "apiVersion: v1\nkind: Service\n",
			err: `document 1: kind "Service": static manifests hold v1 Pods only`,
		},
		"a deployment":    {in: "apiVersion: apps/v1\nkind: Deployment\n", err: `apiVersion "apps/v1"`},
		"no object":       {in: "hello\n", err: "document 1"},
		"a list of texts": {in: "- a\n- b\n", err: "document 1: not an object"},
		"empty":           {in: "", err: "no pod in the file"},
		"broken yaml":     {in: "a: [\n", err: "document 1"},
		"wrong type":      {in: strings.Replace(web, "image: example.com/web:1", "image: [1]", 1), err: "not a pod"},
		"no name": {
			in: strings.Replace(web, "  name: web\nspec", "  labels: {}\nspec", 1), err: "metadata.name: required",
		},
		"no containers": {
			in: "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {}\n", err: "spec.containers: Required value",
		},
		"bad name": {
			in: strings.Replace(web, "name: web", "name: Web_1", 1), err: "metadata.name: Invalid value",
		},
		"bad policy": {
			in: web + "  restartPolicy: Sometimes\n", err: `spec.restartPolicy: Unsupported value: "Sometimes"`,
		},
		"bad quantity": {in: strings.Replace(web, "64Mi", "64Mx", 1), err: "not a pod"},
		"mount of no volume": {
			in: strings.Replace(web, "    resources", "    volumeMounts: [{name: x, mountPath: /x}]\n    resources",
				1),
			err: `volumeMounts[0].name: Not found: "x"`,
		},
		"escaping subPath": {
			in: strings.Replace(web, "    resources",
				"    volumeMounts: [{name: x, mountPath: /x, subPath: ../..}]\n    resources", 1),
			err: "must be a relative path without '..'",
		},
		"uid as a path": {in: strings.Replace(web, "name: web\nspec", "name: web\n  uid: ../../etc\nspec", 1),
			err: "metadata.uid"},
		"good, then bad": {in: web + "---\nkind: Pod\n", err: "document 2"},
	} {
		t.Run(name, func(t *testing.T) {
			pods, warnings, err := Decode([]byte(c.in), "node1")
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("err = %v, want one that says %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, p := range pods {
				names = append(names, p.Name)
			}
			if diff := cmp.Diff(c.names, names); diff != "" {
				t.Errorf("names (-want +got):\n%s", diff)
			}
			if w := strings.Join(warnings, "\n"); !strings.Contains(w, c.warn) || (c.warn == "") != (w == "") {
				t.Errorf("warnings %q, want %q", w, c.warn)
			}
		})
	}
}

func TestDecodeDefaults(t *testing.T) {
	pods, _, err := Decode([]byte(web), "Node1")
	if err != nil {
		t.Fatal(err)
	}
	p := pods[0]
	c := p.Spec.Containers[0]
	if p.Namespace != "default" || p.Name != "web-node1" || p.Spec.NodeName != "Node1" ||
		p.Annotations[AnnotationSource] != "file" ||
		p.Spec.RestartPolicy != v1.RestartPolicyAlways || *p.Spec.TerminationGracePeriodSeconds != 30 ||
		c.ImagePullPolicy != v1.PullIfNotPresent ||
		c.Resources.Requests.Memory().Value() != 64<<20 || c.TerminationMessagePath != "/dev/termination-log" {
		t.Errorf("pod = %+v, want the defaults of pod web-node1", p)
	}
	for image, want := range map[string]v1.PullPolicy{
		"a": v1.PullAlways, "a:latest": v1.PullAlways, "a:1": v1.PullIfNotPresent, "host:5000/a": v1.PullAlways,
		"host:5000/a:2": v1.PullIfNotPresent, "a@sha256:abc": v1.PullIfNotPresent,
	} {
		if got := defaultPullPolicy(image); got != want {
			t.Errorf("pull policy of %q = %s, want %s", image, got, want)
		}
	}
}

// TestUIDFollowsMeaning: the UID is what restarts a static pod, so layout must not change it.
func TestSystemPriorities(t *testing.T) {
	for class, want := range map[string]int32{"system-node-critical": 2000001000, "system-cluster-critical": 2000000000,
		"mine": 0} {
		pod := &v1.Pod{Spec: v1.PodSpec{PriorityClassName: class}}
		SetDefaults(pod)
		if got := ptr.Deref(pod.Spec.Priority, 0); got != want {
			t.Errorf("%s: %d, want %d", class, got, want)
		}
	}
	pod := &v1.Pod{Spec: v1.PodSpec{PriorityClassName: "system-node-critical", Priority: ptr.To[int32](7)}}
	if SetDefaults(pod); *pod.Spec.Priority != 7 {
		t.Errorf("priority set by the API server = %d, want 7", *pod.Spec.Priority)
	}
}

func TestUIDFollowsMeaning(t *testing.T) {
	uid := func(in, node string) string {
		pods, _, err := Decode([]byte(in), node)
		if err != nil {
			t.Fatal(err)
		}
		return string(pods[0].UID)
	}
	base := uid(web, "n")
	if got := uid("# a comment\n"+strings.ReplaceAll(web, "image: example.com/web:1", "image:   \"example.com/web:1\""),
		"n"); got != base {
		t.Errorf("UID with a comment and quotes = %s, want %s", got, base)
	}
	if got := uid(strings.Replace(web, "web:1", "web:2", 1), "n"); got == base {
		t.Errorf("UID with another image = %s, want another", got)
	}
	if got := uid(web, "m"); got == base {
		t.Errorf("UID on another node = %s, want another", got)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(web))
	f.Add([]byte("---\n{}\n---\n[]"))
	f.Add([]byte(`{"apiVersion":"v1","kind":"List","items":[{},null,1]}`))
	const pod, end = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":`, `}}`
	for _, text := range membound.JSON(pod, end, 48<<10) {
		f.Add([]byte(text))
	}
	f.Add([]byte(membound.Repeat(pod+`[`, `{}`, `,`, `]`+end, 1<<20)))
	f.Add([]byte(membound.Repeat("apiVersion: v1\nkind: Pod\nspec:\n  containers:\n", "  - {}", "\n", "\n", 256<<10)))
	f.Add([]byte(strings.Repeat("---\n{}\n", 8<<10)))
	f.Add([]byte(strings.Repeat("- ", 16<<10)))
	f.Fuzz(func(t *testing.T, data []byte) {
		var pods []*v1.Pod
		var err error
		// An empty container has 3 bytes and becomes a struct of a thousand, in lists that grow by a quarter, twice: to
		// tell unknown fields, a pod is decoded again. So it is the number of objects that bounds what a large file
		// takes.
		limit := 8<<20 + membound.Linear(min(len(data), 3*maxObjects), 16<<10)
		membound.Check(t, limit, func() { pods, _, err = Decode(data, "n") })
		if (err == nil) != (len(pods) > 0) {
			t.Errorf("%d pods, err %v; want an error or pods", len(pods), err)
		}
	})
}

// folder is a Static with what it told.
type folder struct {
	*Static
	t      *testing.T
	dir    string
	pods   map[string]string // name -> UID
	calls  int
	faults map[string]string
}

func newFolder(t *testing.T) *folder {
	f := &folder{t: t, dir: t.TempDir(), faults: map[string]string{}}
	f.Static = NewStatic(StaticOptions{Dir: f.dir, Watcher: filewatchtest.New(t), NodeName: "n",
		Pods: func(pods []*v1.Pod) {
			f.calls++
			f.pods = map[string]string{}
			for _, p := range pods {
				f.pods[p.Name] = string(p.UID)
			}
		},
		Fault: func(file string, err error) {
			if err == nil {
				delete(f.faults, filepath.Base(file))
				return
			}
			f.faults[filepath.Base(file)] = err.Error()
		},
		Warning: func(string, string) {},
	})
	return f
}

func (f *folder) write(name, content string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, name), []byte(content), 0o644); err != nil {
		f.t.Fatal(err)
	}
	f.Scan()
}

func TestBadFileChangesNothing(t *testing.T) {
	f := newFolder(t)
	f.write("web.yaml", web)
	uid := f.pods["web-n"]
	if uid == "" {
		t.Fatalf("pods %v, want web-n", f.pods)
	}
	f.write("web.yaml", "not: [a pod")
	if f.pods["web-n"] != uid || f.faults["web.yaml"] == "" {
		t.Errorf("pods %v, faults %v: want the old pod and a fault", f.pods, f.faults)
	}
	f.write("web.yaml", web)
	if f.pods["web-n"] != uid || len(f.faults) != 0 || f.calls != 1 {
		t.Errorf("pods %v, faults %v, %d calls: want all as before", f.pods, f.faults, f.calls)
	}
	f.write("web.yaml", strings.Replace(web, "web:1", "web:2", 1))
	if f.pods["web-n"] == uid {
		t.Errorf("UID of a changed manifest = %s, want another", f.pods["web-n"])
	}
	os.Remove(filepath.Join(f.dir, "web.yaml"))
	f.Scan()
	if len(f.pods) != 0 {
		t.Errorf("pods %v after the file went, want none", f.pods)
	}
}

// TestTrailingDocument: a first document runs as under a kubelet, whatever follows it; but no pod ends because a later
// document of its file is bad, as while the file is being written.
func TestTrailingDocument(t *testing.T) {
	f := newFolder(t)
	two := strings.ReplaceAll(web, "name: web", "name: two")
	f.write("web.yaml", web+"---\napiVersion: v1\nkind: Service\n")
	uid := f.pods["web-n"]
	if len(f.pods) != 1 || uid == "" || !strings.Contains(f.faults["web.yaml"], `document 2: kind "Service"`) {
		t.Errorf("a service after a pod: pods %v, faults %v; want web-n and a fault", f.pods, f.faults)
	}
	f.write("web.yaml", strings.Replace(web, "web:1", "web:2", 1)+"---\nkind: [\n")
	if len(f.pods) != 1 || f.pods["web-n"] == uid || !strings.Contains(f.faults["web.yaml"], "document 2") {
		t.Errorf("another first document: pods %v, faults %v; want another web-n and a fault", f.pods, f.faults)
	}
	f.write("web.yaml", web+"---\n"+two)
	uid = f.pods["web-n"]
	if len(f.pods) != 2 || len(f.faults) != 0 {
		t.Errorf("two pods: pods %v, faults %v; want both", f.pods, f.faults)
	}
	f.write("web.yaml", strings.Replace(web, "web:1", "web:2", 1)+"---\n"+two[:40])
	if len(f.pods) != 2 || f.pods["web-n"] != uid || !strings.Contains(f.faults["web.yaml"], "document 2") {
		t.Errorf("half of the second pod: pods %v, faults %v; want both as before and a fault", f.pods, f.faults)
	}
}

func TestSamePodInTwoFiles(t *testing.T) {
	f := newFolder(t)
	f.write("b.yaml", web)
	f.write("c.yaml", strings.Replace(web, "web:1", "web:2", 1))
	uid := f.pods["web-n"]
	if len(f.pods) != 1 || !strings.Contains(f.faults["c.yaml"], "b.yaml has it already") {
		t.Errorf("pods %v, faults %v; want one, \"b.yaml has it already\"", f.pods, f.faults)
	}
	os.Remove(filepath.Join(f.dir, "b.yaml"))
	f.Scan()
	if f.pods["web-n"] == uid || len(f.faults) != 0 {
		t.Errorf("pods %v, faults %v: want the second file's pod", f.pods, f.faults)
	}
}

func TestLeftOversArePassedOver(t *testing.T) {
	f := newFolder(t)
	f.write(".web.yaml.swp", "x")
	f.write("web.yaml~", "x")
	if err := os.Mkdir(filepath.Join(f.dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	f.write("web.yaml", web)
	if len(f.pods) != 1 || len(f.faults) != 0 {
		t.Errorf("pods %v, faults %v; want one, none", f.pods, f.faults)
	}
}

// TestRunNoticesChanges runs the real watch, on a folder that comes later, too.
func TestRunNoticesChanges(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "manifests")
	got := make(chan []*v1.Pod, 16)
	s := NewStatic(StaticOptions{Dir: dir, Watcher: filewatchtest.New(t), NodeName: "n", Rescan: 50 * time.Millisecond,
		Pods: func(p []*v1.Pod) { got <- p }, Fault: func(string, error) {}, Warning: func(string, string) {}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	want := func(n int) {
		t.Helper()
		if pods := wait.Receive(t, fmt.Sprintf("news of %d pods", n), got); len(pods) != n {
			t.Fatalf("%d pods, want %d", len(pods), n)
		}
	}
	want(0)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	tmp := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(tmp, []byte(web), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	want(1)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	want(0)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
