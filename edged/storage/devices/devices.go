// Package devices allocates the devices of device plugins to containers (k8s.io/kubelet, deviceplugin v1beta1).
//
// It owns the folder device-plugins of the agent: the socket kubelet.sock, on which plugins register themselves,
// and the file of what was allocated. Plugins that announce themselves through package plugins are served as well.
//
// # What it promises
//
//   - A device belongs to one container at a time; only a container may pass it on that ended before its user
//     starts (an init container to the containers of its pod).
//   - A container gets the same devices each time it starts, also after a restart of the agent, a kill -9, or a reboot.
//     What a plugin answered is kept, so that a container may start again while its plugin is away; after a reboot the
//     plugin is asked again for the same devices, because what it had prepared is gone.
//   - While a plugin is away its devices are not allocatable; after a grace of five minutes its resource has a
//     capacity of 0. The resource itself stays known, so that what asks for it is refused rather than run without.
//   - A plugin that hangs, lies or talks without end harms the pods that want its devices, and no others: nothing waits
//     for a plugin under a lock, each call has a deadline, lists and answers have a largest size.
package devices

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

const (
	// Grace is how long the devices of a plugin that has gone count as the node's.
	Grace = 5 * time.Minute
	// socketName is the registration socket, as plugins know it.
	socketName = "kubelet.sock"
	// maxResources bounds the resources that plugins may register.
	maxResources = 256
	// quiet is the least time between two notifications of changes.
	quiet = 200 * time.Millisecond
)

// Options configure a Manager.
type Options struct {
	// Dir is the folder of the sockets and of the file of allocations.
	Dir string
	// Changed is called when devices came, went, or changed their health. It must not block, and may be nil.
	Changed func()
	// BootID tells one boot of the machine from another; empty is that of the kernel.
	BootID string
	// Grace is how long the devices of a plugin that has gone are kept; zero is five minutes.
	Grace time.Duration
	// Listening is called with the error that keeps the socket for registrations from being opened, and with nil once
	// it is; it may be nil.
	Listening func(socket string, err error)
}

// Manager keeps devices. Its methods may be called from any goroutine.
type Manager struct {
	opts Options
	// optionsTimeout is how long a plugin that registers may take to answer.
	optionsTimeout time.Duration
	watches        sync.WaitGroup

	mu sync.Mutex
	// ctx is that of Run, in which the watches of plugins live; nil while it does not run.
	ctx       context.Context
	resources map[string]*pool
	allocated allocations
	// saved is the content of the file; forgotten: there was none, and the cluster was not told so yet.
	saved     []byte
	forgotten bool
	// woken: devices are not what they were.
	woken notify.Signal
}

// pool is the devices of one resource.
type pool struct {
	devices map[string]device
	// plugin serves the resource; nil since ended, when the last one went.
	plugin *plugin
	ended  time.Time
	// watched is the last plugin that registered: when its stream ends it is watched for a while still, as it may come
	// back.
	watched *plugin
}

// device is what a plugin says of a device.
type device struct {
	healthy bool
	numa    []int64
}

// New makes a Manager with what was allocated before. It opens no socket yet.
func New(opts Options) *Manager {
	if opts.Grace <= 0 {
		opts.Grace = Grace
	}
	if opts.BootID == "" {
		opts.BootID = currentBoot()
	}
	m := &Manager{
		opts:           opts,
		optionsTimeout: optionsTimeout,
		resources:      map[string]*pool{},
		woken:          notify.NewSignal(),
	}
	m.load()
	return m
}

// Run serves the registration socket and watches plugins until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	m.mu.Lock()
	m.ctx = ctx
	m.mu.Unlock()
	var served sync.WaitGroup
	served.Go(func() { m.serve(ctx) })
	defer func() {
		cancel()
		served.Wait()
		m.mu.Lock()
		m.ctx = nil // from here on no watch is begun
		m.mu.Unlock()
		m.watches.Wait()
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.woken:
		case <-expiry(m.nextExpiry()):
		}
		if m.opts.Changed != nil {
			m.opts.Changed()
		}
		if !retry.Sleep(ctx, quiet) { // a plugin that talks all the time is heard now and then
			return nil
		}
	}
}

// expiry is a channel that fires after a while; never for 0.
func expiry(in time.Duration) <-chan time.Time {
	if in <= 0 {
		return nil
	}
	return time.After(in)
}

// nextExpiry is when the next resource loses its devices; 0 when none will.
func (m *Manager) nextExpiry() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	var next time.Duration
	for _, p := range m.resources {
		if p.plugin != nil || len(p.devices) == 0 {
			continue
		}
		if left := m.opts.Grace - time.Since(p.ended); left > 0 && (next == 0 || left < next) {
			next = left
		} else if left <= 0 {
			p.devices = nil
			next = time.Millisecond
		}
	}
	return next
}

// changed has Run tell that devices are not what they were.
func (m *Manager) changed() {
	m.woken.Notify()
}

// Capacity returns the number of devices and of healthy devices of each resource that plugins have registered.
func (m *Manager) Capacity() (capacity, allocatable v1.ResourceList) {
	m.mu.Lock()
	defer m.mu.Unlock()
	capacity, allocatable = v1.ResourceList{}, v1.ResourceList{}
	for name, p := range m.resources {
		all, healthy := m.counts(p)
		capacity[v1.ResourceName(name)] = *resource.NewQuantity(all, resource.DecimalSI)
		allocatable[v1.ResourceName(name)] = *resource.NewQuantity(healthy, resource.DecimalSI)
	}
	return capacity, allocatable
}

func (m *Manager) counts(p *pool) (all, healthy int64) {
	if !m.serves(p) {
		return 0, 0
	}
	if p.plugin == nil {
		return int64(len(p.devices)), 0
	}
	for _, d := range p.devices {
		if d.healthy {
			healthy++
		}
	}
	return int64(len(p.devices)), healthy
}

// Serves reports whether a resource is given out here: a plugin has registered it, and is there or may come back.
// What a pod asks of it is known to be there when it is allocated.
func (m *Manager) Serves(name v1.ResourceName) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.resources[string(name)]
	return p != nil && m.serves(p)
}

func (m *Manager) serves(p *pool) bool {
	return p.plugin != nil || time.Since(p.ended) < m.opts.Grace
}

// Wants reports whether a pod asks for devices of a plugin.
func (m *Manager) Wants(pod *v1.Pod) bool {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if len(m.requested(&list[i])) > 0 {
				return true
			}
		}
	}
	return false
}

// requested returns how many devices of each resource a container asks for.
func (m *Manager) requested(c *v1.Container) map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	want := map[string]int{}
	for name, q := range c.Resources.Limits {
		if n := q.Value(); n > 0 && m.resources[string(name)] != nil {
			want[string(name)] = int(min(n, maxDevices+1))
		}
	}
	return want
}

// Pods returns the pods that have devices.
func (m *Manager) Pods() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.allocated))
}

// Free gives back the devices of a pod that has ended.
func (m *Manager) Free(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, had := m.allocated[uid]; !had {
		return
	}
	delete(m.allocated, uid)
	if err := m.save(); err != nil {
		klog.ErrorS(err, "Devices of a pod are free, and the file of allocations does not say so", "podUID", uid)
	}
}

// path is where a file of the folder is.
func (m *Manager) path(name string) string { return filepath.Join(m.opts.Dir, name) }

// unavailable is the error for a resource that has too few devices to give away.
func unavailable(name string, want, have int) error {
	return fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", name, want, have)
}
