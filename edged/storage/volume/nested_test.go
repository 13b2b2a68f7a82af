package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// mountsAt makes mounts of pairs of a volume and a path.
func mountsAt(pairs ...string) []v1.VolumeMount {
	var out []v1.VolumeMount
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, v1.VolumeMount{Name: pairs[i], MountPath: pairs[i+1]})
	}
	return out
}

func TestNestedMounts(t *testing.T) {
	for _, tc := range []struct {
		name   string
		mounts []v1.VolumeMount
		want   []string
	}{
		{"none", mountsAt("v", "/a", "w", "/b"), nil},
		{"one", mountsAt("v", "/etc/app", "w", "/etc/app/cache"), []string{"cache"}},
		{"deep", mountsAt("v", "/a/", "w", "/a/b//c/."), []string{"b/c"}},
		{
			"below another", mountsAt("v", "/d", "w", "/d/n/m", "x", "/d/n", "y", "/d/n-v", "z", "/d/n2"),
			[]string{"n", "n-v", "n2"},
		},
		{"mounted twice", mountsAt("v", "/a", "v", "/b", "w", "/a/x", "w", "/b/y"), []string{"x", "y"}},
		{"a name that begins alike", mountsAt("v", "/a", "w", "/ab/c"), nil},
		{"relative", mountsAt("v", "a", "w", "a/b"), []string{"b"}},
		{"leads out", mountsAt("v", "/a", "w", "/a/../../b", "x", "/../a/x"), []string{"x"}},
		{"root", mountsAt("v", "/", "w", "/a"), nil},
		{"itself", mountsAt("v", "/a", "v", "/a/b"), []string{"b"}},
	} {
		pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{VolumeMounts: tc.mounts}}}}
		if diff := cmp.Diff(tc.want, nestedMounts(pod, "v")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
	// Each container is looked at by itself.
	pod := &v1.Pod{Spec: v1.PodSpec{
		InitContainers: []v1.Container{{VolumeMounts: mountsAt("v", "/a", "w", "/a/init")}},
		Containers:     []v1.Container{{VolumeMounts: mountsAt("v", "/b", "w", "/a/other")}},
	}}
	if diff := cmp.Diff([]string{"init"}, nestedMounts(pod, "v")); diff != "" {
		t.Errorf("two containers (-want +got):\n%s", diff)
	}
}

// access reads mode and group of all in a volume that the agent fills, with "..time" for the name of the folder of its
// files.
func access(t *testing.T, dir string) map[string]string {
	t.Helper()
	current, err := os.Readlink(filepath.Join(dir, dataLink))
	must(t, err)
	out := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		must(t, err)
		rel = strings.Replace(rel, current, "..time", 1)
		var st unix.Stat_t
		must(t, unix.Lstat(path, &st))
		out[rel] = fmt.Sprintf("%o %d", st.Mode&0o7777, st.Gid)
		if st.Mode&unix.S_IFMT == unix.S_IFLNK {
			out[rel] = fmt.Sprintf("link %d", st.Gid)
		}
		return nil
	}))
	return out
}

// nestedPod is a pod that mounts an emptyDir within a volume that the agent fills.
func nestedPod(v v1.Volume) *v1.Pod {
	pod := podWith(v, vol("w", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}))
	pod.Spec.Containers[0].VolumeMounts = mountsAt("v", "/etc/app", "w", "/etc/app/cache/deep", "w", "/etc/app/k")
	return pod
}

func TestFilledVolumesBelongToTheGroup(t *testing.T) {
	old := unix.Umask(0o077) // modes do not depend on it
	defer unix.Umask(old)
	m, o := start(t)
	o.configMaps["shop/c"] = &v1.ConfigMap{Data: map[string]string{"a": "1", "k": "2"}}
	o.secrets["shop/c"] = &v1.Secret{Data: map[string][]byte{"a": []byte("1"), "k": []byte("2")}}
	keys := []v1.KeyToPath{{Key: "a", Path: "x/a"}, {Key: "k", Path: "k"}}
	for _, tc := range []struct {
		name  string
		vol   v1.Volume
		group *int64
		root  string
	}{
		{"configMap", configMapVolume("c", keys...), nil, "777 0"},
		{"secret", secretVolume("c", keys...), nil, "1777 0"},
		{"configMap with a group", configMapVolume("c", keys...), ptr.To[int64](77), "2777 77"},
		{"secret with a group", secretVolume("c", keys...), ptr.To[int64](77), "3777 77"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := nestedPod(tc.vol)
			pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: tc.group}
			want := map[string]string{
				".": tc.root, "..data": "link 0", "..time": "755 0", "..time/k": "644 0", "..time/x": "755 0",
				"..time/x/a": "644 0",
				// a nested mount, and so no link to the key
				"x": "link 0", "cache": "755 0", "cache/deep": "755 0", "k": "755 0",
			}
			if tc.group != nil {
				for path, text := range want {
					want[path] = strings.Replace(strings.Replace(text, " 0", " 77", 1), "755", "2755", 1)
				}
			}
			for range 2 {
				dir := setup(t, m, pod)["v"].Path
				if diff := cmp.Diff(want, access(t, dir)); diff != "" {
					t.Errorf("mode and group (-want +got):\n%s", diff)
				}
			}
			must(t, m.Teardown(t.Context(), uid))
		})
	}
}

// A volume that an agent filled which knew nothing of nested mounts keeps its names, whatever they are.
func TestNestedMountsOfAnOlderVolume(t *testing.T) {
	m, o := start(t)
	o.configMaps["shop/c"] = &v1.ConfigMap{Data: map[string]string{"a": "1", "k": "2"}}
	pod := nestedPod(configMapVolume("c"))
	mounts := pod.Spec.Containers[0].VolumeMounts
	pod.Spec.Containers[0].VolumeMounts = mounts[:1]
	dir := setup(t, m, pod)["v"].Path
	pod.Spec.Containers[0].VolumeMounts = mounts
	setup(t, m, pod)
	if got := access(t, dir); got["k"] != "link 0" || got["cache/deep"] != "755 0" {
		t.Errorf("mode and group: got %v, want a link k and a folder cache/deep", got)
	}
	// The key goes, and its link with it; then there is room for the folder.
	delete(o.configMaps["shop/c"].Data, "k")
	setup(t, m, pod)
	setup(t, m, pod)
	if got := access(t, dir)["k"]; got != "755 0" {
		t.Errorf("k without its key: got %s, want 755 0", got)
	}
}

// A container that got out of its read-only mount cannot have folders made elsewhere.
func TestNestedMountsStayInTheVolume(t *testing.T) {
	m, o := start(t)
	o.configMaps["shop/c"] = &v1.ConfigMap{Data: map[string]string{"a": "1"}}
	pod := nestedPod(configMapVolume("c"))
	outside := t.TempDir()
	dir := setup(t, m, pod)["v"].Path
	must(t, os.RemoveAll(filepath.Join(dir, "cache")), os.Symlink(outside, filepath.Join(dir, "cache")))
	if _, err := m.Setup(t.Context(), pod); !errors.Is(err, errLeavesVolume) {
		t.Errorf("setup with a link out of the volume: got %v, want %v", err, errLeavesVolume)
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) != 0 {
		t.Errorf("outside the volume: got %v, %v, want nothing", left, err)
	}
}

func downwardVolume() v1.Volume {
	item := v1.DownwardAPIVolumeFile{Path: "name", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}
	return vol("v", v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{item}}})
}

func TestDownwardAPIIsInMemory(t *testing.T) {
	m, _ := start(t)
	m.opts.MemoryBytes = 16 << 20
	pod := podWith(downwardVolume())
	pod.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse("4Mi")}
	for _, name := range []string{"web", "other"} {
		pod.Name = name
		dir := setup(t, m, pod)["v"].Path
		var fs unix.Statfs_t
		if err := unix.Statfs(dir, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC ||
			int64(fs.Blocks)*fs.Bsize != 4<<20 {
			t.Errorf("file system: got %x of %d blocks, %v, want a tmpfs of 4 MiB", fs.Type, fs.Blocks, err)
		}
		if diff := cmp.Diff(map[string]string{"name": "0644 " + name}, content(t, dir)); diff != "" {
			t.Errorf("files (-want +got):\n%s", diff)
		}
		if got := access(t, dir)["."]; got != "1777 0" {
			t.Errorf("mode and group: got %s, want 1777 0", got)
		}
	}
}
