// Command serve is a device plugin of the tests: it offers the devices that a file names, each a node like /dev/null
// that it makes, and registers again whenever the agent has removed its socket. With -registry it does not register:
// it puts a socket into the agent's folder of plugins, and the agent registers it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// poll is how often files are looked at.
const poll = 50 * time.Millisecond

type plugin struct {
	api.UnimplementedDevicePluginServer
	registration.UnimplementedRegistrationServer
	resource, sockets, dir string
	registry               string
	preStart, fail, hang   bool

	mu sync.Mutex
}

func main() {
	p := &plugin{}
	flag.StringVar(&p.resource, "resource", "", "what it offers")
	flag.StringVar(&p.sockets, "sockets", "", "the agent's folder of sockets")
	flag.StringVar(&p.dir, "dir", "", "its own files")
	flag.StringVar(&p.registry, "registry", "",
		"the agent's folder of plugins, in which it is found; its own socket is in -dir then")
	flag.BoolVar(&p.preStart, "pre-start", false, "want PreStartContainer")
	flag.BoolVar(&p.fail, "fail", false, "fail Allocate")
	flag.BoolVar(&p.hang, "hang", false, "hang in Allocate")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	for ctx.Err() == nil {
		if err := p.serve(ctx); err != nil {
			log.Print(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(poll):
		}
	}
}

func (p *plugin) socket() string {
	return strings.ReplaceAll(p.resource, "/", "_") + ".sock"
}

// serve serves and registers until its socket is removed, by the agent, or its time is over.
func (p *plugin) serve(ctx context.Context) error {
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, p)
	path := filepath.Join(p.sockets, p.socket())
	if p.registry != "" {
		path = p.endpoint()
	}
	stop, err := listen(server, path)
	if err != nil {
		return err
	}
	defer stop()
	if p.registry != "" {
		server := grpc.NewServer()
		registration.RegisterRegistrationServer(server, p)
		stop, err := listen(server, filepath.Join(p.registry, p.socket()))
		if err != nil {
			return err
		}
		defer stop()
		<-ctx.Done()
		return nil
	}
	if err := p.register(ctx); err != nil {
		return err
	}
	log.Print("registered")
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(poll):
		}
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("the agent has started again: %w", err)
		}
	}
}

// listen serves on a socket in the place of one that is there, until stop is called.
func listen(server *grpc.Server, path string) (stop func(), err error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	socket, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(socket) }()
	return func() { server.Stop(); <-ended }, nil
}

// endpoint is its socket where the agent finds it by -registry.
func (p *plugin) endpoint() string { return filepath.Join(p.dir, p.socket()) }

// GetInfo implements registration.RegistrationServer.
func (p *plugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:              registration.DevicePlugin,
		Name:              p.resource,
		Endpoint:          p.endpoint(),
		SupportedVersions: []string{api.Version},
	}, nil
}

// NotifyRegistrationStatus implements registration.RegistrationServer.
func (p *plugin) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (
	*registration.RegistrationStatusResponse, error) {
	log.Printf("registered: %v %s", s.PluginRegistered, s.Error)
	return &registration.RegistrationStatusResponse{}, nil
}

func (p *plugin) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := grpc.NewClient("unix:"+filepath.Join(p.sockets, "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = api.NewRegistrationClient(conn).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: p.socket(), ResourceName: p.resource,
	})
	return err
}

// called notes a call.
func (p *plugin) called(method string, ids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	line, err := json.Marshal(map[string]any{"method": method, "ids": ids})
	if err != nil {
		log.Print(err)
		return
	}
	f, err := os.OpenFile(filepath.Join(p.dir, "calls.log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		log.Print(err)
		return
	}
	defer f.Close()
	if _, err := f.Write(append(line, '\n')); err != nil {
		log.Print(err)
	}
}

// devices are those that the file names now.
func (p *plugin) devices() ([]*api.Device, string) {
	text, err := os.ReadFile(filepath.Join(p.dir, "devices"))
	if err != nil {
		log.Print(err)
	}
	var list []*api.Device
	for _, name := range strings.Fields(string(text)) {
		d := &api.Device{ID: strings.TrimSuffix(name, "!"), Health: api.Healthy}
		if d.ID != name {
			d.Health = api.Unhealthy
		}
		list = append(list, d)
	}
	return list, string(text)
}

// GetDevicePluginOptions implements api.DevicePluginServer.
func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{PreStartRequired: p.preStart}, nil
}

// ListAndWatch implements api.DevicePluginServer.
func (p *plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	sent := "none"
	for {
		if list, text := p.devices(); text != sent {
			if err := stream.Send(&api.ListAndWatchResponse{Devices: list}); err != nil {
				return err
			}
			sent = text
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-time.After(poll):
		}
	}
}

// Allocate implements api.DevicePluginServer.
func (p *plugin) Allocate(ctx context.Context, r *api.AllocateRequest) (*api.AllocateResponse, error) {
	out := &api.AllocateResponse{}
	for _, c := range r.ContainerRequests {
		p.called("Allocate", c.DevicesIds)
		if p.hang {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		if p.fail {
			return nil, errors.New("the device is on fire")
		}
		a := &api.ContainerAllocateResponse{
			Envs:        map[string]string{"DEVICES": strings.Join(c.DevicesIds, ",")},
			Annotations: map[string]string{"example.com/devices": strings.Join(c.DevicesIds, ",")},
			Mounts:      []*api.Mount{{HostPath: p.dir, ContainerPath: "/plugin", ReadOnly: true}},
		}
		for _, id := range c.DevicesIds {
			node := filepath.Join(p.dir, "node-"+id)
			if err := unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil &&
				!errors.Is(err, unix.EEXIST) {
				return nil, fmt.Errorf("mknod %s: %w", node, err)
			}
			a.Devices = append(a.Devices, &api.DeviceSpec{
				HostPath: node, ContainerPath: "/dev/" + id, Permissions: "rw",
			})
		}
		out.ContainerResponses = append(out.ContainerResponses, a)
	}
	return out, nil
}

// PreStartContainer implements api.DevicePluginServer.
func (p *plugin) PreStartContainer(
	_ context.Context, r *api.PreStartContainerRequest,
) (*api.PreStartContainerResponse, error) {
	p.called("PreStartContainer", r.DevicesIds)
	return &api.PreStartContainerResponse{}, nil
}
