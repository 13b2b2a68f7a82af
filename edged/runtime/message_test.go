package runtime

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestMessageKeepsItsEnd: of a message that is too long the end counts, where programs say why they died.
func TestMessageKeepsItsEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "message")
	if err := os.WriteFile(path, []byte(strings.Repeat("x", 2*maxMessage)+"the cause"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := readMessage(path); len(got) != maxMessage || !strings.HasSuffix(got, "the cause") {
		t.Errorf("%d bytes, ending in %q; want %v, a text that ends with \"the cause\"",
			len(got), got[max(0, len(got)-20):], maxMessage)
	}
}

// TestMessagesShareEvenly: 12 KiB a pod, divided by its containers, whatever the order.
func TestMessagesShareEvenly(t *testing.T) {
	g := newRig(t)
	pod := testPod(v1.RestartPolicyNever, 0, 6)
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].TerminationMessagePath = "/dev/termination-log"
	}
	for _, c := range g.settle(pod).Containers {
		path := filepath.Join(g.opts.RootDir, "pods", "1", "containers", c.Name, "0")
		if err := os.WriteFile(path, []byte(strings.Repeat("m", maxMessage)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := g.fake.Exit(c.ID, 1); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range g.observe(pod).Containers {
		if len(c.Message) != 2048 {
			t.Errorf("%s has %d bytes, want 2048", c.Name, len(c.Message))
		}
	}
}

// TestLogTailJoinsParts: a line that the runtime wrote in parts is one line.
func TestLogTailJoinsParts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	const at = "2026-01-01T00:00:00Z stderr "
	if err := os.WriteFile(path, []byte(at+"P pan\n"+at+"F ic\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := logTail(path); got != "panic\n" {
		t.Errorf("logTail() = %q, want \"panic\\n\"", got)
	}
}

// TestMountedMessagePath: a volume mounted at the path of the message does not take its place.
func TestMountedMessagePath(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"volume": "of the node", "message": "bye"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	st := &runtimeapi.ContainerStatus{Annotations: map[string]string{annotationTerminationMessagePath: "/m"}, Mounts: []*runtimeapi.Mount{
		{ContainerPath: "/m", HostPath: filepath.Join(dir, "volume")}, {ContainerPath: "/m", HostPath: filepath.Join(dir, "message")},
	}}
	if got := terminationMessage(st); got != "bye" {
		t.Errorf("terminationMessage() = %q, want \"bye\"", got)
	}
}
