package agentconfig

import (
	"context"
	"os"
	"path/filepath"

	"github.com/edgecore-io/edgecore/edged/node/preflight"
	"github.com/edgecore-io/edgecore/edged/options"
	"github.com/edgecore-io/edgecore/edged/podstate/clock"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/version"
)

// PreflightOptions returns what the configuration says about the device.
func PreflightOptions(cfg *v1alpha2.EdgeCore) preflight.Options {
	own, hub := &cfg.Modules.Edged, &cfg.Modules.EdgeHub
	kubelet := &own.TailoredKubeletConfig
	o := preflight.Options{
		Endpoint:      kubelet.ContainerRuntimeEndpoint,
		ImageEndpoint: kubelet.ImageServiceEndpoint,
		CgroupDriver:  kubelet.CgroupDriver,
		ClockBound:    ClockBound(cfg),
		Disks: []preflight.Disk{
			{
				What: "pods",
				Path: own.RootDirectory,
			}, {What: "the store", Path: filepath.Dir(cfg.Database.DataSource)},
			{What: "logs", Path: kubelet.PodLogsDir},
		},
	}
	for _, p := range []struct {
		what, key, address string
		port               int32
	}{
		{"the read-only server", "readOnlyPort", kubelet.Address, kubelet.ReadOnlyPort},
		{"the kubelet API", "port", apiAddress(own), kubelet.Port},
	} {
		if address := options.ListenAddress(p.address, p.port); address != "" {
			o.Ports = append(o.Ports, preflight.Port{What: p.what, Key: p.key, Address: address})
		}
	}
	if _, err := os.Stat(hub.TLSCertFile); hub.Enable && err == nil && hub.WebSocket.Enable {
		o.Cloud.Joined, o.Cloud.Server = true, hub.WebSocket.Server
	}
	return o
}

// RuntimeFor says why the container runtime that a configuration names cannot run pods as the configuration says; nil
// if it can. It asks the runtime, and changes nothing.
func RuntimeFor(ctx context.Context, cfg *v1alpha2.EdgeCore) error {
	kubelet := &cfg.Modules.Edged.TailoredKubeletConfig
	return preflight.RuntimeFor(ctx, kubelet.ContainerRuntimeEndpoint, kubelet.ImageServiceEndpoint,
		kubelet.CgroupDriver)
}

// ClockBound returns a time that is over: that of the build, of the certificates, and of what was last written to the
// store. A clock before it is wrong.
func ClockBound(cfg *v1alpha2.EdgeCore) clock.Bound {
	hub, db := &cfg.Modules.EdgeHub, cfg.Database.DataSource
	return clock.Newest(
		clock.Bound{Time: version.Built(), Of: "this program was made"},
		clock.Bound{
			Time: certs.Files{CA: hub.TLSCAFile, Cert: hub.TLSCertFile, Key: hub.TLSPrivateKeyFile}.ClockBound(),
			Of:   "the node's certificate was made",
		},
		clock.Written("the store was written", db, db+"-wal"),
	)
}
