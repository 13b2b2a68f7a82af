package api

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers/pleg"
	"github.com/edgecore-io/edgecore/edged/node/stats"
	"github.com/edgecore-io/edgecore/edged/podstate/clock"
	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/edged/serve/server"
	"github.com/edgecore-io/edgecore/edged/serve/statusui"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// gaugePatience bounds the wait for figures: the page is wanted most when something hangs.
const gaugePatience = 3 * time.Second

// Node answers what packages server, page and streaming ask about the node and its pods. Its methods may be called from
// any goroutine.
type Node struct {
	Desired  *desired.Pods
	Statuses *status.Manager
	PLEG     pleg.Interface
	// Recent are the events of the last time.
	Recent func() []v1.Event
	// Usage measures how full the node is.
	Usage func(context.Context) (stats.NodeUsage, error)
	// LogsOf is the folder with a folder of logs for each container of a pod.
	LogsOf func(*v1.Pod) string
	// Link tells how the link to the cloud is; nil where there is none.
	Link func() server.Link
	// Served are the devices that this node serves; nil where there is no such module.
	Served func() []statusui.Device
	// Runtime is the runtime's name and version.
	Runtime func() (name, version string)
	Health  *health.Registry
	// Began is when this run of edged began.
	Began time.Time
	// Static is what never changes of Info.
	Static server.Info
}

// Pods returns the pods with their newest status, by namespace and name. Pods on their way out are
// among them until nothing is left of them.
func (n *Node) Pods() []*v1.Pod { return n.Desired.WithStatuses(n.Statuses, n.Began) }

// Events returns what happened lately.
func (n *Node) Events() []v1.Event { return n.Recent() }

// SyncLoop returns nil when pods are being kept in sync.
func (n *Node) SyncLoop() error { return n.PLEG.Healthy() }

// Info returns what the status command shows.
func (n *Node) Info(context.Context) server.Info {
	info := n.Static
	info.Runtime, info.RuntimeVersion = n.Runtime()
	info.Started = clock.Since(n.Began, time.Now())
	info.Conditions = n.Health.Snapshot()
	if n.Link != nil {
		info.Link = new(n.Link())
		info.Link.Since = clock.Since(info.Link.Since, time.Now())
	}
	return info
}

// Gauges returns how full the device is, in the figures by which pods are evicted. It implements statusui.Source.
func (n *Node) Gauges(ctx context.Context) []statusui.Gauge {
	ctx, cancel := context.WithTimeout(ctx, gaugePatience)
	defer cancel()
	usage, err := n.Usage(ctx)
	if err != nil {
		klog.V(2).InfoS("Figures left out of the status page", "err", err)
	}
	return statusui.Gauges(&usage)
}

// Devices returns the devices that the node serves. It implements statusui.Source.
func (n *Node) Devices() []statusui.Device {
	if n.Served == nil {
		return nil
	}
	return n.Served()
}

// Observed implements streaming.Node.
func (n *Node) Observed(uid types.UID) *observed.Pod { return n.PLEG.Get(uid) }

// Refresh implements streaming.Node.
func (n *Node) Refresh(ctx context.Context, uid types.UID) (*observed.Pod, error) {
	return n.PLEG.Refresh(ctx, uid)
}

// LogDir implements streaming.Node.
func (n *Node) LogDir(pod *v1.Pod) string { return n.LogsOf(pod) }

// PageRoutes are the status page, at the root of the read-only port.
func PageRoutes(n *Node) []server.Route {
	return []server.Route{{Pattern: "/{$}", Handler: statusui.Handler(n), ReadOnly: true, LocalOnly: true}}
}
