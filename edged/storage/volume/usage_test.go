package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

func TestDiskUsage(t *testing.T) {
	dir := t.TempDir()
	empty, err := DiskUsage(t.Context(), dir)
	must(t, err)
	block := make([]byte, 64<<10)
	must(t, os.WriteFile(filepath.Join(dir, "a"), block, 0o600),
		os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "b")),
		os.Symlink("/usr", filepath.Join(dir, "link")), os.MkdirAll(filepath.Join(dir, "x/y"), 0o700),
		os.WriteFile(filepath.Join(dir, "x/y/c"), block, 0o600), os.Mkdir(filepath.Join(dir, "mounted"), 0o700))
	sparse := filepath.Join(dir, "sparse")
	must(t, os.WriteFile(sparse, nil, 0o600), os.Truncate(sparse, 1<<30))
	must(t, unix.Mount("tmpfs", filepath.Join(dir, "mounted"), "tmpfs", 0, ""),
		os.WriteFile(filepath.Join(dir, "mounted/m"), make([]byte, 1<<20), 0o600))
	defer func() { must(t, unmountAll(filepath.Join(dir, "mounted"))) }()
	got, err := DiskUsage(t.Context(), dir)
	must(t, err)
	if files := got - empty; files < 128<<10 || files > 128<<10+5*4096 {
		t.Errorf("%d bytes; want those of two files of 64 KiB and of three folders", files)
	}
	if got, err := DiskUsage(t.Context(), filepath.Join(dir, "a")); err != nil || got != 64<<10 {
		t.Errorf("a file: %d, %v; want 65536, no error", got, err)
	}
	if got, err := DiskUsage(t.Context(), filepath.Join(dir, "gone")); err != nil || got != 0 {
		t.Errorf("nothing: %d, %v; want no error, 0", got, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := DiskUsage(ended, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("DiskUsage() = %v, want context.Canceled", err)
	}
}

func TestDiskUsageOfDeepTree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at, err := unix.Open(dir, unix.O_PATH, 0)
	must(t, err)
	const depth = 2200 // "d/" so often is longer than any path may be
	for range depth {
		must(t, unix.Mkdirat(at, "d", 0o755))
		next, err := unix.Openat(at, "d", unix.O_PATH, 0)
		must(t, err, unix.Close(at))
		at = next
	}
	must(t, unix.Close(at))
	got, err := DiskUsage(t.Context(), dir)
	if err != nil || got < depth*512 {
		t.Errorf("%d bytes, %v; want at least %d, no error", got, err, depth*512)
	}
	must(t, removeTree(t.Context(), filepath.Join(dir, "d")))
}

func TestUsage(t *testing.T) {
	m, o := start(t)
	o.configMaps["shop/c"] = &v1.ConfigMap{Data: map[string]string{"k": "v"}}
	pod := podWith(emptyDir("", ""),
		vol("mem", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}),
		vol("host", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/usr"}}),
		vol("c", v1.VolumeSource{
			ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "c"}},
		}))
	dir := setup(t, m, pod)["v"].Path
	must(t, os.WriteFile(filepath.Join(dir, "f"), make([]byte, 1<<20), 0o600))
	got, err := m.Usage(t.Context(), pod)
	must(t, err)
	if got["v"] < 1<<20 || got["v"] > 1<<20+8192 || got["c"] == 0 || got["c"] > 1<<20 {
		t.Errorf("Usage() = %v, want about 1 MiB of v, and less, but some, of c", got)
	}
	if diff := cmp.Diff(2, len(got)); diff != "" {
		t.Errorf("volumes counted: %v, want 2", got)
	}
}

func BenchmarkDiskUsage(b *testing.B) {
	dir := b.TempDir()
	for i := range 10 {
		sub := filepath.Join(dir, string(rune('a'+i)))
		if err := os.Mkdir(sub, 0o755); err != nil {
			b.Fatal(err)
		}
		for j := range 100 {
			if err := os.WriteFile(filepath.Join(sub, string(rune('a'+j/26))+string(rune('a'+j%26))), nil,
				0o600); err != nil {
				b.Fatal(err)
			}
		}
	}
	for b.Loop() {
		if _, err := DiskUsage(b.Context(), dir); err != nil {
			b.Fatal(err)
		}
	}
}

// TestMeasureAroundFaults: a volume that cannot be read keeps no other one from being measured.
func TestMeasureAroundFaults(t *testing.T) {
	m, _ := start(t)
	pod := podWith(vol("bad", v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}}), emptyDir("", ""))
	good, err := m.podVolume(pod.UID, pluginEmptyDir, "v")
	must(t, err, os.MkdirAll(good, 0o755), os.WriteFile(filepath.Join(good, "a"), make([]byte, 64<<10), 0o600))
	bad, err := m.podVolume(pod.UID, pluginConfigMap, "bad")
	must(t, err, os.WriteFile(filepath.Dir(bad), nil, 0o600)) // a file where its folder should be
	use, err := m.Usage(t.Context(), pod)
	if !errors.Is(err, unix.ENOTDIR) || use["v"] < 64<<10 {
		t.Errorf("Usage() = %v, %v; want 64 KiB of v and %v", use, err, unix.ENOTDIR)
	}
	measured, err := m.MeasureVolumes(t.Context(), pod)
	if !errors.Is(err, unix.ENOTDIR) || len(measured) != 2 || measured[1].Name != "v" || measured[1].Bytes < 64<<10 {
		t.Errorf("MeasureVolumes() = %+v, %v; want 64 KiB of v and %v", measured, err, unix.ENOTDIR)
	}
}
