package imagegc

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestExcess(t *testing.T) {
	for _, c := range []struct {
		name      string
		high, low int
		usage     Usage
		want      uint64
	}{
		{"below", 85, 80, Usage{Capacity: 1000, Available: 160}, 0},
		{"at the threshold", 85, 80, Usage{Capacity: 1000, Available: 150}, 50},
		{"rounded up", 85, 80, Usage{Capacity: 1000, Available: 159}, 41},
		{"full", 85, 80, Usage{Capacity: 1000}, 200},
		{"off", 100, 80, Usage{Capacity: 1000}, 0},
		{"unknown", 85, 80, Usage{}, 0},
		{"high below low", 10, 50, Usage{Capacity: 1000, Available: 600}, 0},
	} {
		if got := Excess(Policy{HighPercent: c.high, LowPercent: c.low}, c.usage); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func names(list []Image) string {
	var out []string
	for _, i := range list {
		out = append(out, i.Name())
	}
	return strings.Join(out, " ")
}

func TestRemovable(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	list := []Image{
		{ID: "used-late", Seen: ago(time.Hour), Used: ago(time.Minute)},
		{ID: "needed", Seen: ago(time.Hour), Needed: NeededByPod},
		{ID: "used-early", Seen: ago(time.Hour), Used: ago(30 * time.Minute)},
		{ID: "pinned", Seen: ago(time.Hour), Pinned: true},
		{ID: "small", Seen: ago(time.Hour), Size: 1},
		{ID: "young", Seen: ago(time.Minute)},
		{ID: "came-between", Seen: ago(10 * time.Minute)},
		{ID: "old", Seen: ago(2 * time.Hour), Size: 1},
		{ID: "large", Seen: ago(time.Hour), Size: 9},
	}
	removable := Removable(list, 2*time.Minute, now)
	if got, want := names(removable), "old large small used-early came-between used-late"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := names(Expired(removable, 45*time.Minute, now)), "old large small"; got != want {
		t.Errorf("expired %s, want %s", got, want)
	}
	if got := Expired(removable, 0, now); len(got) > 0 {
		t.Errorf("expired %v without a maximum age, want none", got)
	}
}

func TestMark(t *testing.T) {
	const digest = "sha256:0123456789012345678901234567890123456789012345678901234567890123"
	list := []Image{
		{ID: "sha256:aa", Names: []string{"docker.io/library/nginx:1"}},
		{ID: "sha256:bb", Names: []string{"docker.io/library/nginx:latest"}},
		{ID: "sha256:cc", Names: []string{"example.com/app:1", "example.com/app@" + digest}},
		{ID: "sha256:dd", Names: []string{"example.com/site/a:1"}},
		{ID: "sha256:ee", Names: []string{"registry.k8s.io/pause:3.9"}},
		{ID: "sha256:ff", Names: []string{"example.com/infra:1"}},
		{ID: "sha256:00", Names: []string{"example.com/unused:1"}},
		{ID: "sha256:11"},
		{ID: "sha256:22", Names: []string{"example.com/other/app:1"}},
		{ID: "sha256:33"},
		{ID: "sha256:44"},
	}
	Needs{
		Used: []string{"sha256:aa", "", "11"}, Wanted: []string{"nginx", "example.com/app:2@" + digest, "sha256:33"},
		Sandbox: []string{"example.com/infra:1"},
		Keep:    []string{"example.com/site/*", "example.com/app:3", "sha256:44"},
	}.Mark(list)
	var got []string
	for _, i := range list {
		got = append(got, i.Needed)
	}
	want := []string{NeededByContainer, NeededByPod, NeededByPod, NeededByKeep, NeededBySandbox, NeededBySandbox, "",
		NeededByContainer, "", NeededByPod, NeededByKeep}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("needs mismatch (-want +got):\n%s", diff)
	}
}

func TestPodImages(t *testing.T) {
	pod := &v1.Pod{
		Spec: v1.PodSpec{
			InitContainers: []v1.Container{{Image: "init"}},
			Containers:     []v1.Container{{Image: "main"}},
			EphemeralContainers: []v1.EphemeralContainer{
				{EphemeralContainerCommon: v1.EphemeralContainerCommon{Image: "debug"}},
			},
			Volumes: []v1.Volume{
				{}, {VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "data"}}},
			},
		},
	}
	if diff := cmp.Diff([]string{"init", "main", "debug", "data"}, PodImages(pod)); diff != "" {
		t.Errorf("PodImages mismatch (-want +got):\n%s", diff)
	}
	static := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"kubernetes.io/config.source": "file"}},
	}
	for _, c := range []struct {
		pod   *v1.Pod
		phase v1.PodPhase
		want  bool
	}{
		{pod, v1.PodRunning, true}, {pod, "", true}, {pod, v1.PodSucceeded, false}, {pod, v1.PodFailed, false},
		{static, v1.PodFailed, true},
	} {
		if got := Wants(c.pod, c.phase); got != c.want {
			t.Errorf("Wants(%v, %s) = %v, want %v", c.pod.Annotations, c.phase, got, c.want)
		}
	}
}
