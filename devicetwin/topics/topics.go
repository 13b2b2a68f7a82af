// Package topics serves the twins to programs on the device over MQTT, with the topics and messages of KubeEdge
// (docs/devices.md, MQTT). A request is answered when what it changed is on the disk.
//
// It trusts no client of the broker: messages are bounded before they are decoded, requests that wait for their answer
// are bounded in number, and nothing is kept of devices that the node does not have. While the broker is unreachable,
// changes are not queued, since clients ask for the twin when they are back.
package topics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/devicetwin"
	"github.com/edgecore-io/edgecore/devicetwin/dmi"
	"github.com/edgecore-io/edgecore/devicetwin/twin"
	"github.com/edgecore-io/edgecore/eventbus"
	"github.com/edgecore-io/edgecore/eventbus/topic"
	"github.com/edgecore-io/edgecore/pkg/devicemsg"
	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// Name is the name of the module on the bus, Group its group.
const (
	Name  = "eventbus"
	Group = "bus"
)

// Prefixes of the topics.
const (
	devicePrefix = "$hw/events/device/"
	nodePrefix   = "$hw/events/node/"
)

// MayPublish reports whether clients may publish to a topic: requests, and all outside of "$hw/". Everything else there
// is what the agent says: another client could not tell forged results, documents and deltas from the agent's.
func MayPublish(name string) bool {
	if !strings.HasPrefix(name, "$hw/") {
		return true
	}
	for _, request := range []string{
		devicePrefix + "+/+/twin/get", devicePrefix + "+/+/twin/update", devicePrefix + "+/+/twin/cloud_updated",
		devicePrefix + "+/+/state/update", nodePrefix + "+/membership/get",
	} {
		if topic.Match(request, name) {
			return true
		}
	}
	return false
}

// maxAnswers is how many answers may wait for the disk and the broker. More requests are not answered.
const maxAnswers = 1024

// Twins is what the module needs of devicetwin.
type Twins interface {
	Update(namespace, name string, reports, desired []twin.Report) (devicetwin.Stored, error)
	UpdateState(namespace, name, state, message string, from twin.Source) (devicetwin.Stored, error)
	Properties(namespace, name string) (map[string]twin.Property, error)
	Devices() []devicetwin.Device
	// MQTTBehind and MQTTCaughtUp are for Watch of eventbus.MQTT.
	MQTTBehind(since time.Time)
	MQTTCaughtUp()
}

// Options configure a Module. All but Now are required.
type Options struct {
	// Node is the name of the node.
	Node string
	// NewMQTT makes the connection to MQTT. It is called again when it or the module has failed: a wrong configuration
	// of MQTT stops only this module.
	NewMQTT func() (eventbus.MQTT, error)
	// Now is the wall clock.
	Now func() time.Time
}

// Module is the beehive module. Make it with New.
type Module struct {
	opts    Options
	twins   Twins
	answers chan answer
	dropped *rate.Limiter

	mu      sync.Mutex
	bus     eventbus.MQTT // the newest; nil before the first
	fresh   bool          // no Run has had bus
	changes map[string]*changes
	changed notify.Signal
}

// changes are those of a device that are not published yet.
type changes struct {
	devicetwin.Change
}

// answer is published when what a request changed is stored.
type answer struct {
	topic string
	id    string // of the request
	// repeated is set for a request that is a retained copy.
	repeated bool
	stored   devicetwin.Stored
	// content makes the message; base is its beginning.
	content func(base devicemsg.Base) any
}

// New makes the module. Without Serve it serves no twins.
func New(opts Options) *Module {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	m := &Module{
		opts:    opts,
		answers: make(chan answer, maxAnswers),
		dropped: newLogLimit(),
		changes: map[string]*changes{},
		changed: notify.NewSignal(),
	}
	// Run fails with the error, and is called again.
	if bus, err := opts.NewMQTT(); err == nil {
		m.bus, m.fresh = bus, true
	}
	return m
}

// newLogLimit bounds what is logged about clients.
func newLogLimit() *rate.Limiter { return rate.NewLimiter(rate.Every(10*time.Second), 1) }

// Serve sets the twins that clients read and change. It must be called before Run.
func (m *Module) Serve(t Twins) {
	m.twins = t
	if m.bus != nil {
		m.bus.Watch(t.MQTTBehind, t.MQTTCaughtUp)
	}
}

// Name implements beehive.Module.
func (m *Module) Name() string { return Name }

// Group implements beehive.Module.
func (m *Module) Group() string { return Group }

// Run implements beehive.Module.
func (m *Module) Run(ctx context.Context) error {
	bus, err := m.takeMQTT()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer cancel()
	if m.twins == nil { // the broker runs without devices, too
		return bus.Run(ctx)
	}
	for filter, handle := range map[string]func(topic.Message){
		devicePrefix + "+/+/twin/+":                  m.onTwin,
		devicePrefix + "+/+/state/update":            m.onState,
		nodePrefix + m.opts.Node + "/membership/get": m.onMembership,
	} {
		stop, err := bus.Subscribe(filter, handle)
		if err != nil {
			return fmt.Errorf("subscribe to %s: %w", filter, err)
		}
		defer stop()
	}
	parts.Go(func() { m.publish(ctx, bus) })
	return bus.Run(ctx)
}

// takeMQTT returns the bus of New, and new ones after that: a bus runs once. Watch is called without mu: it calls
// MQTTBehind, which waits for a lock under which devicetwin calls Changed.
func (m *Module) takeMQTT() (eventbus.MQTT, error) {
	m.mu.Lock()
	bus, fresh := m.bus, m.fresh
	m.fresh = false
	m.mu.Unlock()
	if fresh {
		return bus, nil
	}
	bus, err := m.opts.NewMQTT()
	if err != nil {
		return nil, err
	}
	if m.twins != nil {
		bus.Watch(m.twins.MQTTBehind, m.twins.MQTTCaughtUp)
	}
	m.mu.Lock()
	m.bus = bus
	m.mu.Unlock()
	return bus, nil
}

// Describe implements prometheus.Collector.
func (m *Module) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements prometheus.Collector.
func (m *Module) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	bus := m.bus
	m.mu.Unlock()
	if bus != nil {
		bus.Collect(ch)
	}
}

// Changed records a change of a twin, for the clients. It is for devicetwin.Options, and does not block.
func (m *Module) Changed(c devicetwin.Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := c.Namespace + "/" + c.Name
	have := m.changes[at]
	if have == nil {
		m.changes[at] = &changes{c}
	} else {
		have.add(c)
	}
	m.changed.Notify()
}

// add joins a later change: clients hear of the first state before, and of the last one after.
func (c *changes) add(later devicetwin.Change) {
	if later.Gone {
		c.Before, c.After = nil, nil
		c.Bound, c.Gone = later.Bound, true
	} else {
		c.Bound = c.Bound || later.Bound
	}
	before, after := map[string]twin.Property{}, map[string]twin.Property{}
	for _, from := range []devicetwin.Change{c.Change, later} {
		for name, p := range from.After {
			if _, known := after[name]; !known {
				before[name] = from.Before[name]
			}
			after[name] = p
		}
	}
	c.Before, c.After = before, after
}

// source returns the way on which a message has come.
func source(m topic.Message) twin.Source {
	switch m.Delivery {
	case topic.InSession:
		return twin.FromSession
	case topic.Waiting:
		return twin.FromWaiting
	case topic.Retained:
		return twin.FromRetained
	}
	return twin.FromNode
}

// onTwin handles $hw/events/device/NAMESPACE/NAME/twin/ACTION.
func (m *Module) onTwin(msg topic.Message) {
	namespace, name, action, ok := split(msg.Topic)
	if !ok {
		return
	}
	switch action {
	case "twin/get":
		m.get(namespace, name, msg)
	case "twin/update", "twin/cloud_updated":
		m.update(namespace, name, msg)
	}
}

// split returns the parts of a topic of a device.
func split(topic string) (namespace, name, action string, ok bool) {
	rest, ok := strings.CutPrefix(topic, devicePrefix)
	parts := strings.SplitN(rest, "/", 3)
	if !ok || len(parts) != 3 || parts[0] == "" || parts[1] == "" {
		return "", "", "", false
	}
	return parts[0], parts[1], parts[2], true
}

func deviceTopic(namespace, name, what string) string {
	return devicePrefix + namespace + "/" + name + "/" + what
}

func (m *Module) get(namespace, name string, msg topic.Message) {
	if msg.Delivery == topic.Retained {
		return // nobody waits for an answer
	}
	a := answer{topic: deviceTopic(namespace, name, "twin/get/result")}
	request, err := devicemsg.DecodeGet(msg.Payload)
	var props map[string]twin.Property
	if err == nil {
		a.id = request.EventID
		props, err = m.twins.Properties(namespace, name)
	}
	if err != nil {
		m.refuse(a, msg, err)
		return
	}
	a.content = func(base devicemsg.Base) any {
		return devicemsg.TwinResult{Base: base, Twin: messages(props)}
	}
	m.enqueue(a)
}

// update takes values that a client reports ("actual"), and values that it desires ("expected").
func (m *Module) update(namespace, name string, msg topic.Message) {
	a := answer{topic: deviceTopic(namespace, name, "twin/update/result"), repeated: msg.Delivery == topic.Retained}
	request, err := devicemsg.DecodeTwinUpdate(msg.Payload)
	if err != nil {
		m.refuse(a, msg, err)
		return
	}
	a.id = request.EventID
	reports, desired, err := m.read(request, source(msg))
	if err == nil {
		a.stored, err = m.twins.Update(namespace, name, reports, desired)
	}
	if err != nil {
		m.refuse(a, msg, err)
		return
	}
	a.content = func(base devicemsg.Base) any {
		props, err := m.twins.Properties(namespace, name)
		if err != nil {
			return refusal(base, err)
		}
		for prop := range props {
			if request.Twin[prop] == nil {
				delete(props, prop)
			}
		}
		return devicemsg.TwinResult{Base: base, Twin: messages(props)}
	}
	m.enqueue(a)
}

// read returns the values of an update.
func (m *Module) read(u *devicemsg.TwinUpdate, from twin.Source) (reports, desired []twin.Report, err error) {
	for name, t := range u.Twin {
		kind := ""
		if t != nil && t.Metadata != nil {
			kind = t.Metadata.Type
		}
		if t == nil || kind == "deleted" {
			return nil, nil, fmt.Errorf("property %s: it cannot be removed here: remove it from spec.properties of "+
				"the device", name)
		}
		for list, v := range map[*[]twin.Report]*devicemsg.Value{&reports: t.Actual, &desired: t.Expected} {
			text, has := v.Text()
			if !has {
				continue
			}
			at := v.At()
			switch {
			case at != 0:
			case from == twin.FromNode || from == twin.FromSession:
				at = m.opts.Now().UnixMilli()
			default:
				at = u.Timestamp
			}
			*list = append(*list, twin.Report{Name: name, Value: text, Type: kind, At: at, Source: from})
		}
	}
	if len(reports)+len(desired) == 0 {
		return nil, nil, errors.New(`want "actual" or "expected" with a "value" for a property`)
	}
	byName := func(a, b twin.Report) int { return strings.Compare(a.Name, b.Name) }
	smallsort.SortFunc(reports, byName)
	smallsort.SortFunc(desired, byName)
	return reports, desired, nil
}

// onState handles $hw/events/device/NAMESPACE/NAME/state/update.
func (m *Module) onState(msg topic.Message) {
	namespace, name, _, ok := split(msg.Topic)
	if !ok {
		return
	}
	a := answer{topic: deviceTopic(namespace, name, "state/update/result"), repeated: msg.Delivery == topic.Retained}
	request, err := devicemsg.DecodeStateRequest(msg.Payload)
	if err == nil {
		a.id = request.EventID
		a.stored, err = m.twins.UpdateState(namespace, name, request.State, request.Message, source(msg))
	}
	if err != nil {
		m.refuse(a, msg, err)
		return
	}
	a.content = func(base devicemsg.Base) any {
		r := devicemsg.StateResult{Base: base}
		r.Device.Name, r.Device.State = name, request.State
		return r
	}
	m.enqueue(a)
}

// onMembership handles $hw/events/node/NODE/membership/get.
func (m *Module) onMembership(msg topic.Message) {
	if msg.Delivery == topic.Retained {
		return // nobody waits for an answer
	}
	a := answer{topic: nodePrefix + m.opts.Node + "/membership/get/result"}
	request, err := devicemsg.DecodeGet(msg.Payload)
	if err != nil {
		m.refuse(a, msg, err)
		return
	}
	a.id = request.EventID
	a.content = func(base devicemsg.Base) any {
		out := devicemsg.Members{Base: base, Devices: []devicemsg.Member{}}
		for _, d := range m.twins.Devices() {
			out.Devices = append(out.Devices, devicemsg.Member{
				ID: d.Namespace + "/" + d.Name, Name: d.Name, State: d.Twin.State,
			})
		}
		smallsort.SortFunc(out.Devices, func(a, b devicemsg.Member) int { return strings.Compare(a.ID, b.ID) })
		return out
	}
	m.enqueue(a)
}

// refuse answers a request that is refused, with its own event id also if it cannot be decoded.
func (m *Module) refuse(a answer, msg topic.Message, err error) {
	if a.id == "" {
		a.id = devicemsg.EventID(msg.Payload)
	}
	a.content = func(base devicemsg.Base) any { return refusal(base, err) }
	m.enqueue(a)
}

func refusal(base devicemsg.Base, err error) devicemsg.Refusal {
	code := devicemsg.CodeInvalid
	switch {
	case errors.Is(err, dmi.ErrNoDevice):
		code = devicemsg.CodeNoDevice
	case errors.Is(err, devicetwin.ErrNotNewer):
		code = devicemsg.CodeConflict
	case errors.Is(err, dmi.ErrNotStored):
		code = devicemsg.CodeInternal
	}
	return devicemsg.Refusal{Base: base, Code: code, Reason: err.Error()}
}

// enqueue queues an answer to be published. It does not block. A copy that a broker retains comes again at each
// connection; nobody waits for its answer.
func (m *Module) enqueue(a answer) {
	if a.repeated {
		return
	}
	select {
	case m.answers <- a:
	default:
		if m.dropped.Allow() {
			klog.InfoS("MQTT clients send requests faster than the disk and the broker handle them; some get no answer",
				"topic", a.topic)
		}
	}
}

// publish publishes answers and changes until ctx ends.
func (m *Module) publish(ctx context.Context, bus eventbus.MQTT) {
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-m.answers:
			base := m.base(a.id)
			content := any(nil)
			if a.stored != nil {
				if err := a.stored(ctx); err != nil {
					content = refusal(base, err)
				}
			}
			if content == nil {
				content = a.content(base)
			}
			m.send(ctx, bus, a.topic, content)
		case <-m.changed:
			m.mu.Lock()
			changed := m.changes
			m.changes = map[string]*changes{}
			m.mu.Unlock()
			for _, c := range changed {
				m.publishChange(ctx, bus, c.Change)
			}
		}
	}
}

func (m *Module) base(id string) devicemsg.Base {
	if id == "" {
		id = uuid.NewString()
	}
	return devicemsg.Base{EventID: id, Timestamp: m.opts.Now().UnixMilli()}
}

// publishChange publishes the device's coming and going, its properties before and after, and the desired values that
// have not been reported.
func (m *Module) publishChange(ctx context.Context, bus eventbus.MQTT, c devicetwin.Change) {
	member := []devicemsg.Member{{ID: c.Namespace + "/" + c.Name, Name: c.Name}}
	membership := func(added, removed []devicemsg.Member) {
		base := m.base("")
		m.send(ctx, bus, nodePrefix+m.opts.Node+"/membership/updated", devicemsg.Membership{
			EventID: base.EventID, Timestamp: base.Timestamp, Added: added, Removed: removed,
		})
	}
	if c.Gone {
		membership(nil, member)
	}
	if c.Bound { // after its predecessor of that name has gone
		membership(member, nil)
	}
	if len(c.After) == 0 {
		return
	}
	document := devicemsg.Document{Base: m.base(""), Twin: map[string]*devicemsg.States{}}
	delta := devicemsg.Delta{Base: m.base(""), Twin: map[string]*devicemsg.Twin{}, Delta: map[string]string{}}
	for name, after := range c.After {
		document.Twin[name] = &devicemsg.States{
			Last: devicetwin.Message(c.Before[name], true), Current: devicetwin.Message(after, true),
		}
		if d := after.Desired; d != nil && (after.Reported == nil || after.Reported.Value != d.Value) {
			delta.Twin[name], delta.Delta[name] = devicetwin.Message(after, true), d.Value
		}
	}
	m.send(ctx, bus, deviceTopic(c.Namespace, c.Name, "twin/update/document"), document)
	if len(delta.Delta) > 0 {
		m.send(ctx, bus, deviceTopic(c.Namespace, c.Name, "twin/update/delta"), delta)
	}
}

// messages are the properties that have values.
func messages(props map[string]twin.Property) map[string]*devicemsg.Twin {
	out := map[string]*devicemsg.Twin{}
	for name, p := range props {
		if t := devicetwin.Message(p, true); t != nil {
			out[name] = t
		}
	}
	return out
}

// send publishes a message where there is a broker to take it.
func (m *Module) send(ctx context.Context, bus eventbus.MQTT, topic string, content any) {
	data, err := json.Marshal(content)
	if err == nil {
		err = bus.Notify(ctx, topic, data)
	}
	if err != nil && ctx.Err() == nil && m.dropped.Allow() {
		klog.ErrorS(err, "Message about a device not published", "topic", topic)
	}
}
