package main

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestChooseRunning(t *testing.T) {
	container := func(id, namespace, pod, uid, name string) *runtimeapi.Container {
		return &runtimeapi.Container{Id: id, Labels: map[string]string{labelPodNamespace: namespace, labelPodName: pod, labelPodUID: uid, labelContainer: name}}
	}
	running := []*runtimeapi.Container{
		container("1", "a", "web", "u1", "main"), container("2", "a", "two", "u2", "x"), container("3", "a", "two", "u2", "y"), container("4", "b", "web", "u3", "main"),
		{Id: "5"}, // not a pod's
	}
	for name, c := range map[string]struct {
		pod  string
		opts execOptions
		want string
		err  string
	}{
		"named":                 {"two", execOptions{container: "y"}, "3", ""},
		"clear by namespace":    {"web", execOptions{namespace: "b"}, "4", ""},
		"two of a name":         {"web", execOptions{}, "", `among the pods that run: pod "web" is in several namespaces (a, b); choose one with -n`},
		"several containers":    {"two", execOptions{}, "", `among the containers that run: pod "two" has several containers (x, y); choose one with -c`},
		"none":                  {"other", execOptions{}, "", `among the pods that run: pod "other" not found; there are: two, web`},
		"no container so named": {"two", execOptions{container: "z"}, "", `among the containers that run: container "z" is not in pod "two"; it has: x, y`},
	} {
		got, err := chooseRunning(running, c.pod, &c.opts)
		text := ""
		if err != nil {
			text = err.Error()
		}
		if got != c.want || text != c.err {
			t.Errorf("%s: %q, %q; want %q, %q", name, got, text, c.want, c.err)
		}
	}
}
