package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// everything is a pod with a volume of each kind and binds of sub-paths, set up; host is a folder of the
// node with a file "precious".
func everything(t *testing.T, m *Manager, o *objects) (pod *v1.Pod, vols Volumes, host string) {
	t.Helper()
	o.configMaps["shop/c"] = &v1.ConfigMap{Data: map[string]string{"k": "v"}}
	o.secrets["shop/s"] = &v1.Secret{Data: map[string][]byte{"k": []byte("v")}}
	host = t.TempDir()
	must(t, os.Mkdir(filepath.Join(host, "sub"), 0o755), os.WriteFile(filepath.Join(host, "precious"), []byte("x"),
		0o644),
		os.WriteFile(filepath.Join(host, "sub/precious"), []byte("x"), 0o644))
	pod = podWith(
		vol("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}),
		vol("memory", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}),
		vol("h", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: host}}),
		vol("c", v1.VolumeSource{
			ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "c"}},
		}),
		vol("s", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}),
	)
	vols = setup(t, m, pod)
	_, err := m.Mounts(pod, container(
		v1.VolumeMount{Name: "h", SubPath: "sub"}, v1.VolumeMount{Name: "h", SubPath: "precious"},
		v1.VolumeMount{Name: "memory", SubPath: "x"},
		v1.VolumeMount{Name: "c", SubPath: "k"}), vols, noExpand)
	must(t, err)
	return pod, vols, host
}

func checkPrecious(t *testing.T, host string) {
	t.Helper()
	for _, name := range []string{"precious", "sub/precious"} {
		if data, err := os.ReadFile(filepath.Join(host, name)); err != nil || string(data) != "x" {
			t.Errorf("the node lost %s: %q, %v; want no error, \"x\"", name, data, err)
		}
	}
}

func TestTeardown(t *testing.T) {
	m, o := start(t)
	_, vols, host := everything(t, m, o)
	podDir := filepath.Join(m.opts.Root, "pods", string(uid))
	// Traps: links to the node's files, and a folder nested in what a container made.
	must(t, os.Symlink(host, filepath.Join(vols["disk"].Path, "link")),
		os.Symlink(filepath.Join(host, "precious"), filepath.Join(vols["memory"].Path, "link")),
		os.MkdirAll(filepath.Join(vols["disk"].Path, "a/b/c"), 0o000),
		os.WriteFile(filepath.Join(podDir, "etc-hosts"), nil, 0o644))
	points, err := mountsBelow(podDir)
	must(t, err)
	if len(points) != 6 { // two tmpfs, four binds
		t.Errorf("mounts: %v, want 6", points)
	}
	other := New(m.opts) // an agent that knows nothing of the pod but its UID
	for range 2 {
		must(t, other.Teardown(t.Context(), uid))
	}
	checkPrecious(t, host)
	if points, err := mountsBelow(podDir); err != nil || len(points) != 0 {
		t.Errorf("still mounted: %v, %v; want no error, none", points, err)
	}
	entries, err := os.ReadDir(podDir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "etc-hosts" {
		t.Errorf("left in the pod's folder: %v, %v; want no error, one, \"etc-hosts\"", entries, err)
	}
	// RemovePodDir unmounts what was mounted since.
	late := filepath.Join(podDir, "late")
	must(t, os.Mkdir(late, 0o755), unix.Mount("tmpfs", late, "tmpfs", 0, ""))
	for range 2 {
		must(t, other.RemovePodDir(uid))
	}
	if _, err := os.Lstat(podDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pod's folder: %v, want os.ErrNotExist", err)
	}
	must(t, other.Teardown(t.Context(), "never-seen"), other.RemovePodDir("never-seen"))
	// A pod of another name is not touched.
	if got, err := m.Pods(); err != nil || len(got) != 0 {
		t.Errorf("Pods() = %v, %v; want none", got, err)
	}
}

// However far an earlier Teardown came before it was killed, the next ends it.
func TestKilledTeardown(t *testing.T) {
	for steps := range 8 {
		m, o := start(t)
		_, vols, host := everything(t, m, o)
		podDir := filepath.Join(m.opts.Root, "pods", string(uid))
		points, err := mountsBelow(podDir)
		must(t, err)
		for _, point := range points[:min(steps, len(points))] {
			must(t, unix.Unmount(point, 0))
		}
		if steps > len(points) {
			must(t, os.RemoveAll(vols["c"].Path))
		}
		must(t, m.Teardown(t.Context(), uid), m.RemovePodDir(uid))
		checkPrecious(t, host)
		if _, err := os.Lstat(podDir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after %d steps: the pod's folder: %v, want os.ErrNotExist", steps, err)
		}
	}
}

// After a reboot nothing is mounted, and the folders are still there.
func TestTeardownAfterReboot(t *testing.T) {
	m, o := start(t)
	_, _, host := everything(t, m, o)
	must(t, unmountAll(m.opts.Root), m.Teardown(t.Context(), uid), m.RemovePodDir(uid))
	checkPrecious(t, host)
}

func TestTeardownOfStackedAndBusyMounts(t *testing.T) {
	m, _ := start(t)
	dir := setup(t, m, podWith(emptyDir(v1.StorageMediumMemory, "")))["v"].Path
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""), os.Mkdir(filepath.Join(dir, "in"), 0o755),
		unix.Mount("tmpfs", filepath.Join(dir, "in"), "tmpfs", 0, ""))
	busy, err := os.Create(filepath.Join(dir, "in/open"))
	must(t, err)
	defer busy.Close()
	must(t, m.Teardown(t.Context(), uid), m.RemovePodDir(uid))
}

// The pod's folder being a link to somewhere else, nothing there is removed.
func TestPodFolderIsALink(t *testing.T) {
	m, _ := start(t)
	elsewhere := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(elsewhere, "volumes"), 0o755),
		os.Mkdir(filepath.Join(m.opts.Root, "pods"), 0o755),
		os.Symlink(elsewhere, filepath.Join(m.opts.Root, "pods", "linked")))
	for _, err := range []error{m.Teardown(t.Context(), "linked"), m.RemovePodDir("linked")} {
		if err == nil || !strings.Contains(err.Error(), "it is left alone") {
			t.Errorf("got %v, want an error with \"it is left alone\"", err)
		}
	}
	if _, err := os.Stat(filepath.Join(elsewhere, "volumes")); err != nil {
		t.Error(err)
	}
}

// The root may be reached by a link, as /var/lib is on some devices.
func TestRootBehindALink(t *testing.T) {
	real, o := start(t)
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(real.opts.Root, link))
	m := New(Options{Root: link, Objects: o, Fields: fields{}})
	_, _, host := everything(t, m, o)
	must(t, m.Teardown(t.Context(), uid), m.RemovePodDir(uid))
	checkPrecious(t, host)
	if points, err := mountsBelow(real.opts.Root); err != nil || len(points) != 0 {
		t.Errorf("still mounted: %v, %v; want no error, none", points, err)
	}
}

// removeTree on its own, that is with the unmounting before it having missed something: a bind of the same
// file system has the same device, and is left alone all the same.
func TestRemovalStopsAtMounts(t *testing.T) {
	for _, kind := range []string{"bind of a folder", "tmpfs", "bind of a file"} {
		t.Run(kind, func(t *testing.T) {
			base := t.TempDir()
			tree, host := filepath.Join(base, "tree"), filepath.Join(base, "host")
			point := filepath.Join(tree, "a/mount")
			must(t, os.MkdirAll(filepath.Dir(point), 0o755), os.Mkdir(host, 0o755),
				os.WriteFile(filepath.Join(host, "precious"), []byte("x"), 0o644))
			source, fs, flags := host, "", uintptr(unix.MS_BIND)
			switch kind {
			case "bind of a folder":
				must(t, os.Mkdir(point, 0o755))
			case "tmpfs":
				must(t, os.Mkdir(point, 0o755))
				source, fs, flags = "tmpfs", "tmpfs", 0
			case "bind of a file":
				must(t, os.WriteFile(point, nil, 0o644))
				source = filepath.Join(host, "precious")
			}
			must(t, unix.Mount(source, point, fs, flags, ""))
			t.Cleanup(func() { must(t, unmountAll(base)) })
			if fs == "tmpfs" {
				must(t, os.WriteFile(filepath.Join(point, "precious"), []byte("x"), 0o644))
			}
			if err := removeTree(t.Context(), tree); err == nil || !strings.Contains(err.Error(), point) {
				t.Errorf("got %v, want an error about %s", err, point)
			}
			if data, err := os.ReadFile(filepath.Join(host, "precious")); err != nil || string(data) != "x" {
				t.Errorf("lost: %q, %v; want no error, \"x\"", data, err)
			}
			if fs == "tmpfs" {
				if _, err := os.Stat(filepath.Join(point, "precious")); err != nil {
					t.Errorf("Stat of a file below the mount: %v, want it to exist", err)
				}
			}
			err := removeParts(t.Context(), tree, ".")
			if err == nil || !strings.Contains(err.Error(), "still mounted are "+point) {
				t.Errorf("removeParts: %v, want an error with \"still mounted are %s\"", err, point)
			}
			must(t, unmountAll(tree), removeTree(t.Context(), tree))
		})
	}
}

// No pod can make what cannot be removed: folders nested beyond the longest path, many files, and names that
// the removal itself uses.
func TestRemovalOfHostileTrees(t *testing.T) {
	base := t.TempDir()
	tree := filepath.Join(base, "tree")
	must(t, os.MkdirAll(filepath.Join(tree, ".removing-1/full"), 0o755),
		os.WriteFile(filepath.Join(tree, ".removing-2"), nil, 0o644))
	fd, err := unix.Open(tree, unix.O_PATH|unix.O_DIRECTORY, 0)
	must(t, err)
	for range 1000 { // "deep/" so often is longer than any path may be
		must(t, unix.Mkdirat(fd, "deep", 0o000))
		next, err := unix.Openat(fd, "deep", unix.O_PATH|unix.O_DIRECTORY, 0)
		must(t, err, unix.Close(fd))
		fd = next
	}
	must(t, unix.Close(fd))
	for i := range 1000 { // more than one read of a folder returns
		must(t, os.WriteFile(filepath.Join(tree, "deep", strconv.Itoa(i)), nil, 0o000))
	}
	must(t, unix.Mkfifo(filepath.Join(tree, "fifo"), 0), unix.Mknod(filepath.Join(tree, "null"), unix.S_IFCHR,
		int(unix.Mkdev(1, 3))))
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	defer func() { must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }()
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 256, Max: limit.Max}))
	must(t, removeTree(t.Context(), tree))
	if entries, err := os.ReadDir(base); err != nil || len(entries) != 0 {
		t.Errorf("left: %v, %v; want no error, none", entries, err)
	}
}

func TestRemovalEndsWithItsContext(t *testing.T) {
	tree := filepath.Join(t.TempDir(), "tree")
	must(t, os.MkdirAll(filepath.Join(tree, "a"), 0o755))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := removeTree(ctx, tree); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

func TestMountID(t *testing.T) {
	dir := t.TempDir()
	fd, err := unix.Open(dir, unix.O_PATH, 0)
	must(t, err)
	defer unix.Close(fd)
	a, err := mountID(fd)
	must(t, err)
	b, err := mountIDFromProc(fd)
	must(t, err)
	if a != b || a == 0 {
		t.Errorf("mount ID by statx = %d, by fdinfo = %d, want the same, not 0", a, b)
	}
}

func TestTeardownLeavesOtherPods(t *testing.T) {
	m, _ := start(t)
	pod := podWith(emptyDir(v1.StorageMediumMemory, ""))
	dirs := map[types.UID]string{}
	for _, id := range []types.UID{"a", "ab", "abc"} {
		pod.UID = id
		dirs[id] = setup(t, m, pod)["v"].Path
		must(t, os.WriteFile(filepath.Join(dirs[id], "f"), nil, 0o644))
	}
	must(t, m.Teardown(t.Context(), "a"), m.RemovePodDir("a"))
	for _, id := range []types.UID{"ab", "abc"} {
		if _, err := os.Stat(filepath.Join(dirs[id], "f")); err != nil {
			t.Errorf("pod %s: %v, want no error", id, err)
		}
	}
}

// Files and folders that a container made immutable, or only to be appended to, go with the pod's.
func TestTeardownOfImmutableFiles(t *testing.T) {
	m, _ := start(t)
	dir := setup(t, m, podWith(emptyDir("", "")))["v"].Path
	must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o755), os.WriteFile(filepath.Join(dir, "a/f"), nil, 0o644),
		os.WriteFile(filepath.Join(dir, "a/b/g"), nil, 0o644))
	outside := filepath.Join(t.TempDir(), "precious")
	must(t, os.WriteFile(outside, []byte("x"), 0o644), setFlags(outside, fsImmutable),
		os.Symlink(outside, filepath.Join(dir, "link")))
	t.Cleanup(func() { must(t, setFlags(outside, 0)) })
	for name, flag := range map[string]int{"a/b/g": fsImmutable, "a/f": fsAppend, "a/b": fsImmutable, "a": fsAppend,
		"": fsImmutable} {
		must(t, setFlags(filepath.Join(dir, name), flag))
	}
	must(t, m.Teardown(t.Context(), uid), m.RemovePodDir(uid))
	if _, err := os.Lstat(filepath.Join(m.opts.Root, "pods", string(uid))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pod's folder: %v, want os.ErrNotExist", err)
	}
	if flags, err := getFlags(outside); err != nil || flags&fsImmutable == 0 {
		t.Errorf("flags of a file outside = %x, %v, want %x set", flags, err, fsImmutable)
	}
}

func setFlags(path string, flags int) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags), f.Close())
}

func getFlags(path string) (uint32, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	flags, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	return flags, errors.Join(err, f.Close())
}

// TestMountsBelow: mounts are found by their path, whatever characters it has, and whatever else is mounted.
func TestMountsBelow(t *testing.T) {
	long := strings.Repeat("l", 200)
	for _, name := range []string{
		"plain", "a name with spaces", "back\\slash", "tab\tand\nline", "ends with a space ", "o\\040", long,
	} {
		t.Run(fmt.Sprintf("%.20q", name), func(t *testing.T) {
			base := t.TempDir()
			dir, other := filepath.Join(base, name), filepath.Join(base, name+"2")
			below := filepath.Join(dir, "sub/folder")
			must(t, os.Mkdir(dir, 0o755), os.Mkdir(other, 0o755), unix.Mount("tmpfs", dir, "tmpfs", 0, ""),
				os.MkdirAll(below, 0o755), unix.Mount("tmpfs", below, "tmpfs", 0, ""),
				unix.Mount("tmpfs", other, "tmpfs", 0, ""))
			t.Cleanup(func() { must(t, unmountAll(base)) })
			points, err := mountsBelow(dir)
			if want := []string{below, dir}; err != nil || !slices.Equal(points, want) {
				t.Errorf("mountsBelow(%q) = %q, %v; want %q", dir, points, err, want)
			}
		})
	}
}
