package allocation

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
)

// TestActive: only a desired pod that nobody stops and that has not ended may be resized.
func TestActive(t *testing.T) {
	all := desired.New()
	for _, uid := range []types.UID{"runs", "deleted", "evicted", "ended"} {
		all.Put(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: string(uid), UID: uid}}, false)
	}
	all.Remove("deleted")
	all.Stop("evicted", &status.Stopped{Reason: "Evicted"})
	statuses := status.NewManager(nil)
	statuses.Restore(map[types.UID]v1.PodStatus{"runs": {Phase: v1.PodRunning}, "ended": {Phase: v1.PodSucceeded}})
	pods := DesiredPods{Desired: all, Statuses: statuses}
	for uid, want := range map[types.UID]bool{
		"runs":    true,
		"deleted": false,
		"evicted": false,
		"ended":   false,
		"unknown": false,
	} {
		if got := pods.Active(uid); (got != nil) != want {
			t.Errorf("Active(%s) = %v, want a pod: %t", uid, got, want)
		}
	}
	if got := pods.Status("runs").Phase; got != v1.PodRunning {
		t.Errorf("Status(runs) has phase %q, want Running", got)
	}
	if got := pods.Status("unknown").Phase; got != "" {
		t.Errorf("Status(unknown) has phase %q, want none", got)
	}
}
