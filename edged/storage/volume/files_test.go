package volume

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func configMapVolume(name string, items ...v1.KeyToPath) v1.Volume {
	return vol("v", v1.VolumeSource{
		ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: name}, Items: items},
	})
}

func secretVolume(name string, items ...v1.KeyToPath) v1.Volume {
	return vol("v", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: name, Items: items}})
}

func TestContentAndModes(t *testing.T) {
	m, o := start(t)
	o.configMaps["shop/c"] = &v1.ConfigMap{
		Data: map[string]string{"a": "1", "b": ""}, BinaryData: map[string][]byte{"bin": {0, 255}},
	}
	o.secrets["shop/s"] = &v1.Secret{Data: map[string][]byte{"password": []byte("hunter2"), "user": []byte("me")}}
	mode := func(v v1.Volume, m int32, optional bool) v1.Volume {
		if v.ConfigMap != nil {
			v.ConfigMap.DefaultMode, v.ConfigMap.Optional = &m, &optional
		} else {
			v.Secret.DefaultMode, v.Secret.Optional = &m, &optional
		}
		return v
	}
	for _, tc := range []struct {
		name string
		vol  v1.Volume
		want map[string]string
	}{
		{"all keys", configMapVolume("c"), map[string]string{"a": "0644 1", "b": "0644 ", "bin": "0644 \x00\xff"}},
		{
			"default mode", mode(configMapVolume("c"), 0o400, false),
			map[string]string{"a": "0400 1", "b": "0400 ", "bin": "0400 \x00\xff"},
		},
		{
			"mode 0", mode(configMapVolume("c", v1.KeyToPath{Key: "a", Path: "a"}), 0, false),
			map[string]string{"a": "0000 1"},
		},
		{
			"items", configMapVolume("c", v1.KeyToPath{Key: "a", Path: "x/y/a"},
				v1.KeyToPath{Key: "a", Path: "x/z", Mode: ptr.To[int32](0o777)}),
			map[string]string{"x/y/a": "0644 1", "x/z": "0777 1"},
		},
		{
			"last of one path", configMapVolume("c", v1.KeyToPath{Key: "a", Path: "p"},
				v1.KeyToPath{Key: "b", Path: "./p"}), map[string]string{
				"p": "0644 ",
			},
		},
		{"secret", secretVolume("s"), map[string]string{"password": "0644 hunter2", "user": "0644 me"}},
		{
			"secret item", mode(secretVolume("s", v1.KeyToPath{Key: "user", Path: "u"}), 0o440, false),
			map[string]string{"u": "0440 me"},
		},
		{"optional and missing", mode(configMapVolume("none"), 0o644, true), map[string]string{}},
		{"optional and missing secret", mode(secretVolume("none"), 0o644, true), map[string]string{}},
		{
			"optional key",
			mode(configMapVolume("c", v1.KeyToPath{Key: "zzz", Path: "z"}, v1.KeyToPath{Key: "a", Path: "a"}), 0o644,
				true), map[string]string{
				"a": "0644 1",
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			old := unix.Umask(0o077) // modes do not depend on it
			defer unix.Umask(old)
			vols := setup(t, m, podWith(tc.vol))
			if diff := cmp.Diff(tc.want, content(t, vols["v"].Path)); diff != "" {
				t.Errorf("files mismatch (-want +got):\n%s", diff)
			}
			if err := m.Teardown(t.Context(), uid); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestContentErrors(t *testing.T) {
	m, o := start(t)
	o.configMaps["shop/c"] = &v1.ConfigMap{Data: map[string]string{"k": "v"}}
	o.configMaps["shop/evil"] = &v1.ConfigMap{Data: map[string]string{"../k": "v"}}
	o.secrets["shop/s"] = &v1.Secret{Data: map[string][]byte{"k": []byte("v")}}
	for _, tc := range []struct {
		name string
		vol  v1.Volume
		want string
	}{
		{"no configmap", configMapVolume("x"), `configmap "x" not found`},
		{"no secret", secretVolume("x"), `secret "x" not found`},
		{
			"no key", configMapVolume("c", v1.KeyToPath{Key: "zzz", Path: "z"}),
			"configmap references non-existent config key: zzz",
		},
		{
			"no secret key", secretVolume("s", v1.KeyToPath{Key: "zzz", Path: "z"}),
			"references non-existent secret key: zzz",
		},
		{
			"absolute", configMapVolume("c", v1.KeyToPath{Key: "k", Path: "/etc/passwd"}),
			`invalid path "/etc/passwd": must be relative`,
		},
		{
			"up", configMapVolume("c", v1.KeyToPath{Key: "k", Path: "a/../../b"}),
			`invalid path "a/../../b": must not contain '..'`,
		},
		{
			"own names", configMapVolume("c", v1.KeyToPath{Key: "k", Path: "..data"}),
			`invalid path "..data": must not start with '..'`,
		},
		{
			"own names behind a dot", configMapVolume("c", v1.KeyToPath{Key: "k", Path: "./..data"}),
			`invalid path "./..data": must not start with '..'`,
		},
		{"empty", configMapVolume("c", v1.KeyToPath{Key: "k", Path: ""}), "invalid path: must name a file"},
		{
			"the volume itself", configMapVolume("c", v1.KeyToPath{Key: "k", Path: "./"}),
			"invalid path: must name a file",
		},
		{"hostile key", configMapVolume("evil"), `invalid path "../k": must not contain '..'`},
		{
			"file and folder", configMapVolume("c", v1.KeyToPath{Key: "k", Path: "a"},
				v1.KeyToPath{Key: "k", Path: "a/b"}), `path "a" conflicts with path "a/b"`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := m.Setup(t.Context(), podWith(tc.vol))
			want := `MountVolume.SetUp failed for volume "v" : `
			if err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %s%s", err, want, tc.want)
			}
		})
	}
}

func TestSecretIsInMemory(t *testing.T) {
	m, o := start(t)
	o.secrets["shop/s"] = &v1.Secret{Data: map[string][]byte{"k": []byte("v")}}
	projected := vol("p", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
		{Secret: &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: "s"}}}}}})
	vols := setup(t, m, podWith(secretVolume("s"), projected))
	for name, place := range vols {
		dir := place.Path
		var fs unix.Statfs_t
		if err := unix.Statfs(dir, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
			t.Errorf("%s: file system %x, %v; want tmpfs", name, fs.Type, err)
		}
		// Below the mount, on the disk, there is nothing.
		if err := unix.Unmount(dir, 0); err != nil {
			t.Fatal(err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
			t.Errorf("%s: on the disk: %v, %v; want no error, none", name, entries, err)
		}
	}
	// A reboot takes the mounts; the next Setup brings the content back.
	vols = setup(t, m, podWith(secretVolume("s"), projected))
	if diff := cmp.Diff(map[string]string{"k": "0644 v"}, content(t, vols["v"].Path)); diff != "" {
		t.Errorf("files mismatch (-want +got):\n%s", diff)
	}
}

func TestProjected(t *testing.T) {
	m, o := start(t)
	o.configMaps["shop/c"] = &v1.ConfigMap{Data: map[string]string{"ca.crt": "PEM"}}
	o.secrets["shop/s"] = &v1.Secret{Data: map[string][]byte{"token": []byte("t")}}
	pod := podWith(vol("v", v1.VolumeSource{
		Projected: &v1.ProjectedVolumeSource{
			DefaultMode: ptr.To[int32](0o640), Sources: []v1.VolumeProjection{
				{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "c"}}},
				{
					Secret: &v1.SecretProjection{
						LocalObjectReference: v1.LocalObjectReference{Name: "s"},
						Items: []v1.KeyToPath{
							{Key: "token", Path: "in/token", Mode: ptr.To[int32](0o600)},
						},
					},
				},
				{
					Secret: &v1.SecretProjection{
						LocalObjectReference: v1.LocalObjectReference{Name: "none"}, Optional: ptr.To(true),
					},
				},
				{
					DownwardAPI: &v1.DownwardAPIProjection{
						Items: []v1.DownwardAPIVolumeFile{
							{Path: "name", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}},
							{
								Path: "cpu", ResourceFieldRef: &v1.ResourceFieldSelector{
									ContainerName: "c", Resource: "limits.cpu",
								},
								Mode: ptr.To[int32](0o444),
							}},
					},
				},
			},
		},
	}))
	want := map[string]string{
		"ca.crt": "0640 PEM", "in/token": "0600 t", "name": "0640 web", "cpu": "0444 c.limits.cpu",
	}
	if diff := cmp.Diff(want, content(t, setup(t, m, pod)["v"].Path)); diff != "" {
		t.Errorf("files mismatch (-want +got):\n%s", diff)
	}
	pod.Spec.Volumes[0].Projected.Sources[3].DownwardAPI.Items[0].FieldRef.FieldPath = "status.phase"
	if _, err := m.Setup(t.Context(), pod); err == nil ||
		!strings.Contains(err.Error(), "unsupported fieldPath: status.phase") {
		t.Errorf("got %v, want an error with \"unsupported fieldPath: status.phase\"", err)
	}
}

func TestFSGroup(t *testing.T) {
	m, o := start(t)
	o.secrets["shop/s"] = &v1.Secret{Data: map[string][]byte{"k": []byte("v")}}
	pod := podWith(vol("v", v1.VolumeSource{
		Secret: &v1.SecretVolumeSource{SecretName: "s", DefaultMode: ptr.To[int32](0o400)},
	}))
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](4711)}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(setup(t, m, pod)["v"].Path, "k"), &st); err != nil || st.Gid != 4711 ||
		st.Mode&0o777 != 0o440 {
		t.Errorf("gid %d, mode %o, %v; want no error, 4711, 0o440", st.Gid, st.Mode, err)
	}
}

// An update replaces all files in one step, removes what is no more, and leaves no folder behind.
func TestUpdate(t *testing.T) {
	m, o := start(t)
	pod := podWith(configMapVolume("c"))
	o.configMaps["shop/c"] = &v1.ConfigMap{Data: map[string]string{"a": "1", "old": "x"}}
	dir := setup(t, m, pod)["v"].Path
	first, err := os.Readlink(filepath.Join(dir, "..data"))
	if err != nil {
		t.Fatal(err)
	}
	o.configMaps["shop/c"] = &v1.ConfigMap{Data: map[string]string{"a": "2", "new": "y"}}
	setup(t, m, pod)
	if diff := cmp.Diff(map[string]string{"a": "0644 2", "new": "0644 y"}, content(t, dir)); diff != "" {
		t.Errorf("files mismatch (-want +got):\n%s", diff)
	}
	second, err := os.Readlink(filepath.Join(dir, "..data"))
	if err != nil || second == first {
		t.Errorf("..data leads to %s, %v, want another than %s", second, err, first)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if diff := cmp.Diff([]string{second, "..data", "a", "new"}, names); diff != "" {
		t.Errorf("names mismatch (-want +got):\n%s", diff)
	}
	// A mode alone is a change, too.
	pod.Spec.Volumes[0].ConfigMap.DefaultMode = ptr.To[int32](0o600)
	setup(t, m, pod)
	if diff := cmp.Diff(map[string]string{"a": "0600 2", "new": "0600 y"}, content(t, dir)); diff != "" {
		t.Errorf("files mismatch (-want +got):\n%s", diff)
	}
}

// A reader who goes through "..data" once sees all files of one generation, however often they change.
func TestUpdateIsAtomic(t *testing.T) {
	t.Parallel()
	m, o := start(t)
	pod := podWith(configMapVolume("c"))
	value := func(i int) *v1.ConfigMap {
		s := strings.Repeat(string(rune('a'+i%26)), 1000+i%26)
		return &v1.ConfigMap{Data: map[string]string{"x": s, "y": s}}
	}
	o.configMaps["shop/c"] = value(0)
	dir := setup(t, m, pod)["v"].Path
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var reads atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			if _, err := os.Readlink(filepath.Join(dir, "..data")); err != nil {
				t.Errorf("Readlink(..data): %v, want it to exist always", err)
			}
			fd, err := unix.Open(filepath.Join(dir, "..data"), unix.O_PATH|unix.O_DIRECTORY, 0)
			if err != nil {
				continue // this generation was removed meanwhile: its reader starts again
			}
			x, errX := readAt(fd, "x")
			y, errY := readAt(fd, "y")
			unix.Close(fd)
			if errX == nil && errY == nil {
				reads.Add(1)
				if x != y {
					t.Errorf("one read has x = %q and y = %q, want them the same", x, y)
				}
			}
		}
	})
	updates := 0
	update := func() {
		updates++
		o.configMaps["shop/c"] = value(updates)
		setup(t, m, pod)
	}
	for range 300 {
		update()
	}
	wait.Until(t, "100 reads between updates", func() error {
		update()
		if n := reads.Load(); n < 100 {
			return fmt.Errorf("%d reads, want 100", n)
		}
		return nil
	})
	cancel()
	wg.Wait()
}

func readAt(dir int, name string) (string, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	buf := make([]byte, 4096)
	n, err := unix.Read(fd, buf)
	return string(buf[:max(n, 0)]), err
}

// Killed at any point of an update, the next Setup finishes it and leaves nothing of it behind.
func TestKilledUpdate(t *testing.T) {
	for _, tc := range []struct {
		name  string
		wreck func(t *testing.T, dir string)
	}{
		{
			"files half written", func(t *testing.T, dir string) {
				must(t, os.Mkdir(filepath.Join(dir, "..2001_01_01_00_00_00.1"), 0o755),
					os.WriteFile(filepath.Join(dir, "..2001_01_01_00_00_00.1", "k"), nil, 0o600))
			},
		},
		{
			"link not yet renamed", func(t *testing.T, dir string) {
				must(t, os.Mkdir(filepath.Join(dir, "..2001_01_01_00_00_00.1"), 0o755),
					os.Symlink("..2001_01_01_00_00_00.1", filepath.Join(dir, "..data_tmp")))
			},
		},
		{"names not yet linked", func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, "k"))) }},
		{"old names not yet removed", func(t *testing.T, dir string) {
			must(t, os.Symlink("..data/gone", filepath.Join(dir, "gone")))
		}},
		{"data lost in a power cut", func(t *testing.T, dir string) {
			must(t, os.Truncate(filepath.Join(dir, "k"), 0))
		}},
		{"link to nothing", func(t *testing.T, dir string) {
			must(t, os.Remove(filepath.Join(dir, "..data")), os.Symlink("..gone", filepath.Join(dir, "..data")))
		}},
		{"link out of the volume", func(t *testing.T, dir string) {
			must(t, os.Remove(filepath.Join(dir, "..data")), os.Symlink("/etc", filepath.Join(dir, "..data")))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, o := start(t)
			o.configMaps["shop/c"] = &v1.ConfigMap{Data: map[string]string{"k": "v"}}
			dir := setup(t, m, podWith(configMapVolume("c")))["v"].Path
			tc.wreck(t, dir)
			setup(t, m, podWith(configMapVolume("c")))
			if diff := cmp.Diff(map[string]string{"k": "0644 v"}, content(t, dir)); diff != "" {
				t.Errorf("files mismatch (-want +got):\n%s", diff)
			}
			if entries, err := os.ReadDir(dir); err != nil || len(entries) != 3 {
				t.Errorf("in the volume: %v, %v; want ..<time>, ..data and k", entries, err)
			}
		})
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Files belong to the user that their item names, or else their volume; tokens then to nobody else.
func TestOwnersOfFiles(t *testing.T) {
	m, o := start(t)
	o.configMaps["shop/c"] = &v1.ConfigMap{Data: map[string]string{"a": "1", "b": "2"}}
	o.secrets["shop/s"] = &v1.Secret{Data: map[string][]byte{"s": []byte("3")}}
	vols := setup(t, m,
		podWith(vol("p", v1.VolumeSource{
			Projected: &v1.ProjectedVolumeSource{
				DefaultUser: ptr.To[int64](7), Sources: []v1.VolumeProjection{
					{
						ConfigMap: &v1.ConfigMapProjection{
							LocalObjectReference: v1.LocalObjectReference{Name: "c"},
							Items: []v1.KeyToPath{
								{Key: "a", Path: "a"}, {Key: "b", Path: "b", User: ptr.To[int64](8)},
							},
						},
					},
					{
						DownwardAPI: &v1.DownwardAPIProjection{
							Items: []v1.DownwardAPIVolumeFile{
								{
									Path: "n", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"},
									User: ptr.To[int64](9),
								},
							},
						},
					},
					{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "t"}},
					{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "u", User: ptr.To[int64](10)}},
				},
			},
		}), vol("s", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s", DefaultUser: ptr.To[int64](11)}})))
	got := map[string]string{}
	for _, path := range []string{
		vols["p"].Path + "/a", vols["p"].Path + "/b", vols["p"].Path + "/n", vols["p"].Path + "/t",
		vols["p"].Path + "/u", vols["s"].Path + "/s",
	} {
		var st unix.Stat_t
		must(t, unix.Stat(path, &st))
		got[filepath.Base(path)] = fmt.Sprintf("%04o %d", st.Mode&0o7777, st.Uid)
	}
	if diff := cmp.Diff(map[string]string{"a": "0644 7", "b": "0644 8", "n": "0644 9", "t": "0600 7", "u": "0600 10",
		"s": "0644 11"}, got); diff != "" {
		t.Errorf("files mismatch (-want +got):\n%s", diff)
	}
}
