package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/cloud/cloudconfig"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/cloudhub/objectsync"
	"github.com/edgecore-io/edgecore/cloud/cloudstream"
	"github.com/edgecore-io/edgecore/cloud/controllers"
	"github.com/edgecore-io/edgecore/cloud/devicecontroller"
	"github.com/edgecore-io/edgecore/cloud/dynamiccontroller/apiproxy"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/cloud/edgeports"
	"github.com/edgecore-io/edgecore/cloud/kubeapi"
	"github.com/edgecore-io/edgecore/cloud/kubeletproxy"
	"github.com/edgecore-io/edgecore/cloud/monitor"
	"github.com/edgecore-io/edgecore/cloud/nodeidentity"
	"github.com/edgecore-io/edgecore/cloud/replicas"
	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
	"github.com/edgecore-io/edgecore/pkg/auth"
	"github.com/edgecore-io/edgecore/pkg/footprint"
	"github.com/edgecore-io/edgecore/pkg/retry"
	"github.com/edgecore-io/edgecore/pkg/shares"
	"github.com/edgecore-io/edgecore/pkg/version"
)

// The parts, in the order in which they start.
const (
	partAPI          = "kube-apiserver"
	partAccess       = "api-access"
	partCertificates = "certificates"
	partController   = "edgecontroller"
	partHub          = "cloudhub"
)

// runCloud connects to kube-apiserver and runs cloudcore until ctx ends.
func runCloud(ctx context.Context, cfg *v1alpha1.CloudCore) error {
	limitMemory("/")
	rc, err := kubeapi.Config(&cfg.KubeAPIConfig, rest.InClusterConfig)
	if err != nil {
		return err
	}
	hub := &cfg.Modules.CloudHub
	klog.InfoS("Starting cloudcore; devices have to dial one of its addresses or names", "version", version.String(),
		"apiServer", rc.Host, "advertiseAddress", hub.AdvertiseAddress, "dnsNames", hub.DNSNames)
	api, err := kubeapi.New(rc)
	if err != nil {
		return err
	}
	return serve(ctx, cfg, api)
}

// cloud is the parts.
type cloud struct {
	cfg      *v1alpha1.CloudCore
	api      *kubeapi.Server
	state    *monitor.Parts
	registry *prometheus.Registry

	clients    impersonate.Clients
	authority  *certificates.Authority
	controller *edgecontroller.Controller
	devices    *devicecontroller.Controller // nil: switched off
	stream     *cloudstream.Server          // nil: switched off
	proxy      *apiproxy.Proxy              // nil: switched off
	// replicas finds out which cloudcores are alive; nil if stream is nil.
	replicas *replicas.Replicas
	// learnCAs learns who signs the certificates of callers of KubeEdge's nodes.
	learnCAs func(ctx context.Context)
	records  *objectsync.Store
	guard    *nodeidentity.Guard
	hub      *cloudhub.Hub
}

// serve builds the parts, hands each what it needs, and runs them until ctx ends or one of them fails. What others
// stand on ends after them: first the sessions of nodes, then what carries out their requests, then the probes.
func serve(ctx context.Context, cfg *v1alpha1.CloudCore, api *kubeapi.Server) error {
	c := &cloud{
		cfg:      cfg,
		api:      api,
		registry: monitor.NewRegistry(),
		state:    monitor.NewParts(partAPI, partAccess, partCertificates, partController, partHub),
	}
	defer context.AfterFunc(ctx, c.state.SetStopping)()
	last, stopLast := context.WithCancel(context.WithoutCancel(ctx))
	var probes sync.WaitGroup
	defer probes.Wait()
	defer stopLast()
	if err := c.watchAccess(last, &probes); err != nil {
		return err
	}
	if err := c.monitor(last, &probes); err != nil {
		return err
	}
	if err := c.build(ctx); err != nil {
		return ended(ctx, err)
	}
	back, stopBack := context.WithCancel(context.WithoutCancel(ctx))
	var records sync.WaitGroup
	defer c.clients.Close()
	defer records.Wait()
	defer c.controller.Wait()
	if c.devices != nil {
		defer c.devices.Wait()
	}
	if c.stream != nil {
		defer c.stream.Close()
	}
	defer stopBack()
	records.Go(func() { _ = c.records.Run(back) }) // it ends with its context, and says itself what it cannot write
	if c.devices != nil {
		if err := c.devices.Start(back, c.hub); err != nil {
			return ended(ctx, err)
		}
	}
	unlessFilled := context.AfterFunc(ctx, stopBack)
	err := c.controller.Start(back, c.hub)
	if err != nil || !unlessFilled() {
		return ended(ctx, err)
	}
	c.state.Set(partController, nil)
	err = ended(ctx, c.front(ctx))
	klog.InfoS("cloudcore has stopped; the nodes keep running their pods")
	return err
}

// ended is the error of what has ended: none when that was asked for.
func ended(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		klog.ErrorS(err, "Not shut down cleanly")
	}
	return nil
}

// watchAccess reports whether kube-apiserver lets cloudcore do its work. It never ends cloudcore: a restart returns no
// rights, and links are worth keeping (docs/troubleshooting.md).
func (c *cloud) watchAccess(ctx context.Context, group *sync.WaitGroup) error {
	if err := c.api.Health.Register(c.registry); err != nil {
		return err
	}
	c.state.SetReadyCheck(partAccess, c.api.Health.Err)
	group.Go(func() { c.api.Health.Run(ctx) })
	return nil
}

// monitor starts the probes and metrics.
func (c *cloud) monitor(ctx context.Context, group *sync.WaitGroup) error {
	cfg := &c.cfg.CommonConfig.MonitorServer
	l, err := monitor.Listen(ctx, cfg.BindAddress)
	if err != nil || l == nil {
		return err
	}
	if err := monitor.Local(l.Addr().String()); err != nil {
		klog.InfoS("The monitor server is reachable from other hosts; restrict access to it", "address", l.Addr())
	}
	group.Go(func() {
		if err := monitor.Serve(ctx, l, monitor.Handler(c.state, c.registry, cfg.EnableProfiling)); err != nil {
			klog.ErrorS(err, "Monitor server stopped", "address", l.Addr())
		}
	})
	return nil
}

// build makes the parts, once kube-apiserver answers.
func (c *cloud) build(ctx context.Context) error {
	if err := kubeapi.Await(ctx, c.api.Client, func(err error) { c.state.SetWaiting(partAPI, err) }); err != nil {
		return err
	}
	c.state.Set(partAPI, nil)
	waiting := func(err error) { c.state.SetWaiting(partCertificates, err) }
	err := kubeapi.AwaitPermission(ctx, waiting, func() error {
		secrets, err := certificates.SecretsOf(ctx, c.api.Client, certificates.Namespace)
		if err == nil {
			c.authority, err = certificates.New(ctx, secrets, cloudconfig.CertificateOptions(&c.cfg.Modules.CloudHub))
		}
		return err
	})
	if err != nil {
		return err
	}
	c.state.Set(partCertificates, nil)
	waiting = func(err error) { c.state.SetWaiting(partAPI, err) }
	err = kubeapi.AwaitPermission(ctx, waiting, func() (err error) {
		c.clients, err = c.api.Connect(ctx)
		return err
	})
	if err != nil {
		return err
	}
	c.state.Set(partAPI, nil)
	c.controller, err = edgecontroller.New(edgecontroller.Options{
		Clients: c.clients,
		// Nodes are annotated with the cloudcore that they are connected to, of several behind one address.
		LocalIP:    v1alpha1.HostIP(),
		Permit:     func(ctx context.Context, node string) error { return c.guard.Permit(ctx, node) },
		NodeLabels: func(node string) map[string]string { return c.guard.Labels(node) },
		Registry:   c.registry,
	})
	if err != nil {
		return err
	}
	if c.records, err = objectsync.New(c.api.Objects); err != nil {
		return err
	}
	hub := cloudconfig.HubOptions(&c.cfg.Modules.CloudHub)
	if hub.LegacyCertificates {
		klog.InfoS("The certificate that nodes before KubeEdge v1.16 share is accepted: anyone who has it can " +
			"impersonate any node. " +
			"Set modules.cloudHub.legacyCertificates to false when the last of these nodes has joined again")
	}
	guard := cloudconfig.GuardOptions(&c.cfg.Modules.CloudHub)
	guard.Revoked, guard.Edge, guard.Nodes = c.authority.Check, c.controller.EdgeNode, c.api.Client.CoreV1().Nodes()
	c.guard = nodeidentity.New(guard)
	if err := c.controller.OnEdgeNode(c.guard.NodeChanged); err != nil {
		return err
	}
	joined, err := c.joinControllers()
	if err != nil {
		return err
	}
	hub.Downstream, hub.Upstream, hub.Gate = c.guard.Downstream(joined), c.guard.Upstream(joined), c.guard
	hub.Records, hub.Registry, hub.KubeCA = c.records, c.registry, c.api.CA
	hub.Duplicate = c.controller.Duplicate
	if hub.OpenFiles, err = openFiles(); err != nil {
		return err
	}
	hub.Memory = shares.NewMemory()
	if err := c.buildStream(hub.Memory); err != nil {
		return err
	}
	if c.stream != nil {
		hub.Tunnels = c.stream
		hub.Direct = c.cfg.Modules.CloudStream.Tunnel == v1alpha1.TunnelNever
	}
	if c.devices != nil {
		hub.Removed = c.devices.Removed
	}
	if c.cfg.Modules.DynamicController.Enable {
		c.proxy, err = apiproxy.New(apiproxy.Options{Config: c.api.Anonymous, Registry: c.registry})
		if err != nil {
			return err
		}
		hub.API = c.proxy
	}
	if c.hub, err = cloudhub.New(hub); err != nil {
		return err
	}
	c.guard.SetHub(c.hub)
	c.authority.OnChange(c.hub.Recheck)
	return nil
}

// openFiles returns the limit of open files. Go has raised it as far as it may.
func openFiles() (uint64, error) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return 0, fmt.Errorf("get the limit of open files: %w", err)
	}
	return files.Cur, nil
}

// joinControllers makes devicecontroller, unless it is switched off, and joins it with edgecontroller.
func (c *cloud) joinControllers() (controllers.Controller, error) {
	if !c.cfg.Modules.DeviceController.Enable {
		return controllers.Join(c.controller, nil), nil
	}
	options := cloudconfig.DeviceOptions(&c.cfg.Modules.DeviceController)
	options.Objects, options.Client, options.Registry = c.api.Objects, c.api.Client, c.registry
	options.Wait = c.controller.AwaitRequests
	var err error
	if c.devices, err = devicecontroller.New(options); err != nil {
		return nil, err
	}
	return controllers.Join(c.controller, c.devices), nil
}

// buildStream makes cloudstream, unless it is switched off.
func (c *cloud) buildStream(memory *shares.Memory) (err error) {
	cfg := &c.cfg.Modules.CloudStream
	if !cfg.Enable {
		return nil
	}
	o := cloudconfig.StreamOptions(cfg, v1alpha1.HostIP())
	o.Previous = func(node string) int32 { return c.controller.Endpoints.TunnelPort(node, o.Address.String()) }
	o.Named = func(port int32) bool { return c.controller.Endpoints.TunnelPortNamed(o.Address.String(), port) }
	o.Send = func(node string, m *model.Message) bool { return c.hub.Send(node, m) }
	o.Memory = memory
	o.Opened, o.Failed = c.controller.Endpoints.TunnelOpened, c.controller.Endpoints.TunnelFailed
	o.Registry = c.registry
	cas := auth.NewCAs(auth.CAOptions{Cluster: c.controller.ClientCA})
	c.learnCAs = func(ctx context.Context) {
		for backoff := retry.NewBackoff(time.Second, time.Minute); cas.Learn(ctx) != nil && backoff.Wait(ctx); {
		}
	}
	o.Guard = func(node string) kubeletproxy.Guard {
		return auth.New(cloudconfig.GuardOfCallers(node, c.controller.Reviewer(node), cas))
	}
	if c.stream, err = cloudstream.New(o); err != nil {
		return fmt.Errorf("modules.cloudStream: %w", err)
	}
	c.controller.Endpoints.SetTunnels(c.stream)
	c.replicas = replicas.New(c.api.Client.CoordinationV1().Leases(certificates.Namespace), o.Address.String())
	c.controller.Endpoints.SetCloudcores(func(address string) bool {
		// Of the ports at the own address, the range says which are those of tunnels: an agent may run on this machine.
		return address != o.Address.String() && c.replicas.Known(address)
	})
	klog.InfoS("Nodes are reached through tunnels", "address", o.Address, "firstPort", o.FirstPort,
		"lastPort", o.LastPort)
	return nil
}

// front runs the ports that nodes reach, until ctx ends or a part of it fails.
func (c *cloud) front(ctx context.Context) error {
	var streamPort int32
	if c.stream != nil {
		streamPort = c.cfg.Modules.CloudStream.TunnelPort
	}
	ports, err := edgeports.Open(ctx, &c.cfg.Modules.CloudHub, edgeports.Options{
		Hub:        c.hub,
		TLS:        c.edgeTLS,
		StreamPort: streamPort,
		ServeHTTPS: func(ctx context.Context, l net.Listener) error {
			return c.authority.Serve(ctx, c.hub.Arrivals(l), c.api.Client.CoreV1().Nodes())
		},
	})
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.hub.Run(ctx) })
	if c.stream != nil {
		group.Go(func() error { c.learnCAs(ctx); return nil })
		group.Go(func() error { c.replicas.Run(ctx); return nil })
		group.Go(func() error { c.controller.Endpoints.TakeOver(ctx, c.replicas); return nil })
	}
	if c.proxy != nil {
		group.Go(func() error { return c.proxy.Run(ctx) })
	}
	group.Go(func() error {
		footprint.Trim(ctx, footprint.TrimOptions{Every: 30 * time.Second, Heap: 64 << 20})
		return nil
	})
	group.Go(func() error { return c.authority.Run(ctx) })
	group.Go(func() error { return c.guard.Run(ctx) })
	group.Go(func() error { return c.controller.WatchHistory(ctx) })
	for _, p := range ports {
		klog.InfoS("Listening", "for", p.Key, "address", p.Addr)
		group.Go(func() error { return p.Serve(ctx) })
	}
	c.state.SetCheck(partHub, func() error {
		if err := c.hub.Health(); err != nil {
			return errors.Join(monitor.ErrStarting, err)
		}
		return nil
	})
	return group.Wait()
}

// edgeTLS admits clients that have a certificate of a CA that the link trusts at that moment.
func (c *cloud) edgeTLS() *tls.Config {
	certificate := c.authority.ServerTLS(tls.RequireAndVerifyClientCert).GetCertificate
	config := cloudhub.TLSConfig(certificate, c.authority.Pool())
	c.authority.VerifyClients(config)
	return config
}
