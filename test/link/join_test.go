package link

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/env"
)

// testJoin: a device without a cloud runs its own pods; `edgecore join` makes it a node, with those pods running on; a
// second device cannot take its name, and `edgecore reset` undoes it all.
func testJoin(t *testing.T, c *env.Cluster) {
	name := nameOf(t)
	c.Namespace(name)
	n := env.StartNode(t, built, env.NodeOptions{Agent: agent.Options{NodeName: name}})
	e := &edge{Node: n, cluster: c, cable: c.Cable()}
	e.Manifest("own", env.Pod("own", env.Forever))
	e.Running("own")
	before := e.RunningContainers()

	certs := filepath.Join(e.Dir, "certs")
	general, err := c.Cloud.Token(t.Context())
	env.Must(t, err)
	for _, bad := range []struct{ name, token, want string }{
		{"no token", "nonsense", "token"},
		{"of another cloud", strings.Repeat("0", 64) + general[64:], "CA"},
		{"forged", general[:len(general)-6] + "AAAAAA", "token"},
	} {
		out, err := e.join(certs, bad.token)
		if err == nil || !strings.Contains(out, bad.want) {
			t.Errorf("join with a token that is %s: %v, %q, want an error with %q", bad.name, err, out, bad.want)
		}
		if _, err := os.Stat(certs); !os.IsNotExist(err) {
			t.Errorf("join with a token that is %s: Stat(%s): %v, want %v", bad.name, certs, err, os.ErrNotExist)
		}
	}
	out, err := e.preflight(general)
	if err != nil || strings.Contains(out, "[warning]") || !strings.Contains(out, "signed by the CA of the token") {
		t.Errorf("preflight -e: %v, want no warning and the CA of the token\n%s", err, out)
	}
	out, err = e.join(certs, general)
	if err != nil {
		t.Fatalf("join: %v, want no error\n%s", err, out)
	}
	t.Logf("join says:\n%s", out)
	env.Must(t, e.Stop(t.Context()))
	env.Must(t, e.Start(t.Context()))
	c.NodeUntil(name, "to be Ready", env.Ready)
	e.apply(e.pod("one", env.Forever))
	e.running("one")
	e.unchanged(before, "join")

	const taken = "gettoken --node "
	if out, err := e.join(filepath.Join(t.TempDir(), "other"), general); err == nil ||
		!strings.Contains(out, taken+name) {
		t.Errorf("join of another device with the same name: %v, %q, want an error with %q", err, out, taken+name)
	}
	if out, err := e.Run(t.Context(), "reset", "--force"); err == nil || !strings.Contains(out, "stop it") {
		t.Errorf("reset under a running agent: %v, %q, want an error with %q", err, out, "stop it")
	}
	env.Must(t, e.Stop(t.Context()))
	if out, err := e.Run(t.Context(), "reset", "--force"); err != nil {
		t.Errorf("reset: %v, want no error\n%s", err, out)
	}
	for _, path := range []string{e.Config(), e.Store()} {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("Stat(%s) after reset: %v, want %v", path, err, os.ErrNotExist)
		}
	}
}

// preflight checks the way that join takes.
func (e *edge) preflight(token string) (string, error) {
	cmd := exec.CommandContext(e.T.Context(), built.Edge, "preflight", "-e", e.cable.Addr(), "--certport",
		strconv.Itoa(e.cluster.Cloud.Bootstrap), "--token-file", "-")
	cmd.Stdin = strings.NewReader(token)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// join runs edgecore join through the edge's cable.
func (e *edge) join(certs, token string) (string, error) {
	cmd := exec.CommandContext(e.T.Context(), built.Edge, "join", "--config", e.Config(), "--cloudcore-ipport",
		e.cable.Addr(),
		"--certport", strconv.Itoa(e.cluster.Cloud.Bootstrap), "--cert-path", certs, "--edgenode-name", e.NodeName,
		"--token-file", "-", "--no-start")
	cmd.Stdin = strings.NewReader(token)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
