package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/storage/volume"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

const gone = "driver name " + driverName + " not found in the list of registered CSI drivers"

// An agent that is killed at any step of bringing or taking a volume finds all that there is of it.
func TestAgentKilled(t *testing.T) {
	for _, step := range []string{"NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"} {
		for _, kind := range []string{"ext4", "block"} {
			t.Run(step+" "+kind, func(t *testing.T) {
				n := newNode(t, object(nil))
				n.driver.Create(t, "vol", kind, 16*mega)
				spec := claimed("vol", strings.TrimPrefix(kind, "block"), nil)
				spec.Block = kind == "block"
				pod := aPod("a")
				undoing := strings.HasPrefix(step, "NodeUn")
				if undoing {
					n.up(pod, spec)
				}
				n.driver.Fault(t, step, "lost on the way")
				_, err := n.set(pod, spec)
				if undoing {
					err = n.take(pod, spec)
				}
				if err == nil ||
					!strings.Contains(err.Error(), step+": rpc error: code = Unavailable desc = lost on the way") {
					t.Errorf("%s failed with %v, want the driver's error", step, err)
				}
				n.restart()
				n.ready()
				n.driver.Fault(t, step, "")
				n.up(pod, spec) // the pod lives on
				n.down(pod, spec)
				n.clean()
			})
		}
	}
}

// What was published is used by the next agent with the driver dead and the cloud away.
func TestInPlaceIsEnough(t *testing.T) {
	n := newNode(t, object(nil))
	n.driver.Create(t, "vol", "ext4", 16*mega)
	spec := claimed("vol", "ext4", nil)
	pod := aPod("a")
	path := n.up(pod, spec)
	must(t, n.driver.End(t.Context(), syscall.SIGTERM))
	n.cluster.change(func() { n.cluster.offline = true; n.cluster.drivers = nil })
	n.restart()
	if got := n.up(pod, spec); got != path {
		t.Errorf("path %s, want %s", got, path)
	}
	n.fails(aPod("b"), spec, "kubernetes.io/csi: "+gone)
	// The driver is missing when the pod goes, and comes back later.
	if err := n.take(pod, spec); err == nil || !strings.Contains(err.Error(), gone) {
		t.Errorf("taking the volume away without the driver: %v, want %q", err, gone)
	}
	if err := n.take(aPod("b"), spec); err != nil {
		t.Errorf("taking it from a pod that never had it: %v, want no error", err)
	}
	n.driver.Run(t)
	n.ready()
	n.down(pod, spec)
	n.clean()
}

// A driver that is dead, with its sockets still there, or that hangs, holds up one volume and no other.
func TestDeadAndHangingDriver(t *testing.T) {
	n := newNode(t, object(nil))
	for _, id := range []string{"one", "two"} {
		n.driver.Create(t, id, "ext4", 16*mega)
	}
	one, two := claimed("one", "ext4", nil), claimed("two", "ext4", nil)
	n.driver.Fault(t, "NodeStageVolume", "hang")
	ctx, cancel := context.WithCancel(t.Context())
	hung := make(chan error, 1)
	go func() {
		_, err := n.Setup(ctx, aPod("a"), one, n.dir(aPod("a"), one))
		hung <- err
	}()
	wait.Until(t, "the driver to hang", func() error {
		if n.calls("NodeStageVolume") == 0 {
			return errors.New("not called yet")
		}
		return nil
	})
	n.driver.Fault(t, "NodeStageVolume", "")
	n.up(aPod("b"), two)
	short, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer stop()
	if err := n.Teardown(short, "uid-a", n.dir(aPod("a"), one)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("taking a volume away while it is set up: %v, want %v", err, context.DeadlineExceeded)
	}
	if got := n.calls("NodeUnpublishVolume") + n.calls("NodeUnstageVolume"); got != 0 {
		t.Errorf("the driver was asked %d times to take a volume away that it sets up, want never", got)
	}
	cancel() // the pod is deleted
	if err := wait.Receive(t, "the end of the setup that hangs", hung); err == nil {
		t.Error("a setup that was cancelled = nil, want an error")
	}
	n.down(aPod("a"), one)

	must(t, n.driver.End(t.Context(), syscall.SIGKILL))
	if err := n.take(aPod("b"), two); err == nil ||
		!strings.Contains(err.Error(), "NodeUnpublishVolume: rpc error: code = Unavailable") {
		t.Errorf("taking the volume away from a dead driver: %v, want that NodeUnpublishVolume is Unavailable", err)
	}
	n.driver.Run(t)
	n.ready()
	n.down(aPod("b"), two)
	n.clean()
}

// The folder of a pod is removed by hand: its volume is taken away when the driver registers again.
func TestStagedForNobody(t *testing.T) {
	n := newNode(t, object(nil))
	for _, kind := range []string{"ext4", "block"} {
		n.driver.Create(t, kind, kind, 16*mega)
		spec := claimed(kind, strings.TrimPrefix(kind, "block"), nil)
		spec.Block = kind == "block"
		pod := aPod(kind)
		path := n.up(pod, spec)
		if !spec.Block { // which lies elsewhere
			must(t, volume.UnmountAll(path))
		}
		must(t, os.RemoveAll(filepath.Join(n.root, "pods")))
	}
	n.restart()
	n.clean()
}

// A record that a power cut has spoilt: the volume is unmounted without its driver, and unstaged by it later.
func TestSpoiltRecord(t *testing.T) {
	n := newNode(t, object(nil))
	n.driver.Create(t, "vol", "ext4", 16*mega)
	spec := claimed("vol", "ext4", nil)
	pod := aPod("a")
	n.up(pod, spec)
	write(t, filepath.Join(n.dir(pod, spec), "vol_data.json"), "")
	must(t, n.take(pod, spec))
	n.restart()
	n.clean()
}

func TestAttachment(t *testing.T) {
	n := newNode(t, &storagev1.CSIDriver{})
	n.driver.Create(t, "vol", "ext4", 16*mega)
	spec := claimed("vol", "ext4", nil)
	pod := aPod("a")
	name := "csi-" + sha("vol"+driverName+nodeName)
	n.fails(pod, spec, "volume vol is not attached to the node yet: VolumeAttachment "+name+`: object "`+name+
		`" not found`)
	if got, want := fmt.Sprint(n.VolumesInUse()), "[kubernetes.io/csi/"+driverName+"^vol]"; got != want {
		t.Errorf("in use are %s, want %s", got, want)
	}
	for want, status := range map[string]storagev1.VolumeAttachmentStatus{
		"volume attachment " + name + " is not ready": {},
		"VolumeAttachment " + name + ": no such volume": {
			AttachError: &storagev1.VolumeError{Message: "no such volume"},
		},
	} {
		n.cluster.change(func() {
			n.cluster.attachments[name] = &storagev1.VolumeAttachment{
				ObjectMeta: metav1.ObjectMeta{Name: name}, Status: status,
			}
		})
		n.fails(pod, spec, want)
	}
	if got := n.calls("NodeStageVolume"); got > 0 {
		t.Errorf("%d calls of NodeStageVolume before the volume was attached, want 0", got)
	}
	n.cluster.change(func() {
		n.cluster.attachments[name].Status = storagev1.VolumeAttachmentStatus{
			Attached: true, AttachmentMetadata: map[string]string{"device": "/dev/x"},
		}
	})
	// The cluster may detach the volume until it knows that it is in use.
	const notReported = "volume vol has not been added to the list of VolumesInUse in the node's volume status"
	n.fails(pod, spec, notReported)
	n.ReportedInUse(nil)
	n.ready() // pods are looked at again
	n.fails(pod, spec, notReported)
	if got := n.calls("NodeStageVolume"); got > 0 {
		t.Errorf("calls of NodeStageVolume before the volume was reported in use: got %d, want 0", got)
	}
	n.ReportedInUse(n.VolumesInUse())
	n.ready()
	n.up(pod, spec)
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume"} {
		if got := fmt.Sprint(n.last(method)["publishContext"]); got != "map[device:/dev/x]" {
			t.Errorf("%s was told %s, want map[device:/dev/x]", method, got)
		}
	}
	n.restart()
	if got := n.VolumesInUse(); len(got) != 1 {
		t.Errorf("the next agent has in use %v, want one volume", got)
	}
	n.ready()
	// The next agent brings the volume back although nothing was reported yet, and whatever the mount has become.
	must(t, volume.UnmountAll(n.root))
	n.up(pod, spec)
	second := aPod("b")
	n.fails(second, spec, notReported)
	n.ReportedInUse(n.VolumesInUse())
	n.ready()
	n.up(second, spec)
	n.down(second, spec)
	n.down(pod, spec)
	if got := n.VolumesInUse(); len(got) > 0 {
		t.Errorf("in use are %v, want none", got)
	}
	// What was reported does not count for the next use.
	n.fails(pod, spec, notReported)
	n.down(pod, spec)
	n.clean()
}

// With a cloud that knows no CSIDriver, a volume is attached if there is an attachment of it.
func TestNobodyKnowsTheDriver(t *testing.T) {
	n := newNode(t, nil)
	n.driver.Create(t, "vol", "ext4", 16*mega)
	spec := claimed("vol", "ext4", nil)
	n.cluster.change(func() { n.cluster.offline = true })
	n.up(aPod("a"), spec)
	if got := n.VolumesInUse(); len(got) > 0 {
		t.Errorf("in use are %v, want none", got)
	}
	name := "csi-" + sha("vol"+driverName+nodeName)
	n.cluster.change(func() { n.cluster.attachments[name] = &storagev1.VolumeAttachment{} })
	n.fails(aPod("b"), spec, "is not ready")
	n.up(aPod("a"), inline("v", nil))
	n.down(aPod("a"), inline("v", nil))
	n.down(aPod("b"), spec)
	n.down(aPod("a"), spec)
	n.clean()
}

// Drivers that want it publish again; what comes of that is the pod's news, and not its end.
func TestRepublish(t *testing.T) {
	n := newNode(t, object(func(s *storagev1.CSIDriverSpec) { s.RequiresRepublish = ptr.To(true) }))
	n.driver.Create(t, "vol", "ext4", 16*mega)
	spec := claimed("vol", "ext4", nil)
	pod := aPod("a")
	n.up(pod, spec)
	n.up(pod, spec)
	if got := n.calls("NodePublishVolume"); got != 1 {
		t.Errorf("%d publications, want 1", got)
	}
	n.driver.Fault(t, "NodePublishVolume", "not now")
	n.restart() // which knows no time of the last one
	n.ready()
	n.up(pod, spec)
	want := []string{
		`a FailedMount: MountVolume.SetUp failed for volume "pv-vol" : kubernetes.io/csi: NodePublishVolume: rpc error: code = Unavailable desc = not now`,
	}
	if diff := cmp.Diff(want, n.noted(&n.events)); diff != "" {
		t.Errorf("events mismatch (-want +got):\n%s", diff)
	}
	n.driver.Fault(t, "NodePublishVolume", "")
	n.up(pod, spec)
	if got := n.calls("NodePublishVolume"); got != 3 {
		t.Errorf("%d publications, want 3", got)
	}
	n.down(pod, spec)
	n.clean()
}

// The node's objects say what drivers there are, through all their comings and goings.
func TestClusterIsTold(t *testing.T) {
	n := newNode(t, object(nil))
	topology := "topology." + driverName + "/node"
	told := func(want ...storagev1.CSINodeDriver) {
		t.Helper()
		wait.Until(t, "the cluster to know the drivers", func() error {
			n.cluster.mu.Lock()
			defer n.cluster.mu.Unlock()
			if n.cluster.csiNode == nil {
				return errors.New("no CSINode")
			}
			if diff := cmp.Diff(want, n.cluster.csiNode.Spec.Drivers); diff != "" {
				return fmt.Errorf("drivers mismatch (-want +got):\n%s", diff)
			}
			ids := n.cluster.node.Annotations["csi.volume.kubernetes.io/nodeid"]
			if want := slices.ContainsFunc(want, func(d storagev1.CSINodeDriver) bool {
				return d.Name == driverName
			}); want != strings.Contains(ids, fmt.Sprintf("%q:%q", driverName, "id-of-"+nodeName)) {
				return fmt.Errorf("the node's ids are %s, want that of %s: %v", ids, driverName, want)
			}
			return nil
		})
	}
	ours := storagev1.CSINodeDriver{Name: driverName, NodeID: "id-of-" + nodeName, TopologyKeys: []string{topology}}
	told(ours)
	labels, owner := n.cluster.node.Labels, n.cluster.csiNode.OwnerReferences
	if labels[topology] != nodeName || labels["mine"] != "1" || len(owner) != 1 || owner[0].UID != "node-uid" ||
		owner[0].Kind != "Node" {
		t.Errorf("labels are %v and owners %v, want the topology and the node", labels, owner)
	}
	if n.cluster.node.Annotations["volumes.kubernetes.io/controller-managed-attach-detach"] != "true" {
		t.Errorf("annotations are %v, want controller-managed-attach-detach", n.cluster.node.Annotations)
	}
	other := storagev1.CSINodeDriver{Name: "other", NodeID: "7", TopologyKeys: []string{}}
	n.cluster.change(func() {
		n.cluster.csiNode.Spec.Drivers = append(n.cluster.csiNode.Spec.Drivers, other)
	})
	must(t, n.driver.End(t.Context(), syscall.SIGTERM))
	told(other)
	n.driver.Args = []string{"-max-volumes", "9"}
	n.driver.Run(t)
	ours.Allocatable = &storagev1.VolumeNodeResources{Count: ptr.To[int32](9)}
	told(other, ours)
	n.cluster.change(func() { n.cluster.updates = 0; n.cluster.offline = true })
	n.restart()
	n.ready()
	n.cluster.change(func() { n.cluster.offline = false })
	n.Linked()
	told(other, ours)
	n.cluster.change(func() {
		if n.cluster.updates > 0 {
			t.Errorf("%d updates of what was known, want none", n.cluster.updates)
		}
	})
}

// A claim that grows: the file system does, under the pod. Its figures are those of the file system.
func TestGrowAndUsage(t *testing.T) {
	n := newNode(t, object(nil))
	n.driver.Create(t, "vol", "tmpfs", 16*mega)
	spec := claimed("vol", "tmpfs", nil)
	pod := aPod("a")
	path := n.up(pod, spec)
	before := size(t, path)
	n.driver.Expand(t, "vol", 48*mega)
	bigger := claimed("vol", "tmpfs", func(pv *v1.PersistentVolume) {
		pv.Spec.Capacity[v1.ResourceStorage] = *resourceOf(48 * mega)
	})
	n.driver.Fault(t, "NodeExpandVolume", "not now")
	n.up(pod, bigger)
	n.driver.Fault(t, "NodeExpandVolume", "")
	n.up(pod, bigger)
	n.up(pod, bigger)
	if got := size(t, path); got < 2*before {
		t.Errorf("the file system has %d bytes, want twice the %d of before", got, before)
	}
	if diff := cmp.Diff([]string{
		`a VolumeResizeFailed: MountVolume.NodeExpandVolume failed for volume "pv-vol" : kubernetes.io/csi: NodeExpandVolume: rpc error: code = Unavailable desc = not now`,
		`a FileSystemResizeSuccessful: MountVolume.NodeExpandVolume succeeded for volume "pv-vol"`},
		n.noted(&n.events)); diff != "" {
		t.Errorf("events mismatch (-want +got):\n%s", diff)
	}
	n.up(pod, bigger)
	// The cluster did not take it the first time.
	if diff := cmp.Diff([]string{"claim-vol 48Mi", "claim-vol 48Mi"}, n.noted(&n.grown)); diff != "" {
		t.Errorf("claims that grew mismatch (-want +got):\n%s", diff)
	}
	usages := n.Usages(t.Context())
	if len(usages) != 1 || usages[0].Capacity != size(t, path) || usages[0].Claim != "claim-vol" ||
		usages[0].Inodes == 0 || !usages[0].HasCondition || usages[0].Abnormal {
		t.Errorf("usages are %+v, want one of claim-vol with the %d bytes of its file system", usages, size(t, path))
	}
	write(t, filepath.Join(n.driver.Dir, "volumes", "vol", "abnormal"), "")
	if diff := cmp.Diff([]string{
		"available_bytes", "capacity_bytes", "health_status_abnormal 1", "inodes", "inodes_free", "inodes_used",
		"used_bytes",
	}, metrics(t, n.Manager)); diff != "" {
		t.Errorf("metrics mismatch (-want +got):\n%s", diff)
	}
	n.down(pod, spec)
	n.clean()
	if usages := n.Usages(t.Context()); len(usages) > 0 {
		t.Errorf("usages are %+v, want none", usages)
	}
}
