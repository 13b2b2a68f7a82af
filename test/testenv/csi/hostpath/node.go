package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NodeGetInfo implements csi.NodeServer.
func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{
		NodeId: "id-of-" + d.node, MaxVolumesPerNode: d.maxVolumes,
		AccessibleTopology: &csi.Topology{Segments: map[string]string{"topology." + d.name + "/node": d.node}},
	}, nil
}

// NodeGetCapabilities implements csi.NodeServer.
func (d *driver) NodeGetCapabilities(
	context.Context, *csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	var out []*csi.NodeServiceCapability
	for _, t := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_VOLUME_CONDITION, csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP,
	} {
		if !slices.Contains(d.without, t.String()) {
			out = append(out, &csi.NodeServiceCapability{
				Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}},
			})
		}
	}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: out}, nil
}

// NodeStageVolume implements csi.NodeServer.
func (d *driver) NodeStageVolume(
	ctx context.Context, r *csi.NodeStageVolumeRequest,
) (*csi.NodeStageVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.load(r.VolumeId)
	if err != nil {
		return nil, err
	}
	if (v.Kind == block) != (r.GetVolumeCapability().GetBlock() != nil) {
		return nil, status.Errorf(codes.InvalidArgument, "volume %s is of the kind %s", r.VolumeId, v.Kind)
	}
	source := d.at(r.VolumeId, "data")
	if v.device() {
		if source, err = d.attach(ctx, r.VolumeId); err != nil {
			return nil, err
		}
	}
	if v.Kind == block || mounted(r.StagingTargetPath) {
		return &csi.NodeStageVolumeResponse{}, nil
	}
	switch v.Kind {
	case tmpfs:
		return &csi.NodeStageVolumeResponse{}, unix.Mount("tmpfs", r.StagingTargetPath, "tmpfs", 0,
			fmt.Sprintf("size=%d", v.Size))
	case folder:
		return &csi.NodeStageVolumeResponse{}, unix.Mount(source, r.StagingTargetPath, "", unix.MS_BIND, "")
	}
	if err := format(ctx, source); err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{},
		mountExt4(ctx, source, r.StagingTargetPath, r.GetVolumeCapability().GetMount().GetMountFlags())
}

// NodeUnstageVolume implements csi.NodeServer.
func (d *driver) NodeUnstageVolume(
	ctx context.Context, r *csi.NodeUnstageVolumeRequest,
) (*csi.NodeUnstageVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := checkID(r.VolumeId); err != nil {
		return nil, err
	}
	if err := unmount(r.StagingTargetPath); err != nil {
		return nil, err
	}
	return &csi.NodeUnstageVolumeResponse{}, d.detach(ctx, r.VolumeId)
}

// NodePublishVolume implements csi.NodeServer.
func (d *driver) NodePublishVolume(
	ctx context.Context, r *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.StagingTargetPath == "" && strings.HasPrefix(r.VolumeId, "csi-") {
		if err := d.makeInline(r); err != nil {
			return nil, err
		}
	}
	v, err := d.load(r.VolumeId)
	if err != nil {
		return nil, err
	}
	source := r.StagingTargetPath
	switch {
	case v.Kind == block:
		if source, err = d.device(r.VolumeId); err == nil && source == "" {
			err = status.Errorf(codes.FailedPrecondition, "volume %s is not staged", r.VolumeId)
		}
		if err == nil {
			err = touch(r.TargetPath)
		}
	case source == "":
		source = d.at(r.VolumeId, "data")
		fallthrough
	default:
		err = os.Mkdir(r.TargetPath, 0o755)
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	if !mounted(r.TargetPath) {
		if err := unix.Mount(source, r.TargetPath, "", unix.MS_BIND, ""); err != nil {
			return nil, err
		}
		if r.Readonly {
			if err := unix.Mount("", r.TargetPath, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
				return nil, err
			}
		}
	}
	return &csi.NodePublishVolumeResponse{},
		giveTo(r.TargetPath, r.GetVolumeCapability().GetMount().GetVolumeMountGroup())
}

// makeInline makes a volume that is written in a pod, with what the driver was told in it.
func (d *driver) makeInline(r *csi.NodePublishVolumeRequest) error {
	if err := checkID(r.VolumeId); err != nil {
		return err
	}
	if err := d.make(r.VolumeId, &volume{Kind: folder}); err != nil {
		return err
	}
	for key, value := range r.VolumeContext {
		if err := os.WriteFile(d.at(r.VolumeId, "data", filepath.Base(key)), []byte(value), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(d.at(r.VolumeId, "inline"), nil, 0o600)
}

// NodeUnpublishVolume implements csi.NodeServer.
func (d *driver) NodeUnpublishVolume(
	_ context.Context, r *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := checkID(r.VolumeId); err != nil {
		return nil, err
	}
	if err := unmount(r.TargetPath); err != nil {
		return nil, err
	}
	if err := os.Remove(r.TargetPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if _, err := os.Stat(d.at(r.VolumeId, "inline")); err == nil {
		return &csi.NodeUnpublishVolumeResponse{}, os.RemoveAll(d.at(r.VolumeId))
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// NodeGetVolumeStats implements csi.NodeServer.
func (d *driver) NodeGetVolumeStats(
	_ context.Context, r *csi.NodeGetVolumeStatsRequest,
) (*csi.NodeGetVolumeStatsResponse, error) {
	v, err := d.load(r.VolumeId)
	if err != nil {
		return nil, err
	}
	_, err = os.Stat(d.at(r.VolumeId, "abnormal"))
	out := &csi.NodeGetVolumeStatsResponse{
		VolumeCondition: &csi.VolumeCondition{Abnormal: err == nil, Message: "looked at"},
	}
	if v.Kind == block {
		out.Usage = []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: v.Size}}
		return out, nil
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(r.VolumePath, &fs); err != nil {
		return nil, err
	}
	size := int64(fs.Bsize) // 32 bits on ARM
	out.Usage = []*csi.VolumeUsage{
		{
			Unit:      csi.VolumeUsage_BYTES,
			Total:     int64(fs.Blocks) * size,
			Available: int64(fs.Bavail) * size,
			Used:      int64(fs.Blocks-fs.Bfree) * size,
		},
		{
			Unit:      csi.VolumeUsage_INODES,
			Total:     int64(fs.Files),
			Available: int64(fs.Ffree),
			Used:      int64(fs.Files - fs.Ffree),
		},
	}
	return out, nil
}

// NodeExpandVolume implements csi.NodeServer.
func (d *driver) NodeExpandVolume(
	ctx context.Context, r *csi.NodeExpandVolumeRequest,
) (*csi.NodeExpandVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.load(r.VolumeId)
	if err != nil {
		return nil, err
	}
	switch v.Kind {
	case tmpfs:
		return &csi.NodeExpandVolumeResponse{CapacityBytes: v.Size},
			unix.Mount("", r.StagingTargetPath, "", unix.MS_REMOUNT, fmt.Sprintf("size=%d", v.Size))
	case folder:
		return &csi.NodeExpandVolumeResponse{CapacityBytes: v.Size}, nil
	}
	device, err := d.device(r.VolumeId)
	if err != nil || device == "" {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s has no device: %v", r.VolumeId, err)
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: v.Size}, expand(ctx, device, v.Kind == ext4)
}

// giveTo gives the top folder of a volume to a group.
func giveTo(path, group string) error {
	if group == "" {
		return nil
	}
	gid, err := strconv.Atoi(group)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "group %q", group)
	}
	return errors.Join(os.Chown(path, -1, gid), os.Chmod(path, 0o775|os.ModeSetgid))
}
