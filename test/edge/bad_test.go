package edge

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
)

// TestBadInput: each fault is told where it belongs, everything else runs on, and it heals.
func TestBadInput(t *testing.T) {
	n := newNode(t, testenv.Options{}, agent.Options{})
	n.manifest("good.yaml", pod("good", forever))
	n.until("a good pod runs", running("good"))
	before := n.lives()

	n.manifest("nopod.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: x}\n")
	n.manifest("image.yaml", strings.Replace(pod("image", forever), "edgecore.local/demo:1", "Not An Image", 1))
	n.manifest("never.yaml", strings.Replace(pod("never", forever), "image: edgecore.local/demo:1", "image: edgecore.local/absent:1\n    imagePullPolicy: Never", 1))
	n.manifest("pull.yaml", strings.Replace(pod("pull", forever), "edgecore.local/demo:1", "127.0.0.1:1/absent:1", 1))
	n.manifest("config.yaml", pod("config", forever)+"    envFrom: [{configMapRef: {name: missing}}]\n")
	n.manifest("volume.yaml", pod("volume", forever, "  volumes: [{name: v, configMap: {name: missing}}]"))
	n.manifest("pvc.yaml", pod("pvc", forever, "  volumes: [{name: data, persistentVolumeClaim: {claimName: c}}]"))
	n.manifest("iscsi.yaml", pod("iscsi", forever, "  volumes: [{name: data, iscsi: {targetPortal: 10.0.0.1, iqn: iqn.2001-04.com.example, lun: 0}}]"))
	n.manifest("big.yaml", pod("big", forever)+"    resources: {requests: {memory: 900Gi}}\n")
	n.manifest("command.yaml", strings.Replace(pod("command", forever), "[sh, -c,", "[/no/such/program,", 1))
	n.manifest("root.yaml", pod("root", forever)+"    securityContext: {runAsNonRoot: true}\n")

	n.until("image name", waits("image", "InvalidImageName", "couldn't parse image name"))
	n.until("never pulled", waits("never", "ErrImageNeverPull", "is not present with pull policy of Never"))
	n.until("pull backs off", waits("pull", "ImagePullBackOff", `Back-off pulling image "127.0.0.1:1/absent:1"`))
	n.until("missing configmap", waits("config", "CreateContainerConfigError", `configmap "missing" not found`))
	n.until("no such program", waits("command", "CrashLoopBackOff", ""))
	n.until("runs as root", waits("root", "CreateContainerConfigError", "container has runAsNonRoot and image will run as root"))
	n.until("too big", func(pods map[string]*v1.Pod) error {
		if p := pods["big"]; p == nil || p.Status.Phase != v1.PodFailed || p.Status.Reason != "OutOfmemory" || !strings.Contains(p.Status.Message, "Node didn't have enough resource: memory") {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
	testenv.Poll(t, patience, func() error {
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
	if err == nil || !strings.Contains(out, "nopod.yaml") || !strings.Contains(out, `kind "Service": static manifests hold v1 Pods only`) {
		t.Errorf("status: %v\n%s", err, out)
	}

	// The causes go, and so do the faults.
	n.manifest("image.yaml", pod("image", forever))
	n.manifest("nopod.yaml", pod("nopod", forever))
	n.manifest("root.yaml", pod("root", forever)+"    securityContext: {runAsNonRoot: true, runAsUser: 1000}\n")
	n.until("they run now", running("image", "nopod", "root"))
	for id := range before {
		if n.lives()[id] == 0 {
			t.Error("the good pod was touched")
		}
	}
}

// TestRejectedPodComesInWhenThereIsRoom: a static pod has nobody who makes another of it.
func TestRejectedPodComesInWhenThereIsRoom(t *testing.T) {
	n := newNode(t, testenv.Options{}, agent.Options{Kubelet: map[string]any{"maxPods": 1}})
	n.manifest("a.yaml", pod("a", forever))
	n.until("the first runs", running("a"))
	n.manifest("b.yaml", pod("b", forever))
	n.until("the second does not fit", func(pods map[string]*v1.Pod) error {
		if p := pods["b"]; p == nil || p.Status.Reason != "OutOfpods" {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
	n.remove("a.yaml")
	n.until("now it does", running("b"))
}
