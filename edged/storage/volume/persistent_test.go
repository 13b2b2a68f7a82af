package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func localSource(path string) v1.PersistentVolumeSource {
	return v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: path}}
}

func TestLocalVolume(t *testing.T) {
	m, c, _ := withClaims(t)
	host := t.TempDir()
	must(t, os.WriteFile(filepath.Join(host, "precious"), []byte("x"), 0o600),
		os.Mkdir(filepath.Join(host, "sub"), 0o700),
		os.WriteFile(filepath.Join(host, "sub/precious"), []byte("x"), 0o600))
	_, pv := c.bound("c", "disk", localSource(host))
	pod := podWith(claimVolume("c", false))
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](1234)}
	place := setup(t, m, pod)["v"]
	if want := filepath.Join(m.opts.Root, "pods", string(uid),
		"volumes/kubernetes.io~local-volume/disk"); place.Path != want {
		t.Errorf("at %s, want %s", place.Path, want)
	}
	if diff := cmp.Diff(map[string]string{
		".": "2775 1234", "precious": "0660 1234", "sub": "2770 1234", "sub/precious": "0660 1234",
	}, owners(t, place.Path)); diff != "" {
		t.Errorf("owners mismatch (-want +got):\n%s", diff)
	}
	must(t, os.WriteFile(filepath.Join(host, "new"), nil, 0o600))
	before := stamps(t, host)
	setup(t, m, pod)
	if diff := cmp.Diff(before, stamps(t, host)); diff != "" {
		t.Errorf("a second setup changed files (-want +got):\n%s", diff)
	}
	// Another pod with another group leaves the volume that is in use as it is.
	second := podWith(claimVolume("c", true))
	second.UID, second.Spec.SecurityContext = "second", &v1.PodSecurityContext{FSGroup: ptr.To[int64](99)}
	ro := setup(t, m, second)["v"]
	if err := os.WriteFile(filepath.Join(ro.Path, "new"), nil, 0o600); !errors.Is(err, unix.EROFS) || !ro.ReadOnly {
		t.Errorf("write to a read-only claim: %v, ReadOnly = %t, want %v, true", err, ro.ReadOnly, unix.EROFS)
	}
	third := podWith(claimVolume("c", false))
	third.UID, third.Spec.SecurityContext = "third", second.Spec.SecurityContext
	setup(t, m, third)
	if got := owners(t, host)["precious"]; got != "0660 1234" {
		t.Errorf("a second pod changed the group: %s, want \"0660 1234\"", got)
	}
	// The folder is on a private mount: what the node mounts into it later does not reach the pod.
	must(t, unix.Mount("tmpfs", filepath.Join(host, "sub"), "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, unmountAll(filepath.Join(host, "sub"))) })
	if mounted, err := isMountpoint(filepath.Join(place.Path, "sub")); err != nil || mounted {
		t.Errorf("isMountpoint(sub in the pod) = %t, %v, want false, nil", mounted, err)
	}
	for _, id := range m.pods(t) {
		must(t, m.Teardown(t.Context(), id), m.RemovePodDir(id))
	}
	must(t, unmountAll(filepath.Join(host, "sub")))
	checkPrecious(t, host)
	pv.Spec.Local.Path = filepath.Join(host, "missing")
	for path, want := range map[string]string{
		"missing": "does not exist", "precious": "only directory and block device are supported",
		"../x": "must not contain '..'",
	} {
		pv.Spec.Local.Path = host + "/" + path
		if _, err := m.Setup(t.Context(), pod); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Setup(%s): %v, want an error with %q", path, err, want)
		}
	}
}

// TestLocalVolumeOptions: the bind of a folder has the options of its PersistentVolume, beside a read-only one; where
// it cannot have them, the volume is not set up.
func TestLocalVolumeOptions(t *testing.T) {
	for _, readOnly := range []bool{false, true} {
		m, c, _ := withClaims(t)
		m.opts.Mounter = mountCommand{}
		host := t.TempDir()
		_, pv := c.bound("c", "disk", localSource(host))
		pv.Spec.MountOptions = []string{"noexec", "nosuid"}
		place := setup(t, m, podWith(claimVolume("c", readOnly)))["v"]
		var fs unix.Statfs_t
		must(t, unix.Statfs(place.Path, &fs))
		want := int64(unix.ST_NOEXEC | unix.ST_NOSUID)
		if readOnly {
			want |= unix.ST_RDONLY
		}
		if got := int64(fs.Flags) & (unix.ST_NOEXEC | unix.ST_NOSUID | unix.ST_RDONLY); got != want {
			t.Errorf("flags of the mount, read-only %t: %#x, want %#x", readOnly, got, want)
		}
		must(t, m.Teardown(t.Context(), uid), m.RemovePodDir(uid))
		m.opts.Mounter = &server{refuses: errors.New("no")}
		if _, err := m.Setup(t.Context(), podWith(claimVolume("c", readOnly))); err == nil ||
			!strings.Contains(err.Error(), "mount options [noexec nosuid] of PersistentVolume disk: no") {
			t.Errorf("Setup with options that are refused: %v, want an error that names them", err)
		}
		if mounted, err := isMountpoint(place.Path); err != nil || mounted {
			t.Errorf("isMountpoint after that = %t, %v, want false, nil", mounted, err)
		}
		must(t, m.Teardown(t.Context(), uid), m.RemovePodDir(uid))
	}
}

// A container's mountPropagation needs a mount that shares with the node's, as does a sub-path. Nothing of the node's
// is unmounted with the volume.
func TestLocalVolumeSharesMounts(t *testing.T) {
	for _, sub := range []string{"", "sub"} {
		t.Run("subPath "+sub, func(t *testing.T) {
			m, c, _ := withClaims(t)
			host := t.TempDir()
			must(t, unix.Mount("tmpfs", host, "tmpfs", 0, ""), unix.Mount("", host, "", unix.MS_SHARED, ""),
				os.MkdirAll(filepath.Join(host, "sub/late"), 0o755))
			t.Cleanup(func() { must(t, unmountAll(host)) })
			c.bound("c", "disk", localSource(host))
			pod := podWith(claimVolume("c", false))
			vols := setup(t, m, pod)
			propagation := ptr.To(v1.MountPropagationHostToContainer)
			mount := container(v1.VolumeMount{Name: "v", MountPath: "/m", SubPath: sub, MountPropagation: propagation})
			mounts, err := m.Mounts(pod, mount, vols, noExpand)
			must(t, err)
			late := filepath.Join(host, "sub/late")
			must(t, unix.Mount("tmpfs", late, "tmpfs", 0, ""),
				os.WriteFile(filepath.Join(late, "precious"), []byte("x"), 0o644))
			inPod := filepath.Join(mounts[0].HostPath, strings.TrimPrefix("sub/late", sub))
			if data, err := os.ReadFile(filepath.Join(inPod, "precious")); err != nil || string(data) != "x" {
				t.Errorf("a mount of the node in the pod's volume: got %q, %v, want \"x\", no error", data, err)
			}
			must(t, m.Teardown(t.Context(), uid), m.RemovePodDir(uid))
			if data, err := os.ReadFile(filepath.Join(late, "precious")); err != nil || string(data) != "x" {
				t.Errorf("the node's mount after the pod: got %q, %v, want \"x\", no error", data, err)
			}
		})
	}
}

// TestPropagationOnPrivateMount: where the node's mounts are private, as without systemd, a volume of the pod that a
// container mounts with mountPropagation is on a shared mount nevertheless, and goes with the pod.
func TestPropagationOnPrivateMount(t *testing.T) {
	for name, emptyDir := range map[string]*v1.EmptyDirVolumeSource{
		"disk":   {},
		"memory": {Medium: v1.StorageMediumMemory},
	} {
		for _, sub := range []string{"", "sub"} {
			t.Run(name+" "+sub, func(t *testing.T) {
				m, _, _ := withClaims(t)
				root := m.opts.Root
				must(t, unix.Mount(root, root, "", unix.MS_BIND, ""), unix.Mount("", root, "", unix.MS_PRIVATE, ""))
				t.Cleanup(func() { must(t, unmountAll(root)) })
				pod := podWith(v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: emptyDir}})
				vols := setup(t, m, pod)
				privileged := container(v1.VolumeMount{
					Name:             "v",
					MountPath:        "/m",
					SubPath:          sub,
					MountPropagation: ptr.To(v1.MountPropagationBidirectional),
				})
				privileged.SecurityContext = &v1.SecurityContext{Privileged: ptr.To(true)}
				for range 2 {
					mounts, err := m.Mounts(pod, privileged, vols, noExpand)
					must(t, err)
					shared, err := isShared(mounts[0].HostPath)
					if err != nil || !shared {
						t.Errorf("the mount of the volume is shared: got %v, %v, want true, no error", shared, err)
					}
				}
				must(t, m.Teardown(t.Context(), uid), m.RemovePodDir(uid))
				if points, err := mountsBelow(root); err != nil || len(points) != 1 {
					t.Errorf("mounts after the pod: got %v, %v, want only that of the root", points, err)
				}
			})
		}
	}
}

// loopDevice makes a block device, with a file system or of zeros.
func loopDevice(t *testing.T, format bool) string {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	must(t, os.WriteFile(image, nil, 0o600), os.Truncate(image, 8<<20))
	if format {
		if out, err := exec.CommandContext(t.Context(), "mkfs.ext4", "-q", image).CombinedOutput(); err != nil {
			t.Fatalf("mkfs.ext4: %v, want no error\n%s", err, out)
		}
	}
	out, err := exec.CommandContext(t.Context(), "losetup", "-f", "--show", image).CombinedOutput()
	if err != nil {
		t.Fatalf("losetup: %v, want no error\n%s", err, out)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		must(t, exec.CommandContext(context.WithoutCancel(t.Context()), "losetup", "-d", device).Run())
	})
	return device
}

func TestLocalBlockDevice(t *testing.T) {
	device := loopDevice(t, true)
	m, c, _ := withClaims(t)
	_, pv := c.bound("c", "disk", localSource(device))
	pod := podWith(claimVolume("c", false))
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](77)}
	place := setup(t, m, pod)["v"]
	var fs unix.Statfs_t
	if err := unix.Statfs(place.Path, &fs); err != nil || fs.Type != unix.EXT4_SUPER_MAGIC {
		t.Errorf("file system %x, %v; want no error, EXT4_SUPER_MAGIC", fs.Type, err)
	}
	if got := owners(t, place.Path)["."]; got != "2775 77" {
		t.Errorf("root: %s, want \"2775 77\"", got)
	}
	must(t, os.WriteFile(filepath.Join(place.Path, "f"), nil, 0o644))
	setup(t, m, pod)
	must(t, m.Teardown(t.Context(), uid), m.RemovePodDir(uid))
	again := setup(t, m, pod)["v"]
	if _, err := os.Stat(filepath.Join(again.Path, "f")); err != nil {
		t.Errorf("Stat of a file of the volume: %v, want it to exist", err)
	}
	must(t, m.Teardown(t.Context(), uid))
	pv.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
	pod.Spec.Containers = []v1.Container{{VolumeDevices: []v1.VolumeDevice{{Name: "v", DevicePath: "/dev/v"}}}}
	if diff := cmp.Diff(PodVolume{Path: device, Block: true, Polled: true}, setup(t, m, pod)["v"]); diff != "" {
		t.Errorf("place mismatch (-want +got):\n%s", diff)
	}
	must(t, m.Teardown(t.Context(), uid))
	pv.Spec.Local.Path = t.TempDir()
	if _, err := m.Setup(t.Context(), pod); err == nil || !strings.Contains(err.Error(), "is not a block device") {
		t.Errorf("a folder as a device: %v, want an error with \"is not a block device\"", err)
	}
}

// A device that holds nothing gets a file system; one that holds anything, or is to be read only, does not.
func TestBlankDeviceIsFormatted(t *testing.T) {
	device := loopDevice(t, false)
	m, c, _ := withClaims(t)
	_, pv := c.bound("c", "disk", localSource(device))
	if _, err := m.Setup(t.Context(), podWith(claimVolume("c", true))); err == nil {
		t.Error("Setup(a blank device, read-only) = nil, want an error")
	}
	must(t, m.Teardown(t.Context(), uid))
	pv.Spec.Local.FSType = ptr.To("xfs; reboot")
	if _, err := m.Setup(t.Context(), podWith(claimVolume("c", false))); err == nil ||
		!strings.Contains(err.Error(), "is not a file system type") {
		t.Errorf("Setup() = %v, want \"is not a file system type\"", err)
	}
	pv.Spec.Local.FSType = nil
	if blank, err := isBlank(device); err != nil || !blank {
		t.Fatalf("written before it was to be: %v, %v; want it blank, no error", blank, err)
	}
	place := setup(t, m, podWith(claimVolume("c", false)))["v"]
	must(t, os.WriteFile(filepath.Join(place.Path, "f"), nil, 0o600), m.Teardown(t.Context(), uid))
	pv.Spec.Local.FSType = ptr.To("ext3") // not what is on it: ext4 has features that it has not
	if _, err := m.Setup(t.Context(), podWith(claimVolume("c", false))); err == nil {
		must(t, m.Teardown(t.Context(), uid))
	}
	pv.Spec.Local.FSType = nil
	again := setup(t, m, podWith(claimVolume("c", false)))["v"]
	if _, err := os.Stat(filepath.Join(again.Path, "f")); err != nil {
		t.Errorf("Stat of a file of a device that was not blank: %v, want it to exist", err)
	}
	must(t, m.Teardown(t.Context(), uid))
	// What no program knows is someone's all the same.
	other := loopDevice(t, false)
	must(t, os.WriteFile(other, []byte("precious bytes of an unknown kind"), 0o600))
	if formatted, err := (mountCommand{}).Format(t.Context(), other, "ext4"); formatted || err != nil {
		t.Errorf("formatted: %v, %v; want false, no error", formatted, err)
	}
}

func TestHostPathClaim(t *testing.T) {
	m, c, _ := withClaims(t)
	host := t.TempDir()
	_, pv := c.bound("c", "p", v1.PersistentVolumeSource{
		HostPath: &v1.HostPathVolumeSource{Path: host + "/new", Type: ptr.To(v1.HostPathDirectoryOrCreate)},
	})
	if diff := cmp.Diff(PodVolume{Path: host + "/new", ReadOnly: true, Polled: true},
		setup(t, m, podWith(claimVolume("c", true)))["v"]); diff != "" {
		t.Errorf("place mismatch (-want +got):\n%s", diff)
	}
	must(t, m.Teardown(t.Context(), uid), m.RemovePodDir(uid))
	if _, err := os.Stat(host + "/new"); err != nil {
		t.Errorf("the node's folder after RemovePodDir: %v, want it to exist", err)
	}
	pv.Spec.HostPath.Type = ptr.To(v1.HostPathFile)
	const want = `MountVolume.SetUp failed for volume "v" : hostPath type check failed: %s/new is not a file`
	if _, err := m.Setup(t.Context(), podWith(claimVolume("c", false))); err == nil ||
		err.Error() != fmt.Sprintf(want, host) {
		t.Errorf("Setup() = %v, want that the path is not a file", err)
	}
}

func TestVolumeForOtherNodes(t *testing.T) {
	m, c, _ := withClaims(t)
	_, pv := c.bound("c", "p", localSource(t.TempDir()))
	pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{
		Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{}}},
	}
	m.opts.Selects = func(_ context.Context, s *v1.NodeSelector) (bool, error) {
		if len(s.NodeSelectorTerms) == 2 {
			return false, errors.New("labels are not known")
		}
		return len(s.NodeSelectorTerms) == 0, nil
	}
	for _, want := range []string{"no matching NodeSelectorTerms", "labels are not known"} {
		want = `MountVolume.NodeAffinity check failed for volume "v" : ` + want
		if _, err := m.Setup(t.Context(), podWith(claimVolume("c", false))); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		pv.Spec.NodeAffinity.Required.NodeSelectorTerms = append(pv.Spec.NodeAffinity.Required.NodeSelectorTerms,
			v1.NodeSelectorTerm{})
	}
	pv.Spec.NodeAffinity.Required.NodeSelectorTerms = nil
	setup(t, m, podWith(claimVolume("c", false)))
}

// pods are the UIDs of the pods on the disk.
func (m *Manager) pods(t *testing.T) []types.UID {
	t.Helper()
	uids, err := m.Pods()
	must(t, err)
	return uids
}

func TestReadWriteOncePod(t *testing.T) {
	m, c, _ := withClaims(t)
	_, pv := c.bound("c", "p", csiSource())
	first, second := podWith(claimVolume("c", false)), podWith(claimVolume("c", false))
	second.UID = "second"
	setup(t, m, first)
	setup(t, m, second) // ReadWriteOnce is for a node
	must(t, m.Teardown(t.Context(), second.UID))
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	m = New(m.opts) // an agent that knows what is on the disk only
	const want = `MountVolume.SetUp failed for volume "v" : volume uses the ReadWriteOncePod access mode and is already in use by another pod`
	for range 2 {
		if _, err := m.Setup(t.Context(), second); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		setup(t, m, first)
	}
	must(t, m.Teardown(t.Context(), first.UID))
	setup(t, m, second)
}

func TestPersistentTypesThatAreNotSupported(t *testing.T) {
	for kind, src := range map[string]v1.PersistentVolumeSource{
		"iscsi": {ISCSI: &v1.ISCSIPersistentVolumeSource{}}, "fc": {FC: &v1.FCVolumeSource{}},
		"cephfs":               {CephFS: &v1.CephFSPersistentVolumeSource{}},
		"awsElasticBlockStore": {AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{}}, "unknown": {},
	} {
		m, c, _ := withClaims(t)
		c.bound("c", "p", src)
		want := `MountVolume.SetUp failed for volume "v" : PersistentVolume p is of type ` + kind +
			`, which is not supported by this node; use csi, local, nfs or hostPath`
		if _, err := m.Setup(t.Context(), podWith(claimVolume("c", false))); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// server plays a server: what is mounted of it is a tmpfs. While it hangs, calls wait for the end of their context.
type server struct {
	hangs    bool
	refuses  error
	mounts   []string
	unmounts []bool // forced
}

func (s *server) Mount(ctx context.Context, source, target, fsType string, options []string) error {
	s.mounts = append(s.mounts, fmt.Sprintf("%s %s %v", fsType, source, options))
	if s.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	if s.refuses != nil {
		return s.refuses
	}
	return unix.Mount("tmpfs", target, "tmpfs", 0, "")
}

func (s *server) Unmount(ctx context.Context, target string, force bool) error {
	s.unmounts = append(s.unmounts, force)
	if s.hangs && !force {
		<-ctx.Done()
		return ctx.Err()
	}
	return unix.Unmount(target, unix.MNT_DETACH)
}

func (s *server) Usage(ctx context.Context, target string) (FileSystem, error) {
	if s.hangs {
		<-ctx.Done()
		return FileSystem{}, ctx.Err()
	}
	return mountCommand{}.Usage(ctx, target)
}

func (s *server) Format(context.Context, string, string) (bool, error) { return false, nil }

func TestNFS(t *testing.T) {
	m, c, _ := withClaims(t)
	s := &server{}
	m.opts.Mounter = s
	_, pv := c.bound("c", "share", v1.PersistentVolumeSource{
		NFS: &v1.NFSVolumeSource{Server: "fd00::1", Path: "/exports"},
	})
	pv.Spec.MountOptions, pv.ObjectMeta = []string{"nfsvers=4.2", "soft"},
		metav1.ObjectMeta{Name: "share", Annotations: map[string]string{v1.MountOptionAnnotation: "hard"}}
	pod := podWith(claimVolume("c", true),
		vol("n", v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "nas", Path: "/a"}}))
	dir := filepath.Join(m.opts.Root, "pods", string(uid), "volumes/kubernetes.io~nfs")
	for range 2 {
		want := Volumes{
			"v": {Path: dir + "/share", ReadOnly: true, Polled: true}, "n": {Path: dir + "/n", Polled: true},
		}
		if diff := cmp.Diff(want, setup(t, m, pod)); diff != "" {
			t.Errorf("places mismatch (-want +got):\n%s", diff)
		}
	}
	if diff := cmp.Diff([]string{"nfs [fd00::1]:/exports [hard ro]", "nfs nas:/a []"}, s.mounts); diff != "" {
		t.Errorf("mounts mismatch (-want +got):\n%s", diff)
	}
	pv.Annotations = nil
	if diff := cmp.Diff([]string{"nfsvers=4.2", "soft"}, mountOptions(pv)); diff != "" {
		t.Errorf("mountOptions() mismatch (-want +got):\n%s", diff)
	}
	must(t, m.Teardown(t.Context(), uid), m.RemovePodDir(uid))
	for _, src := range []v1.NFSVolumeSource{
		{Server: "", Path: "/"}, {Server: "-o", Path: "/"}, {Server: "a b", Path: "/"}, {Server: "nas", Path: "x"},
		{Server: "nas", Path: "/../x"},
	} {
		if got, err := nfsSource(&src); err == nil {
			t.Errorf("nfsSource(%+v) = %s, nil, want an error", src, got)
		}
	}
}

// A server that does not answer is waited for no longer than the pod is wanted, and in no other pod.
func TestNFSThatHangs(t *testing.T) {
	m, _, _ := withClaims(t)
	s := &server{hangs: true}
	m.opts.Mounter = s
	pod := podWith(vol("n", v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "nas", Path: "/a"}}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := m.Setup(ctx, pod)
		ended <- err
	}()
	other := podWith(emptyDir("", ""))
	other.UID = "other"
	setup(t, m, other)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Setup() = %v, want context.Canceled", err)
	}
	s.hangs, s.refuses = false, errors.New("mount.nfs: access denied by server")
	const want = `MountVolume.SetUp failed for volume "n" : mount.nfs: access denied by server`
	if _, err := m.Setup(t.Context(), pod); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// What a server holds up is unmounted by force in the end.
func TestUnmountByForce(t *testing.T) {
	m, _, _ := withClaims(t)
	s := &server{}
	m.opts.Mounter = s
	dir := t.TempDir()
	must(t, s.Mount(t.Context(), "nas:/", dir, "nfs", nil))
	s.hangs = true
	must(t, m.unmountOne(wait.Context(t), dir, 10*time.Millisecond))
	if !slices.Equal(s.unmounts, []bool{false, true}) {
		t.Errorf("unmounts by force: %v, want [false true]", s.unmounts)
	}
}

// mount(8) that waits for someone ends with its context, and so does what it started.
func TestMountCommandEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pidFile := filepath.Join(t.TempDir(), "pid")
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, "sh", "-c", `echo waiting; sleep 1000000 & echo $! >"$0.new"; mv "$0.new" "$0"; wait`,
			pidFile)
	}()
	var child int
	wait.Until(t, "the command to wait", func() error {
		text, err := os.ReadFile(pidFile)
		if err == nil {
			child, err = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		return err
	})
	cancel()
	err := wait.Receive(t, "the end of the command", ended)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "waiting") {
		t.Errorf("run() = %v, want context.Canceled with what the command said", err)
	}
	wait.Until(t, "the end of what the command started", func() error {
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child)); err == nil &&
			!strings.Contains(string(stat), ") Z ") {
			return fmt.Errorf("process %d still runs: %s", child, stat)
		}
		return nil
	})
	err = mountCommand{}.Mount(t.Context(), "nas:/x", t.TempDir(), "nfs", []string{"soft"})
	if err == nil || !strings.Contains(err.Error(), "Mounting arguments: -t nfs -o soft -- nas:/x") {
		t.Errorf("Mount() = %v, want an error with the arguments of mount(8)", err)
	}
	target := t.TempDir()
	must(t, unix.Mount("tmpfs", target, "tmpfs", 0, ""), mountCommand{}.Unmount(t.Context(), target, true))
	if mounted, err := isMountpoint(target); err != nil || mounted {
		t.Errorf("isMountpoint after Unmount = %t, %v, want false, nil", mounted, err)
	}
}
