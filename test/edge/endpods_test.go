package edge

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
)

// TestEndPods: when the agent goes for good, its pods end in good order, and nothing of them runs or is mounted any more. Those of
// others stay. What pods have stored is there when an agent comes back.
func TestEndPods(t *testing.T) {
	n := newNode(t, testenv.Options{}, agent.Options{})
	shared := t.TempDir()
	keeps := pod("keeps", "echo x >>/data/starts; "+forever, "  volumes: [{name: data, emptyDir: {}}, {name: memory, emptyDir: {medium: Memory}}, {name: shared, hostPath: {path: "+shared+"}}]") +
		"    volumeMounts: [{name: data, mountPath: /data}, {name: memory, mountPath: /memory}, {name: shared, mountPath: /shared}]\n" +
		"    lifecycle: {preStop: {exec: {command: [sh, -c, 'echo bye >/shared/bye']}}}\n"
	// The hook has to be done in it.
	n.manifest("keeps.yaml", strings.Replace(keeps, "terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 30", 1))
	n.manifest("stubborn.yaml", pod("stubborn", "trap '' TERM; while true; do sleep 1; done"))
	n.until("pods run", running("keeps", "stubborn"))
	out, err := n.Run(t.Context(), "end-pods")
	if err == nil || !strings.Contains(out, "an agent runs with store "+n.Store()+", and would start the pods again: stop it first") {
		t.Errorf("under an agent: %v, %s", err, out)
	}
	if err := n.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	other, err := n.cri.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "other", Namespace: "theirs", Uid: "1234"},
		Labels:   map[string]string{"io.kubernetes.pod.name": "other", "io.kubernetes.pod.namespace": "theirs", "io.kubernetes.pod.uid": "1234"},
		Linux:    &runtimeapi.LinuxPodSandboxConfig{CgroupParent: n.ctrd.CgroupParent("other")},
	}})
	if err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(t.TempDir(), "left")
	if out, err = n.Run(t.Context(), "end-pods", "--left-overs", left); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{"Ended 2 of 2 pods\n", "Left alone pod theirs/other, which has no folder in "} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in %s", want, out)
		}
	}
	boxes, err := n.cri.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(boxes.Items) != 1 || boxes.Items[0].Id != other.PodSandboxId || len(n.lives()) > 0 {
		t.Errorf("left: %v, %v, %v", boxes, n.lives(), err)
	}
	if _, err := os.Stat(filepath.Join(shared, "bye")); err != nil {
		t.Errorf("the preStop hook: %v", err)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(filepath.Join(n.Dir, "root")))
	if err != nil || len(mounts) > 0 {
		t.Errorf("mounted: %v, %v", mounts, err)
	}
	starts, err := filepath.Glob(filepath.Join(n.Dir, "root/pods/*/volumes/kubernetes.io~empty-dir/data/starts"))
	if err != nil || len(starts) != 1 {
		t.Fatalf("data: %v, %v", starts, err)
	}
	uid := strings.Split(strings.TrimPrefix(starts[0], filepath.Join(n.Dir, "root/pods")+"/"), "/")[0]
	named, err := os.ReadFile(left)
	if err != nil {
		t.Fatal(err)
	}
	list := strings.Split(strings.TrimSpace(string(named)), "\n")
	for _, want := range []string{n.Store(), filepath.Join(n.Dir, "root/pods", uid), filepath.Join(n.Dir, "root") + "/"} {
		if !slices.Contains(list, want) {
			t.Errorf("%s is not among what is left:\n%s", want, named)
		}
	}
	for _, not := range []string{n.Manifests(), shared, n.Config()} {
		if strings.Contains(string(named), not) {
			t.Errorf("%s is among what is left:\n%s", not, named)
		}
	}
	if _, err := n.cri.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: other.PodSandboxId}); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Poll(t, patience, func() error { // at first the agent shows what it knew
		data, err := os.ReadFile(starts[0])
		if err == nil && string(data) != "x\nx\n" {
			err = fmt.Errorf("the data is %q, want that of both starts", data)
		}
		return err
	})
	n.until("pods run again", running("keeps", "stubborn"))
	n.purge()
}

// purge ends agent and pods and deletes what they say they have left over, as the package's purge does. Then nothing is left.
func (n *node) purge() {
	n.t.Helper()
	if err := n.Stop(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
	left := filepath.Join(n.t.TempDir(), "left")
	if out, err := n.Run(n.t.Context(), "end-pods", "--left-overs", left); err != nil {
		n.t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(left)
	if err != nil {
		n.t.Fatal(err)
	}
	for path := range strings.Lines(string(text)) {
		path = strings.TrimSuffix(path, "\n")
		if dir, isDir := strings.CutSuffix(path, "/"); isDir {
			if strings.HasPrefix(dir, n.Dir) { // others are the machine's
				_ = os.Remove(dir) // if it is empty
			}
		} else if err := os.RemoveAll(path); err != nil {
			n.t.Error(err)
		}
	}
	for _, dir := range []string{filepath.Join(n.Dir, "root"), n.PodLogs(), filepath.Dir(n.Store())} {
		err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			if err == nil {
				n.t.Errorf("left after all: %s", path)
			}
			return nil
		})
		if err != nil {
			n.t.Error(err)
		}
	}
}
