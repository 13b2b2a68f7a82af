package edged

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/desired"
)

func TestLeftStatuses(t *testing.T) {
	pod := func(namespace, name, uid string) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid)}}
	}
	wanted := []desired.Pod{{Pod: pod("default", "here", "1")}, {Pod: pod("default", "again", "3")}, {Pod: pod("default", "leaving", "4"), Removed: true}}
	got := leftStatuses([]*v1.Pod{
		pod("default", "here", "1"), pod("default", "gone", "2"), pod("default", "again", "earlier"), pod("other", "here", "5"), pod("default", "leaving", "4"), pod("default", "unreadable", ""),
	}, wanted)
	want := []*v1.Pod{pod("default", "gone", "2"), pod("other", "here", "5"), pod("default", "unreadable", "")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if left := leftStatuses(nil, wanted); left != nil {
		t.Errorf("leftStatuses(nil) = %v, want none", left)
	}
}
