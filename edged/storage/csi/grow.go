package csi

import (
	"context"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// What events say of volumes that grow, in the kubelet's words.
const (
	reasonResizeFailed = "VolumeResizeFailed"
	reasonResized      = "FileSystemResizeSuccessful"
)

// lookAfter is how often claims are checked for a larger size: two requests to the cloud of some kilobytes each.
const lookAfter = 5 * time.Minute

// growth returns the size, in bytes, to which the file system of a volume has to grow; 0 where it has it.
func (r *request) growth() int64 {
	if r.spec.PV == nil || r.spec.Claim == nil || r.readOnly {
		return 0
	}
	size, ok := r.spec.PV.Spec.Capacity[v1.ResourceStorage]
	have, known := r.spec.Claim.Status.Capacity[v1.ResourceStorage]
	if !ok || !known || size.Cmp(have) <= 0 {
		return 0
	}
	return size.Value()
}

// grow makes the driver expand the file system of a volume to the volume's size, if the driver does that on the node.
func (m *Manager) grow(ctx context.Context, r *request, v mounted) error {
	size := r.growth()
	if size > v.grown {
		grown, err := m.growNow(ctx, r, v.path, size)
		if err != nil {
			return fmt.Errorf("MountVolume.NodeExpandVolume failed for volume %q : kubernetes.io/csi: %w", r.spec.Name,
				err)
		}
		m.updateMounted(r.dir, func(v *mounted) {
			if v.grown = size; !grown {
				v.told = size // anyone who grows it elsewhere reports that
			}
		})
		if !grown {
			return nil
		}
		if m.opts.Event != nil {
			m.opts.Event(r.pod, v1.EventTypeNormal, reasonResized,
				"MountVolume.NodeExpandVolume succeeded for volume %q", r.spec.Name)
		}
	}
	if m.opts.Grown != nil {
		if err := m.opts.Grown(ctx, r.spec.Claim, r.spec.PV.Spec.Capacity[v1.ResourceStorage]); err != nil {
			klog.V(2).InfoS("The cluster does not know yet that a volume has grown", "claim", klog.KObj(r.spec.Claim),
				"err", err)
			return nil // the next sync tells it again
		}
	}
	m.updateMounted(r.dir, func(v *mounted) { v.told = size })
	return nil
}

// updateMounted changes what is known of a volume.
func (m *Manager) updateMounted(dir string, change func(*mounted)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v := m.volumes[dir]; v != nil {
		change(v)
	}
}

// refreshClaim reads a volume and its claim again, if the last read was long ago and the driver can expand it: no
// notification says when a volume must grow under a pod.
func (m *Manager) refreshClaim(ctx context.Context, r *request, v mounted) {
	if !m.refreshDue(r, v) {
		return
	}
	m.updateMounted(r.dir, func(v *mounted) { v.looked = time.Now() })
	pv, err := m.opts.Claims.PersistentVolume(ctx, r.spec.PV.Name)
	if err != nil {
		return // as it was, until it can be read
	}
	claim, err := m.opts.Claims.PersistentVolumeClaim(ctx, r.spec.Claim.Namespace, r.spec.Claim.Name)
	if err != nil || pv.UID != r.spec.PV.UID || claim.UID != r.spec.Claim.UID {
		return
	}
	r.spec.PV, r.spec.Claim = pv, claim
}

// refreshDue reports whether it is time to read a volume and its claim again.
func (m *Manager) refreshDue(r *request, v mounted) bool {
	if m.opts.Claims == nil || r.spec.PV == nil || r.spec.Claim == nil || r.readOnly ||
		time.Since(v.looked) < lookAfter {
		return false
	}
	d, err := m.driver(r.driver)
	return err == nil && d.can[csi.NodeServiceCapability_RPC_EXPAND_VOLUME]
}

func (m *Manager) growNow(ctx context.Context, r *request, path string, size int64) (bool, error) {
	d, err := m.driver(r.driver)
	if err != nil {
		return false, err
	}
	can, err := d.abilities(ctx)
	if err != nil || !can[csi.NodeServiceCapability_RPC_EXPAND_VOLUME] {
		return false, err
	}
	secrets, err := m.secrets(ctx, r.expandSecret)
	if err != nil {
		return false, err
	}
	staging := ""
	if can[csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		staging, _ = m.staging(r.record(m.opts.NodeName))
	}
	err = d.call(ctx, func(ctx context.Context, c csi.NodeClient) error {
		_, err := c.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
			VolumeId:          r.handle,
			VolumePath:        path,
			StagingTargetPath: staging,
			CapacityRange:     &csi.CapacityRange{RequiredBytes: size},
			VolumeCapability:  r.capability(can, ""),
			Secrets:           secrets,
		})
		return err
	})
	if err != nil {
		return false, fmt.Errorf("NodeExpandVolume: %w", err)
	}
	return true, nil
}
