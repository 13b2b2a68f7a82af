package podfacts

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/pkg/resource"
)

// namesNone are the places in a PodSpec whose type could name a configmap or secret, and that name none.
var namesNone = map[string]string{
	"Volumes.VolumeSource.CephFS.SecretFile": "a path on the node",
}

// bareNames are the fields that hold the bare name of a secret.
var bareNames = map[string]string{
	"SecretVolumeSource.SecretName":    resource.TypeSecret,
	"AzureFileVolumeSource.SecretName": resource.TypeSecret,
}

// TestEveryPlaceInAPodSpec walks v1.PodSpec by reflection: every place that can name a configmap or secret is filled,
// one at a time, and must be found. A new place in a later Kubernetes fails here until it is looked at.
func TestEveryPlaceInAPodSpec(t *testing.T) {
	w := &walker{seen: map[string]bool{}}
	w.walk(reflect.TypeFor[v1.PodSpec](), nil, nil)
	if len(w.places) < 20 {
		t.Fatalf("%d places found, want 20 or more: %v", len(w.places), w.places)
	}
	for _, p := range w.places {
		t.Run(p.name, func(t *testing.T) {
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}}
			fill(reflect.ValueOf(&pod.Spec).Elem(), p.path, "wanted")
			want := []resource.Key{{Namespace: "ns", Type: p.kind, Name: "wanted"}}
			if diff := cmp.Diff(want, References(pod)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", p.name, diff)
			}
		})
	}
}

type place struct {
	name string
	path []int // field numbers from PodSpec to the name
	kind string
}

type walker struct {
	seen   map[string]bool
	places []place
}

func (w *walker) walk(t reflect.Type, path []int, names []string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || len(path) > 12 {
		return
	}
	for i := range t.NumField() {
		f := t.Field(i)
		p, n := append(path[:len(path):len(path)], i), append(names[:len(names):len(names)], f.Name)
		name := strings.Join(n, ".")
		switch {
		case namesNone[name] != "":
		case f.Type == reflect.TypeFor[v1.LocalObjectReference](),
			f.Type == reflect.TypeFor[*v1.LocalObjectReference](),
			f.Type == reflect.TypeFor[[]v1.LocalObjectReference]():
			w.add(name, append(p, 0), kindOf(t, f))
		case f.Type == reflect.TypeFor[*v1.SecretReference](), f.Type == reflect.TypeFor[v1.SecretReference]():
			w.add(name, append(p, 0), resource.TypeSecret)
		case bareNames[t.Name()+"."+f.Name] != "":
			w.add(name, p, bareNames[t.Name()+"."+f.Name])
		case f.Type.Kind() == reflect.String &&
			(strings.Contains(f.Name, "Secret") || strings.Contains(f.Name, "ConfigMap")):
			w.add(name, p, fmt.Sprintf("unknown bare name in %s", t.Name()))
		default:
			w.walk(f.Type, p, n)
		}
	}
}

func (w *walker) add(name string, path []int, kind string) {
	if !w.seen[name] {
		w.seen[name] = true
		w.places = append(w.places, place{name: name, path: path, kind: kind})
	}
}

func kindOf(t reflect.Type, f reflect.StructField) string {
	if strings.Contains(t.Name(), "ConfigMap") {
		return resource.TypeConfigMap
	}
	if strings.Contains(t.Name(), "Secret") || strings.Contains(f.Name, "Secret") {
		return resource.TypeSecret
	}
	return "unknown reference " + t.Name() + "." + f.Name
}

// fill makes what lies on the path to a name, and sets the name.
func fill(v reflect.Value, path []int, name string) {
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice {
		if v.Kind() == reflect.Pointer {
			v.Set(reflect.New(v.Type().Elem()))
			v = v.Elem()
			continue
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		v = v.Index(0)
	}
	if len(path) == 0 {
		v.SetString(name)
		return
	}
	fill(v.Field(path[0]), path[1:], name)
}

func TestReferencesOnceAndSorted(t *testing.T) {
	secret := func(name string) v1.EnvFromSource {
		return v1.EnvFromSource{
			SecretRef: &v1.SecretEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: name}},
		}
	}
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: v1.PodSpec{
			InitContainers: []v1.Container{{EnvFrom: []v1.EnvFromSource{secret("b"), secret("a")}}},
			Containers: []v1.Container{
				{EnvFrom: []v1.EnvFromSource{secret("b")}, Env: []v1.EnvVar{{Name: "X", Value: "plain"}}},
			},
			ImagePullSecrets: []v1.LocalObjectReference{{Name: "a"}, {Name: ""}},
			Volumes: []v1.Volume{{VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
				LocalObjectReference: v1.LocalObjectReference{Name: "z"}}}}},
		},
	}
	want := []resource.Key{
		{Namespace: "ns", Type: "configmap", Name: "z"}, {Namespace: "ns", Type: "secret", Name: "a"},
		{Namespace: "ns", Type: "secret", Name: "b"},
	}
	if diff := cmp.Diff(want, References(pod)); diff != "" {
		t.Errorf("references mismatch (-want +got):\n%s", diff)
	}
	if got := References(&v1.Pod{}); len(got) != 0 {
		t.Errorf("an empty pod names %v, want nothing", got)
	}
}
