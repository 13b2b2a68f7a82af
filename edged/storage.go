package edged

import (
	"context"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/containers/podinputs"
	"github.com/edgecore-io/edgecore/edged/containers/security"
	"github.com/edgecore-io/edgecore/edged/containers/userns"
	"github.com/edgecore-io/edgecore/edged/podstate/env"
	"github.com/edgecore-io/edgecore/edged/storage/csi"
	"github.com/edgecore-io/edgecore/edged/storage/devices"
	"github.com/edgecore-io/edgecore/edged/storage/plugins"
	"github.com/edgecore-io/edgecore/edged/storage/volume"
)

// storage is what containers get of the node: volumes, devices, user namespaces.
type storage struct {
	csi     *csi.Manager
	plugins *plugins.Watcher
	volumes *volume.Manager
	devices *devices.Manager
	host    security.Host
	sysctls *security.Sysctls
	userns  *userns.Manager
	inputs  *podinputs.Inputs
}

func (e *Edged) buildStorage(ctx context.Context) (err error) {
	o := &e.opts
	e.csi = e.newCSI()
	e.devices = devices.New(devices.Options{
		Dir:       filepath.Join(o.RootDir, "device-plugins"),
		Changed:   e.devicesChanged,
		Listening: e.listening,
	})
	e.plugins = plugins.New(filepath.Join(o.RootDir, "plugins_registry"), o.Watcher, map[string]plugins.Handler{
		plugins.TypeCSI:    e.csi,
		plugins.TypeDevice: e.devices,
	})
	e.volumes = volume.New(volume.Options{
		Root:              o.RootDir,
		Objects:           e.podstate.Meta,
		Tokens:            e.podstate.Objects,
		Fields:            &env.Fields{Facts: e.facts},
		Claims:            e.podstate.Objects,
		Bundles:           e.podstate.Objects,
		Selects:           e.podstate.Objects.Selects,
		RecursiveReadOnly: func(pod *v1.Pod) bool { return e.runtime.RecursiveReadOnly(ctx, pod) },
		Driver:            e.csi,
		MemoryBytes:       o.Allocatable.Memory().Value(),
	})
	e.host = security.ReadHost("/")
	if e.sysctls, err = security.NewSysctls(e.host.Kernel, o.AllowedUnsafeSysctls); err != nil {
		return err
	}
	e.userns = userns.New(userns.Options{PodsDir: filepath.Join(o.RootDir, "pods")})
	e.inputs = podinputs.New(podinputs.Options{
		DNS:       e.dns.Load,
		UserNS:    e.userns,
		Cgroups:   e.cgroups,
		Volumes:   e.volumes,
		Devices:   e.devices,
		Objects:   e.podstate.Meta,
		Recorder:  e.podstate.Recorder,
		PodDir:    e.podDir,
		Facts:     e.facts,
		Services:  e.podstate.Objects.Services,
		IPv6First: e.addresses.IPv6First,
	})
	return nil
}

func (e *Edged) newCSI() *csi.Manager {
	o := csi.Options{
		Root:       e.opts.RootDir,
		NodeName:   e.opts.NodeName,
		Objects:    e.podstate.Objects,
		Tokens:     e.podstate.Objects,
		Event:      e.podstate.Recorder.Eventf,
		Claims:     e.podstate.Objects,
		Grown:      e.podstate.Objects.ClaimGrown,
		Others:     func(ctx context.Context) []volume.ClaimUsage { return e.volumes.ClaimUsages(ctx) },
		Registered: e.pool.EnqueueAll,
		InUse:      e.nodeSignals.Wake,
	}
	if e.opts.Node != nil {
		o.Cluster = e.podstate.Meta
	}
	return csi.New(o)
}

// devicesChanged is called when devices come, go, or change their health.
func (e *Edged) devicesChanged() {
	e.nodeSignals.Wake()
	e.podstate.CapacityFreed.Notify()
	for _, uid := range e.devices.Pods() {
		e.pool.Enqueue(uid)
	}
}
