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

	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestEndPods: when the agent goes for good, its pods end in good order, and nothing of them runs or is mounted any
// more. Those of others stay. What pods have stored is there when an agent comes back.
func TestEndPods(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{})
	shared := t.TempDir()
	keeps := env.Pod("keeps", "echo x >>/data/starts; "+env.Forever, "  volumes: [{name: data, emptyDir: {}}, "+
		"{name: memory, emptyDir: {medium: Memory}}, {name: shared, hostPath: {path: "+shared+"}}]") +
		"    volumeMounts: [{name: data, mountPath: /data}, {name: memory, mountPath: /memory}, {name: shared, " +
		"mountPath: /shared}]\n" +
		"    lifecycle: {preStop: {exec: {command: [sh, -c, 'echo bye >/shared/bye']}}}\n"
	// The hook has to be done in it.
	const grace = "terminationGracePeriodSeconds: "
	n.Manifest("keeps", strings.Replace(keeps, grace+"1", grace+"3600", 1))
	n.Manifest("stubborn", env.Pod("stubborn", "trap '' TERM; while true; do sleep 1; done"))
	n.Running("keeps", "stubborn")
	out, err := n.Run(t.Context(), "end-pods")
	if err == nil ||
		!strings.Contains(out, "an agent runs with store "+n.Store()+
			", and would start the pods again: stop it first") {
		t.Errorf("end-pods under an agent: %v, %s; want an error that says so", err, out)
	}
	env.Must(t, n.Stop(t.Context()))
	other, err := n.CRI.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{
		Config: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "other", Namespace: "theirs", Uid: "1234"},
			Labels: map[string]string{"io.kubernetes.pod.name": "other", "io.kubernetes.pod.namespace": "theirs",
				"io.kubernetes.pod.uid": "1234"},
			Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: n.Containerd.CgroupParent("other")},
		},
	})
	env.Must(t, err)
	left := filepath.Join(t.TempDir(), "left")
	if out, err = n.Run(t.Context(), "end-pods", "--left-overs", left); err != nil {
		t.Fatalf("end-pods: %v, want no error\n%s", err, out)
	}
	for _, want := range []string{"Ended 2 of 2 pods\n", "Left alone pod theirs/other, which has no folder in "} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in %s", want, out)
		}
	}
	boxes, err := n.CRI.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(boxes.Items) != 1 || boxes.Items[0].Id != other.PodSandboxId ||
		len(n.RunningContainers()) > 0 {
		t.Errorf("left: %v, %v, %v; want sandbox %s alone", boxes, n.RunningContainers(), err, other.PodSandboxId)
	}
	if _, err := os.Stat(filepath.Join(shared, "bye")); err != nil {
		t.Errorf("Stat of what the preStop hook writes: %v, want it to exist", err)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(filepath.Join(n.Dir, "root")))
	if err != nil || len(mounts) > 0 {
		t.Errorf("mounted: %v, %v; want nothing", mounts, err)
	}
	starts, err := filepath.Glob(filepath.Join(n.Dir, "root/pods/*/volumes/kubernetes.io~empty-dir/data/starts"))
	if err != nil || len(starts) != 1 {
		t.Fatalf("data: %v, %v; want one file", starts, err)
	}
	uid := strings.Split(strings.TrimPrefix(starts[0], filepath.Join(n.Dir, "root/pods")+"/"), "/")[0]
	named, err := os.ReadFile(left)
	env.Must(t, err)
	list := strings.Split(strings.TrimSpace(string(named)), "\n")
	for _, want := range []string{
		n.Store(), filepath.Join(n.Dir, "root/pods", uid), filepath.Join(n.Dir, "root") + "/",
	} {
		if !slices.Contains(list, want) {
			t.Errorf("list of what is left = %s\nwant %s in it", named, want)
		}
	}
	for _, not := range []string{n.Manifests(), shared, n.Config()} {
		if strings.Contains(string(named), not) {
			t.Errorf("list of what is left = %s\nwant %s not in it", named, not)
		}
	}
	_, err = n.CRI.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: other.PodSandboxId})
	env.Must(t, err)
	n.start()
	wait.Until(t, "the container to start again", func() error { // at first the agent shows what it knew
		data, err := os.ReadFile(starts[0])
		if err == nil && string(data) != "x\nx\n" {
			err = fmt.Errorf("the data is %q, want that of both starts", data)
		}
		return err
	})
	n.Running("keeps", "stubborn")
	n.purge()
}

// purge ends agent and pods and deletes what they say they have left over, as the package's purge does. Then nothing is
// left.
func (n *node) purge() {
	n.T.Helper()
	env.Must(n.T, n.Stop(n.T.Context()))
	left := filepath.Join(n.T.TempDir(), "left")
	if out, err := n.Run(n.T.Context(), "end-pods", "--left-overs", left); err != nil {
		n.T.Fatalf("end-pods: %v, want no error\n%s", err, out)
	}
	text, err := os.ReadFile(left)
	env.Must(n.T, err)
	for path := range strings.Lines(string(text)) {
		path = strings.TrimSuffix(path, "\n")
		if dir, isDir := strings.CutSuffix(path, "/"); isDir {
			if strings.HasPrefix(dir, n.Dir) { // others are the machine's
				_ = os.Remove(dir) // if it is empty
			}
		} else if err := os.RemoveAll(path); err != nil {
			n.T.Error(err)
		}
	}
	for _, dir := range []string{filepath.Join(n.Dir, "root"), n.PodLogs(), filepath.Dir(n.Store())} {
		err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			if err == nil {
				n.T.Errorf("%s exists after the purge, want it removed", path)
			}
			return nil
		})
		if err != nil {
			n.T.Error(err)
		}
	}
}
