package csi

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/storage/volume"
)

// Two pods share a file system: it is staged once, unstaged after the last, and what was written is there next time.
func TestFileSystem(t *testing.T) {
	for _, kind := range []string{"ext4", ""} {
		t.Run("kind "+kind, func(t *testing.T) {
			n := newNode(t, object(nil))
			n.driver.Create(t, "vol", kind, 16*mega)
			spec := claimed("vol", kind, func(pv *v1.PersistentVolume) {
				if kind != "" {
					pv.Spec.MountOptions = []string{"noatime"}
				}
			})
			a, b := aPod("a"), aPod("b")
			pathA := n.up(a, spec)
			if want := filepath.Join(n.root, "pods/uid-a/volumes/kubernetes.io~csi/pv-vol/mount"); pathA != want {
				t.Errorf("path %s, want %s", pathA, want)
			}
			write(t, filepath.Join(pathA, "file"), "from a")
			pathB := n.up(b, spec)
			if got := read(t, filepath.Join(pathB, "file")); got != "from a" {
				t.Errorf("pod b reads %q, want %q", got, "from a")
			}
			for range 3 {
				n.up(a, spec)
			}
			if got := n.calls("NodePublishVolume"); got != 2 {
				t.Errorf("%d publications, want 2", got)
			}
			n.down(a, spec)
			if got := n.calls("NodeUnstageVolume"); got != 0 {
				t.Errorf("unstaged %d times under pod b, want never", got)
			}
			if got := read(t, filepath.Join(pathB, "file")); got != "from a" {
				t.Errorf("pod b reads %q, want %q", got, "from a")
			}
			n.down(b, spec)
			n.clean()
			if got := n.calls("NodeUnstageVolume"); got != 1 {
				t.Errorf("unstaged %d times, want once", got)
			}
			if got := read(t, filepath.Join(n.up(b, spec), "file")); got != "from a" {
				t.Errorf("later pod b reads %q, want %q", got, "from a")
			}
			n.down(b, spec)
			n.clean()
		})
	}
}

func TestWhatDriversAreTold(t *testing.T) {
	n := newNode(t, object(func(s *storagev1.CSIDriverSpec) {
		s.PodInfoOnMount = ptr.To(true)
		s.TokenRequests = []storagev1.TokenRequest{{Audience: "bank", ExpirationSeconds: ptr.To[int64](700)}, {}}
	}))
	n.cluster.secrets["keys/stage"] = &v1.Secret{Data: map[string][]byte{"k": []byte("s1")}}
	n.cluster.secrets["keys/publish"] = &v1.Secret{Data: map[string][]byte{"k": []byte("s2")}}
	n.driver.Create(t, "vol", "ext4", 16*mega)
	spec := claimed("vol", "ext4", func(pv *v1.PersistentVolume) {
		pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
		pv.Spec.MountOptions = []string{"noatime"}
		pv.Spec.CSI.VolumeAttributes = map[string]string{"colour": "red"}
		pv.Spec.CSI.NodeStageSecretRef = &v1.SecretReference{Namespace: "keys", Name: "stage"}
		pv.Spec.CSI.NodePublishSecretRef = &v1.SecretReference{Namespace: "keys", Name: "publish"}
	})
	spec.ReadOnly = true
	pod := aPod("a")
	path := n.up(pod, spec)
	if err := os.WriteFile(filepath.Join(path, "x"), nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("writing to a read-only volume: %v, want %v", err, unix.EROFS)
	}
	stage, publish := n.last("NodeStageVolume"), n.last("NodePublishVolume")
	staging := filepath.Join(n.root, "plugins/kubernetes.io/csi", driverName, sha("vol"), "globalmount")
	capability := map[string]any{
		"mount":      map[string]any{"fsType": "ext4", "mountFlags": []any{"noatime"}},
		"accessMode": map[string]any{"mode": "SINGLE_NODE_SINGLE_WRITER"},
	}
	if diff := cmp.Diff(map[string]any{
		"volumeId": "vol", "stagingTargetPath": staging, "secrets": map[string]any{"k": "s1"},
		"volumeContext":    map[string]any{"colour": "red"},
		"volumeCapability": capability,
	}, stage); diff != "" {
		t.Errorf("NodeStageVolume mismatch (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]any{
		"volumeId": "vol", "stagingTargetPath": staging, "targetPath": path, "readonly": true,
		"secrets": map[string]any{"k": "s2"}, "volumeCapability": capability,
		"volumeContext": map[string]any{
			"colour": "red", "csi.storage.k8s.io/pod.name": "a", "csi.storage.k8s.io/pod.namespace": "shop",
			"csi.storage.k8s.io/pod.uid":             "uid-a",
			"csi.storage.k8s.io/serviceAccount.name": "till", "csi.storage.k8s.io/ephemeral": "false",
			"csi.storage.k8s.io/serviceAccount.tokens": `{"":{"token":"a for \"\", 0 s","expirationTimestamp":"2001-09-09T01:46:40Z"},"bank":{"token":"a for \"bank\", 700 s","expirationTimestamp":"2001-09-09T01:46:40Z"}}`,
		},
	}, publish); diff != "" {
		t.Errorf("NodePublishVolume mismatch (-want +got):\n%s", diff)
	}
	n.fails(aPod("b"), spec, "volume uses the ReadWriteOncePod access mode and is already in use by another pod")
	n.down(pod, spec)
	delete(n.cluster.secrets, "keys/publish")
	n.fails(pod, spec, `failed to get secret keys/publish: object "keys/publish" not found`)
	n.down(pod, spec)
	n.clean()
}

func TestInline(t *testing.T) {
	n := newNode(t, object(func(s *storagev1.CSIDriverSpec) {
		s.PodInfoOnMount = ptr.To(true)
		s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}
		s.TokenRequests, s.ServiceAccountTokenInSecrets = []storagev1.TokenRequest{{Audience: "bank"}}, ptr.To(true)
	}))
	n.cluster.secrets["shop/own"] = &v1.Secret{Data: map[string][]byte{"k": []byte("s")}}
	spec := inline("scratch", func(s *v1.CSIVolumeSource) {
		s.VolumeAttributes = map[string]string{"colour": "blue"}
		s.NodePublishSecretRef = &v1.LocalObjectReference{Name: "own"}
	})
	pod := aPod("a")
	path := n.up(pod, spec)
	if got := read(t, filepath.Join(path, "colour")) + read(t, filepath.Join(path, "ephemeral")) +
		read(t, filepath.Join(path, "pod.name")); got != "bluetruea" {
		t.Errorf("the volume holds %q, want %q", got, "bluetruea")
	}
	secrets := n.last("NodePublishVolume")["secrets"].(map[string]any)
	if secrets["k"] != "s" || !strings.Contains(secrets["csi.storage.k8s.io/serviceAccount.tokens"].(string),
		`a for \"bank\", 0 s`) {
		t.Errorf("secrets are %v, want those of the volume and a token for bank", secrets)
	}
	if got := n.calls("NodeStageVolume"); got != 0 {
		t.Errorf("%d calls of NodeStageVolume for an inline volume, want 0", got)
	}
	n.down(pod, spec)
	n.clean()
	if left, err := os.ReadDir(filepath.Join(n.driver.Dir, "volumes")); err != nil || len(left) > 0 {
		t.Errorf("the driver has %v (%v), want nothing", left, err)
	}
	n.driver.Create(t, "vol", "", mega)
	n.fails(pod, claimed("vol", "", nil), `volume mode "Persistent" not supported by driver `+driverName+
		` (only supports ["Ephemeral"])`)
}

// A volume of a mode that the driver does not have, or of no CSIDriver, is refused in the kubelet's words.
func TestRefusedModes(t *testing.T) {
	n := newNode(t, object(nil))
	n.fails(aPod("a"), inline("v", nil), `volume mode "Ephemeral" not supported by driver `+driverName+
		` (only supports ["Persistent"])`)
	n.cluster.change(func() { delete(n.cluster.drivers, driverName) })
	n.fails(aPod("a"), inline("v", nil), `volume mode "Ephemeral" not supported by driver `+driverName+
		` (no CSIDriver object)`)
	n.down(aPod("a"), inline("v", nil))
	n.clean()
}

func TestBlock(t *testing.T) {
	n := newNode(t, object(nil))
	n.driver.Create(t, "disk", "block", 16*mega)
	spec := claimed("disk", "", func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock) })
	spec.Block = true
	a, b := aPod("a"), aPod("b")
	path := n.up(a, spec)
	if want := filepath.Join(n.root, "plugins/kubernetes.io/csi/volumeDevices/publish/pv-disk/uid-a"); path != want {
		t.Errorf("path %s, want %s", path, want)
	}
	disk, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT|unix.O_SYNC, 0)
	must(t, err)
	var st unix.Stat_t
	must(t, unix.Fstat(int(disk.Fd()), &st), disk.Close())
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		t.Errorf("mode is %o, want a block device", st.Mode)
	}
	n.up(b, spec)
	n.restart()
	n.ready()
	n.up(a, spec)
	if got := n.calls("NodePublishVolume"); got != 2 {
		t.Errorf("%d publications, want 2", got)
	}
	n.down(a, spec)
	n.up(b, spec)
	n.down(b, spec)
	n.clean()
}

func TestFSGroup(t *testing.T) {
	file, none := storagev1.FileFSGroupPolicy, storagev1.NoneFSGroupPolicy
	for _, tc := range []struct {
		name    string
		policy  *storagev1.FSGroupPolicy
		fsType  string
		access  v1.PersistentVolumeAccessMode
		without string
		group   any
		owned   []string
	}{
		{"the driver does it", nil, "ext4", v1.ReadWriteOnce, "", "1234", nil},
		{"once, with a type", nil, "ext4", v1.ReadWriteOnce, "VOLUME_MOUNT_GROUP", nil, []string{"a mount"}},
		{"many", nil, "ext4", v1.ReadWriteMany, "VOLUME_MOUNT_GROUP", nil, nil},
		{"no type", nil, "", v1.ReadWriteOnce, "VOLUME_MOUNT_GROUP", nil, nil},
		{"File", &file, "", v1.ReadWriteMany, "VOLUME_MOUNT_GROUP", nil, []string{"a mount"}},
		{"None", &none, "ext4", v1.ReadWriteOnce, "VOLUME_MOUNT_GROUP", nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t, object(func(s *storagev1.CSIDriverSpec) { s.FSGroupPolicy = tc.policy }), tc.without)
			n.driver.Create(t, "vol", tc.fsType, 16*mega)
			pod := aPod("a")
			pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](1234)}
			spec := claimed("vol", tc.fsType, func(pv *v1.PersistentVolume) { pv.Spec.AccessModes[0] = tc.access })
			path := n.up(pod, spec)
			got := n.last(
				"NodePublishVolume")["volumeCapability"].(map[string]any)["mount"].(map[string]any)["volumeMountGroup"]
			if got != tc.group {
				t.Errorf("the driver was told the group %v, want %v", got, tc.group)
			}
			if diff := cmp.Diff(tc.owned, n.noted(&n.owned)); diff != "" {
				t.Errorf("changed owners mismatch (-want +got):\n%s", diff)
			}
			if info, err := os.Stat(path); err != nil || tc.group != nil && info.Sys().(*syscall.Stat_t).Gid != 1234 {
				t.Errorf("%s is %+v (%v), want group %v", path, info, err, tc.group)
			}
			n.down(pod, spec)
			n.clean()
		})
	}
}

// A driver without staging: what it publishes is all there is.
func TestWithoutStaging(t *testing.T) {
	n := newNode(t, object(nil), "STAGE_UNSTAGE_VOLUME")
	n.driver.Create(t, "vol", "", mega)
	spec := claimed("vol", "", nil)
	write(t, filepath.Join(n.up(aPod("a"), spec), "x"), "1")
	n.down(aPod("a"), spec)
	n.clean()
	if got := n.calls("NodeStageVolume") + n.calls("NodeUnstageVolume"); got != 0 {
		t.Errorf("%d calls to stage and unstage of a driver without staging, want 0", got)
	}
	n.fails(aPod("a"), volume.Spec{Name: "x"}, "volume x is not a CSI volume")
}
