package kubeedge

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/testenv/kubeedge"
	"github.com/edgecore-io/edgecore/test/testenv/systemd"
)

// TestAdopt: a device that KubeEdge's edgecore has made is taken over, and given back, with its containers running on.
func TestAdopt(t *testing.T) {
	each(t, func(t *testing.T, version string) {
		s := newSite(t, version)
		c, token := s.startCloud(nil)
		edge := s.service(token, c.Link, c.Bootstrap)
		s.until("the node is Ready", s.nodeReady)
		want := 1
		if version != "1.12" { // which has no static pods
			want = 2
			s.must(os.WriteFile(edge.Path("etc/kubeedge/manifests/own.yaml"), fmt.Appendf(nil,
				"apiVersion: v1\nkind: Pod\nmetadata: {name: own}\nspec:\n  hostNetwork: true\n  terminationGracePeriodSeconds: 1\n  containers:\n  - {name: main, image: %s, imagePullPolicy: IfNotPresent, command: [sh, -c, %q]}\n", images.Demo, forever), 0o644))
		}
		s.apply(full("web"))
		s.until("the pod is ready", s.is("web", true))
		s.until("all pods run", func() error {
			if run := s.containers(); len(run) != want {
				return fmt.Errorf("containers %v", run)
			}
			return nil
		})
		run := s.containers()

		s.adopt(edge)
		s.goesOn("taken over", run, "second")
		s.adopt(edge, "--undo")
		if version == "1.12" {
			s.goesOn("given back", run, "third")
		} // 1.23 empties the volumes of running pods whenever it is started
		if now := s.containers(); !maps.Equal(run, now) {
			t.Errorf("given back: containers %v, before %v", now, run)
		}
		s.must(s.api.CoreV1().Pods("default").Delete(t.Context(), "web", metav1.DeleteOptions{}))
		s.until("given back: the deleted pod is gone", s.gone("web"))
	})
}

// service makes KubeEdge's edge the service of a device, and starts it.
func (s *site) service(token string, link, bootstrap int) *kubeedge.Edge {
	s.t.Helper()
	e := s.theirs(filepath.Join(s.t.TempDir(), "device"), token, link, bootstrap)
	s.t.Cleanup(func() {
		s.must(systemd.Run(e.Dir, "stop"))
		if s.t.Failed() {
			s.t.Logf("the end of the service's log:\n%s", daemon.Tail(systemd.Log(e.Dir), 60))
		}
		s.must(agent.Unmount(e.Dir))
	})
	program := e.Path("usr/local/bin/edgecore")
	s.must(os.MkdirAll(filepath.Dir(program), 0o755))
	s.must(os.Symlink(s.theirEdge, program))
	s.must(systemd.Play(e.Dir))
	s.must(systemd.KubeEdge(e.Dir, program+" --config "+e.Config()))
	s.t.Setenv("CHECK_EDGECORE_ENVIRONMENT", "false") // as kubeedge.Edge does
	s.must(systemd.Run(e.Dir, "start"))
	return e
}

// adopt runs edgecore adopt on a device.
func (s *site) adopt(e *kubeedge.Edge, more ...string) {
	s.t.Helper()
	args := append([]string{"adopt", "--from", e.Config(), "--config", e.Path("etc/edgecore/edgecore.yaml"), "--store", e.Path("var/lib/edgecore/edgecore.db"), "--root", e.Dir}, more...)
	cmd := exec.CommandContext(s.t.Context(), built.Edge, args...)
	cmd.Env = append(os.Environ(), "PATH="+e.Path("bin")+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("%v\n%s", err, out)
	}
	s.t.Logf("it said:\n%s", out)
}

// goesOn checks that the agent that is there now looks after the pods that were there before.
func (s *site) goesOn(what string, run map[string]string, value string) {
	s.t.Helper()
	s.must(s.sees("web", "touch /scratch/unready", "")())
	s.until(what+": a status arrives", s.is("web", false))
	s.must(s.sees("web", "rm /scratch/unready", "")())
	s.until(what+": another one", s.is("web", true))
	s.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: conf}, data: {key: " + value + "}}")
	s.until(what+": a change arrives", s.sees("web", "cat /conf/key", value))
	s.until(what+": the node is Ready", s.nodeReady)
	if now := s.containers(); !maps.Equal(run, now) {
		s.t.Errorf("%s: containers %v, before %v", what, now, run)
	}
}
