package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

// cluster is the claims and volumes of a cluster in memory; asked counts the questions.
type cluster struct {
	claims  map[string]*v1.PersistentVolumeClaim
	volumes map[string]*v1.PersistentVolume
	broken  error
	asked   int
}

func (c *cluster) PersistentVolumeClaim(_ context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error) {
	c.asked++
	if c.broken != nil {
		return nil, c.broken
	}
	if claim, ok := c.claims[namespace+"/"+name]; ok {
		return claim, nil
	}
	return nil, apierrors.NewNotFound(v1.Resource("persistentvolumeclaims"), name)
}

func (c *cluster) PersistentVolume(_ context.Context, name string) (*v1.PersistentVolume, error) {
	c.asked++
	if pv, ok := c.volumes[name]; ok {
		return pv, nil
	}
	return nil, apierrors.NewNotFound(v1.Resource("persistentvolumes"), name)
}

// bound makes a claim shop/<claim> that is bound to a volume of a source, and returns both.
func (c *cluster) bound(
	claim, pv string, src v1.PersistentVolumeSource,
) (*v1.PersistentVolumeClaim, *v1.PersistentVolume) {
	id := types.UID("uid-of-" + claim)
	c.claims["shop/"+claim] = &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: claim, Namespace: "shop", UID: id},
		Spec:       v1.PersistentVolumeClaimSpec{VolumeName: pv},
		Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
	}
	c.volumes[pv] = &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: pv},
		Spec: v1.PersistentVolumeSpec{
			PersistentVolumeSource: src, ClaimRef: &v1.ObjectReference{Namespace: "shop", Name: claim, UID: id},
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		},
	}
	return c.claims["shop/"+claim], c.volumes[pv]
}

// driver keeps a file in each of its folders.
type driver struct {
	specs  map[string]Spec
	stuck  error
	undone []string
}

func (d *driver) Setup(_ context.Context, _ *v1.Pod, spec Spec, dir string) (string, error) {
	if d.specs == nil {
		d.specs = map[string]Spec{}
	}
	d.specs[spec.Name] = spec
	if spec.Block {
		return "/dev/null", os.WriteFile(filepath.Join(dir, "record"), nil, 0o600)
	}
	return filepath.Join(dir, "mount"), os.MkdirAll(filepath.Join(dir, "mount"), 0o755)
}

func (d *driver) Teardown(_ context.Context, _ types.UID, dir string) error {
	if d.stuck != nil {
		return d.stuck
	}
	d.undone = append(d.undone, filepath.Base(dir))
	return nil
}

// withClaims is start with claims and a driver.
func withClaims(t *testing.T) (*Manager, *cluster, *driver) {
	t.Helper()
	m, _ := start(t)
	c, d := &cluster{claims: map[string]*v1.PersistentVolumeClaim{}, volumes: map[string]*v1.PersistentVolume{}},
		&driver{}
	m.opts.Claims, m.opts.Driver = c, d
	return m, c, d
}

func claimVolume(name string, readOnly bool) v1.Volume {
	return vol("v", v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name, ReadOnly: readOnly},
	})
}

func csiSource() v1.PersistentVolumeSource {
	return v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}}
}

// A pod waits, in the kubelet's words, for as long as its claim is not what it can have.
func TestClaimsThatAreNotThere(t *testing.T) {
	const prefix = `Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process volumes=[v]: error processing PVC shop/c: `
	block := v1.PersistentVolumeBlock
	for _, tc := range []struct {
		name  string
		alter func(*cluster, *v1.Pod)
		want  string
	}{
		{"no claim", func(c *cluster, _ *v1.Pod) {
			delete(c.claims, "shop/c")
		}, `failed to fetch PVC from API server: persistentvolumeclaim "c" not found`},
		{"no answer", func(c *cluster, _ *v1.Pod) {
			c.broken = errors.New("the disk is full")
		}, `failed to fetch PVC from API server: the disk is full`},
		{"unbound", func(c *cluster, _ *v1.Pod) {
			c.claims["shop/c"].Status.Phase = v1.ClaimPending
		}, "PVC is not bound"},
		{"no volume named", func(c *cluster, _ *v1.Pod) {
			c.claims["shop/c"].Spec.VolumeName = ""
		}, "PVC is not bound"},
		{"deleted", func(c *cluster, _ *v1.Pod) {
			c.claims["shop/c"].DeletionTimestamp = &metav1.Time{}
		}, "PVC is being deleted"},
		{"no volume", func(c *cluster, _ *v1.Pod) {
			delete(c.volumes, "p")
		}, `failed to fetch PV p from API server: persistentvolume "p" not found`},
		{"volume without claim", func(c *cluster, _ *v1.Pod) { c.volumes["p"].Spec.ClaimRef = nil },
			"found PV object p with nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"},
		{"volume of another claim", func(c *cluster, _ *v1.Pod) { c.volumes["p"].Spec.ClaimRef.UID = "other" },
			"found PV object p with an unexpected pv.Spec.ClaimRef.UID (other, the claim has uid-of-c)"},
		{"block as files", func(c *cluster, p *v1.Pod) {
			c.volumes["p"].Spec.VolumeMode = &block
			p.Spec.Containers = []v1.Container{{VolumeMounts: []v1.VolumeMount{{Name: "v"}}}}
		}, "volume v has volumeMode Block, but is specified in volumeMounts"},
		{"files as block", func(_ *cluster, p *v1.Pod) {
			p.Spec.InitContainers = []v1.Container{{VolumeDevices: []v1.VolumeDevice{{Name: "v"}}}}
		}, "volume v has volumeMode Filesystem, but is specified in volumeDevices"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, c, _ := withClaims(t)
			c.bound("c", "p", csiSource())
			pod := podWith(claimVolume("c", false))
			tc.alter(c, pod)
			_, err := m.Setup(t.Context(), pod)
			if err == nil || err.Error() != prefix+tc.want {
				t.Errorf("got  %v\nwant %s", err, prefix+tc.want)
			}
		})
	}
}

func TestEphemeralClaimHasToBeThePods(t *testing.T) {
	m, c, d := withClaims(t)
	claim, _ := c.bound("web-v", "p", csiSource())
	pod := podWith(vol("v", v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}))
	const want = `failed to process volumes=[v]: error processing PVC shop/web-v: PVC shop/web-v was not created for pod shop/web (pod is not owner)`
	for _, owner := range []metav1.OwnerReference{{}, {UID: "of another", Controller: ptr.To(true)}, {UID: uid}} {
		claim.OwnerReferences = []metav1.OwnerReference{owner}
		if _, err := m.Setup(t.Context(), pod); err == nil || err.Error()[len(err.Error())-len(want):] != want {
			t.Errorf("%+v: %v, want an error, %v", owner, err, want)
		}
	}
	claim.OwnerReferences = []metav1.OwnerReference{{UID: uid, Controller: ptr.To(true)}}
	setup(t, m, pod)
	if d.specs["p"].Claim != claim {
		t.Errorf("the driver got %+v, want %v", d.specs, claim)
	}
}

func TestDriverGetsWhatItNeeds(t *testing.T) {
	m, c, d := withClaims(t)
	claim, pv := c.bound("c", "pvc-1.a", csiSource())
	raw, rawPV := c.bound("raw", "pvc-2", csiSource())
	rawPV.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
	inline := &v1.CSIVolumeSource{Driver: "i", ReadOnly: ptr.To(true)}
	pod := podWith(claimVolume("c", true), vol("i", v1.VolumeSource{CSI: inline}),
		vol("raw", v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "raw"}}))
	app := &pod.Spec.Containers[0]
	app.VolumeMounts, app.VolumeDevices = app.VolumeMounts[:2], []v1.VolumeDevice{{Name: "raw", DevicePath: "/dev/raw"}}
	got := setup(t, m, pod)
	dir := filepath.Join(m.opts.Root, "pods", string(uid))
	want := Volumes{
		"v":   {Path: dir + "/volumes/kubernetes.io~csi/pvc-1.a/mount", ReadOnly: true, Polled: true},
		"i":   {Path: dir + "/volumes/kubernetes.io~csi/i/mount", ReadOnly: true, Polled: true},
		"raw": {Path: "/dev/null", Block: true, Polled: true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("mounts mismatch (-want +got):\n%s", diff)
	}
	specs := map[string]Spec{
		"pvc-1.a": {
			Name:     "pvc-1.a",
			PV:       pv,
			Claim:    claim,
			ReadOnly: true,
		}, "i": {Name: "i", Inline: inline, ReadOnly: true},
		"pvc-2": {Name: "pvc-2", PV: rawPV, Claim: raw, Block: true},
	}
	if diff := cmp.Diff(specs, d.specs); diff != "" {
		t.Errorf("specs mismatch (-want +got):\n%s", diff)
	}
	ctr := &v1.Container{Name: "c", VolumeDevices: []v1.VolumeDevice{{Name: "raw", DevicePath: "/dev/x"}}}
	devices, err := m.Devices(ctr, got)
	must(t, err)
	if diff := cmp.Diff([]*runtimeapi.Device{{HostPath: "/dev/null", ContainerPath: "/dev/x", Permissions: "mrw"}},
		devices, cmp.Comparer(func(a, b *runtimeapi.Device) bool { return a.String() == b.String() })); diff != "" {
		t.Errorf("devices mismatch (-want +got):\n%s", diff)
	}
	readOnly := Volumes{"raw": {Path: "/dev/null", Block: true, ReadOnly: true}}
	if devices, err := m.Devices(ctr, readOnly); err != nil || devices[0].Permissions != "r" {
		t.Errorf("Devices(a device that is read-only) = %v, %v; want permissions r", devices, err)
	}
	if devices, err := m.Devices(&v1.Container{VolumeDevices: []v1.VolumeDevice{{Name: "v"}}}, got); err == nil {
		t.Errorf("Devices(a folder) = %v, nil, want an error", devices)
	}
	if mounts, err := m.Mounts(pod, container(v1.VolumeMount{Name: "raw"}), got, noExpand); err == nil {
		t.Errorf("Mounts(a device) = %v, nil, want an error", mounts)
	}
	mounts, err := m.Mounts(pod, container(v1.VolumeMount{Name: "v", MountPath: "/v"}), got, noExpand)
	if err != nil || !mounts[0].Readonly {
		t.Errorf("%v, %v; want a claim that is read-only to be mounted so", mounts, err)
	}
	asked := c.asked
	setup(t, m, pod)
	if c.asked != asked {
		t.Errorf("a pod that is set up asked the cluster %d times more, want 0", c.asked-asked)
	}
}

// What a driver could not take away stays, with its record; everything else goes, and the next call ends it.
func TestTeardownOfDriven(t *testing.T) {
	m, c, d := withClaims(t)
	c.bound("c", "p", csiSource())
	pod := podWith(claimVolume("c", false),
		vol("m", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}))
	vols := setup(t, m, pod)
	d.stuck = errors.New("driver d is not there")
	other := New(m.opts)
	const want = `UnmountVolume.TearDown failed for volume "p" : driver d is not there`
	if err := other.Teardown(t.Context(), uid); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if err := other.RemovePodDir(uid); err == nil {
		t.Error("RemovePodDir while the driver has a volume = nil, want an error")
	}
	if _, err := os.Stat(vols["v"].Path); err != nil {
		t.Errorf("the driver's folder: %v, want it to exist", err)
	}
	if _, err := os.Stat(vols["m"].Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the other volume: %v, want os.ErrNotExist", err)
	}
	other.opts.Driver = nil
	if err := other.Teardown(t.Context(), uid); err == nil {
		t.Error("Teardown without a driver = nil, want an error")
	}
	d.stuck, other.opts.Driver = nil, d
	must(t, other.Teardown(t.Context(), uid), other.RemovePodDir(uid))
	if diff := cmp.Diff([]string{"p"}, d.undone); diff != "" {
		t.Errorf("volumes taken away mismatch (-want +got):\n%s", diff)
	}
}

func TestNoDriver(t *testing.T) {
	m, _ := start(t)
	for _, v := range []v1.Volume{vol("v", v1.VolumeSource{CSI: &v1.CSIVolumeSource{}}), claimVolume("c", false)} {
		if got, err := m.Setup(t.Context(), podWith(v)); err == nil {
			t.Errorf("Setup(%v) = %v, nil, want an error", v, got)
		}
	}
}
