package garbage

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/podstate/desired"
)

func TestOrphanedStatuses(t *testing.T) {
	pod := func(namespace, name, uid string) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid)}}
	}
	pods := []desired.Pod{
		{Pod: pod("default", "here", "1")}, {Pod: pod("default", "again", "3")},
		{Pod: pod("default", "removed", "4"), Removed: true},
	}
	got := orphanedStatuses([]*v1.Pod{
		pod("default", "here", "1"), pod("default", "gone", "2"), pod("default", "again", "earlier"),
		pod("other", "here", "5"), pod("default", "removed", "4"), pod("default", "unreadable", ""),
	}, pods)
	want := []*v1.Pod{pod("default", "gone", "2"), pod("other", "here", "5"), pod("default", "unreadable", "")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if left := orphanedStatuses(nil, pods); left != nil {
		t.Errorf("orphanedStatuses(nil) = %v, want none", left)
	}
}
