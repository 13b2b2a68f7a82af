package volume

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

func noExpand(string) (string, error) { return "", errors.New("nothing to expand") }

func container(mounts ...v1.VolumeMount) *v1.Container {
	return &v1.Container{Name: "app", VolumeMounts: mounts}
}

func TestMounts(t *testing.T) {
	m, o := start(t)
	o.configMaps["shop/c"] = &v1.ConfigMap{Data: map[string]string{"k": "v"}}
	host := t.TempDir()
	pod := podWith(configMapVolume("c"), vol("h", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: host}}))
	vols := setup(t, m, pod)
	c := container(
		v1.VolumeMount{Name: "v", MountPath: "/etc/c"},
		v1.VolumeMount{Name: "h", MountPath: "data"},
		v1.VolumeMount{Name: "h", MountPath: "/ro", ReadOnly: true, MountPropagation: ptr.To(v1.MountPropagationNone)},
		v1.VolumeMount{Name: "h", MountPath: "/slave", MountPropagation: ptr.To(v1.MountPropagationHostToContainer)},
		v1.VolumeMount{Name: "h", MountPath: "/shared", MountPropagation: ptr.To(v1.MountPropagationBidirectional)},
		v1.VolumeMount{
			Name:              "h",
			MountPath:         "/rro",
			ReadOnly:          true,
			RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyIfPossible),
		},
	)
	c.SecurityContext = &v1.SecurityContext{Privileged: ptr.To(true)}
	got, err := m.Mounts(pod, c, vols, noExpand)
	must(t, err)
	want := []*runtimeapi.Mount{
		{HostPath: vols["v"].Path, ContainerPath: "/etc/c", Readonly: true},
		{HostPath: host, ContainerPath: "/data"},
		{HostPath: host, ContainerPath: "/ro", Readonly: true},
		{
			HostPath: host, ContainerPath: "/slave",
			Propagation: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
		},
		{HostPath: host, ContainerPath: "/shared", Propagation: runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL},
		{HostPath: host, ContainerPath: "/rro", Readonly: true},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("mounts mismatch (-want +got):\n%s", diff)
	}
}

func TestMountErrors(t *testing.T) {
	m, _ := start(t)
	pod := podWith(emptyDir("", ""))
	vols := setup(t, m, pod)
	dir := vols["v"].Path
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o644),
		os.Symlink("../secret-place", filepath.Join(dir, "out")),
		os.Symlink("gone", filepath.Join(dir, "nowhere")))
	for _, tc := range []struct {
		name  string
		mount v1.VolumeMount
		want  string
	}{
		{"no such volume", v1.VolumeMount{Name: "x"}, `cannot find volume "x" to mount into container "app"`},
		{
			"bind options", v1.VolumeMount{Name: "v", BindMountOptions: []string{"noexec"}},
			"bindMountOptions are not supported",
		},
		{
			"recursive read-only", v1.VolumeMount{
				Name: "v", ReadOnly: true, RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyEnabled),
			}, "failed to resolve recursive read-only mode: volume \"v\" requested recursive read-only mode, but it " +
				"is not supported by the runtime",
		},
		{"bidirectional", v1.VolumeMount{Name: "v", MountPropagation: ptr.To(v1.MountPropagationBidirectional)},
			"available only to privileged containers"},
		{"propagation", v1.VolumeMount{Name: "v", MountPropagation: ptr.To(v1.MountPropagationMode("Sideways"))},
			`mountPropagation "Sideways" is unknown`},
		{"absolute", v1.VolumeMount{Name: "v", SubPath: "/etc"}, "error SubPath `/etc` must not be an absolute path"},
		{
			"up", v1.VolumeMount{Name: "v", SubPath: "a/../../b"},
			"unable to provision SubPath `a/../../b`: must not contain '..'",
		},
		{"NUL", v1.VolumeMount{Name: "v", SubPath: "a\x00b"}, "must not contain a NUL byte"},
		{
			"below a file", v1.VolumeMount{Name: "v", SubPath: "file/x"},
			`failed to prepare subPath for volumeMount "v" of container "app"`,
		},
		{
			"link out", v1.VolumeMount{Name: "v", SubPath: "out"},
			`failed to prepare subPath for volumeMount "v" of container "app"`,
		},
		{
			"link to nothing", v1.VolumeMount{Name: "v", SubPath: "nowhere"},
			`failed to create subPath directory for volumeMount "v" of container "app"`,
		},
		{
			"too deep", v1.VolumeMount{Name: "v", SubPath: strings.Repeat("d/", 400)},
			`failed to prepare subPath for volumeMount "v" of container "app"`,
		},
		{"expansion", v1.VolumeMount{Name: "v", SubPathExpr: "$(X)"}, "nothing to expand"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := m.Mounts(pod, container(tc.mount), vols, noExpand); err == nil ||
				!strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			} else if strings.Contains(err.Error(), m.opts.Root) || strings.Contains(err.Error(), "secret-place") {
				t.Errorf("got %v, want no path of the node in it", err)
			}
		})
	}
	for expanded, want := range map[string]string{
		"../x": "must not contain '..'", "/x": "must not be an absolute path",
	} {
		_, err := m.Mounts(pod, container(v1.VolumeMount{Name: "v", SubPathExpr: "$(X)"}), vols,
			func(string) (string, error) {
				return expanded, nil
			})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("expanded to %q: %v, want %q", expanded, err, want)
		}
	}
}

// mountOne makes one mount of the volume v and returns its path on the node.
func mountOne(t *testing.T, m *Manager, pod *v1.Pod, vols Volumes, sub string) string {
	t.Helper()
	mounts, err := m.Mounts(pod, container(v1.VolumeMount{Name: "v", MountPath: "/m", SubPath: sub}), vols, noExpand)
	must(t, err)
	return mounts[0].HostPath
}

func TestSubPath(t *testing.T) {
	for _, medium := range []v1.StorageMedium{v1.StorageMediumDefault, v1.StorageMediumMemory} {
		t.Run("medium "+string(medium), func(t *testing.T) {
			m, _ := start(t)
			pod := podWith(emptyDir(medium, ""))
			vols := setup(t, m, pod)
			dir := vols["v"].Path
			must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o755),
				os.WriteFile(filepath.Join(dir, "a/b/file"), []byte("x"), 0o644),
				os.Symlink("a/b", filepath.Join(dir, "link")),
				os.Symlink("../a/./b//file", filepath.Join(dir, "a/tofile")))
			for sub, inside := range map[string]string{
				"a/b": "a/b", "a/b/file": "a/b/file", "link": "a/b", "link/file": "a/b/file", "a/tofile": "a/b/file",
				".": "", "a//b/": "a/b",
			} {
				got := mountOne(t, m, pod, vols, sub)
				if want := filepath.Join(m.opts.Root, "pods", string(uid), "volume-subpaths/v/app/0"); got != want {
					t.Errorf("%s: bound at %s, want %s", sub, got, want)
				}
				if !sameInode(t, got, filepath.Join(dir, inside)) {
					t.Errorf("sameInode(%s, %s) = false, want true: subPath %s is another file", got, inside, sub)
				}
			}
			expand := func(text string) (string, error) { return strings.ReplaceAll(text, "$(X)", "a"), nil }
			mounts, err := m.Mounts(pod, container(v1.VolumeMount{Name: "v", MountPath: "/m", SubPathExpr: "$(X)/b"}),
				vols, expand)
			must(t, err)
			if !sameInode(t, mounts[0].HostPath, filepath.Join(dir, "a/b")) {
				t.Errorf("sameInode(%s, a/b) = false, want true for subPathExpr $(X)/b", mounts[0].HostPath)
			}
		})
	}
}

func sameInode(t *testing.T, a, b string) bool {
	t.Helper()
	var sa, sb unix.Stat_t
	must(t, unix.Stat(a, &sa), unix.Stat(b, &sb))
	return sa.Dev == sb.Dev && sa.Ino == sb.Ino
}

// A container that is not root has to be able to write to a sub-path as it can to the volume.
func TestSubPathIsMadeLikeItsVolume(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	m, _ := start(t)
	pod := podWith(emptyDir("", ""))
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](4711)}
	vols := setup(t, m, pod)
	mountOne(t, m, pod, vols, "new/deep")
	for _, name := range []string{"new", "new/deep"} {
		var st unix.Stat_t
		must(t, unix.Stat(filepath.Join(vols["v"].Path, name), &st))
		if st.Mode&0o7777 != 0o2777 || st.Gid != 4711 {
			t.Errorf("%s: mode %o, group %d; want 0o2777, 4711", name, st.Mode&0o7777, st.Gid)
		}
	}
}

// A container's restart finds its bind in place, and a new one when the path has become another file.
func TestSubPathAgain(t *testing.T) {
	m, _ := start(t)
	pod := podWith(emptyDir("", ""))
	vols := setup(t, m, pod)
	file := filepath.Join(vols["v"].Path, "f")
	must(t, os.WriteFile(file, []byte("1"), 0o644))
	bound := mountOne(t, m, pod, vols, "f")
	id, err := mountIDOf(bound)
	must(t, err)
	mountOne(t, m, pod, vols, "f")
	if again, err := mountIDOf(bound); err != nil || again != id {
		t.Errorf("bound again (%v): mount %v, want %v", err, again, id)
	}
	must(t, os.Remove(file), os.Mkdir(file, 0o755))
	mountOne(t, m, pod, vols, "f")
	if !sameInode(t, bound, file) {
		t.Errorf("sameInode(%s, %s) = false, want true: the old file is still mounted", bound, file)
	}
	if points, err := mountsBelow(bound); err != nil || len(points) != 1 {
		t.Errorf("mounts: %v, %v; want no error, one", points, err)
	}
}

func TestSubPathOfConfigMap(t *testing.T) {
	m, o := start(t)
	o.configMaps["shop/c"] = &v1.ConfigMap{Data: map[string]string{"k": "1"}}
	pod := podWith(configMapVolume("c"))
	bound := mountOne(t, m, pod, setup(t, m, pod), "k")
	if data, err := os.ReadFile(bound); err != nil || string(data) != "1" {
		t.Fatalf("the bound file has %q, %v; want \"1\"", data, err)
	}
	// An update is seen by the next container.
	o.configMaps["shop/c"] = &v1.ConfigMap{Data: map[string]string{"k": "2"}}
	vols := setup(t, m, pod)
	if data, err := os.ReadFile(bound); err != nil || string(data) != "1" {
		t.Errorf("the running container sees %q, %v; want no error, \"1\"", data, err)
	}
	mountOne(t, m, pod, vols, "k")
	if data, err := os.ReadFile(bound); err != nil || string(data) != "2" {
		t.Errorf("the next container sees %q, %v; want no error, \"2\"", data, err)
	}
}

// A bind neither shows nor, when it is taken away, unmounts what the node has mounted below it.
func TestSubPathLeavesMountsOfTheNode(t *testing.T) {
	for _, mode := range []*v1.MountPropagationMode{
		nil, ptr.To(v1.MountPropagationHostToContainer), ptr.To(v1.MountPropagationBidirectional),
	} {
		t.Run(string(ptr.Deref(mode, "unset")), func(t *testing.T) {
			m, _ := start(t)
			host := t.TempDir()
			t.Cleanup(func() { must(t, unmountAll(host)) })
			disk := filepath.Join(host, "sub/disk")
			must(t, unix.Mount("tmpfs", host, "tmpfs", 0, ""), unix.Mount("", host, "", unix.MS_SHARED, ""),
				os.MkdirAll(disk, 0o755), unix.Mount("tmpfs", disk, "tmpfs", 0, ""),
				os.WriteFile(filepath.Join(disk, "precious"), []byte("x"), 0o644))
			pod := podWith(vol("v", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: host}}))
			c := container(v1.VolumeMount{Name: "v", MountPath: "/m", SubPath: "sub", MountPropagation: mode})
			c.SecurityContext = &v1.SecurityContext{Privileged: ptr.To(true)}
			mounts, err := m.Mounts(pod, c, setup(t, m, pod), noExpand)
			must(t, err)
			// The node mounts one more, which the bind sees where propagation is asked for.
			late := filepath.Join(host, "sub/late")
			must(t, os.Mkdir(late, 0o755), unix.Mount("tmpfs", late, "tmpfs", 0, ""),
				os.WriteFile(filepath.Join(late, "precious"), []byte("y"), 0o644))
			points, err := mountsBelow(mounts[0].HostPath)
			must(t, err)
			want := 1
			if mode != nil {
				want = 2
			}
			if len(points) != want {
				t.Errorf("mounts in the bind: %v, want %d", points, want)
			}
			must(t, m.Teardown(t.Context(), uid), m.RemovePodDir(uid))
			for path, want := range map[string]string{disk: "x", late: "y"} {
				if data, err := os.ReadFile(filepath.Join(path, "precious")); err != nil || string(data) != want {
					t.Errorf("the node lost %s: %q, %v; want no error, %v", path, data, err, want)
				}
			}
		})
	}
}
