// Package edged is the light kubelet: it keeps the pods that the store and the manifest folder want running in
// a CRI runtime. It acts only on what is on the device; there is no "connected" in it.
//
// This folder wires the parts together and holds no logic of its own. build makes them in the order of their
// dependencies, one group per file; parts lists what runs, is served, is reloaded and is measured.
package edged

import (
	"context"
	"path/filepath"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/edged/containers/cgroups"
	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/containers/dns"
	"github.com/edgecore-io/edgecore/edged/node"
	nodeobject "github.com/edgecore-io/edgecore/edged/node/node"
	"github.com/edgecore-io/edgecore/edged/pods/podworker"
	"github.com/edgecore-io/edgecore/edged/podstate"
	"github.com/edgecore-io/edgecore/edged/storage"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/version"
)

// Bus is what edged needs of beehive.
type Bus interface {
	SendSync(ctx context.Context, module string, m *model.Message) (*model.Message, error)
	Receive(ctx context.Context, module string) (*model.Message, error)
}

// Edged is one run of the module: its parts are made by build and never replaced. Anyone who asks while the module is
// restarted (a liveness check, an HTTP request that outlasts the server) has one run or the other, never a mix.
type Edged struct {
	opts Options
	*state
	self     *node.Self
	podstate *podstate.Parts
	storage  *storage.Parts
	base
	containers
	tracking
	usage
	pods
	ports
	// list is the list of parts.
	list []part
}

// base is what most parts need.
type base struct {
	health *health.Registry
	client *cri.Client
	// reported are the addresses in the newest status that the API server has accepted; the node's goroutine has them.
	reported []v1.NodeAddress
	cgroups  *cgroups.Manager
	dns      atomic.Pointer[dns.Configurer]
	pool     *podworker.Pool
	system   v1.NodeSystemInfo
}

// build makes the parts and hands each what it needs. Nobody else has e before it returns.
func (e *Edged) build(ctx context.Context) error {
	e.self = node.NewSelf(e.opts.NodeName, e.opts.NodeIP, e.opts.Interface, e.opts.Allocatable)
	e.podstate = podstate.New(e.podstateOptions())
	if err := e.buildBase(ctx); err != nil {
		return err
	}
	e.storage = storage.New(e.storageOptions(ctx))
	if err := e.buildContainers(); err != nil {
		return err
	}
	e.buildTracking(ctx)
	e.buildUsage()
	e.buildPods(ctx)
	e.buildPorts(ctx)
	e.list = e.parts()
	e.reloads.setParts(e.list)
	return nil
}

// buildBase connects to the runtime, which need not answer yet.
func (e *Edged) buildBase(ctx context.Context) (err error) {
	o := &e.opts
	e.health = o.Health
	if e.client, err = cri.Dial(o.RuntimeEndpoint, o.ImageEndpoint, o.RuntimeTimeout); err != nil {
		return err
	}
	e.pool = podworker.New(ctx, podworker.Options{
		Resync:    o.Resync,
		Forgotten: func(uid types.UID) { e.intake.PodForgotten(uid) },
	})
	e.cgroups = cgroups.New(o.Cgroups)
	e.dns.Store(dns.New(o.DNS))
	e.system = nodeobject.System(version.Kubernetes() + "-edgecore-" + o.Version)
	return nil
}

// podDir returns the folder of a pod, at the same place as the kubelet's.
func (e *Edged) podDir(uid types.UID) string {
	return filepath.Join(e.opts.RootDir, "pods", string(uid))
}

// podFiles returns the files and folders of a pod that its containers write, beside its volumes and logs: its hosts
// file, and the folder of its termination messages.
func (e *Edged) podFiles(pod *v1.Pod) []string {
	return []string{filepath.Join(e.podDir(pod.UID), "etc-hosts"), e.runtime.MessagesDir(pod)}
}
