package edge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/csi"
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
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: "claim-" + "uid"},
		Spec:       v1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name, VolumeMode: &mode},
		Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, Capacity: size},
	})
	n.put(s, "null/persistentvolume/pv-"+name, &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, Capacity: size, VolumeMode: &mode,
			ClaimRef:               &v1.ObjectReference{Namespace: "default", Name: name, UID: "claim-uid"},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: csiName, VolumeHandle: name, FSType: fs}},
		},
	})
}

// TestCSIOverKills: the agent is killed between staging and publishing, and at the end of a pod; its driver hangs, is
// killed and comes back. The pods run all the same, nothing stays mounted, and what was written stays.
func TestCSIOverKills(t *testing.T) {
	n := newNode(t, testenv.Options{}, agent.Options{})
	base, err := os.MkdirTemp("", "csi")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(base); err != nil {
			t.Error(err)
		}
	})
	binary, err := csi.Build(t.Context(), base)
	if err != nil {
		t.Fatal(err)
	}
	d := csi.Start(t, csi.Options{Binary: binary, Name: csiName, Node: "node1", Root: filepath.Join(n.Dir, "root"), Dir: filepath.Join(base, "driver")})
	d.Create(t, "files", "ext4", 16<<20)
	d.Create(t, "disk", "block", 16<<20)
	d.Fault(t, "NodePublishVolume", "hang")

	p := cloudPod("api")
	p.Spec.Volumes = []v1.Volume{
		{Name: "f", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "files"}}},
		{Name: "d", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "disk"}}},
	}
	c := &p.Spec.Containers[0]
	c.Env, c.VolumeMounts = nil, []v1.VolumeMount{{Name: "f", MountPath: "/f"}}
	c.VolumeDevices = []v1.VolumeDevice{{Name: "d", DevicePath: "/dev/xvd"}}
	c.Command = []string{"sh", "-c", "echo again >>/f/log; test -b /dev/xvd && echo found $(grep -c again /f/log); " + forever}
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
		n.put(s, "null/csidriver/"+csiName, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: csiName}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)}})
		n.put(s, "default/pod/api", p)
	})
	testenv.Poll(t, patience, published)
	kill(t, n)
	d.Fault(t, "NodePublishVolume", "")
	restart(t, n)
	pods := n.until("it runs", running("api"))
	testenv.Poll(t, patience, func() error {
		if out := n.logged(pods["api"], "main"); !strings.Contains(out, "found 1") {
			return fmt.Errorf("the container says %q", out)
		}
		return nil
	})
	before := n.lives()

	// The driver is dead and the agent is killed: the pod goes on.
	if err := d.End(t.Context(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	kill(t, n)
	restart(t, n)
	n.until("it still runs", running("api"))
	if after := n.lives(); !maps.Equal(before, after) {
		t.Errorf("containers %v, before %v", after, before)
	}

	// The pod is deleted, and its driver dead: it is taken away when the driver is back, over one more kill.
	n.stored(func(s *store.Store) {
		gone := p.DeepCopy()
		gone.DeletionTimestamp, gone.DeletionGracePeriodSeconds = ptr.To(metav1.Now()), ptr.To[int64](1)
		n.put(s, "default/pod/api", gone)
	})
	testenv.Poll(t, patience, func() error {
		if left := n.lives(); len(left) > 0 {
			return fmt.Errorf("%d containers run", len(left))
		}
		return nil
	})
	if err := d.Left(); err == nil {
		t.Error("taken away without the driver")
	}
	d.Fault(t, "NodeUnstageVolume", "hang")
	unstage := called("NodeUnstageVolume")
	d.Run(t)
	testenv.Poll(t, patience, unstage)
	kill(t, n)
	d.Fault(t, "NodeUnstageVolume", "")
	restart(t, n)
	testenv.Poll(t, patience, d.Left)
	n.nothingLeft()

	// Its data is there for the next.
	n.stored(func(s *store.Store) {
		next := p.DeepCopy()
		next.Name, next.UID = "next", "7c2b1a52-7d2c-4b0e-8d19-bd0f1d5b3c99"
		n.put(s, "default/pod/next", next)
	})
	pods = n.until("the next runs", running("next"))
	testenv.Poll(t, patience, func() error {
		if out := n.logged(pods["next"], "main"); !strings.Contains(out, "found 2") {
			return fmt.Errorf("the container says %q", out)
		}
		return nil
	})
	n.stored(func(s *store.Store) {
		if err := s.Apply(t.Context(), store.Delete("default/pod/next")); err != nil {
			t.Fatal(err)
		}
	})
	testenv.Poll(t, patience, d.Left)
	n.nothingLeft()
}

func kill(t *testing.T, n *node) {
	t.Helper()
	if err := n.Kill9(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func restart(t *testing.T, n *node) {
	t.Helper()
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}
