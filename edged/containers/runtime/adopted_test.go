package runtime

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/runtime/fakecri"
)

// TestHashTakenOver: a container that was taken over is judged by the hash that stands for its own, in the lists as in
// the details.
func TestHashTakenOver(t *testing.T) {
	_, client := fakecri.Start(t)
	labels := map[string]string{
		labelPodName:       "p",
		labelPodNamespace:  "default",
		labelPodUID:        "1",
		labelContainerName: "c0",
	}
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "default", Uid: "1"}, Labels: labels,
	}
	box, err := client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	made, err := client.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: box.PodSandboxId,
		SandboxConfig: config, Config: &runtimeapi.ContainerConfig{
			Metadata:    &runtimeapi.ContainerMetadata{Name: "c0"},
			Image:       &runtimeapi.ImageSpec{Image: "img"},
			Labels:      labels,
			Annotations: map[string]string{annotationHash: "abc"},
		}})
	if err != nil {
		t.Fatal(err)
	}
	for want, hash := range map[uint64]func(string, uint64) uint64{
		0xabc: nil,
		7: func(id string, carries uint64) uint64 {
			if id == made.ContainerId && carries == 0xabc {
				return 7
			}
			return carries
		},
	} {
		r := New(Options{Client: client, Hash: hash})
		pods, err := r.ListPods(t.Context())
		if err != nil || len(pods) != 1 || len(pods[0].Containers) != 1 || pods[0].Containers[0].Hash != want {
			t.Errorf("listed %+v, %v; want the hash %x", pods, err, want)
		}
		pod, err := r.GetPod(t.Context(), "1", nil)
		if err != nil || len(pod.Containers) != 1 || pod.Containers[0].Hash != want {
			t.Errorf("got %+v, %v; want the hash %x", pod, err, want)
		}
	}
}
