package metaclient

import (
	"testing"

	"github.com/edgecore-io/edgecore/beehive/model"
)

// TestVolumeSecret: metamanager is told to ask the cloud.
func TestVolumeSecret(t *testing.T) {
	b := &bus{answer: `{"metadata":{"name":"s"},"data":{"k":"dg=="}}`}
	secret, err := New(b).VolumeSecret(t.Context(), "a", "s")
	if err != nil || string(secret.Data["k"]) != "v" {
		t.Errorf("VolumeSecret = %v, %v; want the key k", secret, err)
	}
	if b.asked.Route.Operation != model.OpQuery || b.asked.Route.Resource != "a/secret/s" ||
		string(b.asked.Content) != `{"cloudFirst":true}` {
		t.Errorf("asked %+v %s, want a query of a/secret/s for the cloud", b.asked.Route, b.asked.Content)
	}
}
