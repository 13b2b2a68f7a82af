package edge

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/test/testenv/csi"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

const csiName = "hostpath.csi.edgecore.local"

// putClaim stores what the cloud would have answered about a claim on a volume of the driver.
func (n *node) putClaim(s *store.Store, name, kind string) {
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("16Mi")}
	mode, fs := v1.PersistentVolumeFilesystem, kind
	if kind == "block" {
		mode, fs = v1.PersistentVolumeBlock, ""
	}
	n.put(s, "default/persistentvolumeclaim/"+name, &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: "claim-uid"},
		Spec:       v1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name, VolumeMode: &mode},
		Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, Capacity: size},
	})
	n.put(s, "null/persistentvolume/pv-"+name, &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Capacity:    size,
			VolumeMode:  &mode,
			ClaimRef:    &v1.ObjectReference{Namespace: "default", Name: name, UID: "claim-uid"},
			PersistentVolumeSource: v1.PersistentVolumeSource{
				CSI: &v1.CSIPersistentVolumeSource{Driver: csiName, VolumeHandle: name, FSType: fs},
			},
		},
	})
}

// TestCSIOverKills: the agent is killed between staging and publishing, and at the end of a pod; its driver hangs, is
// killed and comes back. The pods run all the same, nothing stays mounted, and what was written stays.
func TestCSIOverKills(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{})
	base, err := os.MkdirTemp("", "csi")
	env.Must(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(base); err != nil {
			t.Error(err)
		}
	})
	binary, err := csi.Build(t.Context(), base)
	env.Must(t, err)
	d := csi.Start(t, csi.Options{
		Binary: binary,
		Name:   csiName,
		Node:   "node1",
		Root:   filepath.Join(n.Dir, "root"),
		Dir:    filepath.Join(base, "driver"),
	})
	d.Create(t, "files", "ext4", 16<<20)
	d.Create(t, "disk", "block", 16<<20)
	d.Fault(t, "NodePublishVolume", "hang")

	p := cloudPod("api")
	p.Spec.Volumes = []v1.Volume{
		{
			Name: "f", VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "files"},
			},
		},
		{
			Name: "d", VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "disk"},
			},
		},
	}
	c := &p.Spec.Containers[0]
	c.Env, c.VolumeMounts = nil, []v1.VolumeMount{{Name: "f", MountPath: "/f"}}
	c.VolumeDevices = []v1.VolumeDevice{{Name: "d", DevicePath: "/dev/xvd"}}
	c.Command = []string{
		"sh", "-c", "echo again >>/f/log; test -b /dev/xvd && echo found $(grep -c again /f/log); " + env.Forever,
	}
	called := func(method string) func() error {
		before := len(d.Calls(t, method))
		return func() error {
			if len(d.Calls(t, method)) == before {
				return errors.New(method + " was not called")
			}
			return nil
		}
	}
	published := called("NodePublishVolume")
	n.stored(func(s *store.Store) {
		n.putClaim(s, "files", "ext4")
		n.putClaim(s, "disk", "block")
		n.put(s, "null/csidriver/"+csiName, &storagev1.CSIDriver{
			ObjectMeta: metav1.ObjectMeta{Name: csiName}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)},
		})
		n.put(s, "default/pod/api", p)
	})
	wait.Until(t, "NodePublishVolume", published)
	n.kill()
	d.Fault(t, "NodePublishVolume", "")
	n.start()
	pods := n.Running("api")
	n.saysUntil(pods["api"], "found 1")
	before := n.RunningContainers()

	// The driver is dead and the agent is killed: the pod goes on.
	env.Must(t, d.End(t.Context(), syscall.SIGKILL))
	n.kill()
	n.start()
	n.Running("api")
	n.same(before)

	// The pod is deleted, and its driver dead: it is taken away when the driver is back, over one more kill.
	n.stored(func(s *store.Store) {
		gone := p.DeepCopy()
		gone.DeletionTimestamp, gone.DeletionGracePeriodSeconds = ptr.To(metav1.Now()), ptr.To[int64](1)
		n.put(s, "default/pod/api", gone)
	})
	n.nothingRuns()
	if err := d.Left(); err == nil {
		t.Error("nothing is left of the volumes, want mounts that only the driver can take away")
	}
	d.Fault(t, "NodeUnstageVolume", "hang")
	unstage := called("NodeUnstageVolume")
	d.Run(t)
	wait.Until(t, "NodeUnstageVolume", unstage)
	n.kill()
	d.Fault(t, "NodeUnstageVolume", "")
	n.start()
	wait.Until(t, "the volumes to go", d.Left)
	n.NothingLeft()

	// Its data is there for the next.
	n.stored(func(s *store.Store) {
		next := p.DeepCopy()
		next.Name, next.UID = "next", "7c2b1a52-7d2c-4b0e-8d19-bd0f1d5b3c99"
		n.put(s, "default/pod/next", next)
	})
	pods = n.Running("next")
	n.saysUntil(pods["next"], "found 2")
	n.stored(func(s *store.Store) {
		env.Must(t, s.Apply(t.Context(), store.Delete("default/pod/next")))
	})
	wait.Until(t, "the volumes to go", d.Left)
	n.NothingLeft()
}
