// Command hostpath is a CSI driver for tests: its volumes are folders, file systems and block devices that lie as
// files in a folder of the machine. It mounts for real, keeps all that it knows on the disk and in the kernel, and so
// may be killed at any point. It registers itself as a node-driver-registrar would.
//
// It writes each call to calls.log in its folder, and does what the file faults.json there says ({"NodeStageVolume":
// "hang"}; any other text is the message of an error Unavailable).
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func main() {
	d := &driver{}
	flag.StringVar(&d.name, "name", "hostpath.csi.edgecore.local", "name of the driver")
	flag.StringVar(&d.node, "node", "node1", "name of the node")
	flag.StringVar(&d.dir, "dir", "", "folder of the volumes")
	flag.Int64Var(&d.maxVolumes, "max-volumes", 0, "how many volumes the node may have")
	endpoint := flag.String("endpoint", "", "socket of the driver")
	registry := flag.String("registry", "", "folder of plugin registrations")
	without := flag.String("without", "",
		"capabilities that the node service does not have, such as STAGE_UNSTAGE_VOLUME,VOLUME_MOUNT_GROUP")
	flag.Parse()
	d.without = strings.Split(*without, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, d, *endpoint, *registry)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "hostpath:", err)
		os.Exit(1)
	}
}

// driver is the CSI driver.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	name, node, dir string
	maxVolumes      int64
	without         []string

	mu  sync.Mutex // of the calls of the node service, which are few
	log sync.Mutex
}

// run serves the driver and its registration until the context ends.
func run(ctx context.Context, d *driver, endpoint, registry string) error {
	if err := os.MkdirAll(filepath.Join(d.dir, "volumes"), 0o755); err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(d.watch))
	csi.RegisterIdentityServer(server, d)
	csi.RegisterControllerServer(server, d)
	csi.RegisterNodeServer(server, d)
	reg := grpc.NewServer()
	registration.RegisterRegistrationServer(reg, &registrar{name: d.name, endpoint: endpoint})
	failed := make(chan error, 2)
	serve := func(s *grpc.Server, path string) error {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		l, err := net.Listen("unix", path)
		if err != nil {
			return err
		}
		go func() { failed <- s.Serve(l) }()
		return nil
	}
	if err := serve(server, endpoint); err != nil {
		return err
	}
	if err := serve(reg, filepath.Join(registry, d.name+"-reg.sock")); err != nil {
		return err
	}
	defer server.Stop()
	defer reg.Stop()
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// watch writes each call down, and fails those that are to fail.
func (d *driver) watch(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (any, error) {
	_, method, _ := strings.Cut(strings.TrimPrefix(info.FullMethod, "/"), "/")
	var faults map[string]string
	if data, err := os.ReadFile(filepath.Join(d.dir, "faults.json")); err == nil {
		if err := json.Unmarshal(data, &faults); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	// Who sees that it was called may change its faults.
	if err := d.note(method, request); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	switch fault := faults[method]; fault {
	case "":
	case "hang":
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	default:
		return nil, status.Error(codes.Unavailable, fault)
	}
	answer, err := handle(ctx, request)
	if err != nil && status.Code(err) == codes.Unknown {
		err = status.Error(codes.Internal, err.Error())
	}
	return answer, err
}

func (d *driver) note(method string, request any) error {
	text := []byte("{}")
	if m, ok := request.(proto.Message); ok {
		var err error
		if text, err = protojson.Marshal(m); err != nil {
			return err
		}
	}
	line, err := json.Marshal(map[string]any{"method": method, "request": json.RawMessage(text)})
	if err != nil {
		return err
	}
	d.log.Lock()
	defer d.log.Unlock()
	f, err := os.OpenFile(filepath.Join(d.dir, "calls.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// registrar tells the agent of the driver.
type registrar struct {
	registration.UnimplementedRegistrationServer
	name, endpoint string
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:              "CSIPlugin",
		Name:              r.name,
		Endpoint:          r.endpoint,
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (r *registrar) NotifyRegistrationStatus(
	_ context.Context, s *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	fmt.Fprintf(os.Stderr, "registered: %v %s\n", s.PluginRegistered, s.Error)
	return &registration.RegistrationStatusResponse{}, nil
}
