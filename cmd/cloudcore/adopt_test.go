package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestAdoptDocumented: the commands of docs/kubeedge.md and their flags exist.
func TestAdoptDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/kubeedge.md")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, line := range regexp.MustCompile(`(?m)^    cloudcore (adopt [^#\n]*)`).FindAllStringSubmatch(string(text), -1) {
		cmd, rest, err := newRootCommand(nil).Find(strings.Fields(line[1]))
		if err != nil {
			t.Fatalf("%s: %v, want a command", line[0], err)
		}
		if err := cmd.ParseFlags(rest); err != nil || cmd.ValidateArgs(cmd.Flags().Args()) != nil {
			t.Errorf("%s: %v, want flags of %s and no arguments", line[0], err, cmd.CommandPath())
		}
		found[cmd.Name()] = true
	}
	if !found["plan"] || !found["apply"] || !found["undo"] {
		t.Errorf("documented are %v, want plan, apply and undo", found)
	}
}

// TestAdoptNothing: a cluster without KubeEdge's cloudcore has an exit status of its own, and is not changed. Undo is
// content.
func TestAdoptNothing(t *testing.T) {
	discovery := map[string]string{
		"/api":  `{"kind": "APIVersions", "versions": ["v1"]}`,
		"/apis": `{"kind": "APIGroupList", "apiVersion": "v1", "groups": []}`,
		"/api/v1": `{"kind": "APIResourceList", "groupVersion": "v1", "resources": [
			{"name": "secrets", "kind": "Secret", "namespaced": true, "verbs": ["get"]}]}`,
	}
	cluster := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			t.Errorf("%s %s, want no write", r.Method, r.URL)
		}
		answer, ok := discovery[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(answer)) // the client reports what it misses
	}))
	t.Cleanup(cluster.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	err := os.WriteFile(kubeconfig, []byte(`{apiVersion: v1, kind: Config, current-context: a,
clusters: [{name: a, cluster: {server: "`+cluster.URL+`"}}], contexts: [{name: a, context: {cluster: a}}]}`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"plan", "apply"} {
		out, _, err := execute(t, "adopt", command, "--kube-config", kubeconfig, "--image", "i")
		status, ok := errors.AsType[*exitError](err)
		if !ok || status.code != exitNothing || !strings.Contains(out, "There is no Deployment cloudcore") {
			t.Errorf("%s: %v, printed %q; want the exit status %d", command, err, out, exitNothing)
		}
	}
	out, _, err := execute(t, "adopt", "undo", "--kube-config", kubeconfig)
	if err != nil || !strings.Contains(out, "nothing to undo") {
		t.Errorf("undo: %v, printed %q; want no error", err, out)
	}
}
