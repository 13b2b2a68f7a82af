package edged

import (
	"cmp"
	"context"
	"path/filepath"
	goruntime "runtime"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/containers/imagegc"
	"github.com/edgecore-io/edgecore/edged/containers/images"
	"github.com/edgecore-io/edgecore/edged/containers/logrotate"
	"github.com/edgecore-io/edgecore/edged/containers/pleg"
	"github.com/edgecore-io/edgecore/edged/containers/podinputs"
	"github.com/edgecore-io/edgecore/edged/containers/repair"
	"github.com/edgecore-io/edgecore/edged/containers/runtime"
	"github.com/edgecore-io/edgecore/edged/containers/runtimeclass"
	"github.com/edgecore-io/edgecore/edged/containers/runtimelimit"
	"github.com/edgecore-io/edgecore/edged/containers/security"
	"github.com/edgecore-io/edgecore/edged/containers/userns"
	"github.com/edgecore-io/edgecore/edged/pods/prober"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/version"
)

// containers is what starts, watches, probes and stops containers.
type containers struct {
	host     security.Host
	sysctls  *security.Sysctls
	userns   *userns.Manager
	inputs   *podinputs.Inputs
	checked  *repair.Record
	repairer *repair.Repairer
	puller   *images.Puller
	limiter  *runtimelimit.Limiter
	runtime  *runtime.Runtime
	pleg     *pleg.PLEG
	prober   *prober.Prober
	logs     *logrotate.Rotator
}

func (e *Edged) buildContainers() (err error) {
	o := &e.opts
	e.host = security.ReadHost("/")
	if e.sysctls, err = security.NewSysctls(e.host.Kernel, o.AllowedUnsafeSysctls); err != nil {
		return err
	}
	e.userns = userns.New(userns.Options{PodsDir: filepath.Join(o.RootDir, "pods")})
	e.inputs = podinputs.New(podinputs.Options{
		DNS:       e.dns.Load,
		UserNS:    e.userns,
		Cgroups:   e.cgroups,
		Volumes:   e.storage.Volumes,
		Devices:   e.storage.Devices,
		Objects:   e.podstate.Meta,
		Recorder:  e.podstate.Recorder,
		PodDir:    e.podDir,
		Facts:     e.self.Facts,
		Services:  e.podstate.Objects.Services,
		IPv6First: e.self.IPv6First,
	})
	e.checked = repair.RecordThisBoot(o.RootDir)
	e.repairer = e.newRepairer()
	o.Images.Recorder, o.Images.Meter = e.podstate.Recorder, &imagegc.CRI{Client: e.client}
	o.Images.Pulled = func() { e.garbage.Changed() }
	o.Images.Repair = e.repairer.PullFailed
	e.puller = images.New(e.client.Images, o.Images)
	e.limiter = runtimelimit.New(goruntime.NumCPU())
	e.runtime = e.newRuntime()
	e.pleg = pleg.New(e.runtime, e.client, pleg.Options{
		OnChange: func(uid types.UID) { e.intake.PodChanged(uid) },
		Stored:   func() { e.logs.Changed() },
		OnHealth: e.runtimeHealth,
		Busy:     e.pool.Busy,
	})
	e.prober = prober.New(prober.Options{
		Exec:      e.client,
		Recorder:  e.podstate.Recorder,
		Changed:   e.probeChanged,
		UserAgent: prober.UserAgent(version.Kubernetes()),
	})
	logs := o.Logs.For(e.client, e.pleg.All, e.runtime.LogPath)
	logs.Unwatched = func(err error) { e.health.SetError(health.FilesNotWatched, "container logs", err) }
	e.logs = logrotate.New(logs)
	return nil
}

func (e *Edged) newRepairer() *repair.Repairer {
	return repair.New(repair.Options{
		Store:   e.client,
		Runtime: &repair.CRI{Client: e.client, State: &imagegc.CRI{Client: e.client}},
		Pull: func(ctx context.Context, image string, secrets []v1.Secret) error {
			_, _, err := e.puller.Pull(ctx, image, secrets, nil)
			return err
		},
		Load: func(ctx context.Context, file, name string) error {
			endpoint := cmp.Or(e.opts.ImageEndpoint, e.opts.RuntimeEndpoint)
			return images.LoadAt(ctx, endpoint, e.client, e.client.Images, file, name)
		},
		Archives: repair.ArchiveDir(e.opts.RootDir),
		Recorder: e.podstate.Recorder,
		Health:   e.health,
		Record:   e.checked,
	})
}

func (e *Edged) newRuntime() *runtime.Runtime {
	o := &e.opts
	classes := runtimeclass.Resolver{
		Class:    e.podstate.Meta.RuntimeClass,
		Features: func(ctx context.Context) (runtime.Features, error) { return e.runtime.Features(ctx) },
	}
	return runtime.New(runtime.Options{
		Client:           e.client,
		Limiter:          e.limiter,
		Images:           e.puller,
		Inputs:           e.inputs,
		Recorder:         e.podstate.Recorder,
		Repair:           e.repairer,
		Resources:        e.cgroups.ContainerResources,
		SandboxResources: e.cgroups.SandboxResources,
		HostIP:           e.self.IP,
		UserAgent:        "kube-lifecycle/" + version.Kubernetes(),
		RootDir:          o.RootDir,
		PodLogsDir:       o.PodLogsDir,
		ContainerLogsDir: o.ContainerLogsDir,
		Hash:             e.podstate.Adopted.Hash,
		SeccompDefault:   o.SeccompDefault,
		MaxBackoff:       o.MaxBackoff,
		Handler:          classes.Handler,
		SELinux:          e.host.SELinux,
		MaskedPaths:      e.host.Thermal,
	})
}

// runtimeHealth is called when the runtime stops or begins to answer.
func (e *Edged) runtimeHealth(err error) {
	e.health.SetError(health.RuntimeDown, "", err)
	if err == nil {
		e.intake.Wake()
	}
	e.self.Wake()
}

// probeChanged is called when the result of a probe has changed. The pod's worker acts on it, unless the pod ends.
func (e *Edged) probeChanged(uid types.UID, ending bool) {
	if ending {
		e.podStatus.Probed(uid)
		return
	}
	e.pool.Enqueue(uid)
}
