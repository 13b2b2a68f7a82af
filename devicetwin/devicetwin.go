// Package devicetwin keeps the twins of the node's devices: the values that the cloud desires, and those that the
// mapper reports. It works without the cloud: mappers and clients on the device read and change twins while there is no
// link.
//
// It promises:
//
//   - A report is acknowledged after it is on the disk, and a value that is what it was is not written. Reports that
//     come at the same time share a transaction; there are at most two a second.
//   - The cloud gets the newest value of each property, with the time at which it was read, as soon as there is a link;
//     each report is sent until the cloud has confirmed it. A value that stays the same is sent again every five
//     minutes while its mapper reports it.
//   - Mappers get the desired values of the twins; package twin states the rules where they conflict.
//   - What is invalid is refused with an error that names device, property and cause. It changes nothing.
//
// The twin itself is the queue of what the cloud has to hear: nothing is written when the cloud confirms, and after a
// restart every twin is sent once.
package devicetwin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/devicetwin/dmi"
	"github.com/edgecore-io/edgecore/devicetwin/twin"
	"github.com/edgecore-io/edgecore/metamanager/store"
	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	"github.com/edgecore-io/edgecore/pkg/devicemsg"
	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/smallsort"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Name is the name of the module on the bus.
const Name = devicemsg.Group

// Store is what the module needs of the store.
type Store interface {
	List(ctx context.Context, typ string) ([]store.Meta, error)
	Get(ctx context.Context, key string) (store.Meta, error)
	Apply(ctx context.Context, ops ...store.Op) error
}

// Bus is what the module needs of beehive.
type Bus interface {
	Receive(ctx context.Context, module string) (*model.Message, error)
	SendSync(ctx context.Context, module string, m *model.Message) (*model.Message, error)
}

// Options configure a Module. Bus and Store are required.
type Options struct {
	Bus   Bus
	Store Store
	// SocketDir is the folder of the socket on which mappers register. SocketGroup returns the group that may use it; 0
	// is root. After an error it is asked again.
	SocketDir   string
	SocketGroup func() (int, error)
	// OtherSocketDir is a second folder with such a socket, where KubeEdge's mappers look for it; "" is none.
	OtherSocketDir string
	// Listening is called with the error that keeps a socket for mappers from being opened, and with nil once it is; it
	// may be nil.
	Listening func(socket string, err error)
	// Changed, if not nil, is called after each change of a twin. It must return soon, and must not call the module.
	Changed func(Change)
	// Now is the wall clock.
	Now func() time.Time
}

// Module is the beehive module. Make it with New.
type Module struct {
	opts   Options
	server *dmi.Server

	mu      sync.Mutex
	numbers numbering
	devices map[string]*entry // by NAMESPACE/NAME
	models  map[string]*devices.DeviceModel
	history history
	linked  bool
	mqtt    mqttSession
	// twice: the first value of each property is reported twice. The cloud may be KubeEdge's, which loses the values of
	// the first report on a property.
	twice bool

	persist *persister
	uplink  *uplink
	descs   descs
}

// entry is a device of the node, or a twin whose device is not known yet: device is nil then.
type entry struct {
	id     string
	device *devices.Device
	twin   twin.Twin
	report reporting
	// laterMessage is the newest message of the state that waits for messageTime; nil if none does.
	laterMessage *string
	// messageTime is when the message may change again without the state.
	messageTime time.Time
}

func (e *entry) namespace() string {
	namespace, _, _ := strings.Cut(e.id, "/")
	return namespace
}

// New makes the module.
func New(opts Options) *Module {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	m := &Module{
		opts:    opts,
		devices: map[string]*entry{},
		models:  map[string]*devices.DeviceModel{},
		history: history{},
		descs:   newDescs(),
	}
	m.server = dmi.New(dmi.Options{
		Dir:       opts.SocketDir,
		OtherDir:  opts.OtherSocketDir,
		Group:     opts.SocketGroup,
		Twins:     m,
		Load:      m.loadMappers,
		Save:      m.saveMapper,
		Now:       opts.Now,
		Listening: opts.Listening,
	})
	m.persist = newPersister(m)
	m.uplink = newUplink(m)
	return m
}

// Name implements beehive.Module.
func (m *Module) Name() string { return Name }

// Group implements beehive.Module.
func (m *Module) Group() string { return devicemsg.Group }

// Run implements beehive.Module.
func (m *Module) Run(ctx context.Context) error {
	if err := m.load(ctx); err != nil {
		return fmt.Errorf("read the devices from the store: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer cancel()
	parts.Go(func() { m.persist.run(ctx) })
	parts.Go(func() { m.uplink.run(ctx) })
	parts.Go(func() {
		if err := m.server.Run(ctx); err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "Mappers are not served")
		}
	})
	for {
		msg, err := m.opts.Bus.Receive(ctx, Name)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		m.applyMessage(msg)
	}
}

// applyMessage applies a message of metamanager, which has stored and acknowledged it, or of edgehub about the link.
func (m *Module) applyMessage(msg *model.Message) {
	if msg.Route.Operation == wire.OpConnect {
		var state wire.LinkState
		if err := json.Unmarshal(msg.ContentData(), &state); err == nil {
			m.setLink(state)
		}
		return
	}
	key, err := resource.Parse(msg.Route.Resource)
	if err != nil || key.Name == "" || key.Type != resource.TypeDevice && key.Type != resource.TypeDeviceModel {
		klog.V(4).InfoS("Message about devices ignored", "resource", msg.Route.Resource)
		return
	}
	deleted := msg.Route.Operation == model.OpDelete
	if key.Type == resource.TypeDeviceModel {
		err = m.setModel(key, msg.ContentData(), deleted)
	} else {
		err = m.setDevice(key, msg.ContentData(), deleted)
	}
	if err != nil {
		klog.ErrorS(err, "Object of the cloud is invalid; ignoring it", "resource", key.String())
	}
}

func (m *Module) setLink(state wire.LinkState) {
	m.mu.Lock()
	m.linked, m.twice = state.Connected, state.Features == wire.Features{}
	m.mu.Unlock()
	m.uplink.wake.Notify()
}

func id(namespace, name string) string { return namespace + "/" + name }

func (m *Module) setModel(key resource.Key, data []byte, deleted bool) error {
	model := &devices.DeviceModel{}
	if !deleted {
		if err := json.Unmarshal(data, model); err != nil {
			return err
		}
	}
	m.mu.Lock()
	if deleted {
		delete(m.models, id(key.Namespace, key.Name))
	} else {
		m.models[id(key.Namespace, key.Name)] = model
	}
	protocols := map[string]bool{}
	for _, e := range m.devices {
		if d := e.device; d != nil && d.Namespace == key.Namespace && d.Spec.DeviceModelRef.Name == key.Name {
			protocols[d.Spec.Protocol.ProtocolName] = true
		}
	}
	m.mu.Unlock()
	for p := range protocols {
		m.server.Changed(p)
	}
	return nil
}

// setDevice applies a device of the cloud. Deleting a device deletes its twin.
func (m *Module) setDevice(key resource.Key, data []byte, deleted bool) error {
	d := &devices.Device{}
	if err := json.Unmarshal(data, d); err != nil {
		return err
	}
	if len(d.Spec.Properties) > devices.MaxProperties {
		return fmt.Errorf("%d properties, limit %d", len(d.Spec.Properties), devices.MaxProperties)
	}
	m.mu.Lock()
	protocols := map[string]bool{}
	deviceID := id(key.Namespace, key.Name)
	e := m.devices[deviceID]
	change := Change{Namespace: key.Namespace, Name: key.Name, Gone: deleted}
	change.Bound = !deleted && (e == nil || e.device == nil)
	if e != nil && e.device != nil {
		protocols[e.device.Spec.Protocol.ProtocolName] = true
	}
	switch {
	case deleted && e != nil && e.device != nil && e.device.UID != d.UID:
		m.mu.Unlock()
		return nil // an older device of that name
	case deleted:
		delete(m.devices, deviceID)
		m.history.remove(deviceID)
	case e == nil:
		e = &entry{id: deviceID}
		m.devices[deviceID] = e
		fallthrough
	default:
		if e.device != nil && e.device.UID != d.UID { // deleted and created again while the node was offline
			change.Gone, change.Bound = true, true
			m.history.remove(deviceID)
			e.laterMessage = nil
		}
		e.device = d
		protocols[d.Spec.Protocol.ProtocolName] = true
		before := e.twin.Clone()
		if changed, desired := e.twin.SetSpec(d, m.nowMillis(), &m.numbers.Counter); changed {
			ahead, taken := m.mqtt.stampOf(twin.FromNode)
			e.twin.TakeDesired(desired, ahead, taken)
			e.report.received(m.opts.Now(), desired...)
			change.addChanged(before, &e.twin, desired)
		}
	}
	m.notifyChanged(change)
	m.mu.Unlock()
	m.persist.mark(deviceID)
	m.uplink.wake.Notify()
	for p := range protocols {
		m.server.Changed(p)
	}
	return nil
}

// nowMillis is the time in milliseconds since 1970.
func (m *Module) nowMillis() int64 { return m.opts.Now().UnixMilli() }

// errNoDevice names a device that the node does not have.
func errNoDevice(namespace, name string) error {
	return fmt.Errorf("device %.128s/%.128s: %w: bind it to this node with spec.nodeName", namespace, name,
		dmi.ErrNoDevice)
}

// Served implements dmi.Twins.
func (m *Module) Served(protocol string) (models []*devices.DeviceModel, list []*devices.Device) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen := map[string]bool{}
	for _, e := range m.devices {
		d := e.device
		if d == nil || d.Spec.Protocol.ProtocolName != protocol {
			continue
		}
		name := id(d.Namespace, d.Spec.DeviceModelRef.Name)
		model := m.models[name]
		list = append(list, e.twin.Desired(d, model))
		if model != nil && !seen[name] {
			seen[name] = true
			models = append(models, model)
		}
	}
	return models, list
}

// Device is a device with its twin, for people and programs on the device.
type Device struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Model     string    `json:"model"`
	Protocol  string    `json:"protocol"`
	Twin      twin.Twin `json:"twin"`
	// Units has the units of properties whose model names one.
	Units map[string]string `json:"units,omitempty"`
}

// Devices lists the devices of the node, unordered.
func (m *Module) Devices() []Device {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]Device, 0, len(m.devices))
	for _, e := range m.devices {
		if d := e.device; d != nil {
			out = append(out, Device{
				Namespace: d.Namespace,
				Name:      d.Name,
				Model:     d.Spec.DeviceModelRef.Name,
				Protocol:  d.Spec.Protocol.ProtocolName,
				Twin:      *e.twin.Clone(),
				Units:     m.units(d),
			})
		}
	}
	return out
}

// units returns the units of a device's properties. mu is held.
func (m *Module) units(d *devices.Device) map[string]string {
	model := m.models[id(d.Namespace, d.Spec.DeviceModelRef.Name)]
	if model == nil {
		return nil
	}
	var out map[string]string
	for _, p := range model.Spec.Properties {
		if p.Unit == "" {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[p.Name] = p.Unit
	}
	return out
}

// DeviceList is what Handler answers.
type DeviceList struct {
	Items []Device `json:"items"`
}

// Handler answers GET with the devices of the node as a DeviceList in JSON, sorted by namespace and name.
func (m *Module) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		list := DeviceList{Items: m.Devices()}
		smallsort.SortFunc(list.Items, func(a, b Device) int {
			return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
		})
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list) // the client has gone
	})
}

// load reads devices, models and twins from the store, and makes the epoch of a new store.
func (m *Module) load(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.devices, m.models = map[string]*entry{}, map[string]*devices.DeviceModel{}
	row, err := m.opts.Store.Get(ctx, numberingKey)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	m.numbers = resumeNumbering(row.Value)
	models, err := m.opts.Store.List(ctx, resource.TypeDeviceModel)
	if err != nil {
		return err
	}
	for _, row := range models {
		var model devices.DeviceModel
		if err := json.Unmarshal(row.Value, &model); err != nil {
			klog.ErrorS(err, "Stored model is invalid; left out", "key", row.Key)
			continue
		}
		m.models[id(model.Namespace, model.Name)] = &model
	}
	twins, err := m.opts.Store.List(ctx, resource.TypeDeviceTwin)
	if err != nil {
		return err
	}
	for _, row := range twins {
		deviceID := strings.Replace(row.Key, "/"+resource.TypeDeviceTwin+"/", "/", 1)
		e := &entry{id: deviceID}
		if err := json.Unmarshal(row.Value, &e.twin); err != nil {
			klog.ErrorS(err, "Stored twin is invalid; starting it again", "key", row.Key)
			e.twin = twin.Twin{}
			m.persist.mark(deviceID)
		}
		m.numbers.Last = max(m.numbers.Last, e.twin.Highest())
		m.devices[deviceID] = e
	}
	list, err := m.opts.Store.List(ctx, resource.TypeDevice)
	if err != nil {
		return err
	}
	for _, row := range list {
		d := &devices.Device{}
		if err := json.Unmarshal(row.Value, d); err != nil {
			klog.ErrorS(err, "Stored device is invalid; left out", "key", row.Key)
			continue
		}
		deviceID := id(d.Namespace, d.Name)
		e := m.devices[deviceID]
		if e == nil {
			e = &entry{id: deviceID}
			m.devices[deviceID] = e
		}
		e.device = d
		unmarked := !m.mqtt.behind && e.twin.UnmarkAhead()
		changed, desired := e.twin.SetSpec(d, m.nowMillis(), &m.numbers.Counter)
		if changed || unmarked {
			ahead, taken := m.mqtt.stampOf(twin.FromNode)
			e.twin.TakeDesired(desired, ahead, taken)
			m.persist.mark(deviceID)
		}
		e.report.everything(&e.twin)
	}
	for deviceID, e := range m.devices {
		if e.device == nil { // the agent ended between the deletion of the device and that of its twin
			delete(m.devices, deviceID)
			m.persist.mark(deviceID)
		}
	}
	m.persist.wake.Notify()
	return nil
}

// twinKey is the key of a twin's row.
func twinKey(deviceID string) string {
	namespace, name, _ := strings.Cut(deviceID, "/")
	return resource.Key{Namespace: namespace, Type: resource.TypeDeviceTwin, Name: name}.String()
}

// mapperKey is the key of a mapper's row. A protocol may have any characters.
func mapperKey(protocol string) string {
	return resource.NullNamespace + "/" + resource.TypeDeviceMapper + "/" + protocol
}

func (m *Module) loadMappers(ctx context.Context) (map[string][]byte, error) {
	rows, err := m.opts.Store.List(ctx, resource.TypeDeviceMapper)
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for _, row := range rows {
		if protocol, ok := strings.CutPrefix(row.Key, mapperKey("")); ok {
			out[protocol] = row.Value
		}
	}
	return out, nil
}

func (m *Module) saveMapper(ctx context.Context, protocol string, data []byte) error {
	op := store.Delete(mapperKey(protocol))
	if data != nil {
		op = store.Upsert(store.Meta{Key: mapperKey(protocol), Type: resource.TypeDeviceMapper, Value: data})
	}
	return m.opts.Store.Apply(ctx, op)
}

// persister writes twins to the store.
type persister struct {
	m    *Module
	wake notify.Signal

	mu sync.Mutex
	// dirty are the twins to write; waiting are those who wait for the next write.
	dirty   map[string]bool
	waiting []chan error
	// writing are the twins that are being written; joined are those who wait for that.
	writing map[string]bool
	joined  []chan error
}

// commitInterval is the shortest time between two writes: an SD card wears out with each.
const commitInterval = 500 * time.Millisecond

func newPersister(m *Module) *persister {
	return &persister{m: m, wake: notify.NewSignal(), dirty: map[string]bool{}}
}

// mark requests a write of a twin to the store.
func (p *persister) mark(deviceID string) {
	p.mu.Lock()
	p.dirty[deviceID] = true
	p.mu.Unlock()
	p.wake.Notify()
}

// enqueue requests a write of a twin to the store, and returns a function that waits for it. The caller holds mu of the
// module, so that settled finds what was changed before.
func (p *persister) enqueue(deviceID string) Stored {
	done := make(chan error, 1)
	p.mu.Lock()
	p.dirty[deviceID] = true
	p.waiting = append(p.waiting, done)
	p.mu.Unlock()
	p.wake.Notify()
	return stored(deviceID, done)
}

// settled returns a function that waits until the earlier changes of a twin are written. It requests no write.
func (p *persister) settled(deviceID string) Stored {
	done := make(chan error, 1)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.dirty[deviceID]:
		p.waiting = append(p.waiting, done)
	case p.writing[deviceID]:
		p.joined = append(p.joined, done)
	default:
		return func(context.Context) error { return nil }
	}
	return stored(deviceID, done)
}

// stored waits for the result of a write.
func stored(deviceID string, done <-chan error) Stored {
	return func(ctx context.Context) error {
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return fmt.Errorf("device %s: %w yet: %w", deviceID, dmi.ErrNotStored, ctx.Err())
		}
	}
}

// run writes until ctx ends, and then once more.
func (p *persister) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			p.write(last)
			cancel()
			return
		case <-p.wake:
		}
		p.write(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(commitInterval):
		}
	}
}

// write writes all that is dirty in one transaction. What cannot be written stays dirty.
func (p *persister) write(ctx context.Context) {
	p.mu.Lock()
	dirty, waiting := p.dirty, p.waiting
	p.dirty, p.waiting = map[string]bool{}, nil
	p.writing = dirty
	p.mu.Unlock()
	ops, numbers, err := p.m.writes(dirty)
	if err == nil && len(ops) > 0 {
		err = p.m.opts.Store.Apply(ctx, ops...)
	}
	p.mu.Lock()
	if err != nil {
		for deviceID := range dirty {
			p.dirty[deviceID] = true
		}
	}
	waiting = append(waiting, p.joined...)
	p.writing, p.joined = nil, nil
	p.mu.Unlock()
	if err == nil && len(ops) == 0 {
		return
	}
	if err != nil {
		p.wake.Notify()
		klog.ErrorS(err, "Twins of devices not stored; trying again", "devices", len(dirty))
		err = fmt.Errorf("%w: %w", dmi.ErrNotStored, err)
	}
	if err == nil {
		p.m.wasStored(numbers)
	}
	for _, done := range waiting {
		done <- err
	}
}

// wasStored lets the uplink send versions that are reserved in the store.
func (m *Module) wasStored(numbers reservation) {
	m.mu.Lock()
	could := m.numbers.maySend()
	m.numbers.stored = numbers
	can := m.numbers.maySend()
	m.mu.Unlock()
	if can && !could {
		m.uplink.wake.Notify()
	}
}

// writes are the operations that store twins, delete those of devices that are gone, and reserve versions.
func (m *Module) writes(dirty map[string]bool) ([]store.Op, reservation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ops, numbers := m.numbers.reserve()
	for deviceID := range dirty {
		e := m.devices[deviceID]
		if e == nil {
			ops = append(ops, store.Delete(twinKey(deviceID)))
			continue
		}
		data, err := json.Marshal(&e.twin)
		if err != nil {
			return nil, numbers, err
		}
		ops = append(ops, store.Upsert(store.Meta{Key: twinKey(deviceID), Type: resource.TypeDeviceTwin, Value: data}))
	}
	return ops, numbers, nil
}
