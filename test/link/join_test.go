package link

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
)

// TestJoin: a device without a cloud runs its own pods; `edgecore join` makes it a node, with those pods running on; a
// second device cannot take its name, and `edgecore reset` undoes it all.
func TestJoin(t *testing.T) {
	s := newSite(t, siteOptions{noEdge: true})
	s.ctrd = testenv.StartContainerd(t, testenv.Options{})
	s.edge = testenv.StartAgent(t, s.ctrd, agent.Options{Binary: built.Edge, NodeName: node})
	s.cri = testenv.Dial(t, s.ctrd)
	s.must(s.edge.WriteManifest("own.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: own}\nspec:\n  containers:\n  - {name: main, image: \"edgecore.local/demo:1\", command: [sh, -c, \""+forever+"\"]}\n"))
	s.local("its own pod runs", runsHere("own"))
	before := s.lives()

	certs := filepath.Join(s.edge.Dir, "certs")
	general, err := s.cloud.Token(t.Context())
	s.must(err)
	for _, c := range []struct{ name, token, want string }{
		{"no token", "nonsense", "token"},
		{"of another cloud", strings.Repeat("0", 64) + general[64:], "CA"},
		{"forged", general[:len(general)-6] + "AAAAAA", "token"},
	} {
		out, err := s.join(certs, node, c.token)
		if err == nil || !strings.Contains(out, c.want) {
			t.Errorf("a token that is %s: %v\n%s", c.name, err, out)
		}
		if _, err := os.Stat(certs); !os.IsNotExist(err) {
			t.Errorf("a token that is %s left something behind", c.name)
		}
	}
	out, err := s.join(certs, node, general)
	if err != nil {
		t.Fatal(err, out)
	}
	t.Logf("join says:\n%s", out)
	s.must(s.edge.Stop(t.Context()))
	s.must(s.edge.Start(t.Context()))
	s.until("the node is Ready", s.nodeReady)
	s.apply(podOn("one", forever, ""))
	s.until("a pod of the cluster runs", s.running("one"))
	for id, at := range before {
		if s.lives()[id] != at {
			t.Error("to join restarted the device's own pod")
		}
	}

	if out, err := s.join(filepath.Join(t.TempDir(), "other"), node, general); err == nil || !strings.Contains(out, "gettoken --node "+node) {
		t.Errorf("another device took the name: %v\n%s", err, out)
	}
	if out, err := s.edge.Run(t.Context(), "reset", "--force"); err == nil || !strings.Contains(out, "stop it") {
		t.Errorf("reset under a running agent: %v\n%s", err, out)
	}
	s.must(s.edge.Stop(t.Context()))
	if out, err := s.edge.Run(t.Context(), "reset", "--force"); err != nil {
		t.Errorf("reset: %v\n%s", err, out)
	}
	for _, path := range []string{s.edge.Config(), s.edge.Store()} {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("reset left %s", path)
		}
	}
}

func (s *site) join(certs, name, token string) (string, error) {
	cmd := exec.CommandContext(s.t.Context(), built.Edge, "join", "--config", s.edge.Config(), "--cloudcore-ipport", s.cable.Addr(),
		"--certport", strconv.Itoa(s.cloud.Bootstrap), "--cert-path", certs, "--edgenode-name", name, "--token-file", "-", "--no-start")
	cmd.Stdin = strings.NewReader(token)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
