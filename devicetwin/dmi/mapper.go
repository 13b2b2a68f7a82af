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
	"github.com/edgecore-io/edgecore/pkg/smallsort"
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

	// failed are the calls that failed, by key. It belongs to run.
	failed map[string]*failure

	mu sync.Mutex
	// known are the devices and models that the mapper has: the hash of each by its key.
	known   map[string]string
	problem string
}

// failure is a call that failed. It is made again when its object changes, and after a growing pause.
type failure struct {
	hash    string
	err     error
	backoff *retry.Backoff
	until   time.Time
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
		known:  map[string]string{},
		failed: map[string]*failure{},
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

// desiredState returns what the mapper should have. What cannot be converted is left out, and logged.
func (m *mapper) desiredState() wanted {
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
		w.hashes[key] = deviceHash(string(d.UID)) + hash(converted)
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
	return short(data)
}

func short(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// deviceHash returns what the hash of a device begins with: a device that was deleted and created again is another one.
func deviceHash(uid string) string { return short([]byte(uid)) + "." }

// replaced reports whether two hashes are those of different devices. Hashes of earlier versions name no device.
func replaced(known, want string) bool {
	was, _, named := strings.Cut(known, ".")
	is, _, _ := strings.Cut(want, ".")
	return named && was != is
}

// everything returns what the mapper should have, for the answer to its registration: the smallest devices first, with
// their models, as far as the answer has room. sync sends the rest.
func (m *mapper) everything() (models []*dmi.DeviceModel, list []*dmi.Device) {
	w := m.desiredState()
	known := map[string]string{}
	keys := slices.Collect(maps.Keys(w.devices))
	smallsort.SortFunc(keys, func(a, b string) int {
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

// forget drops the objects that the mapper may have from its former registration.
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
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		case <-timer.C:
		}
		away, err := m.sync(ctx)
		if ctx.Err() != nil {
			return
		}
		m.setProblem(err)
		if away {
			if !backoff.Wait(ctx) {
				return
			}
			timer.Reset(0)
			continue
		}
		backoff.Reset()
		timer.Reset(m.nextTry())
	}
}

// nextTry is how long no call that failed is due.
func (m *mapper) nextTry() time.Duration {
	wait := time.Hour
	for _, f := range m.failed {
		wait = min(wait, max(0, time.Until(f.until)))
	}
	return wait
}

// fail records a failed call, which is made again after a pause.
func (m *mapper) fail(key, hash string, err error) {
	f := m.failed[key]
	if f == nil || f.hash != hash {
		f = &failure{hash: hash, backoff: retry.NewBackoff(firstRetry, lastRetry)}
		m.failed[key] = f
	}
	f.err, f.until = err, time.Now().Add(f.backoff.Next())
}

// problems are the calls that failed last, as one error.
func (m *mapper) problems() error {
	var out []error
	for _, key := range slices.Sorted(maps.Keys(m.failed)) {
		if len(out) == 3 {
			out = append(out, fmt.Errorf("and %d more", len(m.failed)-3))
			break
		}
		out = append(out, fmt.Errorf("%s: %w", key, m.failed[key].err))
	}
	return errors.Join(out...)
}

// setProblem keeps the mapper's problem, and logs it when it changes. nil is no problem.
func (m *mapper) setProblem(err error) {
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

// sync sends the mapper what differs. The error is why something is missing; away is set if that is the mapper, and not
// single objects that it refuses.
func (m *mapper) sync(ctx context.Context) (away bool, err error) {
	w := m.desiredState()
	m.mu.Lock()
	known := maps.Clone(m.known)
	m.mu.Unlock()
	maps.DeleteFunc(m.failed, func(key string, _ *failure) bool { return known[key] == w.hashes[key] })
	if maps.Equal(known, w.hashes) {
		return false, nil
	}
	client, hangUp, err := m.dial()
	if err != nil {
		return true, err
	}
	defer hangUp()
	changed, again, hangs := false, false, false
	for _, key := range order(known, w.hashes) {
		select {
		case <-m.wake: // the calls before took their time: send no desired value that was replaced meanwhile
			w, again = m.desiredState(), true
		default:
		}
		want := w.hashes[key]
		f := m.failed[key]
		if known[key] == want || f != nil && f.hash == want && time.Now().Before(f.until) {
			continue
		}
		err := m.apply(ctx, client, key, w)
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if err == nil {
			changed = true
			delete(m.failed, key)
			continue
		}
		m.fail(key, want, err)
		c := status.Code(err)
		if c == codes.Unavailable || c == codes.DeadlineExceeded && hangs {
			away = true // or it hangs; the other calls would wait as well
			m.failed[key].until = time.Time{}
			break
		}
		hangs = c == codes.DeadlineExceeded
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
	return away, m.problems()
}

// apply makes the mapper's object the wanted one. A device that was replaced by another one of its name is removed
// first: the mapper must report the values and the state of the new one.
func (m *mapper) apply(ctx context.Context, client dmi.DeviceMapperServiceClient, key string, w wanted) error {
	want := w.hashes[key]
	m.mu.Lock()
	known := m.known[key]
	m.mu.Unlock()
	if want != "" && replaced(known, want) {
		if err := m.set(ctx, client, key, wanted{}); err != nil {
			return err
		}
	}
	return m.set(ctx, client, key, w)
}

// set makes the call for one object, and remembers what the mapper has after it.
func (m *mapper) set(ctx context.Context, client dmi.DeviceMapperServiceClient, key string, w wanted) error {
	m.mu.Lock()
	known := m.known[key]
	m.mu.Unlock()
	want := w.hashes[key]
	err := m.send(ctx, client, key, known != "" && known != stale, w)
	if want == "" && status.Code(err) == codes.NotFound {
		err = nil // it is gone
	}
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if want != "" {
		m.known[key] = want
	} else {
		delete(m.known, key)
	}
	return nil
}

// order returns the keys in the order in which they are sent: models, the devices that need them, removed devices,
// removed models.
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
	list := slices.Collect(maps.Keys(keys))
	smallsort.SortFunc(list, func(a, b string) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	return list
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
