// Package mapper is a device mapper for tests: it registers at the agent like any mapper, keeps what the agent sends
// it, and reports what the test says. It speaks the real interface over real sockets.
package mapper

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	dmi "github.com/edgecore-io/edgecore/pkg/dmi/v1beta1"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// Mapper is a running mapper.
type Mapper struct {
	dmi.UnimplementedDeviceMapperServiceServer
	t        testing.TB
	agent    string
	Socket   string
	Protocol string

	stop func()

	mu      sync.Mutex
	devices map[string]*dmi.Device
	models  map[string]*dmi.DeviceModel
	calls   []string
	// fail is the error of all calls.
	fail error
	// hang is closed when calls go on; nil if they do not hang.
	hang chan struct{}
}

// Start starts a mapper that listens on a socket in dir; agent is the agent's socket. It does not register.
func Start(t testing.TB, dir, agent, protocol string) *Mapper {
	t.Helper()
	m := &Mapper{
		t:        t,
		agent:    agent,
		Socket:   filepath.Join(dir, protocol+".sock"),
		Protocol: protocol,
		devices:  map[string]*dmi.Device{},
		models:   map[string]*dmi.DeviceModel{},
	}
	m.Listen()
	t.Cleanup(func() { m.Stop() })
	return m
}

// Listen serves the mapper's socket.
func (m *Mapper) Listen() {
	m.t.Helper()
	_ = os.Remove(m.Socket) // of an earlier run
	l, err := net.Listen("unix", m.Socket)
	if err != nil {
		m.t.Fatal(err)
	}
	server := grpc.NewServer()
	dmi.RegisterDeviceMapperServiceServer(server, m)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l) // until Stop
	}()
	m.stop = sync.OnceFunc(func() {
		server.Stop()
		<-done
	})
}

// Stop stops serving; the mapper forgets what it was sent.
func (m *Mapper) Stop() {
	m.stop()
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.devices)
	clear(m.models)
}

// Fail has all calls of the agent fail; nil ends that.
func (m *Mapper) Fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = err
}

// Hang has all calls of the agent last until Hang(false), or until the agent gives up.
func (m *Mapper) Hang(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hang != nil {
		close(m.hang)
		m.hang = nil
	}
	if on {
		m.hang = make(chan struct{})
	}
}

func (m *Mapper) client(ctx context.Context, do func(context.Context, dmi.DeviceManagerServiceClient) error) error {
	conn, err := grpc.NewClient("unix://"+m.agent, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	return do(ctx, dmi.NewDeviceManagerServiceClient(conn))
}

// Register registers the mapper once, and takes the devices in the answer.
func (m *Mapper) Register(ctx context.Context) error {
	return m.client(ctx, func(ctx context.Context, c dmi.DeviceManagerServiceClient) error {
		r, err := c.MapperRegister(ctx, &dmi.MapperRegisterRequest{WithData: true, Mapper: &dmi.MapperInfo{
			Name: "test-" + m.Protocol, Version: "v1", ApiVersion: "v1beta1", Protocol: m.Protocol,
			Address: []byte(m.Socket), State: "ok",
		}})
		if err != nil {
			return err
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, x := range r.GetModelList() {
			m.models[x.GetNamespace()+"/"+x.GetName()] = x
		}
		for _, x := range r.GetDeviceList() {
			m.devices[x.GetNamespace()+"/"+x.GetName()] = x
		}
		return nil
	})
}

// AwaitRegister registers as soon as the agent serves its socket.
func (m *Mapper) AwaitRegister() {
	m.t.Helper()
	wait.Until(m.t, "the mapper to be registered", func() error { return m.Register(m.t.Context()) })
}

// Report reports values of a device, NAME, VALUE and so on, as read at a time.
func (m *Mapper) Report(ctx context.Context, namespace, name string, at time.Time, values ...string) error {
	status := &dmi.DeviceStatus{}
	for i := 0; i+1 < len(values); i += 2 {
		status.Twins = append(status.Twins, &dmi.Twin{PropertyName: values[i], Reported: &dmi.TwinProperty{
			Value:    values[i+1],
			Metadata: map[string]string{"timestamp": strconv.FormatInt(at.UnixMilli(), 10), "type": "STRING"},
		}, ObservedDesired: &dmi.TwinProperty{Value: values[i+1]}}) // KubeEdge's edgecore wants both
	}
	return m.client(ctx, func(ctx context.Context, c dmi.DeviceManagerServiceClient) error {
		_, err := c.ReportDeviceStatus(ctx, &dmi.ReportDeviceStatusRequest{
			DeviceName: name, DeviceNamespace: namespace, ReportedDevice: status,
		})
		return err
	})
}

// ReportState reports the state of a device.
func (m *Mapper) ReportState(ctx context.Context, namespace, name, state string) error {
	return m.ReportStateMessage(ctx, namespace, name, state, "")
}

// ReportStateMessage reports the state of a device, with a message that says why it is in it.
func (m *Mapper) ReportStateMessage(ctx context.Context, namespace, name, state, message string) error {
	ctx = dmi.WithStateMessage(ctx, message)
	return m.client(ctx, func(ctx context.Context, c dmi.DeviceManagerServiceClient) error {
		_, err := c.ReportDeviceStates(ctx, &dmi.ReportDeviceStatesRequest{
			DeviceName: name, DeviceNamespace: namespace, State: state,
		})
		return err
	})
}

// Desired returns the desired value of a property that the mapper was sent; ok is false if it has no such device.
func (m *Mapper) Desired(device, property string) (value string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.devices[device]
	for _, p := range d.GetSpec().GetProperties() {
		if p.GetName() == property {
			return p.GetDesired().GetValue(), true
		}
	}
	return "", d != nil
}

// AwaitDesired waits until the mapper has a desired value.
func (m *Mapper) AwaitDesired(device, property, want string) {
	m.t.Helper()
	wait.Until(m.t, fmt.Sprintf("desired %s of %s to be %q", property, device, want), func() error {
		if got, ok := m.Desired(device, property); got != want || !ok {
			return fmt.Errorf("it is %q; the mapper has the device: %v", got, ok)
		}
		return nil
	})
}

// Has returns the devices and models that the mapper has.
func (m *Mapper) Has() (devices, models int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.devices), len(m.models)
}

// Calls returns the calls of the agent so far.
func (m *Mapper) Calls() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.calls...)
}

// called notes a call, and does it.
func (m *Mapper) called(ctx context.Context, what string, do func()) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls = append(m.calls, what)
	for m.hang != nil {
		hang := m.hang
		m.mu.Unlock()
		select {
		case <-hang:
		case <-ctx.Done():
		}
		m.mu.Lock()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if m.fail != nil {
		return m.fail
	}
	do()
	return nil
}

// RegisterDevice implements DeviceMapperService.
func (m *Mapper) RegisterDevice(
	ctx context.Context, r *dmi.RegisterDeviceRequest,
) (*dmi.RegisterDeviceResponse, error) {
	d := r.GetDevice()
	id := d.GetNamespace() + "/" + d.GetName()
	return &dmi.RegisterDeviceResponse{}, m.called(ctx, "register "+id, func() { m.devices[id] = d })
}

// UpdateDevice implements DeviceMapperService.
func (m *Mapper) UpdateDevice(ctx context.Context, r *dmi.UpdateDeviceRequest) (*dmi.UpdateDeviceResponse, error) {
	d := r.GetDevice()
	id := d.GetNamespace() + "/" + d.GetName()
	return &dmi.UpdateDeviceResponse{}, m.called(ctx, "update "+id, func() { m.devices[id] = d })
}

// RemoveDevice implements DeviceMapperService.
func (m *Mapper) RemoveDevice(ctx context.Context, r *dmi.RemoveDeviceRequest) (*dmi.RemoveDeviceResponse, error) {
	id := r.GetDeviceNamespace() + "/" + r.GetDeviceName()
	return &dmi.RemoveDeviceResponse{}, m.called(ctx, "remove "+id, func() { delete(m.devices, id) })
}

// CreateDeviceModel implements DeviceMapperService.
func (m *Mapper) CreateDeviceModel(
	ctx context.Context, r *dmi.CreateDeviceModelRequest,
) (*dmi.CreateDeviceModelResponse, error) {
	x := r.GetModel()
	id := x.GetNamespace() + "/" + x.GetName()
	return &dmi.CreateDeviceModelResponse{}, m.called(ctx, "create model "+id, func() { m.models[id] = x })
}

// UpdateDeviceModel implements DeviceMapperService.
func (m *Mapper) UpdateDeviceModel(
	ctx context.Context, r *dmi.UpdateDeviceModelRequest,
) (*dmi.UpdateDeviceModelResponse, error) {
	x := r.GetModel()
	id := x.GetNamespace() + "/" + x.GetName()
	return &dmi.UpdateDeviceModelResponse{}, m.called(ctx, "update model "+id, func() { m.models[id] = x })
}

// RemoveDeviceModel implements DeviceMapperService.
func (m *Mapper) RemoveDeviceModel(
	ctx context.Context, r *dmi.RemoveDeviceModelRequest,
) (*dmi.RemoveDeviceModelResponse, error) {
	id := r.GetModelNamespace() + "/" + r.GetModelName()
	return &dmi.RemoveDeviceModelResponse{}, m.called(ctx, "remove model "+id, func() { delete(m.models, id) })
}
