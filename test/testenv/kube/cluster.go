// Package kube starts a Kubernetes cluster that nobody else uses: etcd, kube-apiserver, and where
// wanted kube-controller-manager and kube-scheduler, of the versions of test/kube. It has no nodes;
// tests bring their own. The tests and the demonstration share it.
//
// A cluster lies in one folder, its etcd listens on sockets there and its servers on ports of
// 127.0.0.1 that it holds, so two clusters never meet. A cluster whose owner died without stopping
// it is removed by anyone who starts the next one. Outside of the folder nothing is written; no kubeconfig of
// the user is read.
//
// Without the controller manager there are no service accounts but those that a test makes, and
// kube-apiserver refuses pods in a namespace that has none.
package kube

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

const namePrefix = "edgecore-kube-"

// Cluster is one private Kubernetes. Its methods may be called at the same time; those of its
// components may not, see there.
type Cluster struct {
	Etcd, APIServer, ControllerManager, Scheduler *Component

	name, dir, binaries string
	opts                Options
	owner               daemon.Identity
	ca                  *authority
	config              *rest.Config
	http                *http.Client
	client              kubernetes.Interface

	mu          sync.Mutex
	connections []*http.Client

	guestsMu sync.Mutex
	guests   map[string]Guest
}

// record is what another process needs to know to remove a cluster.
type record struct {
	// Owner is the process that must live for the cluster to be wanted.
	Owner     daemon.Identity   `json:"owner"`
	Processes []daemon.Identity `json:"processes"`
	Guests    []Guest           `json:"guests,omitempty"`
}

// Launch starts a cluster and waits until it is ready; the programs are built first if need be,
// which is reported on standard error. On an error nothing is left behind. The caller stops it.
func Launch(ctx context.Context, opts Options) (*Cluster, error) {
	if err := Sweep(); err != nil {
		return nil, err
	}
	c, err := prepare(ctx, opts)
	if err != nil {
		return nil, err
	}
	if err := c.create(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start a Kubernetes cluster: %w", err), c.Stop(context.WithoutCancel(ctx)))
	}
	return c, nil
}

func prepare(ctx context.Context, opts Options) (*Cluster, error) {
	var key [4]byte
	if _, err := rand.Read(key[:]); err != nil {
		return nil, err
	}
	c := &Cluster{name: namePrefix + hex.EncodeToString(key[:]), opts: opts, binaries: opts.Binaries}
	c.dir = filepath.Join(os.TempDir(), c.name)
	var err error
	if c.binaries == "" {
		if c.binaries, err = Build(ctx, os.Stderr); err != nil {
			return nil, err
		}
	}
	if c.owner, err = daemon.Identify(os.Getpid()); err != nil {
		return nil, err
	}
	c.Etcd = &Component{Name: "etcd", cluster: c, flags: c.etcdFlags, ready: c.etcdReady}
	c.APIServer = &Component{Name: "kube-apiserver", cluster: c, flags: c.apiServerFlags, ready: c.apiServerReady}
	c.ControllerManager = &Component{
		Name:    "kube-controller-manager",
		cluster: c,
		flags:   c.controllerManagerFlags,
		ready:   c.controllerManagerReady,
	}
	c.Scheduler = &Component{Name: "kube-scheduler", cluster: c, flags: c.schedulerFlags, ready: c.schedulerReady}
	return c, nil
}

func (c *Cluster) create(ctx context.Context) error {
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		return err
	}
	if err := c.save(); err != nil {
		return err
	}
	for _, p := range []*Component{c.APIServer, c.ControllerManager, c.Scheduler} {
		var err error
		if p.port, err = daemon.ReservePort(); err != nil {
			return err
		}
	}
	if err := c.writePKI(); err != nil {
		return err
	}
	for user, groups := range groupsOf {
		if _, err := c.AddUser(user, groups...); err != nil {
			return err
		}
	}
	if err := c.dial(); err != nil {
		return err
	}
	return c.run(ctx)
}

// run starts the components: those that wait for each other by themselves at the same time.
func (c *Cluster) run(ctx context.Context) error {
	var managers []*Component
	if c.opts.ControllerManager {
		managers = append(managers, c.ControllerManager)
	}
	if c.opts.Scheduler {
		managers = append(managers, c.Scheduler)
	}
	for _, together := range [][]*Component{{c.Etcd, c.APIServer}, managers} {
		for _, p := range together {
			if err := p.launch(); err != nil {
				return err
			}
		}
		for _, p := range together {
			if err := p.wait(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// Stop ends all components and removes what the cluster has written. It may be called in any state,
// and again.
func (c *Cluster) Stop(ctx context.Context) error {
	err := c.end(ctx)
	return errors.Join(err, os.RemoveAll(c.dir))
}

// StopAndKeepLogs stops the cluster, and returns the folder in which the logs of its components stay.
func (c *Cluster) StopAndKeepLogs(ctx context.Context) (string, error) {
	kept := filepath.Join(os.TempDir(), strings.Replace(c.name, namePrefix, "edgecore-kubelogs-", 1))
	err := errors.Join(c.end(ctx), os.MkdirAll(kept, 0o755))
	for _, p := range c.components() {
		if moved := os.Rename(p.Log(), filepath.Join(kept, filepath.Base(p.Log()))); !errors.Is(moved, os.ErrNotExist) {
			err = errors.Join(err, moved)
		}
	}
	return kept, errors.Join(err, os.RemoveAll(c.dir))
}

func (c *Cluster) end(ctx context.Context) error {
	var err error
	// In this order none of them complains that another is gone.
	for _, p := range []*Component{c.Scheduler, c.ControllerManager, c.APIServer, c.Etcd} {
		// Nothing of them is needed any more: the quick way.
		err = errors.Join(err, p.proc.End(ctx, syscall.SIGKILL), p.port.Release())
		p.port = nil
	}
	c.disconnect()
	return err
}

func (c *Cluster) components() []*Component {
	return []*Component{c.Etcd, c.APIServer, c.ControllerManager, c.Scheduler}
}

// save writes the record; it is called before anything is started and after each start.
func (c *Cluster) save() error {
	r := record{Owner: c.owner}
	for _, p := range c.components() {
		if p.Running() {
			r.Processes = append(r.Processes, p.proc.Identity)
		}
	}
	c.guestsMu.Lock()
	defer c.guestsMu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(c.guests)) {
		r.Guests = append(r.Guests, c.guests[name])
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(c.file(recordFile), data, 0o600)
}

// Name is the name of the cluster: the same nowhere else on the machine.
func (c *Cluster) Name() string { return c.name }

// URL is where kube-apiserver answers, over all its starts.
func (c *Cluster) URL() string { return fmt.Sprintf("https://127.0.0.1:%d", c.APIServer.port.Number) }

// CA is the certificate of the cluster's authority, as PEM.
func (c *Cluster) CA() []byte { return c.ca.PEM }

func (c *Cluster) file(name string) string { return filepath.Join(c.dir, name) }
