package desired

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

func TestPodChanges(t *testing.T) {
	pod := func(change func(*v1.Pod)) *v1.Pod {
		p := fakes.Pod("e1", "ns", "a")
		if change != nil {
			change(p)
		}
		return p
	}
	all := []string{"e1 ns/configmap/cm-a", "e1 ns/pod/a", "e1 ns/secret/shared"}
	other := []string{"e2 ns/configmap/cm-a", "e2 ns/pod/a", "e2 ns/secret/shared"}
	for name, tc := range map[string]struct {
		old, now *v1.Pod
		want     []string
	}{
		"new":    {nil, pod(nil), all},
		"gone":   {pod(nil), nil, all},
		"resync": {pod(nil), pod(nil), nil},
		"status only": {pod(nil), pod(func(p *v1.Pod) {
			p.Status.Phase, p.ResourceVersion, p.Generation = v1.PodRunning, "2", 2
			p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "x"}}
		}), nil},
		"a readiness gate": {pod(gated("")), pod(gated(v1.ConditionTrue)), []string{"e1 ns/pod/a"}},
		"another condition": {pod(gated(v1.ConditionTrue)), pod(func(p *v1.Pod) {
			gated(v1.ConditionTrue)(p)
			p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{Type: "other", Status: v1.ConditionTrue})
		}), nil},
		"nil and empty": {pod(nil), pod(func(p *v1.Pod) { p.Spec.Tolerations = []v1.Toleration{} }), nil},
		"spec": {
			pod(nil), pod(func(p *v1.Pod) { p.Spec.Containers[0].Image = "x" }), []string{"e1 ns/pod/a"},
		},
		"annotation": {
			pod(nil), pod(func(p *v1.Pod) { p.Annotations = map[string]string{"a": "b"} }), []string{"e1 ns/pod/a"},
		},
		"deletion": {
			pod(nil), pod(func(p *v1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }), []string{"e1 ns/pod/a"},
		},
		"another node": {
			pod(nil), pod(func(p *v1.Pod) { p.Spec.NodeName = "e2" }), append(slices.Clone(all), other...),
		},
		"another uid":    {pod(nil), pod(func(p *v1.Pod) { p.UID = "2" }), append(slices.Clone(all), all...)},
		"one more":       {pod(nil), pod(debugged), []string{"e1 ns/configmap/new", "e1 ns/pod/a"}},
		"one less":       {pod(debugged), pod(nil), []string{"e1 ns/configmap/new", "e1 ns/pod/a"}},
		"not bound":      {nil, pod(func(p *v1.Pod) { p.Spec.NodeName = "" }), nil},
		"neither at all": {nil, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, ch := range podChanges(tc.old, tc.now) {
				got = append(got, ch.node+" "+ch.key.String())
			}
			slices.Sort(got)
			want := slices.Sorted(slices.Values(tc.want))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("notifications mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

// TestReferencesFirst: what a pod names is sent before the pod, and goes after it.
func TestReferencesFirst(t *testing.T) {
	pod := fakes.Pod("e1", "ns", "a")
	more := fakes.Pod("e1", "ns", "a")
	debugged(more)
	for name, tc := range map[string]struct {
		old, now *v1.Pod
		want     []string
	}{
		"new":      {nil, pod, []string{"ns/configmap/cm-a", "ns/secret/shared", "ns/pod/a"}},
		"gone":     {pod, nil, []string{"ns/pod/a", "ns/configmap/cm-a", "ns/secret/shared"}},
		"one more": {pod, more, []string{"ns/configmap/new", "ns/pod/a"}},
		"one less": {more, pod, []string{"ns/pod/a", "ns/configmap/new"}},
	} {
		var got []string
		for _, ch := range podChanges(tc.old, tc.now) {
			got = append(got, ch.key.String())
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: order (-want +got):\n%s", name, diff)
		}
	}
}

// gated gives a pod a readiness gate whose condition is as said; "" is none.
func gated(stands v1.ConditionStatus) func(p *v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "gate"}}
		if stands != "" {
			p.Status.Conditions = []v1.PodCondition{{Type: "gate", Status: stands}}
		}
	}
}

// debugged adds an ephemeral container, the one way in which a running pod comes to name more.
func debugged(p *v1.Pod) {
	c := v1.EphemeralContainer{}
	c.EnvFrom = []v1.EnvFromSource{
		{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "new"}}},
	}
	p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, c)
}

func TestEventsOfNamedObjects(t *testing.T) {
	w := newFixture(t)
	a, b := fakes.Pod("e1", "ns", "a"), fakes.Pod("e2", "ns", "b")
	w.add(a, b, fakes.Pod("e2", "ns", "b2"), fakes.Pod("e3", "elsewhere", "c"))
	named := func(name, rv string) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{ObjectMeta: fakes.ObjectMeta("ns", name, rv)}
	}
	conf := func(rv string) *metav1.PartialObjectMetadata { return named("cm-a", rv) }
	secret := func(rv string) *metav1.PartialObjectMetadata { return named("shared", rv) }
	confEvent, secretEvent := w.NamedEvent(resource.TypeConfigMap), w.NamedEvent(resource.TypeSecret)
	for name, tc := range map[string]struct {
		event func()
		want  []string
	}{
		"configmap": {func() { confEvent(nil, conf("1")) }, []string{"e1 ns/configmap/cm-a"}},
		"configmap changed": {func() {
			confEvent(conf("1"), conf("2"))
		}, []string{"e1 ns/configmap/cm-a"}},
		"configmap unchanged": {func() { confEvent(conf("1"), conf("1")) }, nil},
		"configmap gone":      {func() { confEvent(conf("1"), nil) }, []string{"e1 ns/configmap/cm-a"}},
		"configmap of nobody": {func() {
			confEvent(nil, named("x", "1"))
		}, nil},
		"secret once per node": {func() {
			secretEvent(nil, secret("1"))
		}, []string{"e1 ns/secret/shared", "e2 ns/secret/shared"}},
		"secret unchanged": {func() { secretEvent(secret("1"), secret("1")) }, nil},
		"secret changed": {func() {
			secretEvent(secret("1"), secret("2"))
		}, []string{"e1 ns/secret/shared", "e2 ns/secret/shared"}},
	} {
		t.Run(name, func(t *testing.T) {
			tc.event()
			if diff := cmp.Diff(tc.want, slices.Sorted(slices.Values(w.hub.Take()))); diff != "" {
				t.Errorf("notifications mismatch (-want +got):\n%s", diff)
			}
		})
	}
	// Forgotten with the last pod on the node.
	w.remove(b)
	if !w.caches.Names("e2", fakes.Key("ns/secret/shared")) {
		t.Error("names(e2, secret shared) = false while a pod names it, want true")
	}
	w.remove(fakes.Pod("e2", "ns", "b2"))
	if w.caches.Names("e2", fakes.Key("ns/secret/shared")) {
		t.Error("names(e2, secret shared) = true after its last pod, want false")
	}
	secretEvent(secret("1"), secret("2"))
	if diff := cmp.Diff([]string{"e1 ns/secret/shared"}, w.hub.Take()); diff != "" {
		t.Errorf("after its last pod (-want +got):\n%s", diff)
	}
}

func TestEventsOfServices(t *testing.T) {
	w := newFixture(t)
	pod := fakes.Pod("e1", "ns", "a")
	w.add(pod, fakes.Pod("up", "ns", "b"), fakes.Service("ns", "db", "10.0.0.2"),
		fakes.Service("default", "kubernetes", "10.0.0.1"))
	w.Connected(t.Context(), "e1", "edgecore/websocket")
	w.Connected(t.Context(), "up", "websocket")
	both := []string{"e1 default/service/kubernetes", "e1 ns/service/db"}
	if diff := cmp.Diff(both, slices.Sorted(slices.Values(w.hub.Take()))); diff != "" {
		t.Errorf("an edge of ours connects (-want +got):\n%s", diff)
	}
	db := fakes.Service("ns", "db", "10.0.0.2")
	moved := fakes.Service("ns", "db", "10.0.0.9")
	w.ServiceEvent(db, moved)
	w.ServiceEvent(db, db)
	w.ServiceEvent(nil, fakes.Service("other", "x", "10.0.0.3"))
	if diff := cmp.Diff([]string{"e1 ns/service/db"}, w.hub.Take()); diff != "" {
		t.Errorf("services change (-want +got):\n%s", diff)
	}
	w.remove(pod)
	w.podEvent(pod, nil)
	want := append([]string{"e1 ns/configmap/cm-a", "e1 ns/pod/a", "e1 ns/secret/shared"}, both...)
	slices.Sort(want)
	if diff := cmp.Diff(want, slices.Sorted(slices.Values(w.hub.Take()))); diff != "" {
		t.Errorf("the last pod goes (-want +got):\n%s", diff)
	}
	status := fakes.Pod("e1", "ns", "a")
	status.Status.Phase, status.ResourceVersion = v1.PodRunning, "77"
	w.podEvent(pod, status)
	w.podEvent(pod, pod)
	if got := w.hub.Take(); got != nil {
		t.Errorf("a change of status notifies %v, want nothing", got)
	}
	if got, want := w.hub.Statuses, []string{"e1 ns/pod/a"}; !slices.Equal(got, want) {
		t.Errorf("statuses of %v are said to have changed, want %v", got, want)
	}
}
