package informers

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

func pod(name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
}

func TestHandlerUnwrapsMissedDeletions(t *testing.T) {
	var got []string
	h := Handler(func(old, now *v1.Pod) {
		if now == nil {
			got = append(got, "gone "+old.Name)
		} else {
			got = append(got, "there "+now.Name)
		}
	})
	h.OnAdd(pod("a"), true)
	h.OnUpdate(pod("a"), pod("b"))
	h.OnDelete(cache.DeletedFinalStateUnknown{Key: "ns/a", Obj: pod("a")})
	h.OnDelete(pod("b"))
	h.OnDelete("nonsense")
	if diff := cmp.Diff([]string{"there a", "there b", "gone a", "gone b"}, got); diff != "" {
		t.Errorf("notifications mismatch (-want +got):\n%s", diff)
	}
}
