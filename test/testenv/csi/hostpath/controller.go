package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// volume is what is known of a volume: the file meta.json in its folder.
type volume struct {
	// Kind is "folder", "tmpfs" (which is in memory while it is staged), "ext4" or "block"; the last two lie in a file,
	// image.
	Kind string
	Size int64
}

// device reports whether the volume has a device.
func (v *volume) device() bool { return v.Kind == ext4 || v.Kind == block }

const (
	folder = "folder"
	tmpfs  = "tmpfs"
	ext4   = "ext4"
	block  = "block"
)

const defaultSize = 64 << 20

func (d *driver) at(id string, names ...string) string {
	return filepath.Join(append([]string{d.dir, "volumes", id}, names...)...)
}

// checkID refuses ids that are no names.
func checkID(id string) error {
	if id == "" || strings.ContainsAny(id, "/\x00") || id[0] == '.' {
		return status.Errorf(codes.InvalidArgument, "volume id %q is invalid", id)
	}
	return nil
}

func (d *driver) load(id string) (*volume, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(d.at(id, "meta.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, status.Errorf(codes.NotFound, "volume %s does not exist", id)
	}
	if err != nil {
		return nil, err
	}
	v := &volume{}
	return v, json.Unmarshal(data, v)
}

func (d *driver) save(id string, v *volume) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.at(id), 0o755); err != nil {
		return err
	}
	return os.WriteFile(d.at(id, "meta.json"), data, 0o600)
}

// GetPluginInfo implements csi.IdentityServer.
func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "1"}, nil
}

// GetPluginCapabilities implements csi.IdentityServer.
func (d *driver) GetPluginCapabilities(
	context.Context, *csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{
		Capabilities: []*csi.PluginCapability{
			{
				Type: &csi.PluginCapability_Service_{
					Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE},
				},
			},
		},
	}, nil
}

// Probe implements csi.IdentityServer.
func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

// ControllerGetCapabilities implements csi.ControllerServer.
func (d *driver) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	var out []*csi.ControllerServiceCapability
	for _, t := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
	} {
		out = append(out, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}},
		})
	}
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: out}, nil
}

// CreateVolume implements csi.ControllerServer.
func (d *driver) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	v := &volume{Kind: folder, Size: max(r.GetCapacityRange().GetRequiredBytes(), 0)}
	for _, c := range r.VolumeCapabilities {
		switch {
		case c.GetBlock() != nil:
			v.Kind = block
		case c.GetMount().GetFsType() == ext4, c.GetMount().GetFsType() == tmpfs:
			v.Kind = c.GetMount().GetFsType()
		}
	}
	if v.Size == 0 {
		v.Size = defaultSize
	}
	if err := checkID(r.Name); err != nil {
		return nil, err
	}
	if err := d.make(r.Name, v); err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: r.Name, CapacityBytes: v.Size}}, nil
}

// make makes a volume, unless it is there.
func (d *driver) make(id string, v *volume) error {
	if _, err := d.load(id); err == nil {
		return nil
	}
	if err := d.save(id, v); err != nil {
		return err
	}
	if !v.device() {
		return os.MkdirAll(d.at(id, "data"), 0o755)
	}
	f, err := os.OpenFile(d.at(id, "image"), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(v.Size), f.Close())
}

// DeleteVolume implements csi.ControllerServer.
func (d *driver) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if err := checkID(r.VolumeId); err != nil {
		return nil, err
	}
	return &csi.DeleteVolumeResponse{}, os.RemoveAll(d.at(r.VolumeId))
}

// ControllerExpandVolume implements csi.ControllerServer.
func (d *driver) ControllerExpandVolume(
	_ context.Context, r *csi.ControllerExpandVolumeRequest,
) (*csi.ControllerExpandVolumeResponse, error) {
	v, err := d.load(r.VolumeId)
	if err != nil {
		return nil, err
	}
	v.Size = max(v.Size, r.GetCapacityRange().GetRequiredBytes())
	if v.device() {
		if err := os.Truncate(d.at(r.VolumeId, "image"), v.Size); err != nil {
			return nil, err
		}
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: v.Size, NodeExpansionRequired: v.Kind != folder},
		d.save(r.VolumeId, v)
}

// ValidateVolumeCapabilities implements csi.ControllerServer.
func (d *driver) ValidateVolumeCapabilities(
	_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if _, err := d.load(r.VolumeId); err != nil {
		return nil, err
	}
	return &csi.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: r.VolumeCapabilities},
	}, nil
}
