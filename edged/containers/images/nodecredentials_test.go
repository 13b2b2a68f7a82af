package images

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestNodeCredentials: the first file that can be read counts, and the older form comes last.
func TestNodeCredentials(t *testing.T) {
	config := func(user string) string { return fmt.Sprintf(`{"auths":{"reg.example.com":{"username":%q}}}`, user) }
	legacy := func(user string) string { return fmt.Sprintf(`{"reg.example.com":{"username":%q}}`, user) }
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"none": {},
		"the agent's folder": {
			map[string]string{"root/config.json": config("a"), "home/.docker/config.json": config("b")}, "a",
		},
		"the home folder": {
			map[string]string{"root/.dockercfg": legacy("a"), "home/.docker/config.json": config("b")}, "b",
		},
		"damaged": {map[string]string{"root/config.json": "{", "home/.docker/config.json": config("b")},
			"b"},
		"too large": {
			map[string]string{
				"root/config.json": config("a") + strings.Repeat(" ", maxConfig), "home/.dockercfg": legacy("b"),
			}, "b",
		},
		"older form": {map[string]string{"root/.dockercfg": legacy("a"), "home/.dockercfg": legacy("b")}, "a"},
		"no entries": {map[string]string{"root/config.json": "{}", "home/.docker/config.json": config("b")},
			""},
	} {
		dir := t.TempDir()
		for path, text := range c.files {
			file := filepath.Join(dir, path)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got := ""
		for _, e := range nodeCredentials(credentialFiles(filepath.Join(dir, "root"), filepath.Join(dir, "home"))) {
			got += e.Username
		}
		if got != c.want {
			t.Errorf("%s: user %q, want %q", name, got, c.want)
		}
	}
}

// TestNodePulls: the node's credentials are tried after those of the pod, and what they pull is for all pods.
func TestNodePulls(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"),
		[]byte(`{"auths":{"reg.example.com":{"username":"node"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &service{present: map[string]bool{}, pull: func(_ context.Context, req *runtimeapi.PullImageRequest) error {
		if req.Auth.GetUsername() != "node" {
			return errors.New("denied")
		}
		return nil
	}}
	p := New(s, Options{Recorder: &eventLog{}, CredentialsDir: dir})
	ref, reason, _ := ensure(t.Context(), p, testPod("reg.example.com/a:1", v1.PullAlways),
		secret("reg.example.com", "pod"))
	if ref == "" || fmt.Sprint(s.pulls) != "[reg.example.com/a:1 as pod reg.example.com/a:1 as node]" {
		t.Errorf("%q, %q, pulls %v; want one as pod and one as node", ref, reason, s.pulls)
	}
	list, err := credentials([]v1.Secret{secret("reg.example.com", "pod")}, p.node(), "reg.example.com/a:1")
	if err != nil || len(list) != 2 {
		t.Fatalf("credentials = %v, %v; want those of the pod and of the node", list, err)
	}
	for used, want := range map[int]bool{-1: false, 0: true, 1: false} {
		if got := pulledBy(list, used) != nil; got != want {
			t.Errorf("the pull with credential %d is one pod's: %v, want %v", used, got, want)
		}
	}
}

// TestHomeFolder: the home folder is HOME alone. Without one, as for services of systemd, the files of no account are
// read.
func TestHomeFolder(t *testing.T) {
	for home, want := range map[string]string{
		"/home/of": "[/agent/config.json /home/of/.docker/config.json /.docker/config.json /agent/.dockercfg " +
			"/home/of/.dockercfg /.dockercfg]",
		"": "[/agent/config.json /.docker/config.json /agent/.dockercfg /.dockercfg]",
	} {
		t.Setenv("HOME", home)
		var paths []string
		for _, f := range New(&service{}, Options{Recorder: &eventLog{}, CredentialsDir: "/agent"}).credentialFiles() {
			paths = append(paths, f.path)
		}
		if got := fmt.Sprint(paths); got != want {
			t.Errorf("files with HOME=%q = %s, want %s", home, got, want)
		}
	}
}

// TestPullForNobody: what is pulled by hand is pulled with the node's credentials where it brings none.
func TestPullForNobody(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"),
		[]byte(`{"auths":{"reg.example.com":{"username":"node"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &service{present: map[string]bool{}}
	if _, _, err := New(s, Options{Recorder: &eventLog{}, CredentialsDir: dir}).Pull(t.Context(), "reg.example.com/a:1",
		nil, nil); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(s.pulls), "[reg.example.com/a:1 as node]"; got != want {
		t.Errorf("pulls %s, want %s", got, want)
	}
}
