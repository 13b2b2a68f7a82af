package edge

import (
	"archive/tar"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

// TestCheckpoint: a container's state is written to a file, and the container runs on. Where CRIU is missing, or the kernel has
// not what it needs, the answer says so; see test/vm for a machine that has both.
func TestCheckpoint(t *testing.T) {
	port, err := daemon.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(t, testenv.Options{Containerd2: true}, agent.Options{Kubelet: map[string]any{
		"port": port, "authentication": map[string]any{"anonymous": map[string]any{"enabled": true}}, "authorization": map[string]any{"mode": "AlwaysAllow"},
	}})
	n.manifest("a.yaml", pod("a", "echo kept > /root/file; "+forever))
	n.until("it runs", running("a"))
	before := n.lives()

	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: daemon.Scaled(2 * time.Minute)}
	url := fmt.Sprintf("https://127.0.0.1:%d/checkpoint/default/a-%s/main", port, n.NodeName)
	var status int
	var text []byte
	testenv.Poll(t, patience, func() error { // the server may still be coming up
		resp, err := client.Post(url, "", nil)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		status = resp.StatusCode
		text, err = io.ReadAll(resp.Body)
		return err
	})
	if after := n.lives(); !maps.Equal(before, after) {
		t.Errorf("containers before %v, after %v", before, after)
	}
	if out, err := exec.CommandContext(t.Context(), "criu", "check").CombinedOutput(); err != nil {
		t.Logf("criu takes no checkpoints here: %v: %s", err, out)
		if status != http.StatusInternalServerError || !strings.Contains(string(text), "checkpoint of container main of pod default/a-"+n.NodeName) {
			t.Errorf("%d %s", status, text)
		}
		return
	}
	var made struct{ Items []string }
	if err := json.Unmarshal(text, &made); status != http.StatusOK || err != nil || len(made.Items) != 1 {
		t.Fatalf("%d %s, %v", status, text, err)
	}
	if info, err := os.Stat(made.Items[0]); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("the memory of a container is for root alone: %v, %v", info, err)
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
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	names := map[string]bool{}
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		names[strings.TrimPrefix(header.Name, "./")] = true
	}
}
