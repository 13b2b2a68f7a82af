// Package nodestatus makes the status of the Node: what the node has, what runs on it, and its conditions beside Ready.
// Package node reports it.
package nodestatus

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/containers/runtime"
	"github.com/edgecore-io/edgecore/edged/node/node"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/pkg/health"
)

const (
	// imagesFresh is how long a list of images is reported before the runtime is asked again.
	imagesFresh = time.Minute
	// listTimeout bounds the list of images.
	listTimeout = 10 * time.Second
)

// Options are what a Manager needs.
type Options struct {
	// Context ends calls to the runtime.
	Context  context.Context
	NodeName string
	System   v1.NodeSystemInfo
	// Capacity and Allocatable are those of the configuration; Devices returns those of device plugins.
	Capacity, Allocatable v1.ResourceList
	Devices               func() (capacity, allocatable v1.ResourceList)
	Addresses             *node.Addresses
	// Runtime returns the runtime's name and version, and Features what it can do; both are empty while they are not
	// known.
	Runtime  func() (name, version string)
	Features func() (runtime.Features, bool)
	// Answers says why the runtime does not answer; nil when it does.
	Answers func() error
	Images  runtimeapi.ImageServiceClient
	// MaxImages is how many images are reported; -1 is all.
	MaxImages    int
	VolumesInUse func() []v1.UniqueVolumeName
	Endpoints    func() v1.NodeDaemonEndpoints
	// Pressures returns the conditions that say what the node is short of.
	Pressures func() []v1.NodeCondition
	Health    *health.Registry
	Recorder  *events.Recorder
}

// Manager makes the status. Its methods may be called from any goroutine.
type Manager struct {
	opts Options

	mu       sync.Mutex
	images   []v1.ContainerImage
	imagesAt time.Time
	// reported are the agent's own conditions as they were reported last; the others were never reported.
	reported map[health.Code]v1.ConditionStatus
}

// New returns a Manager.
func New(o Options) *Manager {
	return &Manager{opts: o, reported: map[health.Code]v1.ConditionStatus{}}
}

// Status returns the status of the node without its conditions.
func (m *Manager) Status() v1.NodeStatus {
	m.checkAddresses()
	system := m.opts.System
	if name, runtimeVersion := m.opts.Runtime(); name != "" {
		system.ContainerRuntimeVersion = name + "://" + plainVersion(runtimeVersion)
	}
	features, _ := m.opts.Features()
	handlers, nodeFeatures := runtimeHandlers(features)
	capacity, allocatable := m.opts.Devices()
	maps.Copy(capacity, m.opts.Capacity)
	maps.Copy(allocatable, m.opts.Allocatable)
	return v1.NodeStatus{
		Capacity:         capacity,
		Allocatable:      allocatable,
		NodeInfo:         system,
		RuntimeHandlers:  handlers,
		Features:         nodeFeatures,
		Addresses:        m.opts.Addresses.NodeAddresses(m.opts.NodeName),
		VolumesInUse:     m.opts.VolumesInUse(),
		Images:           m.listImages(),
		DaemonEndpoints:  m.opts.Endpoints(),
		DeclaredFeatures: declaredFeatures(),
	}
}

// checkAddresses reports addresses of the configuration that none of the node's interfaces has, as when a network is
// not up yet, or a configuration was copied from another device.
func (m *Manager) checkAddresses() {
	missing, err := m.opts.Addresses.Missing()
	switch {
	case err != nil:
		klog.V(2).InfoS("Addresses of the node's interfaces not read", "err", err)
	case len(missing) > 0:
		m.opts.Health.Set(health.NodeAddressMissing, "", strings.Join(missing, ", "))
	default:
		m.opts.Health.Clear(health.NodeAddressMissing, "")
	}
}

// plainVersion returns a runtime's version without what its packager has added, as the kubelet reports it.
func plainVersion(text string) string {
	if v, err := version.ParseSemantic(text); err == nil {
		return v.String()
	}
	if v, err := version.ParseGeneric(text); err == nil {
		return v.String()
	}
	return text
}

// declaredFeatures returns the features that a cluster of v1.36 reads from a node's status, in order. Without the first
// the scheduler binds no pod with such a rule to the node; without the others the API server refuses to resize what
// they name. ExtendWebSocketsToKubelet is not among them: the API server translates WebSockets to the node's port.
func declaredFeatures() []string {
	return []string{
		"InPlacePodLevelResourcesVerticalScaling",
		"InPlacePodVerticalScalingInitContainers",
		"RestartAllContainersOnContainerExits",
	}
}

// runtimeHandlers returns what the Node's status says of the runtime; nil while its features are not known.
func runtimeHandlers(f runtime.Features) (handlers []v1.NodeRuntimeHandler, features *v1.NodeFeatures) {
	if f.Name == "" {
		return nil, nil
	}
	names := f.HandlerNames()
	if _, ok := f.Handlers[""]; ok {
		names = append([]string{""}, names...)
	}
	for _, name := range names {
		h := f.Handlers[name]
		handlers = append(handlers, v1.NodeRuntimeHandler{Name: name, Features: &v1.NodeRuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: ptr.To(h.RecursiveReadOnlyMounts),
			UserNamespaces:          ptr.To(h.UserNamespaces),
		}})
	}
	return handlers, &v1.NodeFeatures{SupplementalGroupsPolicy: ptr.To(f.SupplementalGroupsPolicy)}
}

// listImages returns the images for the status. While the runtime does not answer, it returns those listed last.
func (m *Manager) listImages() []v1.ContainerImage {
	if m.opts.MaxImages == 0 {
		return nil
	}
	m.mu.Lock()
	images, at := m.images, m.imagesAt
	m.mu.Unlock()
	if !at.IsZero() && time.Since(at) < imagesFresh || m.opts.Answers() != nil {
		return images
	}
	ctx, cancel := context.WithTimeout(m.opts.Context, listTimeout)
	defer cancel()
	list, err := m.opts.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		klog.V(2).InfoS("Images for the node's status not listed; trying again", "err", err)
		return images
	}
	images = node.Images(list.GetImages(), m.opts.MaxImages)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.images, m.imagesAt = images, time.Now()
	return images
}

// reportable returns the agent's own conditions that are reported on the Node. Those of the link are not: they are over
// by the time that they could be read there. Nor are those that make the node unready: Ready says so.
func reportable() []health.Code {
	return []health.Code{
		health.CgroupsIncomplete, health.CgroupsFailing, health.ClockNotSet, health.StoreRecovered,
		health.StoreRolledBack, health.StoreFailing, health.CertificateEnding, health.StaticPodBad,
		health.ImageDamaged, health.ReportTooLarge, health.ObjectTooLarge, health.NodeAddressMissing,
		health.ConfigurationBad, health.RestartNeeded, health.ClientCABad, health.ModuleFailing, health.SocketFailing,
		health.ServerStopped, health.ReadOnlyServerStopped,
	}
}

// agentConditions returns the conditions of the Node for those of the agent. One that is over is False if it was
// reported before, or if it is one of brief; a healthy node has none of them. It is pure.
func agentConditions(
	now []health.Condition, brief map[health.Code]health.Condition, reported map[health.Code]v1.ConditionStatus,
) []v1.NodeCondition {
	var list []v1.NodeCondition
	for _, code := range reportable() {
		i := slices.IndexFunc(now, func(c health.Condition) bool { return c.Code == code })
		switch {
		case i >= 0:
			list = append(list, v1.NodeCondition{
				Type:    v1.NodeConditionType(code),
				Status:  v1.ConditionTrue,
				Reason:  string(code),
				Message: conditionMessage(&now[i]),
			})
		case reported[code] != "":
			list = append(list, v1.NodeCondition{
				Type:    v1.NodeConditionType(code),
				Status:  v1.ConditionFalse,
				Reason:  "Over",
				Message: "this is over",
			})
		default:
			if c, over := brief[code]; over {
				list = append(list, v1.NodeCondition{
					Type:    v1.NodeConditionType(code),
					Status:  v1.ConditionFalse,
					Reason:  "Over",
					Message: "this is over: " + conditionMessage(&c),
				})
			}
		}
	}
	return list
}

func conditionMessage(c *health.Condition) string {
	text := c.Title
	for _, more := range []string{c.Object, c.Detail} {
		if more != "" {
			text += ": " + more
		}
	}
	return text + ". " + c.Remedy
}

// Conditions returns the conditions of the Node beside Ready. It sends an event for each condition of the agent that is
// new. The first time it also returns those that have begun and ended since the agent's start: a store that was rolled
// back is whole again a moment after the node has connected.
func (m *Manager) Conditions() []v1.NodeCondition {
	now := m.opts.Health.Snapshot()
	brief := m.opts.Health.TakeBrief() // after it: what ends in between is in both
	m.mu.Lock()
	list := agentConditions(now, brief, m.reported)
	for i := range list {
		code := health.Code(list[i].Type)
		_, over := brief[code]
		if list[i].Status == v1.ConditionTrue && m.reported[code] != v1.ConditionTrue ||
			over && m.reported[code] == "" {
			m.opts.Recorder.NodeEventf(v1.EventTypeWarning, string(code), "%s", list[i].Message)
		}
		m.reported[code] = list[i].Status
	}
	m.mu.Unlock()
	return append(list, m.opts.Pressures()...)
}

// Changed sends events for conditions that changed.
func (m *Manager) Changed(before, now []v1.NodeCondition) {
	for _, reason := range reasons(before, now) {
		m.opts.Recorder.NodeEventf(v1.EventTypeNormal, reason, "Node %s status is now: %s", m.opts.NodeName, reason)
	}
}

// reasons returns the kubelet's reasons of the events for changed conditions. A condition that was not there before has
// not changed. It is pure.
func reasons(before, now []v1.NodeCondition) []string {
	words := map[v1.NodeConditionType][2]string{
		v1.NodeReady:          {"NodeReady", "NodeNotReady"},
		v1.NodeMemoryPressure: {"NodeHasInsufficientMemory", "NodeHasSufficientMemory"},
		v1.NodeDiskPressure:   {"NodeHasDiskPressure", "NodeHasNoDiskPressure"},
		v1.NodePIDPressure:    {"NodeHasInsufficientPID", "NodeHasSufficientPID"},
	}
	var list []string
	for _, c := range now {
		i := slices.IndexFunc(before, func(b v1.NodeCondition) bool { return b.Type == c.Type })
		word, known := words[c.Type]
		if !known || i < 0 || before[i].Status == c.Status {
			continue
		}
		if c.Status == v1.ConditionTrue {
			list = append(list, word[0])
		} else {
			list = append(list, word[1])
		}
	}
	return list
}

// Found takes the Node as it was before this start of the agent: conditions that were reported then and are over will
// be reported as False. It sends an event if the machine was rebooted since.
func (m *Manager) Found(have *v1.Node) {
	m.opts.Addresses.Remember(&have.Status)
	m.mu.Lock()
	for _, c := range have.Status.Conditions {
		if code := health.Code(c.Type); slices.Contains(reportable(), code) && m.reported[code] == "" {
			m.reported[code] = c.Status
		}
	}
	m.mu.Unlock()
	if was := have.Status.NodeInfo.BootID; was != "" && was != m.opts.System.BootID {
		m.opts.Recorder.NodeEventf(v1.EventTypeWarning, "Rebooted", "Node %s has been rebooted, boot id: %s",
			m.opts.NodeName, m.opts.System.BootID)
	}
}
