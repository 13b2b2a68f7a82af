package dmi

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"k8s.io/klog/v2"

	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	dmi "github.com/edgecore-io/edgecore/pkg/dmi/v1beta1"
	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/pluginrpc"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

const (
	// callTimeout is how long a mapper may take for one call. KubeEdge's mapper framework takes up to 3 s to find a
	// model.
	callTimeout = 10 * time.Second
	firstRetry  = 500 * time.Millisecond
	lastRetry   = 30 * time.Second
	// saveTimeout is the limit for storing what a mapper has.
	saveTimeout = 30 * time.Second
)

// mapper is a registered mapper. run is its goroutine.
type mapper struct {
	server                           *Server
	name, version, protocol, address string
	wake                             notify.Signal
	stop                             context.CancelFunc
	dial                             func() (_ dmi.DeviceMapperServiceClient, hangUp func(), err error)
	// ended is closed when run has returned; nil if it was not started.
	ended chan struct{}
	// owner is who has registered it; nil if that is unknown.
	owner *identity

	mu sync.Mutex
	// known are the devices and models that the mapper has: the hash of each by its key.
	known   map[string]string
	problem string
}

// record is a mapper in the store.
type record struct {
	Name    string            `json:"name"`
	Version string            `json:"version"`
	Address string            `json:"address"`
	Known   map[string]string `json:"known"`
	Owner   *identity         `json:"owner,omitempty"`
}

func newMapper(s *Server, name, version, protocol, address string) *mapper {
	return &mapper{
		server:   s,
		name:     name,
		version:  version,
		protocol: protocol,
		address:  address,
		wake:     notify.NewSignal(),
		stop:     func() {},
		dial: func() (dmi.DeviceMapperServiceClient, func(), error) {
			return dialSocket(address)
		},
		known: map[string]string{},
	}
}

// restore returns a mapper from the store.
func restore(s *Server, protocol string, data []byte) (*mapper, error) {
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, err
	}
	m := newMapper(s, r.Name, r.Version, protocol, r.Address)
	m.owner = r.Owner
	maps.Copy(m.known, r.Known)
	return m, nil
}

func (m *mapper) save(ctx context.Context) error {
	m.mu.Lock()
	data, err := json.Marshal(record{m.name, m.version, m.address, m.known, m.owner})
	m.mu.Unlock()
	if err != nil {
		return err
	}
	return m.server.opts.Save(ctx, m.protocol, data)
}

func (m *mapper) describe() Mapper {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Mapper{Name: m.name, Version: m.version, Protocol: m.protocol, Address: m.address, Problem: m.problem}
}

// Prefixes of the keys of what a mapper has.
const (
	prefixModel  = "model "
	prefixDevice = "device "
)

// wanted is what a mapper should have: models and devices by key, each with its hash.
type wanted struct {
	models  map[string]*dmi.DeviceModel
	devices map[string]*dmi.Device
	hashes  map[string]string
}

// want returns what the mapper should have. What cannot be converted is left out, and logged.
func (m *mapper) want() wanted {
	models, list := m.server.opts.Twins.Served(m.protocol)
	w := wanted{models: map[string]*dmi.DeviceModel{}, devices: map[string]*dmi.Device{}, hashes: map[string]string{}}
	byName := map[string]*devices.DeviceModel{}
	for _, model := range models {
		byName[model.Namespace+"/"+model.Name] = model
		key := prefixModel + model.Namespace + "/" + model.Name
		converted := toModel(model)
		if !m.fits(key, converted) {
			continue
		}
		w.models[key] = converted
		w.hashes[key] = hash(converted)
	}
	for _, d := range list {
		converted, err := toDevice(d, byName[d.Namespace+"/"+d.Spec.DeviceModelRef.Name])
		if err != nil {
			klog.ErrorS(err, "Device not given to its mapper: correct it in the cluster", "mapper", m.name)
			continue
		}
		key := prefixDevice + d.Namespace + "/" + d.Name
		if !m.fits(key, converted) {
			continue
		}
		w.devices[key] = converted
		w.hashes[key] = hash(converted)
	}
	return w
}

// fits reports whether an object is small enough for a mapper, and logs if it is not.
func (m *mapper) fits(what string, object proto.Message) bool {
	size := proto.Size(object)
	if size > maxObject {
		klog.ErrorS(nil, "Not given to its mapper: too large; make its configData smaller", "mapper", m.name,
			"object", what, "bytes", size, "limit", maxObject)
	}
	return size <= maxObject
}

func hash(m proto.Message) string {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil { // a message that was made here encodes
		panic(err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// everything returns what the mapper should have, for the answer to its registration: the smallest devices first, with
// their models, as far as the answer has room. sync sends the rest.
func (m *mapper) everything() (models []*dmi.DeviceModel, list []*dmi.Device) {
	w := m.want()
	known := map[string]string{}
	keys := slices.SortedFunc(maps.Keys(w.devices), func(a, b string) int {
		return cmp.Or(proto.Size(w.devices[a])-proto.Size(w.devices[b]), strings.Compare(a, b))
	})
	room := maxAnswer
	for _, key := range keys {
		d := w.devices[key]
		size := proto.Size(d)
		modelKey := prefixModel + d.GetNamespace() + "/" + d.GetSpec().GetDeviceModelReference()
		model := w.models[modelKey]
		if known[modelKey] != "" {
			model = nil // it is in the answer
		}
		if model != nil {
			size += proto.Size(model)
		}
		if size > room {
			continue
		}
		room -= size
		if model != nil {
			models = append(models, model)
			known[modelKey] = w.hashes[modelKey]
		}
		list = append(list, d)
		known[key] = w.hashes[key]
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known = known
	return models, list
}

// stale is the hash of what a mapper may have from an earlier registration: it is sent again, or removed.
const stale = "stale"

// forget takes from the former registration of a mapper what that may have.
func (m *mapper) forget(old *mapper) {
	old.mu.Lock()
	defer old.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range old.known {
		m.known[key] = stale
	}
}

// run keeps the mapper in step until ctx ends.
func (m *mapper) run(ctx context.Context) {
	backoff := retry.NewBackoff(firstRetry, lastRetry)
	m.wake.Notify()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		}
		err := m.sync(ctx)
		if ctx.Err() != nil {
			return
		}
		m.note(err)
		if err == nil {
			backoff.Reset()
			continue
		}
		if !backoff.Wait(ctx) {
			return
		}
		m.wake.Notify()
	}
}

// note keeps and logs what is wrong, once until it changes.
func (m *mapper) note(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	m.mu.Lock()
	before := m.problem
	m.problem = text
	m.mu.Unlock()
	switch {
	case text == before:
	case err != nil:
		klog.ErrorS(err, "Mapper does not have all its devices; trying again", "mapper", m.name, "protocol", m.protocol,
			"socket", m.address)
	default:
		klog.InfoS("Mapper has all its devices", "mapper", m.name, "protocol", m.protocol)
	}
}

// sync sends the mapper what differs. The error is why something is missing.
func (m *mapper) sync(ctx context.Context) error {
	w := m.want()
	m.mu.Lock()
	known := maps.Clone(m.known)
	m.mu.Unlock()
	if maps.Equal(known, w.hashes) {
		return nil
	}
	client, hangUp, err := m.dial()
	if err != nil {
		return err
	}
	defer hangUp()
	var problems []error
	changed, again := false, false
	for _, key := range order(known, w.hashes) {
		select {
		case <-m.wake: // the calls before took their time: send no desired value that was replaced meanwhile
			w, again = m.want(), true
		default:
		}
		if known[key] == w.hashes[key] {
			continue
		}
		err := m.send(ctx, client, key, known[key] != "" && known[key] != stale, w)
		if w.hashes[key] == "" && status.Code(err) == codes.NotFound {
			err = nil // it is gone
		}
		switch {
		case err == nil:
			changed = true
			m.mu.Lock()
			if h := w.hashes[key]; h != "" {
				m.known[key] = h
			} else {
				delete(m.known, key)
			}
			m.mu.Unlock()
			continue
		case ctx.Err() != nil:
			return ctx.Err()
		}
		problems = append(problems, fmt.Errorf("%s: %w", key, err))
		if c := status.Code(err); c == codes.Unavailable || c == codes.DeadlineExceeded {
			break // the mapper is away or hangs; the other calls would wait as well
		}
	}
	if again {
		m.wake.Notify() // for what has no place in this order, or was sent before it changed
	}
	if changed {
		sctx, cancel := context.WithTimeout(ctx, saveTimeout)
		defer cancel()
		if err := m.save(sctx); err != nil {
			// After a restart of the agent the mapper gets these again, which does no harm.
			klog.ErrorS(err, "What a mapper has is not stored", "mapper", m.name)
		}
	}
	if len(problems) > 3 {
		problems = append(problems[:3], fmt.Errorf("and %d more", len(problems)-3))
	}
	return errors.Join(problems...)
}

// order returns the keys in the order in which they are sent: models before the devices that need them, then devices
// that go, then models that go.
func order(known, want map[string]string) []string {
	keys := map[string]bool{}
	for key := range known {
		keys[key] = true
	}
	for key := range want {
		keys[key] = true
	}
	rank := func(key string) int {
		goes, model := want[key] == "", strings.HasPrefix(key, prefixModel)
		switch {
		case !goes && model:
			return 0
		case !goes:
			return 1
		case !model:
			return 2
		}
		return 3
	}
	return slices.SortedFunc(maps.Keys(keys), func(a, b string) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
}

// send makes the call for one model or device. has is whether the mapper has an older one.
func (m *mapper) send(
	ctx context.Context, client dmi.DeviceMapperServiceClient, key string, has bool, w wanted,
) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	prefix, id, _ := strings.Cut(key, " ")
	namespace, name, _ := strings.Cut(id, "/")
	goes := w.hashes[key] == ""
	var err error
	switch {
	case prefix+" " == prefixModel && goes:
		request := &dmi.RemoveDeviceModelRequest{ModelName: name, ModelNamespace: namespace}
		_, err = client.RemoveDeviceModel(ctx, request)
	case prefix+" " == prefixModel && has:
		_, err = client.UpdateDeviceModel(ctx, &dmi.UpdateDeviceModelRequest{Model: w.models[key]})
	case prefix+" " == prefixModel:
		_, err = client.CreateDeviceModel(ctx, &dmi.CreateDeviceModelRequest{Model: w.models[key]})
	case goes:
		_, err = client.RemoveDevice(ctx, &dmi.RemoveDeviceRequest{DeviceName: name, DeviceNamespace: namespace})
	case has:
		_, err = client.UpdateDevice(ctx, &dmi.UpdateDeviceRequest{Device: w.devices[key]})
	default:
		_, err = client.RegisterDevice(ctx, &dmi.RegisterDeviceRequest{Device: w.devices[key]})
	}
	return err
}

// dialSocket returns a client of the mapper at a socket. hangUp must be called.
func dialSocket(address string) (_ dmi.DeviceMapperServiceClient, hangUp func(), err error) {
	options := append(pluginrpc.DialOptions(pluginrpc.Limits{Bytes: maxMessage, Elements: maxElements}),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	conn, err := grpc.NewClient("unix://"+address, options...)
	if err != nil {
		return nil, nil, err
	}
	return dmi.NewDeviceMapperServiceClient(conn), func() { _ = conn.Close() }, nil
}
