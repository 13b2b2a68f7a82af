package devices

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/edgecore-io/edgecore/pkg/pluginrpc"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// What a plugin may take of time and space.
const (
	optionsTimeout   = 10 * time.Second
	preferredTimeout = 10 * time.Second
	// allocateTimeout is long: a plugin may load a device with what it needs.
	allocateTimeout = 2 * time.Minute
	preStartTimeout = api.KubeletPreStartContainerRPCTimeoutInSecs * time.Second
	maxMessage      = 4 << 20
	// maxDevices bounds the devices of a resource, maxDeviceID the length of their names.
	maxDevices  = 16384
	maxDeviceID = 253
	// maxElements bounds a message before it is decoded: each device may have a topology with two nodes.
	maxElements = 4 * maxDevices
	// listsPerSecond is how many lists of a plugin are looked at; it waits with the others.
	listsPerSecond, listBurst = 5, 10
	watchAgain                = time.Second
	watchAgainMax             = 30 * time.Second
)

// plugin is one registered plugin: a client of its socket.
type plugin struct {
	resource string
	endpoint string
	conn     *grpc.ClientConn
	client   api.DevicePluginClient
	options  *api.DevicePluginOptions
	// stop ends the watch; replaced says that it was called. Both belong to the manager's lock.
	stop     context.CancelFunc
	replaced bool
}

// dial makes a client of a plugin's socket; it connects with the first call.
func dial(resource, endpoint string) (*plugin, error) {
	opts := append(pluginrpc.DialOptions(pluginrpc.Limits{Bytes: maxMessage, Elements: maxElements}),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithConnectParams(grpc.ConnectParams{
			MinConnectTimeout: optionsTimeout,
			Backoff:           backoff.Config{BaseDelay: watchAgain / 2, Multiplier: 1.6, MaxDelay: 5 * time.Second},
		}))
	conn, err := grpc.NewClient("unix:"+endpoint, opts...)
	if err != nil {
		return nil, fmt.Errorf("socket %s of device plugin %s: %w", endpoint, resource, err)
	}
	return &plugin{resource: resource, endpoint: endpoint, conn: conn, client: api.NewDevicePluginClient(conn)}, nil
}

// connect registers a plugin: it is dialled back, and its devices are watched from now on. A plugin may register just
// before it serves.
func (m *Manager) connect(ctx context.Context, resource, endpoint string, options *api.DevicePluginOptions) error {
	p, err := dial(resource, endpoint)
	if err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, m.optionsTimeout)
	defer cancel()
	asked, err := p.client.GetDevicePluginOptions(call, &api.Empty{}, grpc.WaitForReady(true))
	switch {
	case err == nil:
		p.options = asked
	case status.Code(err) == codes.Unimplemented: // it said what it wants with its registration
		p.options = options
	default:
		return errors.Join(fmt.Errorf("device plugin %s does not answer on %s: %w", resource, endpoint, err),
			p.conn.Close())
	}
	if err := m.adopt(p); err != nil {
		return errors.Join(err, p.conn.Close())
	}
	klog.InfoS("Device plugin registered", "resource", resource, "endpoint", endpoint)
	m.changed()
	return nil
}

// adopt makes p the plugin of its resource, in place of the one before.
func (m *Manager) adopt(p *plugin) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx == nil || m.ctx.Err() != nil {
		return errors.New("the agent is not ready for device plugins; register again in a moment")
	}
	have := m.resources[p.resource]
	if have == nil && len(m.resources) >= maxResources {
		return fmt.Errorf("device plugin %s: %d resources are registered, which is the most", p.resource, maxResources)
	}
	if have == nil {
		have = &pool{ended: time.Now()}
		m.resources[p.resource] = have
	}
	if have.watched != nil {
		have.watched.stopWatching()
	}
	var ctx context.Context
	ctx, p.stop = context.WithCancel(m.ctx)
	have.plugin, have.watched = p, p
	m.watches.Go(func() { m.watch(ctx, p) })
	return m.save()
}

// stopWatching stops watching a plugin. The manager's lock is held.
func (p *plugin) stopWatching() {
	p.replaced = true
	p.stop()
}

// watch follows a plugin's devices until it goes for good or is replaced.
func (m *Manager) watch(ctx context.Context, p *plugin) {
	defer func() {
		p.stop()
		if err := p.conn.Close(); err != nil {
			klog.V(2).InfoS("Connection to a device plugin not closed", "resource", p.resource, "err", err)
		}
	}()
	backoff, ended := retry.NewBackoff(watchAgain, watchAgainMax), time.Time{}
	for {
		began := time.Now()
		err := m.followDevices(ctx, p)
		if ctx.Err() != nil || !m.pluginLost(p, err) {
			return
		}
		// The plugin may only have dropped the stream, or be on its way back to the same socket.
		if time.Since(began) > watchAgainMax || ended.IsZero() {
			backoff.Reset()
			ended = time.Now()
		}
		if time.Since(ended) > m.opts.Grace {
			return
		}
		if !backoff.Wait(ctx) {
			return
		}
	}
}

// followDevices takes over the lists of devices that a plugin sends.
func (m *Manager) followDevices(ctx context.Context, p *plugin) error {
	stream, err := p.client.ListAndWatch(ctx, &api.Empty{})
	if err != nil {
		return err
	}
	pace := rate.NewLimiter(listsPerSecond, listBurst)
	for {
		list, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := pace.Wait(ctx); err != nil {
			return err
		}
		m.listed(p, list.Devices)
	}
}

// listed takes over the devices that a plugin says it has.
func (m *Manager) listed(p *plugin, list []*api.Device) {
	devices, left := readDevices(list)
	if left > 0 {
		klog.ErrorS(nil, "Devices left out", "resource", p.resource, "count", left, "most", maxDevices,
			"longestName", maxDeviceID)
	}
	m.mu.Lock()
	have := m.resources[p.resource]
	current := have != nil && !p.replaced && (have.plugin == p || have.plugin == nil)
	same := current && have.plugin == p && sameDevices(have.devices, devices)
	if current {
		have.plugin, have.devices = p, devices
	}
	m.mu.Unlock()
	if current && !same {
		klog.V(2).InfoS("Devices changed", "resource", p.resource, "devices", len(devices))
		m.changed()
	}
}

// readDevices reads a plugin's list, and returns how many devices it left out.
func readDevices(list []*api.Device) (map[string]device, int) {
	devices := make(map[string]device, min(len(list), maxDevices))
	left := 0
	for _, d := range list {
		if _, again := devices[d.GetID()]; d.GetID() == "" || len(d.ID) > maxDeviceID ||
			(!again && len(devices) >= maxDevices) {
			left++
			continue
		}
		var numa []int64
		for _, n := range d.GetTopology().GetNodes() {
			if n != nil && len(numa) < 64 {
				numa = append(numa, n.ID)
			}
		}
		devices[d.ID] = device{healthy: d.Health == api.Healthy, numa: numa}
	}
	return devices, left
}

func sameDevices(a, b map[string]device) bool {
	if len(a) != len(b) {
		return false
	}
	for id, d := range a {
		other, ok := b[id]
		if !ok || other.healthy != d.healthy || fmt.Sprint(other.numa) != fmt.Sprint(d.numa) {
			return false
		}
	}
	return true
}

// pluginLost records that a plugin's stream has ended. It returns false if another plugin has replaced it.
func (m *Manager) pluginLost(p *plugin, err error) bool {
	m.mu.Lock()
	have := m.resources[p.resource]
	if have == nil || (have.plugin != nil && have.plugin != p) {
		m.mu.Unlock()
		return false
	}
	first := have.plugin == p
	if first {
		have.plugin, have.ended = nil, time.Now()
	}
	m.mu.Unlock()
	if first {
		klog.InfoS("Device plugin disconnected; its devices are not allocatable until it registers "+
			"again", "resource", p.resource,
			"endpoint", p.endpoint, "err", err)
		m.changed()
	}
	return true
}

// disconnect ends the plugin of a resource at an endpoint.
func (m *Manager) disconnect(resource, endpoint string) {
	m.mu.Lock()
	have := m.resources[resource]
	ours := have != nil && have.plugin != nil && have.plugin.endpoint == endpoint
	if have != nil && have.watched != nil && have.watched.endpoint == endpoint {
		have.watched.stopWatching()
	}
	if ours {
		have.plugin, have.ended = nil, time.Now()
	}
	m.mu.Unlock()
	if ours {
		klog.InfoS("Device plugin unregistered", "resource", resource, "endpoint", endpoint)
		m.changed()
	}
}
