package refused

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// TestStub: a stub is small whatever the pod has, says what it was made with, and can be deleted in order.
func TestStub(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web", UID: "u", DeletionGracePeriodSeconds: ptr.To[int64](7),
			Labels:        map[string]string{"a": long},
			Annotations:   map[string]string{"b": long, v1.MirrorPodAnnotationKey: long},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: long}},
		},
		Spec: v1.PodSpec{NodeName: long, TerminationGracePeriodSeconds: ptr.To[int64](30)},
	}
	for range 1000 {
		pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: long, Image: long, Args: []string{long}})
	}
	want := Stub{Size: 5, Version: "v", Message: "too large"}
	out := want.Pod(pod)
	if got, ok := Of(out.Annotations); !ok || got != want {
		t.Errorf("Of() = %v, %t; want %v", got, ok, want)
	}
	text, err := json.Marshal(out)
	if err != nil || len(text) > 20_000 {
		t.Errorf("stub of a large pod has %d bytes (%v), want at most 20,000", len(text), err)
	}
	if out.UID != "u" || *out.DeletionGracePeriodSeconds != 7 || *out.Spec.TerminationGracePeriodSeconds != 30 {
		t.Errorf("stub = %v, want the UID and the grace periods of the pod", out)
	}
	if _, ok := Of(pod.Annotations); ok {
		t.Error("Of(a whole pod) = true, want false")
	}
	object := want.Object(&pod.ObjectMeta)
	if diff := cmp.Diff(out.ObjectMeta, object.ObjectMeta); diff != "" {
		t.Errorf("metadata of a stub mismatch (-pod +object):\n%s", diff)
	}
	for name := range out.Annotations {
		if problems := validation.IsQualifiedName(name); name != v1.MirrorPodAnnotationKey && len(problems) == 0 {
			t.Errorf("the API server accepts an annotation %q, want it refused", name)
		}
	}
}
