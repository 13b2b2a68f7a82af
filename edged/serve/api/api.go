// Package api serves the ports of the node: the kubelet's API on the authenticated one, and on the read-only one what
// processes of the device may read without rights. The paths come from package server and from the parts of edged. This
// package keeps the ports open, provides what the authenticated one needs (a certificate, the CAs of clients, an
// authority), and answers the requests of both about the node.
package api

import (
	"context"
	"crypto/tls"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/podstate/metaclient"
	"github.com/edgecore-io/edgecore/edged/serve/server"
	"github.com/edgecore-io/edgecore/edged/serve/servingcert"
	"github.com/edgecore-io/edgecore/pkg/auth"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// Settings say how the authenticated port is served.
type Settings struct {
	// Listen is its address; "" disables the port. It is not opened if no client could be authenticated: without a
	// cloud and without a CA of clients.
	Listen string
	Port   int32
	TLS    server.TLSOptions
	// CertFile and KeyFile are the port's certificate; if empty, the port gets one by Bootstrap, or one that the node
	// signs itself.
	CertFile, KeyFile string
	// Bootstrap requests the port's certificate from the cluster.
	Bootstrap bool
	// ClientCA is a file of CAs that sign clients' certificates, beside the cluster's.
	ClientCA string
	// Auth says who is let in; who they are asked of is worked out here.
	Auth auth.Options
	// Debugging serves what runs commands in containers and reads logs, Profiling the agent's profiles, Flags the level
	// of its log, SystemLogs the node's logs.
	Debugging, Profiling, Flags, SystemLogs bool
	// Config is the configuration in force, without its secrets; nil shows none.
	Config func() any
	// Local serves the requests of KubeEdge's cloudcore without authentication; nil is none. While InUse, that
	// cloudcore writes the port at which callers reach it into the Node.
	Local *server.Local
	InUse func() bool
	// Tunnels serves, with authentication, what cloudcore sends through tunnels; nil is none. They do not go through
	// the port itself: while the agent restarts, another process of the node can take that.
	Tunnels *server.Local
}

// Options make an API.
type Options struct {
	Settings
	NodeName string
	// RootDir has the certificates that were made for the port.
	RootDir string
	// IPs are the node's addresses.
	IPs func() []string
	// Cloud is asked for the cluster's CA, for the certificate, and who callers are; nil is a node without a cloud.
	Cloud *metaclient.Client
	// NotBefore is a time that is over, whatever the clock says.
	NotBefore time.Time
	Health    *health.Registry
	// Connections is how many the port may have open; at least 256.
	Connections int
	// Served returns what the port serves. It is called once, by Run.
	Served func() server.Options
}

// API is the authenticated port. A nil API is a node without one. Its methods may be called from any goroutine.
type API struct {
	opts        Options
	cas         *auth.CAs
	authority   *auth.Authority
	certificate *servingcert.Certificate
	linked      notify.Signal
	// now is the wall clock, which is not before what this device knows to be past.
	now func() time.Time
}

// New makes the authenticated port; nil where there is none. It opens nothing yet.
func New(opts Options) *API {
	if opts.Listen == "" || opts.Cloud == nil && opts.ClientCA == "" && !opts.Auth.Anonymous {
		return nil
	}
	a := &API{opts: opts, linked: notify.NewSignal(), now: certs.AtLeast(time.Now, opts.NotBefore)}
	ca := auth.CAOptions{File: opts.ClientCA, Now: a.now}
	who, cert := opts.Auth, servingcert.Options{
		Dir:      servingcert.Dir(opts.RootDir),
		CertFile: opts.CertFile,
		KeyFile:  opts.KeyFile,
		Node:     opts.NodeName,
		IPs:      opts.IPs,
		Now:      a.now,
		Fault:    func(err error) { opts.Health.SetError(health.ServingCertificate, "", err) },
	}
	if opts.Cloud != nil {
		ca.Cluster = opts.Cloud.ClientCA
		who.Cloud = metaclient.Reviews{Client: opts.Cloud, Node: opts.NodeName}
		if opts.Bootstrap {
			cert.Cluster = opts.Cloud
		}
	}
	a.cas = auth.NewCAs(ca)
	who.Node, who.CAs = opts.NodeName, a.cas
	a.authority, a.certificate = auth.New(who), servingcert.New(cert)
	return a
}

// Linked requests at once what only the cloud knows: there is a link again.
func (a *API) Linked() {
	if a == nil {
		return
	}
	a.linked.Notify()
	a.certificate.Wake()
}

// NamesChanged requests a new certificate from the cluster if the node has got another name or address.
func (a *API) NamesChanged() {
	if a != nil {
		a.certificate.Wake()
	}
}

// Endpoints are where the cluster finds the port; nothing if the cloud says that.
func (a *API) Endpoints() v1.NodeDaemonEndpoints {
	if a == nil || a.opts.Local != nil && a.opts.InUse() {
		return v1.NodeDaemonEndpoints{}
	}
	return v1.NodeDaemonEndpoints{KubeletEndpoint: v1.DaemonEndpoint{Port: a.opts.Port}}
}

// Run serves the port, and keeps what it needs, until ctx ends.
func (a *API) Run(ctx context.Context) error {
	if a == nil {
		return nil
	}
	config, err := server.TLS(a.opts.TLS, a.certificate.Get)
	if err != nil {
		return err
	}
	config.Time = a.now
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { a.fetchClientCA(ctx) })
	wg.Go(func() { a.checkClientCA(ctx) })
	wg.Go(func() { _ = a.certificate.Run(ctx) }) // which ends with ctx only
	a.listen(ctx, config)
	return nil
}

func (a *API) listen(ctx context.Context, config *tls.Config) {
	served := a.opts.Served()
	served.Debugging = a.opts.Debugging
	if l := a.opts.Local; l != nil {
		var local sync.WaitGroup
		defer local.Wait()
		local.Go(func() { // it ends with ctx only
			if err := server.ServeLocal(ctx, l, server.NewSecure(served, server.Everybody{})); err != nil {
				klog.ErrorS(err, "Requests of the cloud to the kubelet API are not served")
			}
		})
	}
	secured := &server.Secured{Handler: server.NewSecure(served, a.authority), TLS: config, Known: a.cas.Known,
		Connections: a.opts.Connections}
	if l := a.opts.Tunnels; l != nil {
		var tunnels sync.WaitGroup
		defer tunnels.Wait()
		tunnels.Go(func() { // it ends with ctx only
			if err := secured.ServeLocal(ctx, l); err != nil {
				klog.ErrorS(err, "Requests through tunnels to the kubelet API are not served")
			}
		})
	}
	keepOpen(ctx, a.opts.Health, health.ServerStopped, a.opts.Listen, func(ctx context.Context) error {
		return secured.Serve(ctx, a.opts.Listen)
	})
}

// checkClientCA reports a file of CAs that cannot be used, until it can.
func (a *API) checkClientCA(ctx context.Context) {
	if a.opts.ClientCA == "" {
		return
	}
	for backoff := retry.NewBackoff(time.Second, 30*time.Second); ; {
		err := auth.CheckFile(a.opts.ClientCA)
		a.opts.Health.SetError(health.ClientCABad, a.opts.ClientCA, err)
		if err == nil || !backoff.Wait(ctx) {
			return
		}
	}
}

// fetchClientCA asks for the cluster's CA of clients until it is known, with each link. From then on it is requested
// again only when a client comes and it is old or did not sign the client's certificate: it is a kilobyte, and links
// come often.
func (a *API) fetchClientCA(ctx context.Context) {
	for {
		err := a.cas.Learn(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			klog.V(2).InfoS("The cluster's client CA is not known yet", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-a.linked:
		}
	}
}
