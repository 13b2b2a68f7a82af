// Package edged is the light kubelet: it keeps the pods that the store and the manifest folder want running in
// a CRI runtime. It acts only on what is on the device; there is no "connected" in it.
package edged

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/edged/cgroups"
	"github.com/edgecore-io/edgecore/edged/cri"
	"github.com/edgecore-io/edgecore/edged/dns"
	"github.com/edgecore-io/edgecore/edged/events"
	"github.com/edgecore-io/edgecore/edged/images"
	"github.com/edgecore-io/edgecore/edged/metaclient"
	"github.com/edgecore-io/edgecore/edged/node"
	"github.com/edgecore-io/edgecore/edged/pleg"
	"github.com/edgecore-io/edgecore/edged/podworker"
	"github.com/edgecore-io/edgecore/edged/runtime"
	"github.com/edgecore-io/edgecore/edged/server"
	"github.com/edgecore-io/edgecore/edged/source"
	"github.com/edgecore-io/edgecore/edged/status"
	"github.com/edgecore-io/edgecore/edged/volume"
	"github.com/edgecore-io/edgecore/pkg/health"
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
	// NodeIP is the node's address; empty finds it.
	NodeIP      string
	Version     string
	Capacity    v1.ResourceList
	Allocatable v1.ResourceList
	RootDir     string
	PodLogsDir  string
	// ContainerLogsDir is the folder of log links; empty is the kubelet's.
	ContainerLogsDir string
	StaticPodDir     string
	FileCheck        time.Duration
	Resync           time.Duration
	StorePath        string
	// StoreDamaged: rows may have been lost, so that a pod which the store does not have is no proof that
	// nobody wants it.
	StoreDamaged bool

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
	Events EventOptions

	// Listen is the address of the read-only port; empty is none.
	Listen string

	SeccompDefault bool
	MaxBackoff     time.Duration
	Images         images.Options
	Cgroups        cgroups.Options
	DNS            dns.Config
}

// Edged is the beehive module.
type Edged struct {
	opts Options

	client   *cri.Client
	meta     *metaclient.Client
	recorder *events.Recorder
	health   *health.Registry
	cgroups  *cgroups.Manager
	volumes  *volume.Manager
	dns      *dns.Configurer
	inputs   *inputs
	runtime  *runtime.Runtime
	pleg     *pleg.PLEG
	statuses *status.Manager
	reporter *reporter
	pool     *podworker.Pool
	node     *node.Node // nil without a cloud
	events   *eventReporter
	system   v1.NodeSystemInfo
	wanted   *wanted
	results  results

	began time.Time
	// admitMu makes one admission after another: each counts those before it.
	admitMu sync.Mutex
	// roomMade says that a pod has gone, so that a rejected one may fit.
	roomMade chan struct{}
	// up says that the runtime answers.
	up chan struct{}

	// started: the pods have been handed to their workers. staticLoaded: the manifests were read.
	// storeTried: the store was asked; storeRead: it answered; storeLoaded: it has all that it should hold.
	started, staticLoaded, storeTried, storeRead, storeLoaded atomic.Bool
	// damaged: rows may have been lost, and the cloud has not sent them anew.
	damaged                     atomic.Bool
	runtimeName, runtimeVersion atomic.Value // string
}

// New makes the module. It connects to nothing yet.
func New(opts Options) *Edged {
	e := &Edged{opts: opts, health: opts.Health, wanted: newWanted(), roomMade: make(chan struct{}, 1), up: make(chan struct{}, 1)}
	e.damaged.Store(opts.StoreDamaged)
	return e
}

// Name implements beehive.Module.
func (e *Edged) Name() string { return model.ModuleEdged }

// Group implements beehive.Module.
func (e *Edged) Group() string { return model.GroupEdged }

// Run implements beehive.Module. It reads like the list of parts, in the order in which they start.
func (e *Edged) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := e.build(ctx); err != nil {
		return err
	}
	defer func() {
		if err := e.client.Close(); err != nil {
			klog.V(2).InfoS("Connection to the runtime not closed", "err", err)
		}
	}()
	var wg sync.WaitGroup
	fail := make(chan error, 1)
	run := func(what string, f func(context.Context) error) {
		wg.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				select {
				case fail <- fmt.Errorf("%s: %w", what, err):
				default:
				}
			}
		})
	}
	if e.opts.Listen != "" {
		run("read-only server", e.serve)
	}
	run("status reports", func(ctx context.Context) error { e.reporter.run(ctx); return nil })
	run("event reports", e.events.run)
	if e.node != nil {
		run("node", e.node.Run)
	}
	run("cgroups", e.setUpCgroups)
	run("stored pods", e.loadStored)
	run("static pods", e.static().Run)
	run("runtime state", e.pleg.Run)
	run("pods", e.keepPods)
	run("messages", e.receive)

	var err error
	select {
	case <-ctx.Done():
	case err = <-fail:
	}
	cancel()
	wg.Wait()
	e.pool.Wait()
	// What was seen last is told before the end; containers run on.
	flush, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer stop()
	e.reporter.sendAll(flush)
	return err
}

// build makes the parts and hands each what it needs.
func (e *Edged) build(ctx context.Context) (err error) {
	o := e.opts
	e.began = time.Now()
	for _, flag := range []*atomic.Bool{&e.started, &e.staticLoaded, &e.storeTried, &e.storeRead, &e.storeLoaded} {
		flag.Store(false)
	}
	if e.client, err = cri.Dial(o.RuntimeEndpoint, o.ImageEndpoint, o.RuntimeTimeout); err != nil {
		return err
	}
	e.meta = metaclient.New(o.Bus)
	e.events = newEventReporter(e.meta, o.Events)
	e.recorder = events.New(o.NodeName, e.events.take)
	e.cgroups = cgroups.New(o.Cgroups)
	e.dns = dns.New(o.DNS)
	e.volumes = volume.New(volume.Options{Root: o.RootDir, Objects: e.meta, Tokens: &tokens{e.meta}, Fields: &fields{e}, MemoryBytes: o.Allocatable.Memory().Value()})
	e.inputs = &inputs{dns: e.dns, cgroups: e.cgroups, volumes: e.volumes, objects: e.meta, recorder: e.recorder, podDir: e.podDir, facts: e.facts, services: e.services}
	o.Images.Recorder = e.recorder
	e.runtime = runtime.New(runtime.Options{
		Client: e.client, Images: images.New(e.client.Images, o.Images), Inputs: e.inputs, Recorder: e.recorder,
		Resources: func(pod *v1.Pod, c *v1.Container) *runtimeapi.LinuxContainerResources {
			return cgroups.ContainerResources(pod, c, o.Cgroups.ResourceOptions)
		},
		RootDir: o.RootDir, PodLogsDir: o.PodLogsDir, ContainerLogsDir: o.ContainerLogsDir,
		SeccompDefault: o.SeccompDefault, MaxBackoff: o.MaxBackoff,
	})
	e.pleg = pleg.New(e.runtime, e.client, pleg.Options{
		OnChange: e.podChanged, OnHealth: e.runtimeHealth,
		Busy: func(uid types.UID) bool { return e.pool.Busy(uid) },
	})
	e.reporter = newReporter(e.meta, func(err error) { e.health.SetError(health.StoreFailing, "", err) })
	e.statuses = status.NewManager(e.reporter)
	e.system = node.System(version.Kubernetes() + "-edgecore-" + o.Version)
	if o.Node != nil {
		opts := *o.Node
		opts.Name, opts.Status, opts.Unready = o.NodeName, e.nodeStatus, e.unready
		e.node = node.New(e.meta, opts)
	}
	e.pool = podworker.New(ctx, podworker.Options{Syncer: e, Resync: o.Resync, Forgotten: e.podForgotten})
	return nil
}

// static makes the source of static pods.
func (e *Edged) static() *source.Static {
	return source.NewStatic(source.StaticOptions{
		Dir: e.opts.StaticPodDir, NodeName: e.opts.NodeName, Rescan: e.opts.FileCheck,
		Pods: e.staticPods,
		Fault: func(file string, err error) {
			e.health.SetError(health.StaticPodBad, file, err)
		},
		Warning: func(file, text string) { klog.InfoS("Manifest has an oddity", "file", file, "what", text) },
	})
}

// setUpCgroups makes the cgroups of the classes, and tries again where that fails.
func (e *Edged) setUpCgroups(ctx context.Context) error {
	for delay := time.Second; ; delay = min(2*delay, time.Minute) {
		err := e.cgroups.Setup(ctx)
		if missing, ok := errors.AsType[*cgroups.MissingError](err); ok {
			e.health.Set(health.CgroupsIncomplete, "", missing.Error())
			err = nil
		}
		e.health.SetError(health.CgroupsFailing, "", err)
		if err == nil || !sleep(ctx, delay) {
			return nil
		}
	}
}

// loadStored reads the pods of the store and their last statuses, and tries again until it has them: until
// then nothing that runs is taken for unwanted.
func (e *Edged) loadStored(ctx context.Context) error {
	for delay := 100 * time.Millisecond; ; delay = min(2*delay, 30*time.Second) {
		err := e.loadOnce(ctx)
		e.storeTried.Store(true)
		poke(e.up)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return nil
		}
		klog.ErrorS(err, "Stored pods not read; trying again", "in", delay)
		if !sleep(ctx, delay) {
			return nil
		}
	}
}

func (e *Edged) loadOnce(ctx context.Context) error {
	statuses, err := e.meta.PodStatuses(ctx)
	if err != nil {
		return err
	}
	e.statuses.Restore(statuses)
	pods, err := e.meta.Pods(ctx)
	if pods == nil && err != nil {
		return err
	}
	if err != nil {
		klog.ErrorS(err, "Stored pods left out")
	}
	for _, pod := range pods {
		if e.mine(pod) {
			source.SetDefaults(pod)
			e.wanted.put(pod, true)
		}
	}
	klog.InfoS("Pods read from the store", "pods", len(pods))
	if err == nil {
		e.storeRead.Store(true)
		e.storeComplete()
	}
	return nil
}

// storeComplete notes that the store has all that it should hold, if that is so.
func (e *Edged) storeComplete() {
	if e.storeRead.Load() && !e.damaged.Load() {
		e.storeLoaded.Store(true)
	}
}

// mine tells whether a pod of the store is for this node to run. A mirror pod only shows a static pod to the cloud.
func (e *Edged) mine(pod *v1.Pod) bool {
	_, mirror := pod.Annotations[v1.MirrorPodAnnotationKey]
	return !mirror && (pod.Spec.NodeName == "" || pod.Spec.NodeName == e.opts.NodeName)
}

// runtimeHealth is told when the runtime stops or begins to answer.
func (e *Edged) runtimeHealth(err error) {
	e.health.SetError(health.RuntimeDown, "", err)
	if err == nil {
		poke(e.up)
	}
	e.wakeNode()
}

// wakeNode has the node's state told anew.
func (e *Edged) wakeNode() {
	if e.node != nil {
		e.node.Wake()
	}
}

// keepPods starts the pods once the runtime's state is known, and does what has to be done for all of them.
func (e *Edged) keepPods(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.up:
			if e.pleg.Healthy() != nil || !e.staticLoaded.Load() || !e.storeTried.Load() {
				continue // whoever is missing says so when it is there
			}
			e.start()
			e.lookAtRuntime(ctx)
			e.cleanDisk(ctx)
		case <-e.roomMade:
			e.retryRejected()
		}
	}
}

// lookAtRuntime learns what the runtime is and whether it has a network.
func (e *Edged) lookAtRuntime(ctx context.Context) {
	if v, err := e.runtime.Version(ctx); err == nil {
		e.runtimeName.Store(v.RuntimeName)
		e.runtimeVersion.Store(v.RuntimeVersion)
	}
	st, err := e.runtime.Status(ctx)
	if err != nil {
		return
	}
	for _, c := range st.Conditions {
		if c.Type != runtimeapi.NetworkReady {
			continue
		}
		if c.Status {
			e.health.Clear(health.RuntimeNetwork, "")
		} else {
			e.health.Set(health.RuntimeNetwork, "", "reason:"+c.Reason+" message:"+c.Message)
		}
	}
	e.wakeNode()
}

// serve serves the read-only port, and tries again while its address is taken.
func (e *Edged) serve(ctx context.Context) error {
	registry := server.NewRegistry(e, e.health)
	for _, c := range e.opts.Collectors {
		if err := registry.Register(c); err != nil {
			klog.ErrorS(err, "Metrics left out")
		}
	}
	handler := server.New(e, registry)
	for delay := time.Second; ; delay = min(2*delay, 30*time.Second) {
		err := server.Serve(ctx, e.opts.Listen, handler)
		if ctx.Err() != nil {
			return nil
		}
		e.health.SetError(health.ReadOnlyServerStopped, e.opts.Listen, err)
		if !sleep(ctx, delay) {
			return nil
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
