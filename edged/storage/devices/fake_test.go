package devices

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

const (
	camera = "example.com/camera"
	radio  = "example.com/radio"
)

// fake is a device plugin on a socket.
type fake struct {
	api.UnimplementedDevicePluginServer
	options api.DevicePluginOptions
	// old has no GetDevicePluginOptions.
	old bool
	// allocate and prefer, where set, answer instead.
	allocate func(ctx context.Context, ids []string) (*api.ContainerAllocateResponse, error)
	prefer   func(ctx context.Context, r *api.ContainerPreferredAllocationRequest) ([]string, error)

	mu      sync.Mutex
	devices []*api.Device
	news    chan struct{}
	asked   [][]string
	started [][]string
	watches int
	server  *grpc.Server
}

func (f *fake) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	if f.old {
		return nil, status.Error(codes.Unimplemented, "no such method")
	}
	return &api.DevicePluginOptions{
		PreStartRequired:                f.options.PreStartRequired,
		GetPreferredAllocationAvailable: f.options.GetPreferredAllocationAvailable,
	}, nil
}

// set replaces the devices: "name", or "name!" for one that is not healthy.
func (f *fake) set(names ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.devices = nil
	for _, n := range names {
		d := &api.Device{ID: n, Health: api.Healthy}
		if n[len(n)-1] == '!' {
			d.ID, d.Health = n[:len(n)-1], api.Unhealthy
		}
		f.devices = append(f.devices, d)
	}
	close(f.news)
	f.news = make(chan struct{})
}

func (f *fake) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	f.watched(1)
	defer f.watched(-1)
	for {
		f.mu.Lock()
		list, news := f.devices, f.news
		f.mu.Unlock()
		if err := stream.Send(&api.ListAndWatchResponse{Devices: list}); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-news:
		}
	}
}

func (f *fake) Allocate(ctx context.Context, r *api.AllocateRequest) (*api.AllocateResponse, error) {
	ids := r.ContainerRequests[0].DevicesIds
	f.mu.Lock()
	f.asked = append(f.asked, ids)
	f.mu.Unlock()
	if f.allocate != nil {
		a, err := f.allocate(ctx, ids)
		return &api.AllocateResponse{ContainerResponses: []*api.ContainerAllocateResponse{a}}, err
	}
	a := &api.ContainerAllocateResponse{Envs: map[string]string{"DEVICES": ids[0]}}
	for _, id := range ids {
		a.Devices = append(a.Devices, &api.DeviceSpec{
			HostPath: "/dev/" + id, ContainerPath: "/dev/" + id, Permissions: "rw",
		})
	}
	return &api.AllocateResponse{ContainerResponses: []*api.ContainerAllocateResponse{a}}, nil
}

func (f *fake) GetPreferredAllocation(
	ctx context.Context, r *api.PreferredAllocationRequest,
) (*api.PreferredAllocationResponse, error) {
	ids, err := f.prefer(ctx, r.ContainerRequests[0])
	return &api.PreferredAllocationResponse{
		ContainerResponses: []*api.ContainerPreferredAllocationResponse{{DeviceIDs: ids}},
	}, err
}

func (f *fake) PreStartContainer(
	_ context.Context, r *api.PreStartContainerRequest,
) (*api.PreStartContainerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.started = append(f.started, r.DevicesIds)
	return &api.PreStartContainerResponse{}, nil
}

// watched counts those who watch the devices.
func (f *fake) watched(change int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watches += change
	return f.watches
}

// calls are the devices that Allocate and PreStartContainer were called with.
func (f *fake) calls() (asked, started [][]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked, f.started
}

// serve serves a plugin with some devices on a socket of the folder.
func (f *fake) serve(t *testing.T, dir, name string, devices ...string) *fake {
	t.Helper()
	f.news = make(chan struct{})
	f.set(devices...)
	socket, err := net.Listen("unix", filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	f.server = grpc.NewServer()
	api.RegisterDevicePluginServer(f.server, f)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = f.server.Serve(socket) }()
	t.Cleanup(func() { f.server.Stop(); <-ended })
	return f
}

// register calls the agent's socket, as a plugin does.
func register(t *testing.T, dir string, r *api.RegisterRequest) error {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+filepath.Join(dir, socketName),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = api.NewRegistrationClient(conn).Register(wait.Context(t), r)
	return err
}

// plugged serves a plugin and registers it.
func plugged(t *testing.T, dir, resource, socket string, f *fake, devices ...string) *fake {
	t.Helper()
	f.serve(t, dir, socket, devices...)
	if err := register(t, dir, &api.RegisterRequest{
		Version: api.Version, Endpoint: socket, ResourceName: resource,
	}); err != nil {
		t.Fatal(err)
	}
	return f
}

// running runs a manager until the test's end, or until the function that it returns is called.
func running(t *testing.T, opts Options) (*Manager, func()) {
	t.Helper()
	m := New(opts)
	return m, run(t, m)
}

// run runs a manager that New made, as running does.
func run(t *testing.T, m *Manager) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = m.Run(ctx) }()
	stop = func() { cancel(); <-ended }
	t.Cleanup(stop)
	wait.Until(t, "the registration socket", func() error {
		conn, err := net.Dial("unix", filepath.Join(m.opts.Dir, socketName))
		if err != nil {
			return err
		}
		return conn.Close()
	})
	return stop
}

// counts waits until a resource has a capacity and as much allocatable.
func counts(t *testing.T, m *Manager, name v1.ResourceName, capacity, allocatable int64) {
	t.Helper()
	wait.Until(t, "the capacity of "+string(name), func() error {
		c, a := m.Capacity()
		have, known := c[name]
		free := a[name]
		if !known || have.Value() != capacity || free.Value() != allocatable {
			return fmt.Errorf("%v, allocatable %v, known %v; want %d, %d",
				have.Value(), free.Value(), known, capacity, allocatable)
		}
		return nil
	})
}

// wants makes a pod of one container that asks for devices.
func wants(uid string, name v1.ResourceName, n string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			UID: types.UID(uid),
		}, Spec: v1.PodSpec{Containers: []v1.Container{asks("main", name, n)}},
	}
}

func asks(container string, name v1.ResourceName, n string) v1.Container {
	return v1.Container{
		Name: container, Resources: v1.ResourceRequirements{Limits: v1.ResourceList{name: resource.MustParse(n)}},
	}
}
