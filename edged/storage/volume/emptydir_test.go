package volume

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

func emptyDir(medium v1.StorageMedium, limit string) v1.Volume {
	src := &v1.EmptyDirVolumeSource{Medium: medium}
	if limit != "" {
		src.SizeLimit = ptr.To(resource.MustParse(limit))
	}
	return vol("v", v1.VolumeSource{EmptyDir: src})
}

func TestEmptyDirAccess(t *testing.T) {
	for _, tc := range []struct {
		name  string
		mode  *int32
		group *int64
		want  uint32
	}{
		{"plain", nil, nil, 0o777},
		{"mode", ptr.To[int32](0o750), nil, 0o750},
		{"sticky", ptr.To[int32](0o1777), nil, 0o1777},
		{"fsGroup", nil, ptr.To[int64](4711), 0o2777},
		{"fsGroup over mode", ptr.To[int32](0o700), ptr.To[int64](4711), 0o2770},
	} {
		for _, medium := range []v1.StorageMedium{v1.StorageMediumDefault, v1.StorageMediumMemory} {
			t.Run(tc.name+" "+string(medium), func(t *testing.T) {
				want := tc.want
				if medium == v1.StorageMediumMemory && tc.mode == nil {
					want |= unix.S_ISVTX // as the kernel makes a tmpfs
				}
				old := unix.Umask(0o077)
				defer unix.Umask(old)
				m, _ := start(t)
				pod := podWith(emptyDir(medium, ""))
				pod.Spec.Volumes[0].EmptyDir.Mode = tc.mode
				pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: tc.group}
				var st unix.Stat_t
				must(t, unix.Stat(setup(t, m, pod)["v"].Path, &st))
				if st.Mode&0o7777 != want || int64(st.Gid) != ptr.Deref(tc.group, 0) {
					t.Errorf("mode %o, group %d; want %o", st.Mode&0o7777, st.Gid, want)
				}
			})
		}
	}
}

// Programs such as databases take the group's and others' rights from their folder, and refuse to start
// again when those come back.
func TestEmptyDirStaysAsContainersLeaveIt(t *testing.T) {
	for _, medium := range []v1.StorageMedium{v1.StorageMediumDefault, v1.StorageMediumMemory} {
		m, _ := start(t)
		pod := podWith(emptyDir(medium, ""))
		dir := setup(t, m, pod)["v"].Path
		must(t, os.WriteFile(filepath.Join(dir, "data"), []byte("x"), 0o600), os.Chmod(dir, 0o700),
			os.Chown(dir, 999, 999))
		setup(t, m, pod)
		var st unix.Stat_t
		must(t, unix.Stat(dir, &st))
		if st.Mode&0o7777 != 0o700 || st.Uid != 999 || st.Gid != 999 {
			t.Errorf("medium %q: mode %o, owner %d:%d; want 0o700, 999, 999", medium, st.Mode&0o7777, st.Uid, st.Gid)
		}
		if data, err := os.ReadFile(filepath.Join(dir, "data")); err != nil || string(data) != "x" {
			t.Errorf("medium %q: %q, %v; want no error, \"x\"", medium, data, err)
		}
	}
}

func TestEmptyDirKilledWhileMade(t *testing.T) {
	m, _ := start(t)
	pod := podWith(emptyDir("", ""))
	dir := filepath.Join(m.opts.Root, "pods", string(uid), "volumes", "kubernetes.io~empty-dir")
	must(t, os.MkdirAll(filepath.Join(dir, ".v.new"), 0o700))
	path := setup(t, m, pod)["v"].Path
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("the folder is %v, %v; want mode 0777", info, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v; want the volume alone", entries, err)
	}
}

func TestMemoryIsLimited(t *testing.T) {
	m, _ := start(t)
	dir := setup(t, m, podWith(emptyDir(v1.StorageMediumMemory, "1Mi")))["v"].Path
	var fs unix.Statfs_t
	must(t, unix.Statfs(dir, &fs))
	if got := int64(fs.Blocks) * fs.Bsize; fs.Type != unix.TMPFS_MAGIC || got != 1<<20 {
		t.Errorf("type %x, %d bytes; want a tmpfs of 1 MiB", fs.Type, got)
	}
	if err := os.WriteFile(filepath.Join(dir, "big"), make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("2 MiB were written: %v, want unix.ENOSPC", err)
	}
}

func TestMemoryLimit(t *testing.T) {
	c := func(limit string) v1.Container {
		var c v1.Container
		if limit != "" {
			c.Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse(limit)}
		}
		return c
	}
	sidecar := func(limit string) v1.Container {
		c := c(limit)
		c.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
		return c
	}
	for _, tc := range []struct {
		name  string
		spec  v1.PodSpec
		limit string
		node  int64
		want  int64
	}{
		{"nothing known", v1.PodSpec{Containers: []v1.Container{c("")}}, "", 0, 0},
		{"own", v1.PodSpec{Containers: []v1.Container{c("")}}, "100", 0, 100},
		{"node", v1.PodSpec{Containers: []v1.Container{c("")}}, "", 500, 500},
		{"own beyond the node", v1.PodSpec{Containers: []v1.Container{c("")}}, "900", 500, 500},
		{"containers", v1.PodSpec{Containers: []v1.Container{c("100"), c("20")}}, "", 500, 120},
		{"own below containers", v1.PodSpec{Containers: []v1.Container{c("100"), c("20")}}, "70", 500, 70},
		{"one without limit", v1.PodSpec{Containers: []v1.Container{c("100"), c("")}}, "", 500, 500},
		{"init without limit", v1.PodSpec{InitContainers: []v1.Container{c("")}, Containers: []v1.Container{c("100")}},
			"", 500, 500},
		{
			"init is the largest", v1.PodSpec{
				InitContainers: []v1.Container{c("300")}, Containers: []v1.Container{c("100")},
			}, "", 500, 300,
		},
		{
			"sidecar adds", v1.PodSpec{
				InitContainers: []v1.Container{sidecar("50"), c("60")}, Containers: []v1.Container{c("100")},
			}, "", 500, 150,
		},
		{
			"init beside a sidecar", v1.PodSpec{
				InitContainers: []v1.Container{sidecar("50"), c("160")}, Containers: []v1.Container{c("100")},
			}, "", 500, 210,
		},
		{
			"init without limit beside a sidecar", v1.PodSpec{InitContainers: []v1.Container{sidecar("50"), c("")},
				Containers: []v1.Container{c("100")}}, "", 500, 150,
		},
		{
			"pod level", v1.PodSpec{
				Resources: &v1.ResourceRequirements{
					Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("80")},
				},
				Containers: []v1.Container{c("")},
			}, "", 500, 80,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := memoryLimit(&v1.Pod{Spec: tc.spec}, emptyDir(v1.StorageMediumMemory, tc.limit).EmptyDir, tc.node)
			if got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

func TestSomethingElseMounted(t *testing.T) {
	m, _ := start(t)
	pod := podWith(emptyDir(v1.StorageMediumMemory, ""))
	dir := setup(t, m, pod)["v"].Path
	must(t, unix.Unmount(dir, 0), unix.Mount(t.TempDir(), dir, "", unix.MS_BIND, ""))
	if got, err := m.Setup(t.Context(), pod); err == nil {
		t.Errorf("Setup with a bind mount in place of a tmpfs = %v, nil, want an error", got)
	}
}
