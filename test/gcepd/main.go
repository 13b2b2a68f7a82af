// Command gcepd is the node's half of the CSI driver of Google's persistent disks, as it is released, on a machine that is
// none of Google's: who the machine is, is said by flags, and its disks are the links of a folder. What formats, mounts,
// grows and measures is the driver's own. It registers with the agent by itself, as a registrar beside it would.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/mount-utils"
	"sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/deviceutils"
	"sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/gce-cloud-provider/metadata"
	driver "sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/gce-pd-csi-driver"
	mountmanager "sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/mount-manager"
	"sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/resizefs"
)

func main() {
	name := flag.String("name", "pd.csi.storage.gke.io", "the driver's name")
	node := flag.String("node", "", "the machine's name")
	disks := flag.String("disks", "", "the folder of links to the disks, by their names")
	endpoint := flag.String("endpoint", "", "the path of the driver's socket")
	registry := flag.String("registry", "", "the folder in which plugins register")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *name, *node, *disks, *endpoint, *registry); err != nil {
		klog.ErrorS(err, "The driver ended")
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, name, node, disks, endpoint, registry string) error {
	mounter, err := mountmanager.NewSafeMounter(0, 0)
	if err != nil {
		return err
	}
	d := driver.GetGCEDriver()
	identity := driver.NewIdentityServer(d)
	nodes := driver.NewNodeServer(d, mounter, folder{deviceutils.NewDeviceUtils(), disks}, machine{metadata.NewFakeService(), node}, mountmanager.NewStatter(mounter),
		&driver.NodeServerArgs{SysfsPath: "/sys", NodeName: node})
	if err := d.SetupGCEDriver(name, "test", nil, nil, identity, nil, nodes); err != nil {
		return err
	}
	server := driver.NewNonBlockingGRPCServer(false, nil)
	server.Start("unix://"+endpoint, identity, nil, nodes)
	return register(ctx, filepath.Join(registry, name+"-reg.sock"), &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: name, Endpoint: endpoint, SupportedVersions: []string{"1.0.0"},
	})
}

// machine is the metadata of a machine that is named.
type machine struct {
	metadata.MetadataService
	name string
}

func (m machine) GetName() string { return m.name }

// GetMachineType is one whose limit of disks is asked of nobody.
func (m machine) GetMachineType() string { return "f1-micro" }

// folder finds disks in a folder instead of /dev/disk/by-id.
type folder struct {
	deviceutils.DeviceUtils
	dir string
}

func (f folder) GetDiskByIdPaths(name, _ string) []string {
	return []string{filepath.Join(f.dir, name)}
}

func (f folder) VerifyDevicePath(paths []string, name string) (string, error) {
	for _, path := range paths {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("disk %s is not attached", name)
}

func (f folder) Resize(resizer resizefs.Resizefs, device, dir string) (bool, error) {
	return resizer.Resize(device, dir)
}

func (f folder) IsDeviceFilesystemInUse(*mount.SafeFormatAndMount, string, string) (bool, error) {
	return false, nil
}

// registrar answers the agent that found the socket.
type registrar struct {
	registration.UnimplementedRegistrationServer
	info *registration.PluginInfo
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return r.info, nil
}

func (r *registrar) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	klog.InfoS("Registration", "registered", s.PluginRegistered, "err", s.Error)
	return &registration.RegistrationStatusResponse{}, nil
}

func register(ctx context.Context, path string, info *registration.PluginInfo) error {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, &registrar{info: info})
	defer context.AfterFunc(ctx, server.Stop)()
	return server.Serve(l)
}
