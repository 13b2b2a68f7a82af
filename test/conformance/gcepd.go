package conformance

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/edgecore-io/edgecore/test/testenv/gcepd"
)

// gcepdVolume is a claim on a disk of the CSI driver of Google's persistent disks.
func gcepdVolume(fsType string) string {
	return strings.NewReplacer("volumeHandle: vol", "volumeHandle: "+gcepd.Handle("disk-1"),
		", volumeAttributes: {colour: red}", "").Replace(withVolume(fsType, "false"))
}

// gcepdRows are those of a driver that others have released, and that knows nothing of edgecore.
func gcepdRows() []row {
	return []row{
		{name: "csi-gcepd", objects: gcepdVolume("ext4"), check: gcepdFileSystem, spec: claimVolume + `
securityContext: {fsGroup: 1234, runAsUser: 4321}
containers:
- {name: main, volumeMounts: [{name: v, mountPath: /v}]}
- {name: reader, volumeMounts: [{name: v, mountPath: /v, readOnly: true}, {name: v, mountPath: /s, subPath: sub}]}
`},
		{name: "csi-gcepd-block", objects: gcepdVolume(""), check: gcepdBlock, spec: claimVolume + `
containers: [{name: main, volumeDevices: [{name: v, devicePath: /dev/disk}]}]
`},
	}
}

// gcepdStart starts the driver of a row, after its pod was told that it is not there.
func gcepdStart(p *pod) {
	p.Helper()
	p.event("FailedMount", "driver name "+p.csiName()+" not found in the list of registered CSI drivers")
	gcepd.Start(p, gcepd.Options{
		Name: p.csiName(),
		Node: p.node.name,
		Root: filepath.Join(p.node.Dir, "root"),
		Disk: "disk-1",
		Size: 16 << 20,
	})
}

// gcepdEnd deletes the pod, with its driver still there, and checks that nothing of its volume is staged any more.
func gcepdEnd(p *pod) {
	p.Helper()
	p.delete()
	p.until("nothing of its volume is staged", func() error {
		left, err := os.ReadDir(filepath.Join(p.node.Dir, "root", "plugins", "kubernetes.io", "csi", p.csiName()))
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("still there: %s", left[0].Name())
		}
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	})
}

func gcepdFileSystem(p *pod) {
	gcepdStart(p)
	p.running()
	p.says("main", "echo one >/v/file; mkdir -p /v/sub; cat /v/file; stat -c %g /v/file; grep ' /v ' /proc/mounts | "+
		"cut -d' ' -f3", "one\n1234\next4")
	p.says("reader", "cat /v/file; echo two >/v/file 2>/dev/null || echo refused; ls -d /s", "one\nrefused\n/s")
	gcepdEnd(p)
}

func gcepdBlock(p *pod) {
	gcepdStart(p)
	p.running()
	p.says("main", "test -b /dev/disk && echo written | dd of=/dev/disk conv=notrunc 2>/dev/null; dd if=/dev/disk "+
		"bs=8 count=1 2>/dev/null", "written")
	gcepdEnd(p)
}
