package preflight

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	ocgroups "github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cgroups"
	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/podstate/clock"
)

const (
	// callTimeout bounds a question to the runtime, dialTimeout the way to the cloud.
	callTimeout = 10 * time.Second
	dialTimeout = 5 * time.Second
	// maxConfig bounds a CNI configuration.
	maxConfig = 1 << 20
	// maxPlugins bounds the plugins of one configuration, since each is looked for; a chain of ten is long.
	maxPlugins = 100
)

// Options say what the agent is to use.
type Options struct {
	Endpoint, CgroupDriver string
	// ImageEndpoint is the socket for images; "" is Endpoint.
	ImageEndpoint string
	// Ports are those that it listens on: What, Key and Address.
	Ports []Port
	// Disks are the folders that it writes to: What and Path.
	Disks      []Disk
	ClockBound clock.Bound
	// Cloud is the way to the cloud: Joined and Server.
	Cloud Cloud
}

// Collect finds out how the device is. It changes nothing.
func Collect(ctx context.Context, o Options) *Facts {
	f := &Facts{
		Root: os.Geteuid() == 0, Ports: slices.Clone(o.Ports), Disks: slices.Clone(o.Disks), Cloud: o.Cloud,
		Clock: Clock{Now: time.Now(), Synchronized: clock.Synchronized(), Bound: o.ClockBound},
	}
	f.Kernel, f.Memory = machine()
	f.Cgroups = lookAtCgroups(o.CgroupDriver)
	f.Runtime.Endpoint, f.Runtime.ImageEndpoint = o.Endpoint, o.ImageEndpoint
	images := lookAtRuntime(ctx, &f.Runtime, &f.CNI)
	for i := range f.Ports {
		lookAtPort(ctx, &f.Ports[i])
	}
	if images != "" {
		f.Disks = append(f.Disks, Disk{What: "images", Path: images})
	}
	for i := range f.Disks {
		lookAtDisk(&f.Disks[i])
	}
	if f.Cloud.Joined {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", f.Cloud.Server)
		if f.Cloud.Err = err; err == nil {
			f.Cloud.Err = conn.Close()
		}
	}
	return f
}

func machine() (kernel string, memory int64) {
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		kernel = unix.ByteSliceToString(name.Release[:])
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		memory = int64(info.Totalram) * int64(info.Unit)
	}
	return kernel, memory
}

func lookAtCgroups(driver string) Cgroups {
	c := Cgroups{
		Version: "v1", Driver: cmp.Or(driver, cgroups.DriverCgroupfs), Missing: cgroups.New(cgroups.Options{}).
				Missing(),
	}
	switch {
	case ocgroups.IsCgroup2UnifiedMode():
		c.Version = "v2"
	case ocgroups.IsCgroup2HybridMode():
		c.Version = "v1 (hybrid, with v2 beside it)"
	}
	_, err := os.Stat("/run/systemd/system")
	c.Systemd = err == nil
	return c
}

// lookAtRuntime asks the runtime what it is, and returns the folder of its images.
func lookAtRuntime(ctx context.Context, r *Runtime, network *CNI) (images string) {
	if r.Socket = lookAtSocket(r.Endpoint); r.Socket != nil {
		return ""
	}
	client, err := cri.Dial(r.Endpoint, r.ImageEndpoint, callTimeout)
	if err != nil {
		r.Err = err
		return ""
	}
	defer client.Close()
	version, err := client.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		r.Unknown, r.Err = cri.IsUnimplemented(err), err
		return ""
	}
	r.Name, r.Version = version.GetRuntimeName(), version.GetRuntimeVersion()
	status, err := client.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		r.Err = err
		return ""
	}
	network.Asked = true
	for _, c := range status.GetStatus().GetConditions() {
		why := ""
		if !c.GetStatus() {
			why = cmp.Or(c.GetMessage(), c.GetReason(), "it does not say why")
		}
		switch c.GetType() {
		case runtimeapi.RuntimeReady:
			r.NotReady = why
		case runtimeapi.NetworkReady:
			network.NotReady = why
		}
	}
	said := parseConfig(status.GetInfo()["config"])
	r.Driver = said.driver()
	if config, err := client.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{}); err == nil &&
		config.GetLinux() != nil {
		r.Driver = strings.ToLower(config.GetLinux().GetCgroupDriver().String())
	}
	network.Dir, network.Bins = said.CNI.ConfDir, said.CNI.bins()
	lookAtCNI(network)
	info, err := client.Images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if r.ImageEndpoint != "" && r.ImageEndpoint != r.Endpoint {
		r.ImagesErr = cmp.Or(lookAtSocket(r.ImageEndpoint), err)
	}
	if len(info.GetImageFilesystems()) > 0 {
		images = info.GetImageFilesystems()[0].GetFsId().GetMountpoint()
	}
	return images
}

// lookAtSocket says why a connection to an endpoint fails.
func lookAtSocket(endpoint string) error {
	path, err := cri.SocketPath(endpoint)
	if err != nil {
		return err
	}
	return checkSocket(path)
}

// checkSocket says why a connection to a socket fails.
func checkSocket(path string) error {
	info, err := os.Stat(path)
	var in *os.PathError
	switch {
	case errors.As(err, &in):
		return in.Err
	case err != nil:
		return err
	case info.Mode()&os.ModeSocket == 0:
		return errors.New("it is not a socket")
	}
	return nil
}

// runtimeConfig is the part of containerd's verbose status that matters here.
type runtimeConfig struct {
	CNI        cniConfig `json:"cni"`
	Containerd struct {
		Default  string `json:"defaultRuntimeName"`
		Runtimes map[string]struct {
			Options struct {
				SystemdCgroup *bool `json:"SystemdCgroup"`
			} `json:"options"`
		} `json:"runtimes"`
	} `json:"containerd"`
}

type cniConfig struct {
	ConfDir string   `json:"confDir"`
	BinDir  string   `json:"binDir"`
	BinDirs []string `json:"binDirs"`
}

func (c *cniConfig) bins() []string {
	if c.BinDir != "" && !slices.Contains(c.BinDirs, c.BinDir) {
		return append([]string{c.BinDir}, c.BinDirs...)
	}
	return c.BinDirs
}

// parseConfig reads the configuration from a runtime's verbose status; only containerd reports one.
func parseConfig(text string) runtimeConfig {
	var c runtimeConfig
	if json.Unmarshal([]byte(text), &c) != nil {
		return runtimeConfig{}
	}
	return c
}

// driver is the cgroup driver of the default handler; "" where the runtime does not say.
func (c *runtimeConfig) driver() string {
	handler, ok := c.Containerd.Runtimes[cmp.Or(c.Containerd.Default, "runc")]
	switch {
	case !ok:
		return ""
	case handler.Options.SystemdCgroup != nil && *handler.Options.SystemdCgroup:
		return cgroups.DriverSystemd
	}
	return cgroups.DriverCgroupfs
}

// lookAtCNI reads the configuration that the runtime takes, which is the first by name.
func lookAtCNI(c *CNI) {
	if c.Dir == "" {
		return
	}
	entries, err := os.ReadDir(c.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return
	}
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); ext == ".conf" || ext == ".conflist" || ext == ".json" {
			c.Files = append(c.Files, filepath.Join(c.Dir, e.Name()))
		}
	}
	if len(c.Files) == 0 {
		return
	}
	text, err := readConfig(c.Files[0])
	var plugins []string
	if err == nil {
		plugins, err = cniPlugins(text)
	}
	c.Broken = err
	for _, name := range plugins {
		if len(c.Bins) > 0 && !slices.ContainsFunc(c.Bins, func(dir string) bool {
			_, err := os.Stat(filepath.Join(dir, name))
			return err == nil
		}) {
			c.Missing = append(c.Missing, name)
		}
	}
}

// readConfig reads a CNI configuration, which a pod may have put there: it may be a FIFO or endless.
func readConfig(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	text, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err == nil && len(text) > maxConfig {
		err = fmt.Errorf("it has more than %d bytes", maxConfig)
	}
	return text, err
}

// cniPlugins are the programs that a configuration or a list of them names.
func cniPlugins(text []byte) ([]string, error) {
	type plugin struct {
		Type string `json:"type"`
		IPAM struct {
			Type string `json:"type"`
		} `json:"ipam"`
	}
	var list struct {
		plugin
		Plugins []plugin `json:"plugins"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	if list.Plugins == nil {
		list.Plugins = []plugin{list.plugin}
	}
	var names []string
	if len(list.Plugins) > maxPlugins {
		return nil, fmt.Errorf("it lists %d plugins, at most %d are run", len(list.Plugins), maxPlugins)
	}
	for _, p := range list.Plugins {
		for _, name := range []string{p.Type, p.IPAM.Type} {
			if name != "" && name == filepath.Base(name) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		return nil, errors.New("it names no plugin")
	}
	return names, nil
}
