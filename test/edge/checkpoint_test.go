package edge

import (
	"archive/tar"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestCheckpoint: a container's state is written to a file, and the container runs on. Where CRIU is missing, or the
// kernel has not what it needs, the answer says so; see test/vm for a machine that has both.
func TestCheckpoint(t *testing.T) {
	t.Parallel()
	port, err := daemon.FreePort() // one that is given opens the kubelet's API without a link
	env.Must(t, err)
	n := newNode(t, env.NodeOptions{
		Runtime: testenv.Options{Containerd2: true},
		Agent: agent.Options{Kubelet: map[string]any{
			"port":           port,
			"authentication": map[string]any{"anonymous": map[string]any{"enabled": true}},
			"authorization":  map[string]any{"mode": "AlwaysAllow"},
		}},
	})
	n.Manifest("a", env.Pod("a", "echo kept > /root/file; "+env.Forever))
	n.Running("a")
	before := n.RunningContainers()

	client := http.Client{
		Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
		Timeout:   wait.Max(),
	}
	url := fmt.Sprintf("https://127.0.0.1:%d/checkpoint/default/a-%s/main", port, n.NodeName)
	var status int
	var text []byte
	wait.Until(t, "the server to answer", func() error {
		resp, err := client.Post(url, "", nil)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		status = resp.StatusCode
		text, err = io.ReadAll(resp.Body)
		return err
	})
	n.same(before)
	if out, err := exec.CommandContext(t.Context(), "criu", "check").CombinedOutput(); err != nil {
		t.Logf("criu takes no checkpoints here: %v: %s", err, out)
		want := "checkpoint of container main of pod default/a-" + n.NodeName
		if status != http.StatusInternalServerError || !strings.Contains(string(text), want) {
			t.Errorf("the answer is %d %s, want %d with %q", status, text, http.StatusInternalServerError, want)
		}
		return
	}
	var made struct{ Items []string }
	if err := json.Unmarshal(text, &made); status != http.StatusOK || err != nil || len(made.Items) != 1 {
		t.Fatalf("the answer is %d %s (%v), want %d with one item", status, text, err, http.StatusOK)
	}
	info, err := os.Stat(made.Items[0])
	env.Must(t, err)
	if got := info.Mode().Perm() & 0o077; got != 0 {
		t.Errorf("the checkpoint gives %o to others than its owner, want nothing: it is a container's memory", got)
	}
	names := members(t, made.Items[0])
	for _, want := range []string{"spec.dump", "config.dump", "checkpoint/inventory.img"} {
		if !names[want] {
			t.Errorf("the checkpoint has no %s", want)
		}
	}
	t.Logf("the checkpoint has %d files", len(names))
}

// members are the names in an archive.
func members(t *testing.T, path string) map[string]bool {
	t.Helper()
	f, err := os.Open(path)
	env.Must(t, err)
	defer f.Close()
	names := map[string]bool{}
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		env.Must(t, err)
		names[strings.TrimPrefix(header.Name, "./")] = true
	}
}
