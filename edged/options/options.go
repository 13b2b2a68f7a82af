// Package options is what edged is made of: what the configuration says, worked out by edged/agentconfig, and the
// interfaces and values of the programs around it.
package options

import (
	"context"
	"net"
	"strconv"
	"time"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/edged/containers/cgroups"
	"github.com/edgecore-io/edgecore/edged/containers/dns"
	"github.com/edgecore-io/edgecore/edged/containers/garbage"
	"github.com/edgecore-io/edgecore/edged/containers/images"
	"github.com/edgecore-io/edgecore/edged/containers/logrotate"
	"github.com/edgecore-io/edgecore/edged/node/eviction"
	"github.com/edgecore-io/edgecore/edged/node/node"
	"github.com/edgecore-io/edgecore/edged/node/nodepressure"
	"github.com/edgecore-io/edgecore/edged/pods/shutdown"
	"github.com/edgecore-io/edgecore/edged/podstate/adopted"
	"github.com/edgecore-io/edgecore/edged/podstate/apiendpoint"
	"github.com/edgecore-io/edgecore/edged/podstate/clock"
	"github.com/edgecore-io/edgecore/edged/podstate/eventreport"
	"github.com/edgecore-io/edgecore/edged/serve/api"
	"github.com/edgecore-io/edgecore/edged/serve/server"
	"github.com/edgecore-io/edgecore/edged/serve/statusui"
	"github.com/edgecore-io/edgecore/pkg/filewatch"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
)

// Bus is what edged needs of beehive.
type Bus interface {
	SendSync(ctx context.Context, module string, m *model.Message) (*model.Message, error)
	Receive(ctx context.Context, module string) (*model.Message, error)
}

// Options are what the configuration says, worked out.
type Options struct {
	Bus    Bus
	Health *health.Registry
	// Watcher watches folders: of manifests, of plugins, of logs that are followed.
	Watcher *filewatch.Watcher

	NodeName string
	// NodeIP is the node's address, or one of each family with a comma between; empty is that of Interface, and without
	// one the address by which the node is known.
	NodeIP, Interface string
	// StatusImages is how many images the node's status tells of; -1 is all.
	StatusImages int
	// ClockBound is a time that is over; ClockSet, which may be nil, is called when the clock was set.
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
	Adopted *adopted.Record

	// APIEndpoint is the Kubernetes API on the device, which pods can use; nil is none.
	APIEndpoint *apiendpoint.Endpoint

	RuntimeEndpoint string
	ImageEndpoint   string
	RuntimeTimeout  time.Duration

	// Node says how the node is registered with the cloud; nil where there is no link to one. Its name, status and
	// health are worked out here.
	Node *node.Options
	// Link tells how the link to the cloud is; nil where there is none. Collectors are more metrics.
	Link func() server.Link
	// Devices are the devices that the node serves, for the status page; nil where there is no such module.
	Devices func() []statusui.Device
	// Routes are what the ports serve of other modules.
	Routes     []server.Route
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
	// Eviction says when pods are evicted for want of resources. PodsMemory is taken from Cgroups.
	Eviction nodepressure.Settings
	DNS      dns.Config
}

// Settings are those of the Options that can change while pods run.
type Settings struct {
	DNS        dns.Config
	MaxBackoff time.Duration
	Events     eventreport.Options
	Pulls      images.PullLimits
	// LogSize and LogFiles are the limits of containers' logs.
	LogSize  int64
	LogFiles int
	GC       garbage.Policy
	// Evictions say when pods end for want of resources. Hard thresholds are as they were at the start: what they keep
	// from pods is part of what the node has told that it has.
	Evictions eviction.Config
}

// Settings returns those of the options that can change while pods run.
func (o *Options) Settings() Settings {
	return Settings{
		DNS:        o.DNS,
		MaxBackoff: o.MaxBackoff,
		Events:     o.Events,
		Pulls:      o.Images.PullLimits(),
		LogSize:    o.Logs.MaxSize,
		LogFiles:   o.Logs.MaxFiles,
		GC:         o.GC,
		Evictions:  o.Eviction.Config,
	}
}

// ListenAddress joins an address and a port; port 0 is no server.
func ListenAddress(address string, port int32) string {
	if port == 0 {
		return ""
	}
	return net.JoinHostPort(address, strconv.Itoa(int(port)))
}
