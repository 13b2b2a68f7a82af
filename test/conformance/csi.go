package conformance

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/test/testenv/csi"
	"github.com/edgecore-io/edgecore/test/testenv/env"
)

// The driver of a row is its own, and comes after the pod: each row shows that a pod waits for its driver.
const csiDriver = `
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: @NAME@.@NODE@}
spec: {attachRequired: false, podInfoOnMount: true, volumeLifecycleModes: [Persistent, Ephemeral], tokenRequests: [{audience: bank}]}
`

// csiVolume is a PersistentVolume, and a claim on it; %s is volumeMode and more of its spec.
const csiVolume = `
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: @NAME@.@NODE@}
spec:
  capacity: {storage: 16Mi}
  accessModes: [ReadWriteOnce]
  storageClassName: "@NAME@.@NODE@"
  persistentVolumeReclaimPolicy: Retain
  MORE
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: @NAME@}
spec: {accessModes: [ReadWriteOnce], storageClassName: "@NAME@.@NODE@", resources: {requests: {storage: 16Mi}}, VOLUMEMODE}
`

// withVolume fills the two in. fsType "" is a block volume.
func withVolume(fsType, attach string) string {
	more, mode := "csi: {driver: @NAME@.@NODE@, volumeHandle: vol, fsType: "+fsType+
		", volumeAttributes: {colour: red}}", "volumeMode: Filesystem"
	if fsType == "" {
		mode = "volumeMode: Block"
		more = "csi: {driver: @NAME@.@NODE@, volumeHandle: vol}"
	}
	return strings.Replace(csiDriver, "attachRequired: false", "attachRequired: "+attach, 1) +
		strings.NewReplacer("MORE", mode+"\n  "+more, "VOLUMEMODE", mode).Replace(csiVolume)
}

const claimVolume = "volumes: [{name: v, persistentVolumeClaim: {claimName: @NAME@}}]\n"

// csiStart starts the driver of a row, after its pod was told that it is not there.
func csiStart(p *pod, kind string) *csi.Driver {
	p.Helper()
	p.event("FailedMount", "driver name "+p.csiName()+" not found in the list of registered CSI drivers")
	base, err := os.MkdirTemp("", "csi") // p.TempDir is too long for the path of a socket
	env.Must(p, err)
	p.Cleanup(func() { env.Must(p, os.RemoveAll(base)) })
	binary, err := csi.Build(p.Context(), base)
	env.Must(p, err)
	d := csi.Start(p, csi.Options{
		Binary: binary,
		Name:   p.csiName(),
		Node:   p.node.name,
		Root:   filepath.Join(p.node.Dir, "root"),
		Dir:    filepath.Join(base, "driver"),
	})
	if kind != "" {
		d.Create(p, "vol", kind, 16<<20)
	}
	return d
}

func (p *pod) csiName() string { return p.name + "." + p.node.name }

// csiEnd deletes the pod, with its driver still there, and checks that nothing of its volumes is left.
func csiEnd(p *pod, d *csi.Driver) {
	p.Helper()
	p.delete()
	p.until("nothing is left of its volumes", d.Left)
}

func csiRows() []row {
	return []row{
		{name: "csi-claim", objects: withVolume("ext4", "false"), check: csiClaim, spec: claimVolume + `
securityContext: {fsGroup: 1234, runAsUser: 4321}
containers:
- {name: main, volumeMounts: [{name: v, mountPath: /v}]}
- {name: reader, volumeMounts: [{name: v, mountPath: /v, readOnly: true}, {name: v, mountPath: /s, subPath: sub}]}
`},
		{name: "csi-block", objects: withVolume("", "false"), check: csiBlock, spec: claimVolume + `
containers: [{name: main, volumeDevices: [{name: v, devicePath: /dev/disk}]}]
`},
		{
			name:    "csi-inline",
			objects: csiDriver,
			check:   csiInline,
			spec: `
serviceAccountName: default
volumes: [{name: v, csi: {driver: @NAME@.@NODE@, volumeAttributes: {colour: blue}}}, {name: r, csi: {driver: @NAME@.@NODE@, readOnly: true}}]
containers: [{name: main, volumeMounts: [{name: v, mountPath: /v}, {name: r, mountPath: /r}]}]
`,
		},
		{
			name:    "csi-ephemeral",
			objects: strings.Split(withVolume("ext4", "false"), "---\napiVersion: v1\nkind: PersistentVolumeClaim")[0],
			check:   csiEphemeral,
			spec: `
volumes:
- name: v
  ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], storageClassName: "@NAME@.@NODE@", resources: {requests: {storage: 16Mi}}}}}
containers: [{name: main, volumeMounts: [{name: v, mountPath: /v}]}]
`,
		},
		{name: "csi-attach", objects: withVolume("ext4", "true"), bound: true, check: csiAttach, spec: claimVolume + `
containers: [{name: main, volumeMounts: [{name: v, mountPath: /v}]}]
`},
		{name: "csi-grow", objects: withVolume("tmpfs", "false"), check: csiGrow, spec: claimVolume + `
containers: [{name: main, volumeMounts: [{name: v, mountPath: /v}]}]
`},
	}
}

func csiClaim(p *pod) {
	d := csiStart(p, "ext4")
	p.running()
	p.says("main", "echo one >/v/file; mkdir -p /v/sub; cat /v/file; stat -c %g /v/file", "one\n1234")
	p.says("reader", "cat /v/file; echo two >/v/file 2>/dev/null || echo refused; ls -d /s", "one\nrefused\n/s")
	if got := string(d.Calls(p, "NodePublishVolume")[0].Request); !strings.Contains(got,
		`"csi.storage.k8s.io/pod.name":"`+p.name+`"`) || !strings.Contains(got, `"colour":"red"`) {
		p.Errorf("request of NodePublishVolume = %s, want pod name %s, colour red", got, p.name)
	}
	p.until("the CSINode names the driver", func() error {
		n, err := p.node.api.StorageV1().CSINodes().Get(p.Context(), p.node.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, one := range n.Spec.Drivers {
			if one.Name == p.csiName() && one.NodeID == "id-of-"+p.node.name && len(one.TopologyKeys) == 1 {
				return nil
			}
		}
		return fmt.Errorf("drivers %+v", n.Spec.Drivers)
	})
	node, err := p.node.api.CoreV1().Nodes().Get(p.Context(), p.node.name, metav1.GetOptions{})
	env.Must(p, err)
	if node.Labels["topology."+p.csiName()+"/node"] != p.node.name ||
		!strings.Contains(node.Annotations["csi.volume.kubernetes.io/nodeid"], p.csiName()) {
		p.Errorf("labels %v, annotations %v, want the topology and the node ID of %s",
			node.Labels, node.Annotations, p.csiName())
	}
	csiEnd(p, d)
}

func csiBlock(p *pod) {
	d := csiStart(p, "block")
	p.running()
	p.says("main", "test -b /dev/disk && echo written | dd of=/dev/disk conv=notrunc 2>/dev/null; dd if=/dev/disk "+
		"bs=8 count=1 2>/dev/null", "written")
	csiEnd(p, d)
}

func csiInline(p *pod) {
	d := csiStart(p, "")
	p.running()
	p.says("main", "cat /v/colour /v/ephemeral /v/pod.name; touch /r/x 2>/dev/null || echo read-only",
		"bluetrue"+p.name+"read-only")
	p.says("main", `grep -c '"bank":{"token":"ey' /v/serviceAccount.tokens`, "1")
	csiEnd(p, d)
	if left, err := os.ReadDir(filepath.Join(d.Dir, "volumes")); err != nil || len(left) > 0 {
		p.Errorf("volumes of the driver = %v, %v, want none", left, err)
	}
}

func csiEphemeral(p *pod) {
	d := csiStart(p, "ext4")
	p.running()
	p.says("main", "echo mine >/v/file; cat /v/file", "mine")
	claim, err := p.node.api.CoreV1().PersistentVolumeClaims(p.node.name).Get(p.Context(), p.name+"-v",
		metav1.GetOptions{})
	if err != nil || claim.Spec.VolumeName != p.csiName() {
		p.Errorf("claim = %+v, %v, want volume %s", claim, err, p.csiName())
	}
	csiEnd(p, d)
}

// csiAttach plays the attacher of the driver: the controllers of Kubernetes ask for the attachment and take it away.
func csiAttach(p *pod) {
	attachments := p.node.api.StorageV1().VolumeAttachments()
	find := func() (*storagev1.VolumeAttachment, error) {
		list, err := attachments.List(p.Context(), metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			if a := &list.Items[i]; a.Spec.Attacher == p.csiName() {
				return a, nil
			}
		}
		return nil, apierrors.NewNotFound(v1.Resource("volumeattachment"), p.csiName())
	}
	d := csiStart(p, "ext4")
	var a *storagev1.VolumeAttachment
	p.until("the controllers ask for the attachment", func() (err error) { a, err = find(); return err })
	p.event("FailedMount", "is not ready")
	if calls := d.Calls(p, "NodeStageVolume"); len(calls) > 0 {
		p.Errorf("%d calls of NodeStageVolume before the volume was attached, want 0", len(calls))
	}
	a.Status = storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"device": "x"}}
	_, err := attachments.UpdateStatus(p.Context(), a, metav1.UpdateOptions{})
	env.Must(p, err)
	p.running()
	if got := string(d.Calls(p, "NodeStageVolume")[0].Request); !strings.Contains(got,
		`"publishContext":{"device":"x"}`) {
		p.Errorf("request of NodeStageVolume = %s, want the publish context device x", got)
	}
	inUse := func(want bool) func() error {
		name := "kubernetes.io/csi/" + p.csiName() + "^vol"
		return func() error {
			node, err := p.node.api.CoreV1().Nodes().Get(p.Context(), p.node.name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if got := strings.Contains(fmt.Sprint(node.Status.VolumesInUse), name); got != want {
				return fmt.Errorf("volumesInUse %v", node.Status.VolumesInUse)
			}
			return nil
		}
	}
	p.until("it is in use", inUse(true))
	csiEnd(p, d)
	p.until("it is not in use", inUse(false))
	p.until("the controllers detach it", func() error {
		a, err := find()
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil && a.DeletionTimestamp == nil {
			err = errors.New("the attachment is still there")
		}
		return err
	})
}

// csiGrow grows the volume, as a resizer does, before the driver is there.
func csiGrow(p *pod) {
	p.event("FailedMount", "not found in the list of registered CSI drivers")
	claims := p.node.api.CoreV1().PersistentVolumeClaims(p.node.name)
	_, err := p.node.api.CoreV1().PersistentVolumes().Patch(p.Context(), p.csiName(), types.MergePatchType,
		[]byte(`{"spec":{"capacity":{"storage":"32Mi"}}}`), metav1.PatchOptions{})
	env.Must(p, err)
	d := csiStart(p, "tmpfs")
	p.running()
	p.event("FileSystemResizeSuccessful", "MountVolume.NodeExpandVolume succeeded for volume")
	p.until("the claim's status tells the size", func() error {
		claim, err := claims.Get(p.Context(), p.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := claim.Status.Capacity[v1.ResourceStorage]; got.Cmp(resource.MustParse("32Mi")) != 0 {
			return fmt.Errorf("capacity %s, conditions %+v", got.String(), claim.Status.Conditions)
		}
		return nil
	})
	csiEnd(p, d)
}
