// Package containerd starts a containerd that nobody else uses, and removes it again without a
// trace. make run, the tests and the benchmarks share it.
//
// An instance has one name ("ec-" and eight hex digits), and whatever it makes carries it: the
// folder /run/NAME (state, socket, configuration), the bridge NAME and its CNI network, the cgroup
// /NAME in every hierarchy, its root folder. So two instances never meet, a leak is found by
// looking for the name (Leaks), and an instance whose owner died without cleaning up is removed by
// anyone who starts the next one (Sweep). No containerd that was already on the machine is touched.
package containerd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

const (
	namePrefix  = "ec-"
	runDir      = "/run"
	callTimeout = 30 * time.Second
)

// Options say what Start starts. The zero value is right for a test.
type Options struct {
	// Name of the instance; empty: a fresh one. See Name for a name that is stable.
	Name string
	// Root is the folder of what outlives a reboot; it is removed with the instance.
	// Empty: NAME in the folder for temporary files.
	Root string
	// Detached instances outlive the process that starts them; see Attach.
	Detached bool
	// Binary is the containerd to run; its shim is looked for beside it first. Empty: the one
	// in PATH.
	Binary string
	// SystemdCgroup has containers' cgroups made by systemd, which must be pid 1.
	SystemdCgroup bool
	// Runc is the program of the handler OwnUsers, on containerd 2.x; see BuildRunc. Empty: there is no such handler.
	Runc string
	// DiscardLayers: blobs of layers that are unpacked are not kept.
	DiscardLayers bool
}

// Instance is one private containerd. Its methods must not be called at the same time.
type Instance struct {
	record
	proc *daemon.Process
}

// record is what another process needs to know of an instance; it is kept in /run/NAME.
type record struct {
	Name   string `json:"name"`
	Root   string `json:"root"`
	Binary string `json:"binary"`
	Major  int    `json:"major"`
	// SystemdCgroup is as in Options.
	SystemdCgroup bool            `json:"systemdCgroup,omitempty"`
	Runc          string          `json:"runc,omitempty"`
	DiscardLayers bool            `json:"discardLayers,omitempty"`
	Subnet        netip.Prefix    `json:"subnet"`
	Process       daemon.Identity `json:"process"`
	// Owner is the process that must live for the instance to be wanted; zero: wanted for ever.
	Owner daemon.Identity `json:"owner"`
}

// Name makes the instance name of a key: the same for the same key.
func Name(key [4]byte) string { return namePrefix + hex.EncodeToString(key[:]) }

// Start starts a containerd and waits until its CRI answers. On an error nothing is left behind.
func Start(ctx context.Context, opts Options) (*Instance, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("starting containers needs root: run this as root")
	}
	if err := Sweep(ctx); err != nil {
		return nil, err
	}
	i, err := prepare(ctx, opts)
	if err != nil {
		return nil, err
	}
	if err := i.create(ctx); err != nil {
		log := daemon.Tail(i.LogFile(), 20) // which goes with the instance
		return nil, errors.Join(fmt.Errorf("start containerd %s: %w\nthe end of its log:\n%s", i.Name, err, log),
			i.Stop(context.WithoutCancel(ctx)))
	}
	return i, nil
}

func prepare(ctx context.Context, opts Options) (*Instance, error) {
	i := &Instance{record: record{
		Name:          opts.Name,
		Root:          opts.Root,
		Binary:        opts.Binary,
		SystemdCgroup: opts.SystemdCgroup,
		Runc:          opts.Runc,
		DiscardLayers: opts.DiscardLayers,
	}}
	if i.Name == "" {
		var key [4]byte
		if _, err := rand.Read(key[:]); err != nil {
			return nil, err
		}
		i.Name = Name(key)
	}
	if i.Root == "" {
		i.Root = filepath.Join(os.TempDir(), i.Name)
	}
	if i.Binary == "" {
		path, err := exec.LookPath("containerd")
		if err != nil {
			return nil, fmt.Errorf("%w; install the Debian package containerd (hack/setup does)", err)
		}
		i.Binary = path
	}
	var err error
	if i.Major, err = majorVersion(ctx, i.Binary); err != nil {
		return nil, err
	}
	if !opts.Detached {
		if i.Owner, err = daemon.Identify(os.Getpid()); err != nil {
			return nil, err
		}
	}
	if _, err := os.Stat(i.dir()); err == nil {
		return nil, fmt.Errorf("an instance %s exists already: %s is there", i.Name, i.dir())
	}
	return i, nil
}

func (i *Instance) create(ctx context.Context) error {
	for _, dir := range []string{i.Root, i.cniConfDir()} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return err
		}
	}
	if err := i.save(); err != nil {
		return err
	}
	if err := i.makeNetwork(ctx); err != nil {
		return err
	}
	if err := i.writeConfig(); err != nil {
		return err
	}
	return i.Run(ctx)
}

// Attach finds the detached instance of that name. The error is os.ErrNotExist when there is none.
func Attach(name string) (*Instance, error) {
	data, err := os.ReadFile(filepath.Join(runDir, name, "instance.json"))
	if err != nil {
		return nil, err
	}
	i := &Instance{}
	if err := json.Unmarshal(data, &i.record); err != nil {
		return nil, fmt.Errorf("read the record of containerd %s: %w", name, err)
	}
	i.proc = daemon.Known(i.Process)
	return i, nil
}

func (i *Instance) save() error {
	data, err := json.MarshalIndent(i.record, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(i.dir(), "instance.json"), data, 0o644)
}

// Endpoint is the CRI endpoint, in the form that edgecore's configuration takes.
func (i *Instance) Endpoint() string { return "unix://" + i.Socket() }

// Socket is the path of containerd's socket.
func (i *Instance) Socket() string { return filepath.Join(i.dir(), "containerd.sock") }

// CgroupRoot is the cgroup under which a node agent of this instance must keep its pods.
func (i *Instance) CgroupRoot() string { return "/" + i.Name }

// LogFile is where containerd logs.
func (i *Instance) LogFile() string { return filepath.Join(i.Root, "containerd.log") }

// Dial returns a client of the instance's CRI. The caller closes it.
func (i *Instance) Dial() (*cri.Client, error) {
	return cri.Dial(i.Endpoint(), "", daemon.Scaled(callTimeout))
}

// Running reports whether the daemon's process is there, paused or not.
func (i *Instance) Running() bool { return i.proc.Running() }

func (i *Instance) dir() string        { return filepath.Join(runDir, i.Name) }
func (i *Instance) stateDir() string   { return filepath.Join(i.dir(), "state") }
func (i *Instance) cniConfDir() string { return filepath.Join(i.dir(), "cni") }
func (i *Instance) rootDir() string    { return filepath.Join(i.Root, "containerd") }
func (i *Instance) configFile() string { return filepath.Join(i.dir(), "config.toml") }
