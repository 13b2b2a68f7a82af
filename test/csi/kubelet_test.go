package csi

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
)

// stagedIn are the folders, under that of all CSI, in which kubelets stage a volume: those before 1.24, and those of
// today.
var stagedIn = map[string]string{"by name": "pv/pv-vol", "by handle": driverName + "/" + sha("vol")}

// kubeletStages stages a volume as a kubelet does, and writes what that would write. It returns where.
func (n *node) kubeletStages(dir string, how *spec.VolumeCapability) string {
	n.t.Helper()
	home := filepath.Join(n.root, "plugins/kubernetes.io/csi", dir)
	path := filepath.Join(home, "globalmount")
	must(n.t, os.MkdirAll(path, 0o750))
	write(n.t, filepath.Join(home, "vol_data.json"), `{"driverName":"`+driverName+`","volumeHandle":"vol"}`)
	n.driver.Kubelet(n.t, func(ctx context.Context, c spec.NodeClient) error {
		_, err := c.NodeStageVolume(ctx, &spec.NodeStageVolumeRequest{VolumeId: "vol", StagingTargetPath: path,
			VolumeCapability: how})
		return err
	})
	return path
}

// ext4Volume is how a kubelet asks for one.
func ext4Volume() *spec.VolumeCapability {
	return &spec.VolumeCapability{
		AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{FsType: "ext4"}},
		AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
	}
}

// A volume that a kubelet has brought to a pod is the pod's when this agent takes the device over, is taken away where
// the kubelet has put it, and could be taken away by the kubelet if the device is given back.
func TestKubeletsVolume(t *testing.T) {
	for name, dir := range stagedIn {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, object(nil))
			n.driver.Create(t, "vol", "ext4", 16*mega)
			pod, claim := aPod("a"), claimed("vol", "ext4", nil)
			own := n.dir(pod, claim)
			write(t, filepath.Join(own, "vol_data.json"),
				`{"attachmentID":"csi-0","driverName":"`+driverName+`","nodeName":"`+nodeName+
					`","specVolID":"pv-vol","volumeHandle":"vol","volumeLifecycleMode":"Persistent"}`)
			staging := n.kubeletStages(dir, ext4Volume())
			target := filepath.Join(own, "mount")
			n.driver.Kubelet(t, func(ctx context.Context, c spec.NodeClient) error {
				_, err := c.NodePublishVolume(ctx, &spec.NodePublishVolumeRequest{
					VolumeId:          "vol",
					StagingTargetPath: staging,
					TargetPath:        target,
					VolumeCapability:  ext4Volume(),
				})
				return err
			})
			write(t, filepath.Join(target, "file"), "of before")

			n.restart()
			n.ready()
			if path := n.up(pod, claim); path != target {
				t.Errorf("path %s, want %s", path, target)
			}
			if got := read(t, filepath.Join(target, "file")); got != "of before" {
				t.Errorf("the file holds %q, want %q", got, "of before")
			}
			if got := n.last("NodeStageVolume")["stagingTargetPath"]; got != staging {
				t.Errorf("staged in %v, want %s", got, staging)
			}
			if got := n.calls("NodeUnpublishVolume") + n.calls("NodeUnstageVolume"); got != 0 {
				t.Errorf("taken away %d times, want never", got)
			}
			for _, record := range []string{
				filepath.Join(own, "vol_data.json"), filepath.Join(filepath.Dir(staging), "vol_data.json"),
			} {
				var texts map[string]string // which is all that a kubelet reads
				if err := json.Unmarshal([]byte(read(t, record)), &texts); err != nil ||
					texts["volumeHandle"] != "vol" || texts["driverName"] != driverName {
					t.Errorf("%s holds %v (%v), want volume vol of driver %s", record, texts, err, driverName)
				}
			}
			n.down(pod, claim)
			n.clean()
			if got := n.last("NodeUnstageVolume")["stagingTargetPath"]; got != staging {
				t.Errorf("unstaged in %v, want %s", got, staging)
			}
		})
	}
}

// What a kubelet has staged and no pod has is taken away.
func TestKubeletsRest(t *testing.T) {
	for name, dir := range stagedIn {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, object(nil))
			n.stop() // it may be looking for such volumes still
			n.driver.Create(t, "vol", "ext4", 16*mega)
			n.kubeletStages(dir, ext4Volume())
			n.restart()
			n.ready()
			n.clean()
		})
	}
}
