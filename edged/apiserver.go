package edged

import (
	"context"
	"crypto/tls"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/auth"
	"github.com/edgecore-io/edgecore/edged/metaclient"
	"github.com/edgecore-io/edgecore/edged/observed"
	"github.com/edgecore-io/edgecore/edged/server"
	"github.com/edgecore-io/edgecore/edged/serving"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/notify"
)

// systemLogDir is where the node's logs are.
const systemLogDir = "/var/log"

// APIOptions say how the authenticated port is served.
type APIOptions struct {
	// Listen is its address; "" is no such port. Where nobody could be let in, without a cloud and without a CA of
	// clients, it is not opened.
	Listen string
	Port   int32
	TLS    server.TLSOptions
	// CertFile and KeyFile are the port's certificate; "" has Bootstrap, or one that the node signs itself.
	CertFile, KeyFile string
	// Bootstrap has the cluster sign the port's certificate.
	Bootstrap bool
	// ClientCA is a file of CAs that sign clients' certificates, beside the cluster's.
	ClientCA string
	// Auth says who is let in; who they are asked of is worked out here.
	Auth auth.Options
	// Debugging serves what runs commands in containers and reads logs, Profiling the agent's profiles, Flags the level of
	// its log, SystemLogs the node's logs.
	Debugging, Profiling, Flags, SystemLogs bool
	// Config is the configuration in force, without its secrets; nil shows none.
	Config func() any
}

// api is the authenticated port.
type api struct {
	cas         *auth.CAs
	authority   *auth.Authority
	certificate *serving.Certificate
	linked      notify.Signal
	// now is the wall clock, which is not before what this device knows to be past.
	now func() time.Time
}

// newAPI makes the authenticated port; nil where there is none.
func (e *Edged) newAPI() *api {
	o := e.opts.API
	cloud := e.opts.Node != nil
	if o.Listen == "" || !cloud && o.ClientCA == "" && !o.Auth.Anonymous {
		return nil
	}
	a := &api{linked: notify.NewSignal(), now: certs.AtLeast(time.Now, e.opts.ClockBound.Time)}
	ca := auth.CAOptions{File: o.ClientCA, Now: a.now}
	who, cert := o.Auth, serving.Options{
		Dir: serving.Dir(e.opts.RootDir), CertFile: o.CertFile, KeyFile: o.KeyFile, Node: e.opts.NodeName, IPs: e.addresses.IPs, Now: a.now,
		Fault: func(err error) { e.health.SetError(health.ServingCertificate, "", err) },
	}
	if cloud {
		ca.Cluster = e.meta.ClientCA
		who.Cloud = metaclient.Reviews{Client: e.meta, Node: e.opts.NodeName}
		if o.Bootstrap {
			cert.Cluster = e.meta
		}
	}
	a.cas = auth.NewCAs(ca)
	who.Node, who.CAs = e.opts.NodeName, a.cas
	a.authority, a.certificate = auth.New(who), serving.New(cert)
	return a
}

// wake has what only the cloud can tell asked at once: there is a link again.
func (a *api) wake() {
	if a == nil {
		return
	}
	a.linked.Notify()
	a.certificate.Wake()
}

// serveAPI serves the authenticated port, and keeps what it needs, until ctx ends.
func (e *Edged) serveAPI(ctx context.Context) error {
	a := e.api
	if a == nil {
		return nil
	}
	config, err := server.TLS(e.opts.API.TLS, a.certificate.Get)
	if err != nil {
		return err
	}
	config.Time = a.now
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { a.learn(ctx) })
	wg.Go(func() { _ = a.certificate.Run(ctx) }) // which ends with ctx only
	return e.listenAPI(ctx, config)
}

func (e *Edged) listenAPI(ctx context.Context, config *tls.Config) error {
	handler := server.NewSecure(server.Options{
		Node:      e,
		Registry:  e.registry(),
		SLIs:      e.slis,
		Routes:    e.routes(),
		Debugging: e.opts.API.Debugging,
	}, e.api.authority)
	return e.keepServing(ctx, health.ServerStopped, e.opts.API.Listen, func(ctx context.Context) error {
		return server.ServeTLS(ctx, e.opts.API.Listen, handler, config)
	})
}

// learn asks for the cluster's CA of clients until it is known, with each link. From then on it is asked for when
// somebody comes, and only if it is old, or did not sign who they are: it is a kilobyte, and links are many.
func (a *api) learn(ctx context.Context) {
	for {
		err := a.cas.Learn(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			klog.V(2).InfoS("The cluster's CA of clients is not known yet", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-a.linked:
		}
	}
}

// apiRoutes are those of the kubelet's API that belong to no other part.
func (e *Edged) apiRoutes() []server.Route {
	o := e.opts.API
	routes := []server.Route{server.RunningPods(e.runningPods), server.Checkpoint(e.checkpoint)}
	if o.Config != nil {
		routes = append(routes, server.Configz(o.Config))
	}
	if o.SystemLogs {
		routes = append(routes, server.SystemLogs(systemLogDir))
	}
	if o.Profiling {
		routes = append(routes, server.Profiling()...)
	}
	if o.Flags {
		routes = append(routes, server.LogLevel())
	}
	return routes
}

// daemonEndpoints are where the cluster finds the authenticated port.
func (e *Edged) daemonEndpoints() v1.NodeDaemonEndpoints {
	if e.api == nil {
		return v1.NodeDaemonEndpoints{}
	}
	return v1.NodeDaemonEndpoints{KubeletEndpoint: v1.DaemonEndpoint{Port: e.opts.API.Port}}
}

// runningPods are those of which the runtime runs a container, whoever wants them.
func (e *Edged) runningPods() []*v1.Pod {
	var pods []*v1.Pod
	for _, obs := range e.pleg.All() {
		pod := &v1.Pod{}
		pod.Name, pod.Namespace, pod.UID = obs.Name, obs.Namespace, obs.UID
		for _, c := range obs.Containers {
			if c.Running() {
				pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: c.Name, Image: c.Image})
			}
		}
		if len(pod.Spec.Containers) > 0 {
			pods = append(pods, pod)
		}
	}
	return pods
}

// checkpoint has the state of a container written to a file under the root folder.
func (e *Edged) checkpoint(ctx context.Context, namespace, name, container string, timeout int64) (string, error) {
	c := e.runningContainer(namespace, name, container)
	if c == nil {
		return "", fmt.Errorf("container %s of pod %s/%s does not run on this node: %w", container, namespace, name, fs.ErrNotExist)
	}
	dir := filepath.Join(e.opts.RootDir, "checkpoints")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	path := filepath.Join(dir, fmt.Sprintf("checkpoint-%s_%s-%s-%s.tar", name, namespace, container, time.Now().Format(time.RFC3339)))
	if _, err := e.client.CheckpointContainer(ctx, &runtimeapi.CheckpointContainerRequest{ContainerId: c.ID, Location: path, Timeout: timeout}); err != nil {
		return "", fmt.Errorf("checkpoint of container %s of pod %s/%s: %w", container, namespace, name, err)
	}
	return path, nil
}

// runningContainer is a container that runs; nil where there is none of the name.
func (e *Edged) runningContainer(namespace, name, container string) *observed.Container {
	for _, obs := range e.pleg.All() {
		if obs.Namespace != namespace || obs.Name != name {
			continue
		}
		for _, c := range obs.Containers {
			if c.Name == container && c.Running() {
				return c
			}
		}
	}
	return nil
}
