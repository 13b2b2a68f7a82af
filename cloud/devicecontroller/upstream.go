package devicecontroller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	"github.com/edgecore-io/edgecore/pkg/devicemsg"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Connected implements cloudhub.Upstream.
func (c *Controller) Connected(_ context.Context, node, protocol string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sessions[node] = strings.HasPrefix(protocol, "edgecore/")
}

// Disconnected implements cloudhub.Upstream.
func (c *Controller) Disconnected(node, _ string) {
	ours, _ := c.runsEdgecore(node)
	c.mu.Lock()
	delete(c.sessions, node)
	for ch := range c.left {
		if ch.node == node {
			delete(c.left, ch)
		}
	}
	c.mu.Unlock()
	// Reports of our edgecore have versions: written late, by this or another cloudcore, they replace nothing newer.
	c.writer.disconnected(node, ours)
}

// Inventoried implements cloudhub.Upstream.
func (c *Controller) Inventoried(context.Context, string, []wire.Held) []string { return nil }

// Heartbeat implements cloudhub.Upstream.
func (c *Controller) Heartbeat(context.Context, string) error { return nil }

// Handle implements cloudhub.Upstream: it takes a node's report. The answer is sent when the report is written.
func (c *Controller) Handle(ctx context.Context, node string, m *model.Message) *model.Message {
	h, err := headOf(m)
	if err == nil {
		err = c.admit(ctx, node, len(m.Content))
	}
	if err != nil {
		klog.V(2).InfoS("Report on a device dropped", "node", node, "err", err)
		c.metrics.refused.Inc()
		return nil // the node sends the report again
	}
	if h.resource == devicemsg.ResourceDetail {
		c.hub.Send(node, c.confirmation(node, h, nil))
		if all := membership(c.caches.devicesOn(node), nil); all != nil {
			c.hub.Send(node, all)
		}
		return nil
	}
	about, ok := devicemsg.ParseReport(h.resource)
	if !ok {
		return nil // cloudhub passes only these on
	}
	d, err := c.reportable(ctx, node, about)
	if err == nil {
		var r report
		if r, err = readReport(d, about.Kind, m.Content); err == nil {
			c.metrics.reports.Inc()
			c.writer.add(d.Namespace, d.Name, node, r, h)
			return nil
		}
	}
	if errors.Is(err, errNotFilled) || errors.Is(err, errBehind) {
		return nil // the node sends the report again
	}
	c.metrics.refused.Inc()
	return c.confirmation(node, h, fmt.Errorf("%s: %w", h.resource, err))
}

// head is what the answer to a report needs of it. Reports wait for the API server, and their contents are large: no
// more than this stays in memory.
type head struct{ id, typ, resource string }

// maxHead limits the texts of a head.
const maxHead = 1 << 10

func headOf(m *model.Message) (head, error) {
	if n := len(m.Header.ID) + len(m.Header.Type) + len(m.Route.Resource); n > maxHead {
		return head{}, fmt.Errorf("id, type and resource of the message have %d bytes, limit %d", n, maxHead)
	}
	return head{
		strings.Clone(m.Header.ID), strings.Clone(m.Header.Type), strings.Clone(m.Route.Resource),
	}, nil
}

// requestBytes is how much of a report counts as one request in the node's rate limit: reading a large one takes as
// long as several requests.
const requestBytes = 64 << 10

// admit waits while the node exceeds its rate limit.
func (c *Controller) admit(ctx context.Context, node string, size int) error {
	if c.wait == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, admitTimeout)
	defer cancel()
	return c.wait(ctx, node, 1+size/requestBytes)
}

// admitTimeout limits how long a report waits for the node's rate limit.
const admitTimeout = 20 * time.Second

// errBehind is returned for a device that the cache does not have as the API server has it.
var errBehind = errors.New("the cache of devices is behind the API server")

// reportable returns the device that a node reports on. That a device is not bound to the node is asked of the API
// server, as the cache may be behind: the node's link may have moved here from another cloudcore.
func (c *Controller) reportable(ctx context.Context, node string, about devicemsg.Report) (*devices.Device, error) {
	if !c.caches.filled() {
		return nil, errNotFilled
	}
	if about.Namespace == "" { // KubeEdge before v1.16 sends the name only
		var found *devices.Device
		for _, d := range c.caches.devicesOn(node) {
			if d.Name == about.Name {
				if found != nil {
					return nil, fmt.Errorf("node %s has several devices named %s; KubeEdge before v1.16 cannot "+
						"distinguish them: rename one", node, about.Name)
				}
				found = d
			}
		}
		if found == nil {
			return nil, fmt.Errorf("no device %s is bound to node %s", about.Name, node)
		}
		return found, nil
	}
	d := c.caches.device(about.Namespace, about.Name)
	if d != nil && d.Spec.NodeName == node {
		return d, nil
	}
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	now, err := read[devices.Device](ctx, c.caches.objects, devices.Devices, about.Namespace, about.Name)
	if err != nil || now != nil && now.Spec.NodeName == node {
		return nil, errBehind
	}
	return nil, fmt.Errorf("device %s/%s is not bound to node %s", about.Namespace, about.Name, node)
}

// confirmation answers a report. KubeEdge's edgecores send a report again until they get a response, whatever it says;
// ours distinguish errors.
func (c *Controller) confirmation(node string, h head, problem error) *model.Message {
	m := &model.Message{Header: model.Header{ID: h.id, Type: h.typ}}
	r := m.Respond(model.OK)
	ours, _ := c.runsEdgecore(node)
	if problem != nil {
		r = m.RespondError(devicemsg.SourceCloud, problem)
		if late := (*devicemsg.Outdated)(nil); errors.As(problem, &late) {
			c.metrics.older.Inc()
			if text, err := json.Marshal(late); err == nil {
				r.Content = text
			}
		}
		if !ours {
			r.Route.Operation = model.OpResponse
		}
	}
	r.Route.Source, r.Route.Group, r.Route.Resource = devicemsg.SourceCloud, devicemsg.Group, devicemsg.ResourceConfirm
	return r
}

// answerReport answers a report that was written, or cannot be.
func (c *Controller) answerReport(node string, h head, problem error) {
	c.hub.Send(node, c.confirmation(node, h, problem))
}

// repeats reports whether a node sends a report again that was answered with an error. KubeEdge's do not.
func (c *Controller) repeats(node string) bool {
	ours, _ := c.runsEdgecore(node)
	return ours
}

// tellMembership tells KubeEdge's edgecores which devices their node gained and lost. Ours need no such message.
func (c *Controller) tellMembership(old, now *devices.Device) {
	send := func(node string, m *model.Message) {
		if ours, connected := c.runsEdgecore(node); connected && !ours {
			c.hub.Send(node, m)
		}
	}
	before, after := "", ""
	if old != nil {
		before = old.Spec.NodeName
	}
	if now != nil {
		after = now.Spec.NodeName
	}
	same := old != nil && now != nil && old.UID == now.UID && before == after
	if before != "" && !same {
		send(before, membership(nil, []*devices.Device{old}))
	}
	if after != "" && !same {
		send(after, membership([]*devices.Device{now}, nil))
	}
}

// membership returns the message about devices that a node gained and lost; nil if there are none.
func membership(added, removed []*devices.Device) *model.Message {
	if len(added)+len(removed) == 0 {
		return nil
	}
	content, err := json.Marshal(devicemsg.Membership{
		EventID:   uuid.NewString(),
		Timestamp: time.Now().UnixMilli(),
		Added:     members(added),
		Removed:   members(removed),
	})
	if err != nil { // strings always encode
		panic(err)
	}
	return model.New(devicemsg.SourceCloud, devicemsg.Group, model.OpUpdate, devicemsg.ResourceMembership, content)
}

func members(list []*devices.Device) []devicemsg.Member {
	var out []devicemsg.Member
	for _, d := range list {
		out = append(out, devicemsg.Member{
			ID:          d.Namespace + "/" + d.Name,
			Name:        d.Name,
			Description: d.Labels["description"],
		})
	}
	return out
}

// stateChanged records the event of a device whose state was written, or another message of the same state. Messages
// may change with each try of a mapper to reach the device: the DeviceStatus has all of them, events one an hour.
func (c *Controller) stateChanged(d *devices.Device, before shownState, s *devices.Status) {
	message, same := shownOf(s).message, before.state == s.State
	if !same {
		c.metrics.states.WithLabelValues(s.State).Inc()
	}
	kind, reason := v1.EventTypeWarning, "DeviceOffline"
	switch s.State {
	case devices.StateOnline, devices.StateOK:
		kind, reason = v1.EventTypeNormal, "DeviceOnline"
	case devices.StateUnhealthy:
		reason = "DeviceUnhealthy"
	case devices.StateUnknown:
		reason = "DeviceStateUnknown"
	}
	switch {
	case before.state == "" && kind == v1.EventTypeNormal:
		return // the first report of a device that works
	case same && (message == "" || !c.events.isNew(d.UID, reason, "")):
		return
	}
	text := fmt.Sprintf("Device is %s on node %s", s.State, d.Spec.NodeName)
	if kind == v1.EventTypeWarning && s.LastOnlineTime != "" {
		text += "; it was last online at " + s.LastOnlineTime
	}
	if message != "" {
		text += ": " + message
	}
	c.events.add(d, kind, reason, text)
}

// refusedWrite records that the API server refuses a device's status for good.
func (c *Controller) refusedWrite(d *devices.Device, err error) {
	c.events.once(d, v1.EventTypeWarning, "StatusNotWritten", fmt.Sprintf("What node %s reports cannot be written: %v",
		d.Spec.NodeName, err))
}
