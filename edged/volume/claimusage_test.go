package volume

import (
	"cmp"
	"context"
	"slices"
	"testing"
	"testing/synctest"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func TestClaimUsages(t *testing.T) {
	m, c, _ := withClaims(t)
	m.opts.Mounter = &server{}
	host := t.TempDir()
	must(t, unix.Mount("tmpfs", host, "tmpfs", 0, "size=4m,nr_inodes=64"))
	t.Cleanup(func() { must(t, unmountAll(host)) })
	c.bound("local", "pv-local", localSource(host))
	c.bound("nfs", "pv-nfs", v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "nas", Path: "/"}})
	c.bound("host", "pv-host", v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: host}})
	c.bound("csi", "pv-csi", csiSource())
	device := loopDevice(t, false)
	_, pv := c.bound("raw", "pv-raw", localSource(device))
	pv.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
	pod := podWith(claimed("local"), claimed("nfs"), claimed("host"), claimed("csi"), claimed("raw"))
	app := &pod.Spec.Containers[0]
	app.VolumeMounts, app.VolumeDevices = app.VolumeMounts[:4], []v1.VolumeDevice{{Name: "raw", DevicePath: "/dev/raw"}}
	if got := m.ClaimUsages(t.Context()); len(got) != 0 {
		t.Errorf("usages before the volumes are set up: got %v, want none", got)
	}
	setup(t, m, pod)
	got := m.ClaimUsages(t.Context())
	slices.SortFunc(got, func(a, b ClaimUsage) int { return cmp.Compare(a.Name, b.Name) })
	if len(got) != 3 {
		t.Fatalf("usages: got %v, want those of the local, the nfs and the raw volume", got)
	}
	usage := func(claim string, fs FileSystem) ClaimUsage {
		return ClaimUsage{PodUID: uid, Claim: types.NamespacedName{Namespace: "shop", Name: claim}, Name: "pv-" + claim, FileSystem: fs}
	}
	local := FileSystem{Capacity: 4 << 20, Available: 4 << 20, Inodes: 64, InodesFree: 63, InodesUsed: 1}
	for i, want := range []ClaimUsage{usage("local", local), usage("nfs", got[1].FileSystem), usage("raw", FileSystem{Capacity: 8 << 20})} {
		if diff := gocmp.Diff(want, got[i]); diff != "" {
			t.Errorf("usage %d (-want +got):\n%s", i, diff)
		}
	}
	if fs := got[1].FileSystem; fs.Capacity <= 0 || fs.Used != fs.Capacity-fs.Available || fs.Inodes != fs.InodesFree+fs.InodesUsed {
		t.Errorf("usage of the nfs volume: got %+v, want that of a file system", fs)
	}
	must(t, m.Teardown(t.Context(), uid))
	if got := m.ClaimUsages(t.Context()); len(got) != 0 {
		t.Errorf("usages after the pod: got %v, want none", got)
	}
}

// A server that hangs takes its own figures, and no more time than usageTimeout.
func TestClaimUsageOfAHangingServer(t *testing.T) {
	m, c, _ := withClaims(t)
	s := &server{}
	m.opts.Mounter = s
	c.bound("nfs", "pv-nfs", v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "nas", Path: "/"}})
	setup(t, m, podWith(claimed("nfs")))
	s.hangs = true
	synctest.Test(t, func(t *testing.T) {
		if got := m.ClaimUsages(context.WithoutCancel(t.Context())); len(got) != 0 {
			t.Errorf("usages of a server that hangs: got %v, want none", got)
		}
	})
	s.hangs = false
}
