// Package containers makes the parts that start, watch and stop containers, and those that remove what containers leave
// behind.
package containers

import (
	"cmp"
	"context"
	"path/filepath"
	goruntime "runtime"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/containers/cgroups"
	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/containers/dns"
	"github.com/edgecore-io/edgecore/edged/containers/garbage"
	"github.com/edgecore-io/edgecore/edged/containers/gc"
	"github.com/edgecore-io/edgecore/edged/containers/imagegc"
	"github.com/edgecore-io/edgecore/edged/containers/images"
	"github.com/edgecore-io/edgecore/edged/containers/logrotate"
	"github.com/edgecore-io/edgecore/edged/containers/pleg"
	"github.com/edgecore-io/edgecore/edged/containers/podinputs"
	"github.com/edgecore-io/edgecore/edged/containers/repair"
	"github.com/edgecore-io/edgecore/edged/containers/runtime"
	"github.com/edgecore-io/edgecore/edged/containers/runtimeclass"
	"github.com/edgecore-io/edgecore/edged/containers/runtimelimit"
	"github.com/edgecore-io/edgecore/edged/containers/runtimestatus"
	"github.com/edgecore-io/edgecore/edged/containers/security"
	"github.com/edgecore-io/edgecore/edged/containers/userns"
	"github.com/edgecore-io/edgecore/edged/podstate"
	"github.com/edgecore-io/edgecore/edged/podstate/env"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/storage"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/version"
)

// State is what outlives a run of the agent's module. The zero value is that of a module that has not run.
type State struct {
	// RuntimeVersion is the name and version of the runtime.
	RuntimeVersion runtimestatus.Version
}

// Workers sync pods; package pods implements it.
type Workers interface {
	garbage.Workers
	EnqueueAll()
	// PodChanged is called when something of a pod has changed in the runtime, and RuntimeAnswers when the runtime
	// answers again. Neither is called before Run.
	PodChanged(uid types.UID)
	RuntimeAnswers()
}

// Node is what the parts ask the node, and how they tell it that its status has changed; package node implements it.
type Node interface {
	IP() string
	IPv6First() bool
	// Facts are what pods may ask about the node.
	Facts() env.Facts
	// Wake has the whole status reported again, Look has it reported if it differs.
	Wake()
	Look()
}

// Options are what the parts need.
type Options struct {
	*State
	RootDir string
	// PodLogsDir is the folder of pods' logs; ContainerLogsDir that of the links to them, empty is the kubelet's.
	PodLogsDir       string
	ContainerLogsDir string
	RuntimeEndpoint  string
	ImageEndpoint    string
	RuntimeTimeout   time.Duration
	SeccompDefault   bool
	// AllowedUnsafeSysctls are the sysctls that pods may set beside the safe ones; see package security.
	AllowedUnsafeSysctls []string
	MaxBackoff           time.Duration
	Images               images.Options
	Logs                 logrotate.Options
	GC                   garbage.Policy
	Cgroups              cgroups.Options
	DNS                  dns.Config

	Health   *health.Registry
	Node     Node
	PodState *podstate.Parts
	Workers  Workers
	Storage  *storage.Parts
}

// Parts are what New has made.
type Parts struct {
	*State
	Client        *cri.Client
	Cgroups       *cgroups.Manager
	Host          security.Host
	Sysctls       *security.Sysctls
	UserNS        *userns.Manager
	Inputs        *podinputs.Inputs
	BootRecord    *repair.Record
	Repairer      *repair.Repairer
	Puller        *images.Puller
	Limiter       *runtimelimit.Limiter
	Runtime       *runtime.Runtime
	PLEG          *pleg.PLEG
	RuntimeStatus *runtimestatus.Tracker
	Logs          *logrotate.Rotator
	Garbage       *garbage.Manager

	opts Options
	dns  atomic.Pointer[dns.Configurer]
}

// New makes the parts, and connects to the runtime, which need not answer yet.
func New(o Options) (*Parts, error) {
	p := &Parts{State: o.State, opts: o}
	var err error
	if p.Client, err = cri.Dial(o.RuntimeEndpoint, o.ImageEndpoint, o.RuntimeTimeout); err != nil {
		return nil, err
	}
	p.Host = security.ReadHost("/")
	if p.Sysctls, err = security.NewSysctls(p.Host.Kernel, o.AllowedUnsafeSysctls); err != nil {
		return nil, err
	}
	p.Cgroups = cgroups.New(o.Cgroups)
	p.UserNS = userns.New(userns.Options{PodsDir: filepath.Join(o.RootDir, "pods")})
	p.SetDNS(o.DNS)
	p.Inputs = p.newInputs()
	p.BootRecord = repair.RecordThisBoot(o.RootDir)
	p.Repairer = p.newRepairer()
	p.Puller = p.newPuller()
	p.Limiter = runtimelimit.New(goruntime.NumCPU())
	p.Runtime = p.newRuntime()
	p.PLEG = pleg.New(p.Runtime, p.Client, pleg.Options{
		OnChange: o.Workers.PodChanged,
		Stored:   func() { p.Logs.Changed() }, // the logs are listed from what the PLEG has stored
		OnHealth: p.runtimeHealth,
		Busy:     o.Workers.Busy,
	})
	p.RuntimeStatus = p.newRuntimeStatus()
	logs := o.Logs.For(p.Client, p.PLEG.All, p.Runtime.LogPath)
	logs.Unwatched = func(err error) { o.Health.SetError(health.FilesNotWatched, "container logs", err) }
	p.Logs = logrotate.New(logs)
	p.Garbage = p.newGarbage()
	return p, nil
}

func (p *Parts) newInputs() *podinputs.Inputs {
	o := &p.opts
	return podinputs.New(podinputs.Options{
		DNS:      p.dns.Load,
		UserNS:   p.UserNS,
		Cgroups:  p.Cgroups,
		Volumes:  o.Storage.Volumes,
		Devices:  o.Storage.Devices,
		Objects:  o.PodState.Meta,
		Recorder: o.PodState.Recorder,
		PodDir:   p.PodDir,
		Facts:    o.Node.Facts,
		Services: func(ctx context.Context, pod *v1.Pod) []v1.Service {
			return o.PodState.APIEndpoint.Services(pod, o.PodState.Objects.Services(ctx, pod))
		},
		Started:   o.PodState.Desired.SetAddresses,
		IPv6First: o.Node.IPv6First,
	})
}

func (p *Parts) newRepairer() *repair.Repairer {
	return repair.New(repair.Options{
		Store:   p.Client,
		Runtime: &repair.CRI{Client: p.Client, State: &imagegc.CRI{Client: p.Client}},
		// The puller asks the repairer when a pull fails: so the repairer is made before it.
		Pull: func(ctx context.Context, image string, secrets []v1.Secret) error {
			_, _, err := p.Puller.Pull(ctx, image, secrets, nil)
			return err
		},
		Load: func(ctx context.Context, file, name string) error {
			endpoint := cmp.Or(p.opts.ImageEndpoint, p.opts.RuntimeEndpoint)
			return images.LoadAt(ctx, endpoint, p.Client, p.Client.Images, file, name)
		},
		Archives: repair.ArchiveDir(p.opts.RootDir),
		Recorder: p.opts.PodState.Recorder,
		Health:   p.opts.Health,
		Record:   p.BootRecord,
	})
}

func (p *Parts) newPuller() *images.Puller {
	o := p.opts.Images
	o.Recorder, o.Meter = p.opts.PodState.Recorder, &imagegc.CRI{Client: p.Client}
	o.Pulled = func() { p.Garbage.Changed() } // the garbage of images is made from what the runtime has
	o.Repair = p.Repairer.PullFailed
	return images.New(p.Client.Images, o)
}

func (p *Parts) newRuntime() *runtime.Runtime {
	o := &p.opts
	classes := runtimeclass.Resolver{
		Class: o.PodState.Meta.RuntimeClass,
		// The handler is one of the runtime's features, and the runtime asks for it.
		Features: func(ctx context.Context) (runtime.Features, error) { return p.Runtime.Features(ctx) },
	}
	return runtime.New(runtime.Options{
		Client:           p.Client,
		Limiter:          p.Limiter,
		Images:           p.Puller,
		Inputs:           p.Inputs,
		Recorder:         o.PodState.Recorder,
		Repair:           p.Repairer,
		Resources:        p.Cgroups.ContainerResources,
		SandboxResources: p.Cgroups.SandboxResources,
		HostIP:           o.Node.IP,
		UserAgent:        "kube-lifecycle/" + version.Kubernetes(),
		RootDir:          o.RootDir,
		PodLogsDir:       o.PodLogsDir,
		ContainerLogsDir: o.ContainerLogsDir,
		Hash:             o.PodState.Adopted.Hash,
		SeccompDefault:   o.SeccompDefault,
		MaxBackoff:       o.MaxBackoff,
		Handler:          classes.Handler,
		SELinux:          p.Host.SELinux,
		MaskedPaths:      p.Host.Thermal,
	})
}

func (p *Parts) newRuntimeStatus() *runtimestatus.Tracker {
	return runtimestatus.New(runtimestatus.Options{
		Runtime: p.Runtime,
		Answers: p.PLEG.Healthy,
		Health:  p.opts.Health,
		Version: &p.RuntimeVersion,
		Learned: p.opts.Node.Wake,
		Changed: p.opts.Node.Look,
		Recovered: func() {
			if p.opts.PodState.Ready.Started() {
				p.opts.Workers.EnqueueAll()
			}
		},
	})
}

func (p *Parts) newGarbage() *garbage.Manager {
	o := &p.opts
	return garbage.New(garbage.Options{
		Policy:   o.GC,
		Ready:    o.PodState.Ready,
		Desired:  o.PodState.Desired,
		Runtime:  p.Runtime,
		Images:   &imagegc.CRI{Client: p.Client},
		PLEG:     p.PLEG,
		Workers:  o.Workers,
		Statuses: o.PodState.Statuses,
		Store:    o.PodState.Meta,
		Repairs:  p.Repairer,
		Leftovers: gc.Sources{
			"folder": o.Storage.Volumes.Pods,
			"cgroup": p.Cgroups.Pods,
			"logs":   p.Runtime.LoggedPods,
		},
		KeepFile: imagegc.KeepFile(o.RootDir),
		Recorder: o.PodState.Recorder,
		Health:   o.Health,
	})
}

// SetDNS replaces the DNS configuration. It counts for sandboxes that are made from now on.
func (p *Parts) SetDNS(c dns.Config) { p.dns.Store(dns.New(c)) }

// PodDir returns the folder of a pod, at the same place as the kubelet's.
func (p *Parts) PodDir(uid types.UID) string {
	return filepath.Join(p.opts.RootDir, "pods", string(uid))
}

// PodFiles returns the files and folders of a pod that its containers write, beside its volumes and logs: its hosts
// file, and the folder of its termination messages.
func (p *Parts) PodFiles(pod *v1.Pod) []string {
	return []string{filepath.Join(p.PodDir(pod.UID), "etc-hosts"), p.Runtime.MessagesDir(pod)}
}

// CheckGroups returns why the runtime cannot give a pod the groups that it asks for; nil if it can.
func (p *Parts) CheckGroups(pod *v1.Pod) *observed.Reason {
	f, known := p.Runtime.Known()
	return security.CheckGroups(pod, f.SupplementalGroupsPolicy, known)
}

// runtimeHealth is called when the runtime stops or begins to answer.
func (p *Parts) runtimeHealth(err error) {
	p.opts.Health.SetError(health.RuntimeDown, "", err)
	if err == nil {
		p.opts.Workers.RuntimeAnswers()
	}
	p.opts.Node.Wake()
}
