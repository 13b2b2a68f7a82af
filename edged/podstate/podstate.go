// Package podstate makes the parts that know something of pods without asking the runtime: the desired pods and their
// statuses, the events, the requests to metamanager, and what brings statuses and events to the cloud.
package podstate

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/podstate/adopted"
	"github.com/edgecore-io/edgecore/edged/podstate/apiendpoint"
	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/eventreport"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/podstate/metaclient"
	"github.com/edgecore-io/edgecore/edged/podstate/metaobjects"
	"github.com/edgecore-io/edgecore/edged/podstate/mirror"
	"github.com/edgecore-io/edgecore/edged/podstate/readiness"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/edged/podstate/statusreport"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/notify"
)

// State is what outlives a run of the agent's module.
type State struct {
	Desired *desired.Pods
	// Damaged: rows of the store may have been lost, and the cloud has not sent them again.
	Damaged atomic.Bool
}

// NewState returns the state of a module that has not run.
func NewState(damaged bool) *State {
	s := &State{Desired: desired.New()}
	s.Damaged.Store(damaged)
	return s
}

// Options are what the parts need.
type Options struct {
	*State
	Bus      metaclient.Bus
	Health   *health.Registry
	NodeName string
	// Events says how events are reported to the cloud.
	Events eventreport.Options
	// Adopted is what the store remembers of a takeover from another agent; nil is none.
	Adopted *adopted.Record
	// APIEndpoint is the Kubernetes API on the device; nil is none.
	APIEndpoint *apiendpoint.Endpoint
	// Cloud: there is a cloud. Linked: there is a link to it already.
	Cloud, Linked bool
	// Busy reports whether pods start or end: statuses and events wait for a moment meanwhile. It is not called by New.
	Busy func() bool
}

// Parts are what New has made.
type Parts struct {
	*State
	Meta     *metaclient.Client
	Objects  *metaobjects.Objects
	Events   *eventreport.Reporter
	Recorder *events.Recorder
	// Ready says which sources of pods were read.
	Ready    *readiness.Tracker
	Statuses *status.Manager
	Reporter *statusreport.Reporter
	Mirrors  *mirror.Manager // nil without a cloud
	Adopted  *adopted.Record // nil without a takeover
	// APIEndpoint is nil if there is none on the device.
	APIEndpoint *apiendpoint.Endpoint
	// CapacityFreed is notified when a pod has stopped or became smaller, so that a rejected one may fit.
	CapacityFreed notify.Signal
	// Began is when this run began.
	Began time.Time
}

// New makes the parts.
func New(o Options) *Parts {
	p := &Parts{
		State:         o.State,
		Ready:         readiness.New(o.Damaged.Load()),
		Adopted:       o.Adopted,
		APIEndpoint:   o.APIEndpoint,
		CapacityFreed: notify.NewSignal(),
		Began:         time.Now(),
	}
	p.Meta = metaclient.New(o.Bus)
	p.Objects = metaobjects.New(p.Meta, o.NodeName)
	p.Events = eventreport.New(p.Meta, o.Busy, o.Events)
	p.Recorder = events.New(o.NodeName, p.Events.Take)
	if o.Cloud {
		p.Mirrors = mirror.New(mirror.Options{
			Cloud:    p.Meta,
			NodeName: o.NodeName,
			// A mirror pod shows a status, whose reporter wakes the mirrors: so these are made before the statuses.
			Status: func(uid types.UID) (v1.PodStatus, bool) { return p.Statuses.Get(uid) },
			Linked: o.Linked,
		})
	}
	p.Reporter = statusreport.New(statusreport.Options{
		Store:        p.Meta,
		Stored:       func(err error) { o.Health.SetError(health.StoreFailing, "", err) },
		StaticStored: p.Mirrors.Wake,
		Busy:         o.Busy,
	})
	p.Statuses = status.NewManager(p.Reporter)
	return p
}

// HasAddress reports whether a pod has an address, as far as is known: by its newest status, or since a container was
// started in it, of which the status says nothing yet.
func (p *Parts) HasAddress(addr netip.Addr) bool {
	if p.Desired.HasAddress(addr) {
		return true
	}
	for _, w := range p.Desired.All() {
		st, ok := p.Statuses.Get(w.Pod.UID)
		if ok && slices.ContainsFunc(st.PodIPs, func(ip v1.PodIP) bool {
			has, err := netip.ParseAddr(ip.IP)
			return err == nil && has == addr
		}) {
			return true
		}
	}
	return false
}

// Pods returns the pods with their newest status, by namespace and name; see desired.Pods.WithStatuses.
func (p *Parts) Pods() []*v1.Pod { return p.Desired.WithStatuses(p.Statuses, p.Began) }
