package edge

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestBadInput: each fault is reported where it belongs, everything else runs on, and it heals.
func TestBadInput(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{})
	n.Manifest("good", env.Pod("good", env.Forever))
	n.Running("good")
	before := n.RunningContainers()

	n.Manifest("nopod", "apiVersion: v1\nkind: Service\nmetadata: {name: x}\n")
	n.Manifest("image", strings.Replace(env.Pod("image", env.Forever), "edgecore.local/demo:1", "Not An Image", 1))
	n.Manifest("never", strings.NewReplacer("edgecore.local/demo:1", "edgecore.local/absent:1", "IfNotPresent",
		"Never").
		Replace(env.Pod("never", env.Forever)))
	n.Manifest("pull", strings.Replace(env.Pod("pull", env.Forever), "edgecore.local/demo:1", "127.0.0.1:1/absent:1",
		1))
	n.Manifest("config", env.Pod("config", env.Forever)+"    envFrom: [{configMapRef: {name: missing}}]\n")
	n.Manifest("volume", env.Pod("volume", env.Forever, "  volumes: [{name: v, configMap: {name: missing}}]")+
		mounted("v"))
	n.Manifest("pvc", env.Pod("pvc", env.Forever, "  volumes: [{name: data, persistentVolumeClaim: {claimName: c}}]")+
		mounted("data"))
	n.Manifest("iscsi", env.Pod("iscsi", env.Forever,
		"  volumes: [{name: data, iscsi: {targetPortal: 10.0.0.1, iqn: iqn.2001-04.com.example, lun: 0}}]")+
		mounted("data"))
	n.Manifest("big", env.Pod("big", env.Forever)+"    resources: {requests: {memory: 900Gi}}\n")
	n.Manifest("command", strings.Replace(env.Pod("command", env.Forever), "[sh, -c,", "[/no/such/program,", 1))
	n.Manifest("root", env.Pod("root", env.Forever)+"    securityContext: {runAsNonRoot: true}\n")

	n.Until("image name", waiting("image", "InvalidImageName", "couldn't parse image name"))
	n.Until("never pulled", waiting("never", "ErrImageNeverPull", "is not present with pull policy of Never"))
	n.Until("pull backs off", waiting("pull", "ImagePullBackOff", `Back-off pulling image "127.0.0.1:1/absent:1"`))
	n.Until("missing configmap", waiting("config", "CreateContainerConfigError", `configmap "missing" not found`))
	n.Until("no such program", waiting("command", "CrashLoopBackOff", ""))
	n.Until("runs as root",
		waiting("root", "CreateContainerConfigError", "container has runAsNonRoot and image will run as root"))
	n.Until("too big", func(pods map[string]*v1.Pod) error {
		if p := pods["big"]; p == nil || p.Status.Phase != v1.PodFailed || p.Status.Reason != "OutOfmemory" ||
			!strings.Contains(p.Status.Message, "Node didn't have enough resource: memory") {
			return fmt.Errorf("pod big is %+v, want Failed with OutOfmemory", p)
		}
		return nil
	})
	wait.Until(t, "events that name the faults", func() error {
		out, err := n.Run(t.Context(), "get", "events")
		if err != nil {
			return err
		}
		for _, want := range []string{
			`MountVolume.SetUp failed for volume "v" : configmap "missing" not found`,
			`persistentvolumeclaim "c" was not read before on this node, and the cloud cannot be asked for it now`,
			`volume type iscsi is not supported`,
		} {
			if !strings.Contains(out, want) {
				return fmt.Errorf("no event says %q:\n%s", want, out)
			}
		}
		return nil
	})
	out, err := n.Run(t.Context(), "status")
	const reason = `kind "Service": static manifests hold v1 Pods only`
	if err == nil || !strings.Contains(out, "nopod.yaml") || !strings.Contains(out, reason) {
		t.Errorf("edgecore status: %v, want an error that says nopod.yaml and %q:\n%s", err, reason, out)
	}

	// The causes go, and so do the faults.
	n.Manifest("image", env.Pod("image", env.Forever))
	n.Manifest("nopod", env.Pod("nopod", env.Forever))
	n.Manifest("root", env.Pod("root", env.Forever)+"    securityContext: {runAsNonRoot: true, runAsUser: 1000}\n")
	n.Running("image", "nopod", "root")
	n.untouched(before)
}

// TestRejectedPodComesInWhenThereIsRoom: a static pod has nobody who makes another of it.
func TestRejectedPodComesInWhenThereIsRoom(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{Agent: agent.Options{Kubelet: map[string]any{"maxPods": 1}}})
	n.Manifest("a", env.Pod("a", env.Forever))
	n.Running("a")
	n.Manifest("b", env.Pod("b", env.Forever))
	n.Until("the second does not fit", func(pods map[string]*v1.Pod) error {
		if p := pods["b"]; p == nil || p.Status.Reason != "OutOfpods" {
			return fmt.Errorf("pod b is %+v, want the reason OutOfpods", p)
		}
		return nil
	})
	n.Remove("a")
	n.Running("b")
}

// mounted is more YAML of the container of env.Pod: a volume that no container mounts is not set up.
func mounted(volume string) string {
	return "    volumeMounts: [{name: " + volume + ", mountPath: /v}]\n"
}
