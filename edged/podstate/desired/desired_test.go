package desired

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/podstate/admission"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/source"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

func testPod(name string, uid types.UID) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: uid}}
}

func podNames(pods []*v1.Pod) string {
	var list []string
	for _, p := range pods {
		list = append(list, p.Name)
	}
	return strings.Join(list, " ")
}

func TestPods(t *testing.T) {
	w := New()
	a, b := testPod("a", "1"), testPod("b", "2")
	if added, removed := w.SetStatic([]*v1.Pod{a, b}); podNames(added) != "a b" || len(removed) != 0 {
		t.Errorf("SetStatic(a, b) = added %q, removed %q; want a and b added", podNames(added), podNames(removed))
	}
	if added, removed := w.SetStatic([]*v1.Pod{a}); len(added) != 0 || podNames(removed) != "b" {
		t.Errorf("SetStatic(a) = added %q, removed %q; want b removed", podNames(added), podNames(removed))
	}
	if added, _ := w.SetStatic([]*v1.Pod{a, b}); podNames(added) != "b" {
		t.Errorf("SetStatic(a, b) while b is removed = added %q, want \"b\"", podNames(added))
	}
	if w.Put(testPod("stolen", "1"), false) {
		t.Error("Put(a stored pod with the UID of a static one) = true, want false")
	}
	if restored, again := w.Put(testPod("c", "3"), true), w.Put(testPod("c", "3"), false); !restored || !again {
		t.Errorf("Put(c) twice = %t, %t, want true, true", restored, again)
	}
	if got := w.All(); got[0].Pod.Name != "c" || !got[0].Restored {
		t.Errorf("All()[0] = %s, restored %t, want c, restored true", got[0].Pod.Name, got[0].Restored)
	}
	w.SetAdmission("3", &observed.Reason{Reason: "OutOfcpu"})
	if got, ok := w.Get("3"); !ok || got.Admitted || got.Rejected.Reason != "OutOfcpu" {
		t.Errorf("Get(3) = %+v, %v; want a pod rejected for OutOfcpu", got, ok)
	}
	w.Forget("3")
	if _, ok := w.Get("3"); !ok {
		t.Errorf("Get(3) after Forget(3) of a desired pod = %t, want true", ok)
	}
	if first, second := w.Remove("3"), w.Remove("3"); first == nil || second != nil {
		t.Errorf("Remove(3) twice = %v, %v, want a pod, nil", first, second)
	}
	w.Forget("3")
	if _, ok := w.Get("3"); ok {
		t.Errorf("Get(3) after Remove(3) and Forget(3) = %t, want false", ok)
	}
}

func TestStopAndAdmission(t *testing.T) {
	w := New()
	w.SetStatic([]*v1.Pod{testPod("a", "1"), testPod("b", "2")})
	why := &status.Stopped{Reason: "Preempting"}
	if first, second := w.Stop("1", why), w.Stop("1", &status.Stopped{Reason: "Other"}); !first || second {
		t.Errorf("Stop(1) twice = %t, %t, want true, false", first, second)
	}
	if got, _ := w.Get("1"); got.Stopped != why {
		t.Errorf("stopped for %+v, want %+v", got.Stopped, why)
	}
	w.Remove("2")
	if two, three := w.Stop("2", why), w.Stop("3", why); two || three {
		t.Errorf("stop of pods that are not desired: Stop(2), Stop(3) = %t, %t, want false, false", two, three)
	}
	w.SetPreparing("1", true)
	w.SetPreparing("3", true)
	if got, _ := w.Get("1"); !got.Preparing {
		t.Errorf("Get(1) = %+v after SetPreparing(1, true), want preparing", got)
	}
	w.SetPreparing("1", false)
	if got, _ := w.Get("1"); got.Preparing {
		t.Errorf("Get(1) = %+v after SetPreparing(1, false), want it not preparing", got)
	}
	w.SetAdmission("1", nil)
	w.SetPreparing("1", true)
	w.ForgetAdmission("1")
	if got, _ := w.Get("1"); got.Preparing || got.Admitted {
		t.Errorf("Get(1) = %+v, want it neither admitted nor being prepared", got)
	}
}

// TestAllIsInOrderOfStart: restored pods come first, then the oldest; equal times are ordered by namespace, name and
// UID.
func TestAllIsInOrderOfStart(t *testing.T) {
	at := func(pod *v1.Pod, seconds int64) *v1.Pod {
		pod.CreationTimestamp = metav1.Unix(seconds, 0)
		return pod
	}
	s := New()
	for _, pod := range []*v1.Pod{
		at(testPod("young", "1"), 30), at(testPod("b", "3"), 20), at(testPod("b", "2"), 20), at(testPod("a", "4"), 20),
	} {
		s.Put(pod, false)
	}
	s.Put(at(testPod("restored", "5"), 40), true)
	var got []string
	for _, p := range s.All() {
		got = append(got, p.Pod.Name+string(p.Pod.UID))
	}
	if want := []string{"restored5", "a4", "b2", "b3", "young1"}; !slices.Equal(got, want) {
		t.Errorf("All() = %v, want %v", got, want)
	}
}

// TestStaysRejected: a rejected pod of the API server is Failed for good, and can still be deleted. A static pod may
// fit later.
func TestStaysRejected(t *testing.T) {
	deleted := testPod("deleted", "2")
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	no := &observed.Reason{Reason: "OutOfcpu"}
	for name, tc := range map[string]struct {
		pod  Pod
		want bool
	}{
		"admitted":             {Pod{Pod: testPod("a", "1"), Admitted: true}, false},
		"rejected":             {Pod{Pod: testPod("a", "1"), Rejected: no}, true},
		"rejected and deleted": {Pod{Pod: deleted, Rejected: no}, false},
		"rejected and static":  {Pod{Pod: testPod("a", "1"), Rejected: no, Static: true}, false},
	} {
		if got := tc.pod.StaysRejected(); got != tc.want {
			t.Errorf("%s: StaysRejected() = %t, want %t", name, got, tc.want)
		}
	}
}

// TestSourceOfAPIPods: a pod of the API server that says that it is a static one is not taken for one.
func TestSourceOfAPIPods(t *testing.T) {
	created := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name:              "liar",
		UID:               "u",
		CreationTimestamp: created,
		Annotations:       map[string]string{source.AnnotationSource: "file", "own": "kept"},
	}}
	w := New()
	w.Put(pod, false)
	have, ok := w.Get("u")
	if !ok {
		t.Fatal("the pod is not in the set, want it there")
	}
	want := map[string]string{
		source.AnnotationSource: "api", source.AnnotationSeen: "2026-01-02T03:04:05Z", "own": "kept",
	}
	if !maps.Equal(have.Pod.Annotations, want) || source.IsStatic(have.Pod) || admission.Critical(have.Pod) {
		t.Errorf("annotations = %v, static %v, critical %v; want %v, false, false",
			have.Pod.Annotations, source.IsStatic(have.Pod), admission.Critical(have.Pod), want)
	}
	if pod.Annotations[source.AnnotationSource] != "file" {
		t.Errorf("annotations of the pod that was handed over = %v, want them unchanged", pod.Annotations)
	}
}

// TestAddresses: those of a pod are known from its start until it is forgotten.
func TestAddresses(t *testing.T) {
	w := New()
	w.Put(testPod("a", "u1"), false)
	w.SetAddresses("u1", []string{"10.0.0.1", "nonsense", "fd00::1"})
	w.SetAddresses("u2", []string{"10.0.0.2"}) // not in the set
	check := func(ip string, want bool) {
		t.Helper()
		if got := w.HasAddress(netip.MustParseAddr(ip)); got != want {
			t.Errorf("a pod has %s: %v, want %v", ip, got, want)
		}
	}
	check("10.0.0.1", true)
	check("fd00::1", true)
	check("10.0.0.2", false)
	w.SetAddresses("u1", []string{"10.0.0.3"}) // a new sandbox
	check("10.0.0.1", false)
	check("10.0.0.3", true)
	w.Remove("u1")
	check("10.0.0.3", true)
	w.Forget("u1")
	check("10.0.0.3", false)
}
