// Package edged is the light kubelet: it keeps the pods that the store and the manifest folder want running in
// a CRI runtime. It acts only on what is on the device; there is no "connected" in it.
package edged

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/edged/adopt"
	"github.com/edgecore-io/edgecore/edged/allocation"
	"github.com/edgecore-io/edgecore/edged/api"
	"github.com/edgecore-io/edgecore/edged/cgroups"
	"github.com/edgecore-io/edgecore/edged/clock"
	"github.com/edgecore-io/edgecore/edged/cri"
	"github.com/edgecore-io/edgecore/edged/csi"
	"github.com/edgecore-io/edgecore/edged/devices"
	"github.com/edgecore-io/edgecore/edged/dns"
	"github.com/edgecore-io/edgecore/edged/eventreport"
	"github.com/edgecore-io/edgecore/edged/events"
	"github.com/edgecore-io/edgecore/edged/eviction"
	"github.com/edgecore-io/edgecore/edged/garbage"
	"github.com/edgecore-io/edgecore/edged/gc"
	"github.com/edgecore-io/edgecore/edged/imagegc"
	"github.com/edgecore-io/edgecore/edged/images"
	"github.com/edgecore-io/edgecore/edged/intake"
	"github.com/edgecore-io/edgecore/edged/logrotate"
	"github.com/edgecore-io/edgecore/edged/metaclient"
	"github.com/edgecore-io/edgecore/edged/metaobjects"
	"github.com/edgecore-io/edgecore/edged/mirror"
	"github.com/edgecore-io/edgecore/edged/node"
	"github.com/edgecore-io/edgecore/edged/nodestatus"
	"github.com/edgecore-io/edgecore/edged/pleg"
	"github.com/edgecore-io/edgecore/edged/plugins"
	"github.com/edgecore-io/edgecore/edged/podadmit"
	"github.com/edgecore-io/edgecore/edged/podinputs"
	"github.com/edgecore-io/edgecore/edged/podstatus"
	"github.com/edgecore-io/edgecore/edged/podstop"
	"github.com/edgecore-io/edgecore/edged/podworker"
	"github.com/edgecore-io/edgecore/edged/prober"
	"github.com/edgecore-io/edgecore/edged/readiness"
	"github.com/edgecore-io/edgecore/edged/repair"
	"github.com/edgecore-io/edgecore/edged/runtime"
	"github.com/edgecore-io/edgecore/edged/runtimestatus"
	"github.com/edgecore-io/edgecore/edged/security"
	"github.com/edgecore-io/edgecore/edged/server"
	"github.com/edgecore-io/edgecore/edged/shutdown"
	"github.com/edgecore-io/edgecore/edged/source"
	"github.com/edgecore-io/edgecore/edged/stats"
	"github.com/edgecore-io/edgecore/edged/status"
	"github.com/edgecore-io/edgecore/edged/statusreport"
	"github.com/edgecore-io/edgecore/edged/storagelimit"
	"github.com/edgecore-io/edgecore/edged/streaming"
	"github.com/edgecore-io/edgecore/edged/userns"
	"github.com/edgecore-io/edgecore/edged/volume"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/retry"
	"github.com/edgecore-io/edgecore/pkg/version"
)

// Bus is what edged needs of beehive.
type Bus interface {
	metaclient.Bus
	Receive(ctx context.Context, module string) (*model.Message, error)
}

// Options are what the configuration says, worked out.
type Options struct {
	Bus    Bus
	Health *health.Registry

	NodeName string
	// NodeIP is the node's address, or one of each family with a comma between; empty is that of Interface, and without
	// one the address by which the node is known.
	NodeIP, Interface string
	// StatusImages is how many images the node's status tells of; -1 is all.
	StatusImages int
	// ClockBound is a time that is over; ClockSet, which may be nil, is told when somebody sets the clock.
	ClockBound  clock.Bound
	ClockSet    func()
	Version     string
	Capacity    v1.ResourceList
	Allocatable v1.ResourceList
	// Labels are those of the configuration.
	Labels     map[string]string
	RootDir    string
	PodLogsDir string
	// ContainerLogsDir is the folder of log links; empty is the kubelet's.
	ContainerLogsDir string
	StaticPodDir     string
	FileCheck        time.Duration
	Resync           time.Duration
	StorePath        string
	// StoreDamaged: rows may have been lost, so that a pod which the store does not have is no proof that
	// nobody wants it.
	StoreDamaged bool
	// Adopted is what the store remembers of a takeover from another agent; nil is none.
	Adopted *adopt.Record

	RuntimeEndpoint string
	ImageEndpoint   string
	RuntimeTimeout  time.Duration

	// Node says how the node is registered with the cloud; nil where there is no link to one. Its name, status and
	// health are worked out here.
	Node *node.Options
	// Link tells how the link to the cloud is; nil where there is none. Collectors are more metrics.
	Link       func() server.Link
	Collectors []prometheus.Collector
	// Events says how events are reported to the cloud.
	Events eventreport.Options

	// StreamIdle is how long an exec, attach or port-forward may be silent; 0 is the kubelet's.
	StreamIdle time.Duration

	// Listen is the address of the read-only port; empty is none. API is the authenticated one.
	Listen string
	API    api.Settings

	SeccompDefault bool
	// AllowedUnsafeSysctls are the sysctls that pods may set beside the safe ones; see package security.
	AllowedUnsafeSysctls []string

	MaxBackoff time.Duration
	// Logs says how large the logs of containers become; which there are is worked out here.
	Logs logrotate.Options
	// Shutdown says how long a shutdown of the device waits for which pods.
	Shutdown shutdown.Options
	Images   images.Options
	GC       garbage.Policy
	Cgroups  cgroups.Options
	// Eviction says when pods end for want of resources.
	Eviction EvictionOptions
	DNS      dns.Config
}

// Edged is one run of the module: its parts are made by build and never replaced. Anyone who asks while the module is
// restarted (a check whether it lives, an HTTP request that outlasts the server) has one run or the other, never a mix.
type Edged struct {
	opts Options
	*state

	client      *cri.Client
	meta        *metaclient.Client
	recorder    *events.Recorder
	health      *health.Registry
	cgroups     *cgroups.Manager
	csi         *csi.Manager
	plugins     *plugins.Watcher
	volumes     *volume.Manager
	devices     *devices.Manager
	dns         atomic.Pointer[dns.Configurer]
	host        security.Host
	sysctls     *security.Sysctls
	userns      *userns.Manager
	inputs      *podinputs.Inputs
	objects     *metaobjects.Objects
	limits      *storagelimit.Manager
	puller      *images.Puller
	repairer    *repair.Repairer
	checked     *repair.Record
	logs        *logrotate.Rotator
	mirrors     *mirror.Manager // nil without a cloud
	garbage     *garbage.Manager
	runtime     *runtime.Runtime
	pleg        *pleg.PLEG
	prober      *prober.Prober
	allocations *allocation.Manager
	admissions  *podadmit.Controller
	intake      *intake.Intake
	statuses    *status.Manager
	podStatus   *podstatus.Maker
	stats       *stats.Stats
	slis        *server.SLIs
	// evictions ends pods for want of resources; memoryPressure says when memory gets short.
	evictions      *eviction.Manager
	memoryPressure *eviction.Notifier
	reporter       *statusreport.Reporter
	stopper        *podstop.Stopper
	streams        *streaming.Server
	pool           *podworker.Pool
	node           *node.Node // nil without a cloud
	api            *api.API   // nil without an authenticated port
	shown          *api.Node
	events         *eventreport.Reporter
	system         v1.NodeSystemInfo
	addresses      *node.Addresses
	runtimeStatus  *runtimestatus.Tracker
	nodeStatus     *nodestatus.Manager

	began time.Time
	// admitMu makes admissions and resizes one after another: each counts those before it.
	admitMu sync.Mutex
	// capacityFreed is notified when a pod has ended or became smaller, so that a rejected one may fit.
	capacityFreed notify.Signal

	// ready says which sources of pods were read.
	ready *readiness.Tracker
	// list is the list of parts.
	list []part
}

// build makes the parts and hands each what it needs. Nobody else has e before it returns.
func (e *Edged) build(ctx context.Context) (err error) {
	o := e.opts
	e.began = time.Now()
	if e.client, err = cri.Dial(o.RuntimeEndpoint, o.ImageEndpoint, o.RuntimeTimeout); err != nil {
		return err
	}
	e.pool = podworker.New(ctx, podworker.Options{
		Resync:    o.Resync,
		Forgotten: func(uid types.UID) { e.intake.PodForgotten(uid) },
	})
	e.meta = metaclient.New(o.Bus)
	e.objects = metaobjects.New(e.meta, o.NodeName)
	e.events = eventreport.New(e.meta, o.Events)
	e.recorder = events.New(o.NodeName, e.events.Take)
	e.addresses = node.NewAddresses(o.NodeIP, o.Interface)
	e.api = e.newAPI()
	e.cgroups = cgroups.New(o.Cgroups)
	e.dns.Store(dns.New(o.DNS))
	e.csi = e.storage()
	e.devices = devices.New(devices.Options{Dir: filepath.Join(o.RootDir, "device-plugins"), Changed: e.devicesChanged})
	e.plugins = plugins.New(filepath.Join(o.RootDir, "plugins_registry"), map[string]plugins.Handler{
		plugins.TypeCSI:    e.csi,
		plugins.TypeDevice: e.devices,
	})
	e.volumes = volume.New(volume.Options{
		Root:              o.RootDir,
		Objects:           e.meta,
		Tokens:            e.objects,
		Fields:            &podinputs.Fields{Facts: e.facts},
		Claims:            e.objects,
		Bundles:           e.objects,
		Selects:           e.objects.Selects,
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
		Objects:   e.meta,
		Recorder:  e.recorder,
		PodDir:    e.podDir,
		Facts:     e.facts,
		Services:  e.objects.Services,
		IPv6First: e.addresses.IPv6First,
	})
	o.Images.Recorder, o.Images.Meter = e.recorder, &imagegc.CRI{Client: e.client}
	o.Images.Pulled = func() { e.garbage.Changed() }
	e.repairer = e.newRepairer()
	o.Images.Repair = e.repairer.PullFailed
	e.puller = images.New(e.client.Images, o.Images)
	e.runtime = runtime.New(runtime.Options{
		Client:           e.client,
		Images:           e.puller,
		Inputs:           e.inputs,
		Recorder:         e.recorder,
		Repair:           e.repairer,
		Resources:        e.cgroups.ContainerResources,
		SandboxResources: e.cgroups.SandboxResources,
		HostIP:           e.addresses.IP,
		UserAgent:        "kube-lifecycle/" + version.Kubernetes(),
		RootDir:          o.RootDir,
		PodLogsDir:       o.PodLogsDir,
		ContainerLogsDir: o.ContainerLogsDir,
		Hash:             o.Adopted.Hash,
		SeccompDefault:   o.SeccompDefault,
		MaxBackoff:       o.MaxBackoff,
		Handler:          e.runtimeClasses().Handler,
		SELinux:          e.host.SELinux,
		MaskedPaths:      e.host.Thermal,
	})
	e.pleg = pleg.New(e.runtime, e.client, pleg.Options{
		OnChange: func(uid types.UID) { e.intake.PodChanged(uid) },
		OnHealth: e.runtimeHealth,
		Busy:     e.pool.Busy,
	})
	e.logs, e.mirrors = e.newLogs(), e.newMirrors()
	e.reporter = statusreport.New(statusreport.Options{
		Store:        e.meta,
		Stored:       func(err error) { e.health.SetError(health.StoreFailing, "", err) },
		StaticStored: e.mirrors.Wake,
	})
	e.statuses = status.NewManager(e.reporter)
	e.shown = e.newShown()
	e.streams = streaming.New(ctx, streaming.Options{Node: e.shown, Runtime: e.client, IdleTimeout: o.StreamIdle})
	e.stopper = podstop.New(ctx, podstop.Options{
		Desired:  e.desired,
		Workers:  e.pool,
		Statuses: e.statuses,
		Waiters:  &e.terminations,
		Recorder: e.recorder,
	})
	e.garbage = garbage.New(garbage.Options{
		Policy:   o.GC,
		Ready:    e.ready,
		Desired:  e.desired,
		Runtime:  e.runtime,
		Images:   &imagegc.CRI{Client: e.client},
		PLEG:     e.pleg,
		Workers:  e.pool,
		Statuses: e.statuses,
		Store:    e.meta,
		Repairs:  e.repairer,
		Leftovers: gc.Sources{
			"folder": e.volumes.Pods,
			"cgroup": e.cgroups.Pods,
			"logs":   e.runtime.LoggedPods,
		},
		KeepFile: imagegc.KeepFile(o.RootDir),
		Recorder: e.recorder,
		Health:   e.health,
	})
	e.prober = e.newProber()
	e.system = node.System(version.Kubernetes() + "-edgecore-" + o.Version)
	e.stats, e.slis = e.newStats(), server.NewSLIs()
	e.evictions, e.memoryPressure = e.newEvictions(), e.newMemoryPressureNotifier()
	e.limits = e.newStorageLimits()
	e.runtimeStatus, e.nodeStatus = e.newRuntimeStatus(), e.newNodeStatus(ctx)
	e.allocations = e.newAllocations()
	e.podStatus = e.newPodStatus(ctx)
	e.pool.SetSyncer(e.newSyncer())
	e.admissions = e.newAdmissions(ctx)
	e.intake = e.newIntake()
	if o.Node != nil {
		opts := *o.Node
		opts.Name, opts.Status, opts.Unready = o.NodeName, e.nodeStatus.Status, e.unready
		opts.Conditions, opts.Changed, opts.Found = e.nodeStatus.Conditions, e.nodeStatus.Changed, e.nodeStatus.Found
		opts.Forgotten, opts.Reported = e.devices.Forgotten, e.statusReported
		e.node = node.New(e.meta, opts)
	}
	e.list = e.parts()
	e.reloads.setParts(e.list)
	return nil
}

// static makes the source of static pods.
func (e *Edged) static() *source.Static {
	return source.NewStatic(source.StaticOptions{
		Dir:      e.opts.StaticPodDir,
		NodeName: e.opts.NodeName,
		Rescan:   e.opts.FileCheck,
		Known:    func(pods []*v1.Pod) { e.opts.Adopted.StaticPods(pods, source.AnnotationHash) },
		Pods:     e.intake.SetStatic,
		Fault: func(file string, err error) {
			e.health.SetError(health.StaticPodBad, file, err)
		},
		Warning: func(file, text string) { klog.InfoS("Manifest has an oddity", "file", file, "what", text) },
	})
}

// setUpCgroups creates the cgroups of the QoS classes, and tries again while that fails.
func (e *Edged) setUpCgroups(ctx context.Context) error {
	retry.Until(ctx, time.Second, time.Minute, func(ctx context.Context) error {
		err := e.cgroups.Setup(ctx)
		if missing, ok := errors.AsType[*cgroups.MissingError](err); ok {
			e.health.Set(health.CgroupsIncomplete, "", missing.Error())
			err = nil
		}
		e.health.SetError(health.CgroupsFailing, "", err)
		return err
	}, nil)
	return nil
}

// runtimeHealth is told when the runtime stops or begins to answer.
func (e *Edged) runtimeHealth(err error) {
	e.health.SetError(health.RuntimeDown, "", err)
	if err == nil {
		e.intake.Wake()
	}
	e.wakeNode()
}

// wakeNode has the node's state told again.
func (e *Edged) wakeNode() {
	if e.node != nil {
		e.node.Wake()
	}
}

// useFreed retries what was refused for want of resources whenever some become free, until ctx ends.
func (e *Edged) useFreed(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.capacityFreed:
			e.admissions.RetryRejected()
			e.allocations.Retry(nil)
		}
	}
}

// ListenAddress joins an address and a port; port 0 is no server.
func ListenAddress(address string, port int32) string {
	if port == 0 {
		return ""
	}
	return net.JoinHostPort(address, strconv.Itoa(int(port)))
}
