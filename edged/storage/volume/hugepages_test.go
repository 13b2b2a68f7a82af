package volume

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// asking is a pod whose containers ask for huge pages of these sizes.
func asking(sizes ...string) *v1.Pod {
	pod := podWith()
	for _, size := range sizes {
		pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Resources: v1.ResourceRequirements{
			Limits: v1.ResourceList{v1.ResourceName(v1.ResourceHugePagesPrefix + size): resource.MustParse("4Mi"),
				"cpu": resource.MustParse("1")}}})
	}
	return pod
}

func TestPageSize(t *testing.T) {
	for _, tc := range []struct {
		medium v1.StorageMedium
		asked  []string
		want   int64
		err    string
	}{
		{"HugePages", []string{"2Mi", "2Mi"}, 2 << 20, ""},
		{
			"HugePages", []string{
				"2Mi", "1Gi",
			}, 0, "medium: HugePages can't be used if container requests multiple huge page sizes",
		},
		{
			"HugePages", nil, 0,
			"medium HugePages: hugePages storage requested, but there is no resource request for huge pages",
		},
		{"HugePages-1Gi", []string{"2Mi", "1Gi"}, 1 << 30, ""},
		{
			"HugePages-1Gi", []string{
				"2Mi",
			}, 0, "medium HugePages-1Gi: hugePages storage requested, but there is no resource request for huge pages",
		},
		{"HugePages-big", []string{"2Mi"}, 0, `"big" is not a huge page size`},
		{"HugePages--1", []string{"2Mi"}, 0, `"-1" is not a huge page size`},
	} {
		got, err := pageSize(asking(tc.asked...), tc.medium)
		if got != tc.want || (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s of %v: %d, %v; want %d, %s", tc.medium, tc.asked, got, err, tc.want, tc.err)
		}
	}
}

func TestHugePagesVolume(t *testing.T) {
	m, _ := start(t)
	pod := asking("2Mi")
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](55)}
	pod.Spec.Volumes = []v1.Volume{emptyDir(v1.StorageMediumHugePages, "4Mi")}
	mountAll(pod)
	for range 2 {
		dir := setup(t, m, pod)["v"].Path
		var fs unix.Statfs_t
		if err := unix.Statfs(dir, &fs); err != nil || fs.Type != unix.HUGETLBFS_MAGIC || fs.Bsize != 2<<20 ||
			fs.Blocks != 0 {
			t.Errorf("%+v, %v; want a hugetlbfs of pages of 2 MiB without a size", fs, err)
		}
		if got := owners(t, dir)["."]; got != "2775 55" {
			t.Errorf("its root: %s, want \"2775 55\"", got)
		}
	}
	if points, err := mountsBelow(m.opts.Root); err != nil || len(points) != 1 {
		t.Errorf("mounts: %v, %v; want no error, one", points, err)
	}
	must(t, m.Teardown(t.Context(), uid), m.RemovePodDir(uid))
	pod = asking("3Mi")
	pod.Spec.Volumes = []v1.Volume{emptyDir("HugePages-3Mi", "")}
	mountAll(pod)
	if _, err := m.Setup(t.Context(), pod); err == nil ||
		!strings.Contains(err.Error(), "this node has no huge pages of 3Mi") {
		t.Errorf("Setup() = %v, want that there are no pages of 3Mi", err)
	}
}
