package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/devicetwin"
	"github.com/edgecore-io/edgecore/devicetwin/topics"
	"github.com/edgecore-io/edgecore/edged"
	"github.com/edgecore-io/edgecore/edged/agentconfig"
	"github.com/edgecore-io/edgecore/edged/podstate/adopted"
	"github.com/edgecore-io/edgecore/edged/serve/server"
	"github.com/edgecore-io/edgecore/edged/serve/statusui"
	"github.com/edgecore-io/edgecore/edgehub"
	"github.com/edgecore-io/edgecore/edgehub/nodecert"
	"github.com/edgecore-io/edgecore/edgehub/nodelink"
	"github.com/edgecore-io/edgecore/eventbus"
	"github.com/edgecore-io/edgecore/metamanager"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/metamanager/store/copies"
	"github.com/edgecore-io/edgecore/metaserver"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/configfile"
	"github.com/edgecore-io/edgecore/pkg/configreload"
	"github.com/edgecore-io/edgecore/pkg/filewatch"
	"github.com/edgecore-io/edgecore/pkg/footprint/malloc"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/logdedup"
	"github.com/edgecore-io/edgecore/pkg/sdnotify"
	"github.com/edgecore-io/edgecore/pkg/version"
)

const (
	// watchPeriod is how often modules are looked at: one that is stuck twice in a row is restarted.
	watchPeriod = time.Minute
	// scratchDir is in memory; the store's copy is there while the disk takes no writes.
	scratchDir = "/run/edgecore"
	// predecessorEnds is how long the store may stay in use: an agent that was killed ends when the kernel has finished
	// what it was writing.
	predecessorEnds = 10 * time.Second
)

// runAgent builds the parts, hands each what it needs, and runs them until ctx ends. running is called once when all of
// them run.
func runAgent(ctx context.Context, inForce *configfile.InForce, running func()) error {
	cfg := inForce.Config
	stopped := ctx // when the service ends, not when the agent starts again
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	told, quiet := configreload.Hangups()
	defer quiet()
	if err := logdedup.Install(os.Stderr); err != nil {
		klog.ErrorS(err, "Repeated lines of the log are not left out")
	}
	tuneRuntime()
	kubelet := &cfg.Modules.Edged.TailoredKubeletConfig
	setOOMScore(ptr.Deref(kubelet.OOMScoreAdj, 0))
	klog.InfoS("Starting edgecore", "version", version.String(), "node", cfg.Modules.Edged.HostnameOverride)

	if err := checkStart(inForce); err != nil {
		return unusable{err}
	}
	conditions := &health.Registry{}
	conditions.SetError(health.ConfigurationBad, inForce.File, inForce.Notice())
	bound := agentconfig.ClockBound(cfg) // before the store is written
	db, recovery, err := store.Open(ctx, cfg.Database.DataSource,
		store.Options{Scratch: scratchDir, Shrunk: malloc.Trim, Wait: predecessorEnds, OnDamage: func(err error) {
			conditions.Set(health.StoreFailing, cfg.Database.DataSource,
				err.Error()+"; a restart of edgecore repairs it")
		}})
	if err != nil {
		return err
	}
	if db.Frozen() {
		conditions.Set(health.StoreFailing, cfg.Database.DataSource,
			store.ErrReadOnly.Error()+"; then restart edgecore, which runs on what was stored before")
	}
	defer func() {
		if err := db.Close(); err != nil {
			klog.ErrorS(err, "Store not closed")
		}
	}()
	damaged, err := metamanager.RememberRecovery(ctx, db, recovery, conditions)
	if err != nil {
		klog.ErrorS(err, "Recovery of the store not noted")
	}

	service := sdnotify.TakeFromEnv()
	started := make(chan struct{})
	ready := func() {
		service.Ready()
		running()
		close(started)
	}
	bus := beehive.New(beehive.WithWatch(watchPeriod), beehive.WithStarted(ready),
		beehive.WithFailures(func(module string, err error) {
			conditions.SetError(health.ModuleFailing, module, firstLine(err))
		}))
	var meta *metamanager.Module
	repaired := &recoveryNote{db: db, conditions: conditions}
	if cfg.Modules.MetaManager.Enable {
		meta = metamanager.New(bus, db, metamanager.Options{
			Health:        func(err error) { conditions.SetError(health.StoreFailing, "", err) },
			Refused:       func(object string, err error) { conditions.SetError(health.ReportTooLarge, object, err) },
			NoRoom:        func(object string, err error) { conditions.SetError(health.ObjectTooLarge, object, err) },
			Memory:        memory(),
			Connected:     func(ctx context.Context) { noteConnected(ctx, cfg.Database.DataSource, db, conditions) },
			Synced:        repaired.sync,
			RemoteTimeout: time.Duration(cfg.Modules.MetaManager.RemoteQueryTimeout) * time.Second,
		})
		if err := bus.Add(meta); err != nil {
			return err
		}
	}
	var routes []server.Route
	var collectors []prometheus.Collector
	var shown func() []statusui.Device
	var mqtt *topics.Module
	if cfg.Modules.EventBus.Enable {
		mqtt = topics.New(topics.Options{
			Node:    cfg.Modules.Edged.HostnameOverride,
			NewMQTT: func() (eventbus.MQTT, error) { return agentconfig.NewEventBus(cfg, conditions) },
		})
		collectors = append(collectors, mqtt)
	}
	if cfg.Modules.DeviceTwin.Enable {
		opts := agentconfig.DeviceTwinOptions(&cfg.Modules.DeviceTwin)
		opts.Bus, opts.Store = bus, db
		opts.Listening = func(socket string, err error) { conditions.SetError(health.SocketFailing, socket, err) }
		if mqtt != nil {
			opts.Changed = mqtt.Changed
		}
		twins := devicetwin.New(opts)
		if mqtt != nil {
			mqtt.Serve(twins)
		}
		if err := bus.Add(twins); err != nil {
			return err
		}
		collectors, shown = append(collectors, twins), agentconfig.ShownDevices(twins)
		routes = append(routes, server.Route{
			Pattern: "/devices", Handler: twins.Handler(), ReadOnly: true, LocalOnly: true,
		})
	}
	if mqtt != nil {
		if err := bus.Add(mqtt); err != nil {
			return err
		}
	}
	watcher := filewatch.New(filewatch.Options{
		Report: func(err error) { conditions.SetError(health.FilesNotWatched, "folders", err) },
	})
	defer watcher.Close()
	var pods *edged.Module
	var local, tunnels *server.Local // for KubeEdge's cloudcore, and for tunnels of cloudcore
	var stream edgehub.StreamOptions
	if cfg.Modules.EdgeStream.Enable && agentconfig.KubeletAPI(cfg) != "" {
		local = server.NewLocal()
		stream = edgehub.StreamOptions{
			Server: cfg.Modules.EdgeStream.Server, API: local.Dial,
			NodeIP: func() string { return pods.NodeIP() }, // not before the modules run
		}
	}
	var kubeletAPI func(context.Context) (net.Conn, error)
	if agentconfig.KubeletAPI(cfg) != "" {
		tunnels = server.NewLocal()
		kubeletAPI = tunnels.Dial
	}
	hub, err := nodelink.New(bus, cfg, conditions, nodelink.Options{
		KubeletAPI: kubeletAPI, Stream: stream, API: servesAPI(cfg), TokenFile: nodecert.DefaultTokenFile,
		ReachedAt: func(address string) { // not before the modules run
			if pods != nil {
				pods.ReachedAt(address)
			}
		},
	})
	if err != nil {
		return unusable{err}
	}
	var api *metaserver.Server
	if cfg.Modules.Edged.Enable {
		opts, err := agentconfig.EdgedOptions(cfg)
		if err != nil {
			return unusable{err}
		}
		opts.Bus, opts.Health, opts.StoreDamaged, opts.ClockBound = bus, conditions, damaged, bound
		opts.Watcher = watcher
		if opts.Adopted, err = adopted.FromStore(ctx, db); err != nil {
			klog.ErrorS(err, "Containers of the migration may be restarted")
		}
		if hub != nil {
			opts.API.Local, opts.API.InUse, opts.API.Tunnels = local, hub.StreamOpen, tunnels
		}
		opts.API.Config, opts.Routes, opts.Devices = agentconfig.ShownConfig(cfg), routes, shown
		if hub == nil {
			opts.Node = nil
		} else {
			opts.ClockSet = hub.Retry // a certificate that was not valid yet may be now
			opts.Link, collectors = linkState(hub), append(collectors, hub)
			repaired.hasNode = true
			opts.Node.Reported = func(status *v1.NodeStatus) { repaired.report(ctx, status) }
		}
		owner := &edgedPods{}
		if servesAPI(cfg) {
			if api, opts.APIEndpoint, err = newMetaServer(ctx, cfg, apiParts{
				db: db, meta: meta, hub: hub, pods: owner, notes: conditions, notBefore: bound.Time,
			}); err != nil {
				return unusable{err}
			}
			collectors = append(collectors, api)
		} else {
			removeAPIAddresses(&cfg.Modules.MetaManager.MetaServer)
		}
		opts.Collectors = collectors
		pods = edged.New(opts)
		owner.module = pods
		if err := bus.Add(pods); err != nil {
			return err
		}
	}
	if api != nil { // after edged, which it asks about pods
		if err := bus.Add(api); err != nil {
			return err
		}
	}
	if hub != nil { // after those that it tells of the link: a module ends before those added before it
		if err := bus.Add(hub); err != nil {
			return err
		}
	}
	keeper := configreload.NewKeeper(configreload.KeeperOptions{
		Copies:    inForce.Copies,
		Started:   started,
		Connected: connected(cfg, hub),
		Runtime:   agentconfig.RuntimeFor,
		Failing:   func() error { return cgroupsFailing(conditions) },
		GoBack:    end,
	})
	switch {
	case inForce.Bad == nil:
		keeper.InForce(cfg, inForce.Data, true)
	case inForce.Refused:
		keeper.Refused(cfg)
	}
	defer keeper.Start(ctx)()
	defer configreload.Start(ctx, told, configreload.Options{
		File:       inForce.File,
		Watcher:    watcher,
		Started:    cfg,
		Conditions: conditions,
		Apply:      newReloader(cfg, pods, hub).Apply,
		Bad:        inForce.Notice(),
		BadData:    inForce.FileData,
		InForce:    keeper.InForce,
	})()
	defer startService(stopped, ctx, service, bus.Alive, conditions.Summary)()
	defer trimMemory(ctx)()
	if !db.Frozen() {
		defer copies.StartCleanup(ctx, cfg.Database.DataSource, copies.CleanupOptions{
			Incomplete: func() bool { return metamanager.Recovered(ctx, db) },
			Connected:  connectedSince(ctx, cfg.Database.DataSource, db, conditions, connected(cfg, hub)),
		})()
	}
	err = bus.Run(ctx)
	klog.InfoS("edgecore has stopped; the pods keep running")
	if why := context.Cause(ctx); stopped.Err() == nil && againWith(why) {
		return why
	}
	return err
}

// checkStart says why the agent does not even try to start with a configuration. A name of the node that the cloud
// cannot know is a reason only if there is another configuration: pods of the manifests folder run with it.
func checkStart(inForce *configfile.InForce) error {
	if err := agentconfig.CheckFolders(inForce.Config); err != nil {
		return err
	}
	err := nodelink.CheckNode(inForce.Config, nodecert.DefaultTokenFile)
	if err == nil {
		return nil
	}
	if _, none := inForce.Instead(err); none != nil {
		return nil // the condition NotJoined says it
	}
	return err
}

// checkDevice says what of a valid configuration cannot work on this device.
func checkDevice(cfg *v1alpha2.EdgeCore) error {
	err, name := agentconfig.CheckDevice(cfg), nodelink.CheckNode(cfg, nodecert.DefaultTokenFile)
	if name == nil {
		return err
	}
	problems, _ := errors.AsType[v1alpha2.Problems](err)
	more, _ := errors.AsType[v1alpha2.Problems](name)
	return slices.Concat(problems, more)
}

// againWith reports whether the agent ends to start again with another configuration.
func againWith(why error) bool {
	return errors.Is(why, configreload.ErrGoBack) || errors.Is(why, configreload.ErrTryAgain)
}

// startService keeps the service manager informed until end is called. An agent that starts again with another
// configuration stays the same process: then the service manager is not told that it stops.
func startService(
	stopped, ctx context.Context, n *sdnotify.Notifier, alive func() error, status func() string,
) (end func()) {
	told, cancel := context.WithCancel(stopped)
	wait := n.Start(told, alive, status)
	return func() {
		if stopped.Err() == nil && againWith(context.Cause(ctx)) {
			return // it is kept informed until the process is replaced
		}
		cancel()
		wait()
	}
}

// connected returns the function that reports since when there is a link to the cloud; nil where none is wanted.
func connected(cfg *v1alpha2.EdgeCore, hub *nodelink.Module) func() (time.Time, bool) {
	switch {
	case !cfg.Modules.EdgeHub.Enable:
		return nil
	case hub == nil: // a device that has not joined, or whose certificate is not where the configuration says
		return func() (time.Time, bool) { return time.Time{}, false }
	}
	return func() (time.Time, bool) {
		s := hub.State()
		return s.Since, s.Connected
	}
}

// cgroupsFailing says why the cgroups of pods cannot be made as the configuration says; nil if they can.
func cgroupsFailing(conditions *health.Registry) error {
	for _, c := range conditions.Snapshot() {
		if c.Code == health.CgroupsFailing {
			return fmt.Errorf("modules.edged.tailoredKubeletConfig.cgroupRoot: %s. %s", c.Detail, c.Remedy)
		}
	}
	return nil
}

// unusable is an error of a configuration with which the agent cannot start.
type unusable struct{ error }

func (u unusable) Unwrap() error { return u.error }

// noteConnected remembers that the device is connected, for as long as there is a copy of the store from before a
// migration: how long that is kept depends on it. A clock that is not set says nothing.
func noteConnected(ctx context.Context, file string, db *store.Store, conditions *health.Registry) {
	if copies.AnyBefore(file) && !conditions.Is(health.ClockNotSet) {
		metamanager.RememberConnected(ctx, db, time.Now())
	}
}

// connectedSince returns the function that tells since when the device has been connected with this version; nil if
// it has no cloud. A link that was made while the clock was not set is noted by it.
func connectedSince(
	ctx context.Context, file string, db *store.Store, conditions *health.Registry,
	connected func() (since time.Time, is bool),
) func() time.Time {
	if connected == nil {
		return nil
	}
	return func() time.Time {
		if _, is := connected(); is {
			noteConnected(ctx, file, db, conditions)
		}
		if conditions.Is(health.ClockNotSet) {
			return time.Time{}
		}
		return metamanager.ConnectedSince(ctx, db)
	}
}

// newReloader returns what hands a changed configuration to the parts that there are.
func newReloader(started *v1alpha2.EdgeCore, pods *edged.Module, hub *nodelink.Module) *agentconfig.Reloader {
	var p agentconfig.Pods // not an interface of a nil module
	if pods != nil {
		p = pods
	}
	var l agentconfig.Link
	if hub != nil {
		l = hub
	}
	return agentconfig.NewReloader(started, p, l)
}

// linkState returns the function for what the status command shows of the link.
func linkState(hub *nodelink.Module) func() server.Link {
	return func() server.Link {
		s, t := hub.State(), hub.Tunnels()
		return server.Link{
			Connected:     s.Connected,
			Since:         s.Since,
			Protocol:      s.Protocol,
			Server:        s.Server,
			Reason:        s.Reason,
			Tunnels:       t.Tunnels,
			Streams:       t.Streams,
			TunnelFailure: t.Reason,
		}
	}
}

// firstLine returns err without what follows its first line, such as the stack of a panic; nil for nil.
func firstLine(err error) error {
	if err == nil {
		return nil
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	return errors.New(line)
}

// setOOMScore keeps the kernel from taking the agent before the pods. Where it may not, things go on as they are.
func setOOMScore(adj int32) {
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(int(adj))), 0o644); err != nil {
		klog.V(2).InfoS("OOM score not set", "oomScoreAdj", adj, "err", err)
	}
}
