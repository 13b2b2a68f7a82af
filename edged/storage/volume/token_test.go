package volume

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func tokenVolume() v1.Volume {
	return vol("token", v1.VolumeSource{
		Projected: &v1.ProjectedVolumeSource{DefaultMode: ptr.To[int32](0o644), Sources: []v1.VolumeProjection{
			{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", Audience: "vault"}},
		}},
	})
}

func runAs(users ...int64) []v1.Container {
	var list []v1.Container
	for _, u := range users {
		list = append(list, v1.Container{SecurityContext: &v1.SecurityContext{RunAsUser: ptr.To(u)}})
	}
	return list
}

// TestToken: it lies in memory, and is for those alone who need it where the pod says who that is.
func TestToken(t *testing.T) {
	for _, c := range []struct {
		name       string
		containers []v1.Container
		security   *v1.PodSecurityContext
		mode       os.FileMode
		uid, gid   uint32
	}{
		{"anybody", []v1.Container{{}}, nil, 0o644, 0, 0},
		{"one user", runAs(1000, 1000), nil, 0o600, 1000, 0},
		{"two users", runAs(1000, 1001), nil, 0o644, 0, 0},
		{"the pod's user", []v1.Container{{}}, &v1.PodSecurityContext{RunAsUser: ptr.To[int64](7)}, 0o600, 7, 0},
		{"one of its own", append(runAs(8), v1.Container{}), &v1.PodSecurityContext{RunAsUser: ptr.To[int64](7)}, 0o644,
			0, 0},
		{"a group", []v1.Container{{}}, &v1.PodSecurityContext{FSGroup: ptr.To[int64](9)}, 0o640, 0, 9},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, o := start(t)
			pod := podWith(tokenVolume())
			pod.Spec.Containers, pod.Spec.SecurityContext = c.containers, c.security
			mountAll(pod)
			dir := setup(t, m, pod)["token"].Path
			var fs unix.Statfs_t
			if err := unix.Statfs(dir, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
				t.Errorf("it is not in memory: %x, %v; want no error, TMPFS_MAGIC", fs.Type, err)
			}
			path := filepath.Join(dir, "token")
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			st := info.Sys().(*syscall.Stat_t)
			if info.Mode().Perm() != c.mode || st.Uid != c.uid || st.Gid != c.gid {
				t.Errorf("mode %o of %d:%d, want %o of %d:%d", info.Mode().Perm(), st.Uid, st.Gid, c.mode, c.uid, c.gid)
			}
			if data, err := os.ReadFile(path); err != nil || string(data) != "token of web for vault" {
				t.Errorf("the token is %q, %v; want \"token of web for vault\"", data, err)
			}
			before := stamps(t, dir)
			setup(t, m, pod)
			for path, stamp := range stamps(t, dir) {
				if before[path] != stamp {
					t.Errorf("stamp of %s = %v, want %v: not written again", path, stamp, before[path])
				}
			}
			o.broken = errors.New("no token for now")
			if _, err := m.Setup(t.Context(), pod); err == nil ||
				!strings.Contains(err.Error(), `volume "token" : no token for now`) {
				t.Errorf("Setup without a new token: %v, want an error with \"no token for now\"", err)
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("Stat of the old token: %v, want it to exist", err)
			}
		})
	}
}

// TestOnlyUser: all containers count, also those that were attached for debugging.
func TestOnlyUser(t *testing.T) {
	as := func(user int64) *v1.SecurityContext { return &v1.SecurityContext{RunAsUser: &user} }
	ephemeral := func(sc *v1.SecurityContext) []v1.EphemeralContainer {
		return []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{SecurityContext: sc}}}
	}
	one := []v1.Container{{SecurityContext: as(7)}}
	for name, tc := range map[string]struct {
		spec v1.PodSpec
		user int64
		one  bool
	}{
		"no containers": {v1.PodSpec{}, 0, false},
		"one user":      {v1.PodSpec{Containers: one}, 7, true},
		"an init container": {v1.PodSpec{Containers: one, InitContainers: []v1.Container{{SecurityContext: as(8)}}}, 0,
			false},
		"debugged as it is":  {v1.PodSpec{Containers: one, EphemeralContainers: ephemeral(as(7))}, 7, true},
		"debugged as root":   {v1.PodSpec{Containers: one, EphemeralContainers: ephemeral(as(0))}, 0, false},
		"debugged as anyone": {v1.PodSpec{Containers: one, EphemeralContainers: ephemeral(nil)}, 0, false},
	} {
		if user, one := onlyUser(&v1.Pod{Spec: tc.spec}); user != tc.user || one != tc.one {
			t.Errorf("%s: onlyUser = %d, %v; want %d, %v", name, user, one, tc.user, tc.one)
		}
	}
}

// TestAgain: Setup says when a token is to be renewed, and which volumes it has to look after although nobody tells the
// node of a change.
func TestAgain(t *testing.T) {
	m, o := start(t)
	at := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	o.renewAt = at
	o.configMaps["shop/c"] = &v1.ConfigMap{Data: map[string]string{"k": "v"}}
	vols := setup(t, m, podWith(tokenVolume(), vol("c", v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
		LocalObjectReference: v1.LocalObjectReference{Name: "c"},
	}})))
	if got := vols.RenewAt(); !got.Equal(at) || vols.Polled() {
		t.Errorf("volumes to renew at %v, polled %v; want %v, false", got, vols.Polled(), at)
	}
	if got := (Volumes{"a": {}}).RenewAt(); !got.IsZero() {
		t.Errorf("volumes without a token to renew at %v, want never", got)
	}
	bundle := v1.VolumeProjection{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Path: "ca"}}
	for name, c := range map[string]struct {
		source v1.VolumeSource
		want   bool
	}{
		"emptyDir":  {v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}, false},
		"hostPath":  {v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{}}, false},
		"configMap": {v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}}, false},
		"secret":    {v1.VolumeSource{Secret: &v1.SecretVolumeSource{}}, false},
		"token":     {tokenVolume().VolumeSource, false},
		"bundle": {v1.VolumeSource{
			Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{bundle}},
		}, true},
		"claim":     {v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}, true},
		"ephemeral": {v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}, true},
		"CSI":       {v1.VolumeSource{CSI: &v1.CSIVolumeSource{}}, true},
		"NFS":       {v1.VolumeSource{NFS: &v1.NFSVolumeSource{}}, true},
	} {
		if got := polled(&v1.Volume{VolumeSource: c.source}); got != c.want {
			t.Errorf("%s: polled %v, want %v", name, got, c.want)
		}
	}
}
