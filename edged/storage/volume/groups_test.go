package volume

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestExtraGroups(t *testing.T) {
	specs := map[string]Spec{"inline": {Inline: &v1.CSIVolumeSource{}}}
	for name, gid := range map[string]string{
		"a": "1234", "same": "1234", "b": "77", "own": "5", "none": "", "text": "x", "negative": "-1",
		"large": "2147483648", "root": "0",
	} {
		specs[name] = Spec{
			PV: &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{gidAnnotation: gid}}},
		}
	}
	specs["unset"] = Spec{PV: &v1.PersistentVolume{}}
	if got, want := extraGroups(specs, []int64{5}), []int64{0, 77, 1234}; !slices.Equal(got, want) {
		t.Errorf("extraGroups: got %v, want %v", got, want)
	}
}

func TestGroupsOfAClaim(t *testing.T) {
	m, c, _ := withClaims(t)
	_, pv := c.bound("c", "disk", localSource(t.TempDir()))
	pv.Annotations = map[string]string{gidAnnotation: "4711"}
	pod := podWith(claimVolume("c", false))
	if got := m.Groups(pod); len(got) != 0 {
		t.Errorf("groups before the volumes are set up: got %v, want none", got)
	}
	setup(t, m, pod)
	if got, want := m.Groups(pod), []int64{4711}; !slices.Equal(got, want) {
		t.Errorf("groups: got %v, want %v", got, want)
	}
}
