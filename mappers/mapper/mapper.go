// Package mapper is what all device mappers have in common: it registers at edgecore, takes devices, reads and writes
// their properties through a Driver in cycles, and reports what changed. A mapper of a protocol is a Driver and a call
// of Run.
//
// It promises:
//
//   - One device at a time is asked by one goroutine; a device that hangs delays no other one.
//   - A value is reported when it changes, and again every report cycle. While edgecore is away, the newest values are
//     kept; when it is back, the mapper registers again and reports them. A report that edgecore does not take is tried
//     again with a growing pause, of a minute at most.
//   - What a namespace has is bounded: the bytes of its devices, and its MQTT brokers.
//   - A desired value is not written after edgecore has replaced or removed it, but for a write that has begun.
//   - A desired value is written when it differs from the value that the device has, once after each change of it and
//     each new connection: a device that rounds values is not written to forever. One that it refuses is written again
//     with a growing pause, of a minute at most, and the device is unhealthy until it has the value.
//   - A device that does not answer is reported as offline and asked again with a growing pause, of a minute at most.
//   - Why a device is offline or unhealthy goes with its state: the error of the Driver. Another error of a device that
//     stays in its state is reported at most once a minute.
package mapper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	dmi "github.com/edgecore-io/edgecore/pkg/dmi/v1beta1"
	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// Driver speaks a protocol.
type Driver interface {
	// Open connects to a device of a namespace; config is spec.protocol.configData. It may connect at the first Read
	// instead. Namespaces do not trust each other: nothing that one configures may harm the devices of another.
	Open(ctx context.Context, namespace string, config Config) (Conn, error)
}

// Conn is a connection to a device. Its methods are called by one goroutine. After an error that is not a Refusal, the
// connection is closed and another one opened. The texts of errors are shown to everyone who may read the Device.
type Conn interface {
	Read(ctx context.Context, p *Property) (value string, err error)
	// Write writes a desired value. When its ctx ends, the value is desired no more: a Write that waits, such as for a
	// line that devices share, then returns a Refusal without writing it.
	Write(ctx context.Context, p *Property, value string) error
	Close() error
}

// Refusal is the error of a property that the device answers, but does not have, or whose configuration is wrong. It
// does not end the connection.
type Refusal struct{ Cause error }

// Error implements error.
func (r Refusal) Error() string { return r.Cause.Error() }

// Unwrap returns the cause.
func (r Refusal) Unwrap() error { return r.Cause }

// Property is a property of a device, as a Driver needs it.
type Property struct {
	Name string
	// Type is the type in the DeviceModel, such as INT; "" if there is no model.
	Type string
	// Minimum and Maximum are the range of a number in the DeviceModel; "" is none. edgecore has checked the desired
	// value against it. A Driver that rounds to steps must not write a step beyond it.
	Minimum, Maximum string
	// Visitor is the property's visitors.configData.
	Visitor Config
}

// Config is a configData of a Device: whatever the protocol's mapper understands. Decode keeps all digits of its
// numbers.
type Config map[string]any

// Decode decodes the configuration into a struct with json tags. Unknown keys are ignored. Keys that are not ASCII are
// an error, at any depth: encoding/json takes some of them for other letters, such as U+017F for an s, and who may set
// which key is decided by what reads as written.
func (c Config) Decode(into any) error {
	data, err := json.Marshal(c)
	if err == nil {
		err = checkKeys(data)
	}
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		return fmt.Errorf("configData: %w", err)
	}
	return nil
}

// checkKeys returns an error if a key of JSON is not ASCII.
func checkKeys(data []byte) error {
	var v any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return err
	}
	return checkKeysOf(v)
}

func checkKeysOf(v any) error {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if strings.ContainsFunc(key, func(r rune) bool { return r > unicode.MaxASCII }) {
				return fmt.Errorf("the key %+.64q is not ASCII: use the name of a setting as the documentation of the "+
					"mapper has it", key)
			}
			if err := checkKeysOf(value); err != nil {
				return err
			}
		}
	case []any:
		for _, value := range v {
			if err := checkKeysOf(value); err != nil {
				return err
			}
		}
	}
	return nil
}

// Options configure a mapper. Log may be nil.
type Options struct {
	// Name and Version are shown in edgecore's log.
	Name, Version string
	// Protocol is spec.protocol.protocolName of the devices.
	Protocol string
	// Agent is edgecore's socket, such as /run/edgecore/dmi/dmi.sock. Socket is the mapper's own one; edgecore must
	// find it under the same path, and only the user of the mapper and root may use it.
	Agent, Socket string
	Driver        Driver
	// Brokers are the addresses to which pushMethod.mqtt may lead.
	Brokers Networks
	Log     *slog.Logger
}

const (
	// callTimeout bounds a call to edgecore, which answers a report when it is on the disk.
	callTimeout = 30 * time.Second
	firstRetry  = time.Second
	lastRetry   = time.Minute
)

// mapper is a running mapper.
type mapper struct {
	dmi.UnimplementedDeviceMapperServiceServer
	opts  Options
	agent dmi.DeviceManagerServiceClient
	push  *pusher
	// lost is notified when a connection to edgecore ends, or edgecore says that the mapper is not registered.
	lost notify.Signal

	mu      sync.Mutex
	ctx     context.Context // of the workers
	workers map[string]*worker
	// ending are stopped workers by device. The next one of that device waits for their end.
	ending  map[string]*worker
	models  map[string]*dmi.DeviceModel
	budget  *budget
	running sync.WaitGroup
}

// Run serves devices until ctx ends. It returns an error if the mapper's socket cannot be made; everything else is
// logged and tried again.
func Run(ctx context.Context, o Options) error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	lost := notify.NewSignal()
	conn, err := grpc.NewClient("unix://"+o.Agent, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStatsHandler(connEnds{lost}), grpc.WithIdleTimeout(0), // an end is a loss
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: callTimeout, Backoff: backoff.Config{
			BaseDelay: firstRetry, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 10 * firstRetry,
		}}))
	if err != nil {
		return fmt.Errorf("socket of edgecore %s: %w", o.Agent, err)
	}
	defer func() { _ = conn.Close() }()
	l, err := listen(o.Socket)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m := &mapper{
		opts:    o,
		agent:   dmi.NewDeviceManagerServiceClient(conn),
		push:    newPusher(ctx, o),
		lost:    lost,
		ctx:     ctx,
		workers: map[string]*worker{},
		ending:  map[string]*worker{},
		models:  map[string]*dmi.DeviceModel{},
		budget:  newBudget(),
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxObject))
	dmi.RegisterDeviceMapperServiceServer(server, m)
	var parts sync.WaitGroup
	parts.Go(func() {
		defer cancel()
		err = server.Serve(l)
	})
	parts.Go(func() { m.register(ctx) })
	parts.Go(m.push.run)
	<-ctx.Done()
	server.Stop()
	cancel()
	m.running.Wait()
	parts.Wait()
	return err
}

// listen makes the mapper's socket.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("folder of the mapper's socket: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("old socket of the mapper: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("socket of the mapper: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("socket of the mapper: %w", err)
	}
	return l, nil
}

// register registers the mapper now, and again when edgecore may have forgotten it. It takes no devices with the
// answer: edgecore then sends each of them in a call of its own, so that their number has no limit, and one that is too
// large keeps no other away.
func (m *mapper) register(ctx context.Context) {
	pause := retry.NewBackoff(firstRetry, lastRetry)
	for {
		ok := retry.Until(ctx, firstRetry, lastRetry, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			_, err := m.agent.MapperRegister(ctx, &dmi.MapperRegisterRequest{Mapper: &dmi.MapperInfo{
				Name: m.opts.Name, Version: m.opts.Version, ApiVersion: "v1beta1", Protocol: m.opts.Protocol,
				Address: []byte(m.opts.Socket), State: "ok",
			}})
			return err
		}, func(err error, again time.Duration) {
			m.opts.Log.Warn("Not registered at edgecore", "socket", m.opts.Agent, "err", err, "retryIn", again)
		})
		if !ok {
			return
		}
		m.opts.Log.Info("Registered at edgecore", "protocol", m.opts.Protocol)
		m.reportAgain()
		since := time.Now()
		select {
		case <-ctx.Done():
			return
		case <-m.lost:
		}
		if time.Since(since) > lastRetry {
			pause.Reset()
		}
		if !pause.Wait(ctx) {
			return
		}
		select {
		case <-m.lost: // before this registration
		default:
		}
	}
}

// connEnds is a stats.Handler that notifies of each connection to edgecore that ends.
type connEnds struct{ lost notify.Signal }

func (c connEnds) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (c connEnds) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (c connEnds) HandleRPC(context.Context, stats.RPCStats)                         {}
func (c connEnds) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, ended := s.(*stats.ConnEnd); ended {
		c.lost.Notify()
	}
}

func id(namespace, name string) string { return namespace + "/" + name }

// reportAgain makes all workers report the values of their devices: edgecore may have forgotten them.
func (m *mapper) reportAgain() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.workers {
		w.registered()
	}
}

// set starts or updates the worker of a device. mu is held.
func (m *mapper) set(d *dmi.Device) {
	at := id(d.GetNamespace(), d.GetName())
	model := m.models[id(d.GetNamespace(), d.GetSpec().GetDeviceModelReference())]
	if w := m.workers[at]; w != nil {
		w.set(d, model)
		return
	}
	ctx, stop := context.WithCancel(m.ctx)
	w := newWorker(m, d.GetNamespace(), d.GetName(), stop)
	w.set(d, model)
	m.workers[at] = w
	before := m.ending[at]
	m.running.Go(func() {
		if before != nil {
			<-before.ended
		}
		w.run(ctx)
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.ending[at] == w {
			delete(m.ending, at)
		}
	})
}

// setModel takes a model, and has its devices use it.
func (m *mapper) setModel(x *dmi.DeviceModel) error {
	namespace, name := x.GetNamespace(), x.GetName()
	if name == "" {
		return status.Error(codes.InvalidArgument, "the model has no name")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.budget.reserve(namespace, "model "+id(namespace, name), proto.Size(x)); err != nil {
		return err
	}
	m.models[id(namespace, name)] = x
	for _, w := range m.workers {
		if d := w.device(); w.namespace == namespace && d.GetSpec().GetDeviceModelReference() == name {
			w.set(d, x)
		}
	}
	return nil
}

func (m *mapper) putDevice(d *dmi.Device) error {
	if d.GetName() == "" || d.GetSpec() == nil {
		return status.Error(codes.InvalidArgument, "the device has no name or no spec")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	namespace := d.GetNamespace()
	if err := m.budget.reserve(namespace, "device "+id(namespace, d.GetName()), proto.Size(d)); err != nil {
		return err
	}
	m.set(d)
	return nil
}

// RegisterDevice implements DeviceMapperService.
func (m *mapper) RegisterDevice(_ context.Context, r *dmi.RegisterDeviceRequest) (*dmi.RegisterDeviceResponse, error) {
	d := r.GetDevice()
	return &dmi.RegisterDeviceResponse{DeviceName: d.GetName(), DeviceNamespace: d.GetNamespace()}, m.putDevice(d)
}

// UpdateDevice implements DeviceMapperService.
func (m *mapper) UpdateDevice(_ context.Context, r *dmi.UpdateDeviceRequest) (*dmi.UpdateDeviceResponse, error) {
	return &dmi.UpdateDeviceResponse{}, m.putDevice(r.GetDevice())
}

// RemoveDevice implements DeviceMapperService.
func (m *mapper) RemoveDevice(_ context.Context, r *dmi.RemoveDeviceRequest) (*dmi.RemoveDeviceResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := id(r.GetDeviceNamespace(), r.GetDeviceName())
	if w := m.workers[at]; w != nil {
		w.stop()
		delete(m.workers, at)
		m.ending[at] = w
		m.budget.drop(w.namespace, "device "+at)
	}
	return &dmi.RemoveDeviceResponse{}, nil
}

// CreateDeviceModel implements DeviceMapperService.
func (m *mapper) CreateDeviceModel(
	_ context.Context, r *dmi.CreateDeviceModelRequest,
) (*dmi.CreateDeviceModelResponse, error) {
	x := r.GetModel()
	return &dmi.CreateDeviceModelResponse{
		DeviceModelName: x.GetName(), DeviceModelNamespace: x.GetNamespace(),
	}, m.setModel(x)
}

// UpdateDeviceModel implements DeviceMapperService.
func (m *mapper) UpdateDeviceModel(
	_ context.Context, r *dmi.UpdateDeviceModelRequest,
) (*dmi.UpdateDeviceModelResponse, error) {
	return &dmi.UpdateDeviceModelResponse{}, m.setModel(r.GetModel())
}

// RemoveDeviceModel implements DeviceMapperService.
func (m *mapper) RemoveDeviceModel(
	_ context.Context, r *dmi.RemoveDeviceModelRequest,
) (*dmi.RemoveDeviceModelResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := id(r.GetModelNamespace(), r.GetModelName())
	if _, has := m.models[at]; has {
		delete(m.models, at)
		m.budget.drop(r.GetModelNamespace(), "model "+at)
	}
	return &dmi.RemoveDeviceModelResponse{}, nil
}

// GetDevice implements DeviceMapperService.
func (m *mapper) GetDevice(_ context.Context, r *dmi.GetDeviceRequest) (*dmi.GetDeviceResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.workers[id(r.GetDeviceNamespace(), r.GetDeviceName())]
	if w == nil {
		return nil, status.Errorf(codes.NotFound, "device %s/%s is not served here", r.GetDeviceNamespace(),
			r.GetDeviceName())
	}
	return &dmi.GetDeviceResponse{Device: w.device()}, nil
}

// configOf decodes a configData. Values of unknown kinds are left out.
func configOf(v *dmi.CustomizedValue) Config {
	out := Config{}
	for name, packed := range v.GetData() {
		m, err := packed.UnmarshalNew()
		if err != nil {
			continue
		}
		if text, ok := dmi.Exact(m); ok {
			out[name] = json.RawMessage(text)
			continue
		}
		switch x := m.(type) {
		case *wrapperspb.StringValue:
			out[name] = x.GetValue()
		case *wrapperspb.BoolValue:
			out[name] = x.GetValue()
		case *wrapperspb.Int32Value:
			out[name] = x.GetValue()
		case *wrapperspb.Int64Value:
			out[name] = x.GetValue()
		case *wrapperspb.UInt32Value:
			out[name] = x.GetValue()
		case *wrapperspb.UInt64Value:
			out[name] = x.GetValue()
		case *wrapperspb.FloatValue:
			out[name] = x.GetValue()
		case *wrapperspb.DoubleValue:
			out[name] = x.GetValue()
		case json.Marshaler:
			out[name] = x // structs and lists
		}
	}
	return out
}
