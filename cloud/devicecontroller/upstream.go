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
	c.mu.Unlock()
	// Reports of our edgecore have versions: written late, by this or another cloudcore, they replace nothing newer.
	c.writer.disconnected(node, ours)
}

// Inventoried implements cloudhub.Upstream.
func (c *Controller) Inventoried(context.Context, string, []wire.Held) []string { return nil }

// Heartbeat implements cloudhub.Upstream.
func (c *Controller) Heartbeat(context.Context, string) error { return nil }

// Handle implements cloudhub.Upstream: it takes a node's report. The answer is sent when the report is written.
func (c *Controller) Handle(_ context.Context, node string, m *model.Message) *model.Message {
	if m.Route.Resource == devicemsg.ResourceDetail {
		c.hub.Send(node, c.confirmation(node, m, nil))
		if all := membership(c.caches.on(node), nil); all != nil {
			c.hub.Send(node, all)
		}
		return nil
	}
	about, ok := devicemsg.ParseReport(m.Route.Resource)
	if !ok {
		return nil // cloudhub passes only these on
	}
	d, err := c.reportable(node, about)
	if err == nil {
		var r report
		if r, err = readReport(d, about.Kind, m.ContentData()); err == nil {
			c.metrics.reports.Inc()
			c.writer.add(d.Namespace, d.Name, node, r, m)
			return nil
		}
	}
	if errors.Is(err, errNotFilled) {
		return nil // the node sends the report again
	}
	c.metrics.refused.Inc()
	return c.confirmation(node, m, fmt.Errorf("%s: %w", m.Route.Resource, err))
}

// reportable returns the device that a node reports on.
func (c *Controller) reportable(node string, about devicemsg.Report) (*devices.Device, error) {
	if !c.caches.filled() {
		return nil, errNotFilled
	}
	if about.Namespace == "" { // KubeEdge before v1.16 sends the name only
		var found *devices.Device
		for _, d := range c.caches.on(node) {
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
	if d == nil || d.Spec.NodeName != node {
		return nil, fmt.Errorf("device %s/%s is not bound to node %s", about.Namespace, about.Name, node)
	}
	return d, nil
}

// confirmation answers a report. KubeEdge's edgecores send a report again until they get a response, whatever it says;
// ours distinguish errors.
func (c *Controller) confirmation(node string, m *model.Message, problem error) *model.Message {
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

// answer answers a report that was written, or cannot be.
func (c *Controller) answer(node string, m *model.Message, problem error) {
	c.hub.Send(node, c.confirmation(node, m, problem))
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

// stateChanged records the event of a device whose state was written.
func (c *Controller) stateChanged(d *devices.Device, before string, s *devices.Status) {
	c.metrics.states.WithLabelValues(s.State).Inc()
	kind, reason := v1.EventTypeWarning, "DeviceOffline"
	switch s.State {
	case devices.StateOnline, devices.StateOK:
		kind, reason = v1.EventTypeNormal, "DeviceOnline"
	case devices.StateUnhealthy:
		reason = "DeviceUnhealthy"
	case devices.StateUnknown:
		reason = "DeviceStateUnknown"
	}
	if before == "" && kind == v1.EventTypeNormal {
		return // the first report of a device that works
	}
	text := fmt.Sprintf("Device is %s on node %s", s.State, d.Spec.NodeName)
	if kind == v1.EventTypeWarning && s.LastOnlineTime != "" {
		text += "; it was last online at " + s.LastOnlineTime
	}
	c.events.add(d, kind, reason, text)
}

// refusedWrite records that the API server refuses a device's status for good.
func (c *Controller) refusedWrite(d *devices.Device, err error) {
	c.events.once(d, v1.EventTypeWarning, "StatusNotWritten", fmt.Sprintf("What node %s reports cannot be written: %v",
		d.Spec.NodeName, err))
}
