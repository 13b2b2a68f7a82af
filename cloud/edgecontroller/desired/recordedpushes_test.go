package desired

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/objects"
)

// TestRecordedPushes: each object that was recorded on its way to the edge is sent as it was, but for managedFields.
func TestRecordedPushes(t *testing.T) {
	n := 0
	fakes.EachRecorded(t, "../requests/testdata/recorded.jsonl", func(dir string, m *model.Message) {
		if dir != "cloud->edge" || m.IsResponse() || m.Route.Operation == model.OpDelete {
			return
		}
		n++
		w := newFixture(t)
		w.add(&v1.Pod{
			ObjectMeta: fakes.ObjectMeta("default", "user", "1"), Spec: v1.PodSpec{
				NodeName: "edge-1", Volumes: []v1.Volume{
					{
						VolumeSource: v1.VolumeSource{
							ConfigMap: &v1.ConfigMapVolumeSource{
								LocalObjectReference: v1.LocalObjectReference{Name: "web-conf"},
							},
						}},
				},
			},
		})
		k := fakes.Key(m.Route.Resource)
		var obj objects.Object = map[string]objects.Object{
			"pod": &v1.Pod{}, "node": &v1.Node{}, "configmap": &v1.ConfigMap{},
		}[k.Type]
		if err := json.Unmarshal(m.Content, obj); err != nil {
			t.Fatal(err)
		}
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{}) // as informers have it
		w.add(obj)
		o, err := w.Object("edge-1", k)
		if err != nil || o == nil {
			t.Fatalf("Object(%s) = %v, %v; want an object", k, o, err)
		}
		if diff := cmp.Diff(fakes.Normal(t, m.Content), fakes.Normal(t, o.JSON)); diff != "" {
			t.Errorf("%s mismatch (-want +got):\n%s", k, diff)
		}
		if o.ResourceVersion != m.Header.ResourceVersion {
			t.Errorf("%s: version %s, want %s", k, o.ResourceVersion, m.Header.ResourceVersion)
		}
	})
	if n < 5 {
		t.Errorf("%d recorded pushes, want 5 or more", n)
	}
}
