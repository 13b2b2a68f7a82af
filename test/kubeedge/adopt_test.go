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
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/testenv/kubeedge"
	"github.com/edgecore-io/edgecore/test/testenv/systemd"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestAdopt: a device that KubeEdge's edgecore has made is taken over, and given back, with its containers running on.
func TestAdopt(t *testing.T) {
	each(t, func(t *testing.T, version string) {
		f := newFixture(t, version)
		c, token := f.startCloud(nil)
		edge := f.service(token, c.Link, c.Bootstrap)
		wait.Until(f.t, "the node is Ready", f.nodeReady)
		want := 1
		if version != "1.12" { // which has no static pods
			want = 2
			env.Must(f.t, os.WriteFile(edge.Path("etc/kubeedge/manifests/own.yaml"), fmt.Appendf(nil,
				"apiVersion: v1\nkind: Pod\nmetadata: {name: own}\nspec:\n  hostNetwork: true\n  "+
					"terminationGracePeriodSeconds: 1\n  containers:\n  - {name: main, image: %s, imagePullPolicy: "+
					"IfNotPresent, command: [sh, -c, %q]}\n", images.Demo, env.Forever), 0o644))
		}
		f.apply(full("web"))
		wait.Until(f.t, "the pod is ready", f.is("web", true))
		wait.Until(f.t, "all pods run", func() error {
			if run := f.containers(); len(run) != want {
				return fmt.Errorf("containers %v run, want %d", run, want)
			}
			return nil
		})
		run := f.containers()

		f.adopt(edge)
		f.goesOn("taken over", run, "second")
		f.adopt(edge, "--undo")
		if version == "1.12" {
			f.goesOn("given back", run, "third")
		} // 1.23 empties the volumes of running pods whenever it is started
		if now := f.containers(); !maps.Equal(run, now) {
			t.Errorf("given back: containers = %v, want %v as before", now, run)
		}
		env.Must(f.t, f.api.CoreV1().Pods("default").Delete(t.Context(), "web", metav1.DeleteOptions{}))
		f.gone("web")
	})
}

// service makes KubeEdge's edge the service of a device, and starts it.
func (f *fixture) service(token string, link, bootstrap int) *kubeedge.Edge {
	f.t.Helper()
	e := f.theirs(filepath.Join(f.t.TempDir(), "device"), token, link, bootstrap)
	f.t.Cleanup(func() {
		env.Must(f.t, systemd.Run(e.Dir, "stop"))
		if f.t.Failed() {
			f.t.Logf("the end of the service's log:\n%s", daemon.Tail(systemd.Log(e.Dir), 60))
		}
		env.Must(f.t, agent.Unmount(e.Dir))
	})
	program := e.Path("usr/local/bin/edgecore")
	env.Must(f.t, os.MkdirAll(filepath.Dir(program), 0o755))
	env.Must(f.t, os.Symlink(f.theirEdge, program))
	env.Must(f.t, systemd.Play(e.Dir))
	env.Must(f.t, systemd.KubeEdge(e.Dir, program+" --config "+e.Config()))
	f.t.Setenv("CHECK_EDGECORE_ENVIRONMENT", "false") // as kubeedge.Edge does
	env.Must(f.t, systemd.Run(e.Dir, "start"))
	return e
}

// adopt runs edgecore adopt on a device.
func (f *fixture) adopt(e *kubeedge.Edge, more ...string) {
	f.t.Helper()
	args := append([]string{"adopt", "--from", e.Config(), "--config", e.Path("etc/edgecore/edgecore.yaml"), "--store",
		e.Path("var/lib/edgecore/edgecore.db"), "--root", e.Dir}, more...)
	cmd := exec.CommandContext(f.t.Context(), built.Edge, args...)
	cmd.Env = append(os.Environ(), "PATH="+e.Path("bin")+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		f.t.Fatalf("edgecore adopt: %v, want no error\n%s", err, out)
	}
	f.t.Logf("it said:\n%s", out)
}

// goesOn checks that the agent that is there now looks after the pods that were there before.
func (f *fixture) goesOn(what string, run map[string]string, value string) {
	f.t.Helper()
	env.Must(f.t, f.sees("web", "touch /scratch/unready", "")())
	wait.Until(f.t, what+": a status arrives", f.is("web", false))
	env.Must(f.t, f.sees("web", "rm /scratch/unready", "")())
	wait.Until(f.t, what+": another one", f.is("web", true))
	f.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: conf}, data: {key: " + value + "}}")
	wait.Until(f.t, what+": a change arrives", f.sees("web", "cat /conf/key", value))
	wait.Until(f.t, what+": the node is Ready", f.nodeReady)
	if now := f.containers(); !maps.Equal(run, now) {
		f.t.Errorf("%s: containers = %v, want %v as before", what, now, run)
	}
}
