package volume

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/env"
	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// downward is edged's: the real downward API.
type downward struct{}

func (downward) Field(pod *v1.Pod, path string) (string, error) {
	return env.Field(pod, path, env.Facts{})
}

func (downward) Resource(pod *v1.Pod, _ string, ref *v1.ResourceFieldSelector) (string, error) {
	return env.Resource(pod, &v1.Container{}, ref, nil)
}

// hostileSources project one text many times: as a file or a source each.
func hostileSources(kind uint8, key, path string, count int) []v1.VolumeProjection {
	var sources []v1.VolumeProjection
	var keys []v1.KeyToPath
	var fields []v1.DownwardAPIVolumeFile
	for i := range count {
		name, item := fmt.Sprint(i), v1.KeyToPath{Key: key, Path: fmt.Sprint(i)}
		local := v1.LocalObjectReference{Name: "one"}
		switch kind % 6 {
		case 0:
			keys = append(keys, item)
		case 1:
			fields = append(fields, v1.DownwardAPIVolumeFile{
				Path: name, FieldRef: &v1.ObjectFieldSelector{FieldPath: path},
			})
		case 2:
			fields = append(fields, v1.DownwardAPIVolumeFile{
				Path: name, ResourceFieldRef: &v1.ResourceFieldSelector{Resource: path},
			})
		case 3:
			sources = append(sources, v1.VolumeProjection{
				ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: local},
			})
		case 4:
			sources = append(sources, v1.VolumeProjection{
				Secret: &v1.SecretProjection{LocalObjectReference: local, Items: []v1.KeyToPath{item}},
			})
		case 5:
			sources = append(sources, v1.VolumeProjection{
				ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: name, Audience: key},
			})
		}
	}
	if keys != nil {
		sources = append(sources, v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{
			LocalObjectReference: v1.LocalObjectReference{Name: "one"}, Items: keys}})
	}
	if fields != nil {
		sources = append(sources, v1.VolumeProjection{DownwardAPI: &v1.DownwardAPIProjection{Items: fields}})
	}
	return sources
}

// FuzzContent: whatever labels, annotations, ConfigMaps and Secrets a pod projects, and how often, their files take
// memory in proportion to what came over the wire and to maxContent.
func FuzzContent(f *testing.F) {
	for kind := range uint8(6) {
		f.Add(kind, "a", "metadata.annotations", "x", uint16(60_000), uint16(10_000))
		f.Add(kind, "a", "metadata.labels", "\x7f", uint16(60_000), uint16(1))
		f.Add(kind, "a/b", "limits.memory", "", uint16(0), uint16(20_000))
	}
	f.Fuzz(func(t *testing.T, kind uint8, key, path, part string, times, count uint16) {
		text := strings.Repeat(part, min(int(times), (1<<20)/max(len(part), 1)))
		n := min(int(count), (1<<20)/(len(key)+len(path)+40))
		sources := hostileSources(kind, key, path, n)
		o := &objects{
			configMaps: map[string]*v1.ConfigMap{"shop/one": {Data: map[string]string{key: text}}},
			secrets:    map[string]*v1.Secret{"shop/one": {Data: map[string][]byte{key: []byte(text)}}},
		}
		m := New(Options{Root: t.TempDir(), Objects: o, Tokens: o, Fields: downward{}})
		notes := map[string]string{key: text}
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name:        "web",
			Namespace:   "shop",
			UID:         uid,
			Labels:      notes,
			Annotations: notes,
		}}
		var files []file
		// A value is quoted, joined and copied. An item takes 60 bytes on the wire, and a file of 80 bytes here.
		limit := 6*maxContent + membound.Linear(len(text)+n*(len(key)+len(path)+40), 64)
		membound.Check(t, limit, func() {
			all, err := m.projectedFiles(t.Context(), pod, &v1.ProjectedVolumeSource{Sources: sources},
				&room{maxContent})
			if err == nil {
				files, _ = deduplicate(all)
			}
		})
		size := 0
		for _, f := range files {
			size += len(f.data)
		}
		if size > maxContent {
			t.Errorf("the files have %d bytes, want at most %d", size, maxContent)
		}
	})
}

// TestContentIsBounded: the bound is one of all volumes of a pod together, and its error says what to do.
func TestContentIsBounded(t *testing.T) {
	m, o := start(t)
	o.configMaps["shop/large"] = &v1.ConfigMap{Data: map[string]string{"k": strings.Repeat("x", 1<<20)}}
	large := v1.VolumeSource{
		ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "large"}},
	}
	var vols []v1.Volume
	for i := range 63 {
		vols = append(vols, vol(fmt.Sprintf("v%d", i), large))
	}
	setup(t, m, podWith(vols...))
	const want = `volume "last" : the files of this pod's configMap, secret, downwardAPI and projected volumes have more than 64 MiB in all`
	if _, err := m.Setup(t.Context(), podWith(append(vols, vol("last", large))...)); err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("Setup = %v, want %s", err, want)
	}
}
