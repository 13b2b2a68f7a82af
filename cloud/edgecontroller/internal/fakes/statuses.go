package fakes

import (
	"encoding/json"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// HashOf is the hash of the status that a node reported last.
func HashOf(t testing.TB, pod *v1.Pod) string {
	t.Helper()
	text, err := json.Marshal(map[string]any{"status": &pod.Status})
	if err != nil {
		t.Fatal(err)
	}
	hash, err := wire.StatusHash(text)
	if err != nil {
		t.Fatal(err)
	}
	return hash
}

// HeldStatus returns what a node reports of a pod in its inventory.
func HeldStatus(pod *v1.Pod, status string) wire.Held {
	key := resource.Key{Namespace: pod.Namespace, Type: resource.TypePod, Name: pod.Name}
	return wire.Held{Key: key.String(), UID: string(pod.UID), Status: status}
}

// WasReady returns a pod as its node reported it before Kubernetes took Ready away.
func WasReady(pod *v1.Pod) *v1.Pod {
	out := pod.DeepCopy()
	out.Status.Conditions[1].Status = v1.ConditionTrue
	return out
}
