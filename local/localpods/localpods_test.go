package localpods

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// choices are the queries that every source of pods answers in the same way. The pods are a/web with container main,
// a/two with x and y, and b/web with main; their uids are u1, u2 and u3.
func choices() map[string]struct {
	query        Query
	pod          string // namespace_name_uid
	container    string
	podErr, cErr string // of the pod or of the container
} {
	return map[string]struct {
		query        Query
		pod          string
		container    string
		podErr, cErr string
	}{
		"named":              {Query{Pod: "two", Container: "y"}, "a_two_u2", "y", "", ""},
		"clear by namespace": {Query{Pod: "web", Namespace: "b"}, "b_web_u3", "main", "", ""},
		"two of a name": {
			Query{Pod: "web"},
			"",
			"",
			`pod "web" is in several namespaces (a, b); choose one with -n`,
			"",
		},
		"several containers": {
			Query{Pod: "two"},
			"",
			"",
			"",
			`pod "two" has several containers (x, y); choose one with -c`,
		},
		"none":                  {Query{Pod: "other"}, "", "", `pod "other" not found; there are: two, web`, ""},
		"none in the namespace": {Query{Pod: "two", Namespace: "b"}, "", "", `pod "two" not found; there are: web`, ""},
		"no container so named": {
			Query{Pod: "two", Container: "z"},
			"",
			"",
			"",
			`container "z" is not in pod "two"; it has: x, y`,
		},
	}
}

func TestRunningContainer(t *testing.T) {
	container := func(namespace, pod, uid, name string) *runtimeapi.Container {
		return &runtimeapi.Container{
			Id: namespace + "_" + pod + "_" + uid + "/" + name,
			Labels: map[string]string{
				"io.kubernetes.pod.namespace":  namespace,
				"io.kubernetes.pod.name":       pod,
				"io.kubernetes.pod.uid":        uid,
				"io.kubernetes.container.name": name,
			},
		}
	}
	running := []*runtimeapi.Container{
		container("a", "web", "u1", "main"), container("a", "two", "u2", "y"), container("a", "two", "u2", "x"),
		container("b", "web", "u3", "main"),
		{Id: "5"}, // not a pod's
	}
	for name, c := range choices() {
		want, wantErr := "", ""
		switch {
		case c.podErr != "":
			wantErr = "among the pods that run: " + c.podErr
		case c.cErr != "":
			wantErr = "among the containers that run: " + c.cErr
		default:
			want = c.pod + "/" + c.container
		}
		got, err := RunningContainer(running, c.query)
		if text := textOf(err); got != want || text != wantErr {
			t.Errorf("%s: %q, %q; want %q, %q", name, got, text, want, wantErr)
		}
	}
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

type fakeAgent struct {
	list v1.PodList
	err  error
}

func (a *fakeAgent) Pods(context.Context) (*v1.PodList, error) { return &a.list, a.err }

// TestLogDir: the agent's list and the folders of logs give the same answers.
func TestLogDir(t *testing.T) {
	pod := func(namespace, name, uid string, containers, initContainers []string) v1.Pod {
		p := v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid)}}
		for _, c := range containers {
			p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: c})
		}
		for _, c := range initContainers {
			p.Spec.InitContainers = append(p.Spec.InitContainers, v1.Container{Name: c})
		}
		return p
	}
	answers := &fakeAgent{list: v1.PodList{Items: []v1.Pod{
		pod("a", "web", "u1", []string{"main"}, nil), pod("a", "two", "u2", []string{"x"}, []string{"y"}),
		pod("b", "web", "u3", []string{"main"}, nil),
	}}}
	root := t.TempDir()
	for _, dir := range []string{"a_web_u1/main", "a_two_u2/x", "a_two_u2/y", "b_web_u3/main", "no-pod/main"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"c_file_u4", "a_two_u2/file"} { // neither is a folder
		if err := os.WriteFile(filepath.Join(root, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	silent := &fakeAgent{err: errors.New("connection refused")}
	for from, agent := range map[string]Agent{"the agent": answers, "the folder": silent} {
		for name, c := range choices() {
			want, wantErr := "", c.podErr+c.cErr
			if wantErr == "" {
				want = filepath.Join(root, c.pod, c.container)
			}
			got, err := LogDir(t.Context(), agent, root, c.query)
			if text := textOf(err); got != want || text != wantErr {
				t.Errorf("from %s, %s: %q, %q; want %q, %q", from, name, got, text, want, wantErr)
			}
		}
	}
	_, err := LogDir(t.Context(), silent, filepath.Join(root, "none"), Query{Pod: "web"})
	if want := "the agent does not answer, and its log folder cannot be read"; err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("LogDir without agent and folder = %v, want an error with %q", err, want)
	}
}
