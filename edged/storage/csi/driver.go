package csi

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/edgecore-io/edgecore/pkg/pluginrpc"
)

// callTimeout bounds one call to a driver.
const callTimeout = 2 * time.Minute

// What a driver may answer: the topology of a node and the abilities of a driver have a few entries.
const (
	maxMessage  = 256 << 10
	maxElements = 1000
)

// driver is a registered driver.
type driver struct {
	name, endpoint string
	info           *csi.NodeGetInfoResponse
	can            abilities
}

// abilities are what a driver's node service can do.
type abilities map[csi.NodeServiceCapability_RPC_Type]bool

// notFound is a driver that is not there, in the kubelet's words.
type notFound struct{ name string }

func (e *notFound) Error() string {
	return fmt.Sprintf("driver name %s not found in the list of registered CSI drivers", e.name)
}

// call makes one call to a driver, on a connection of its own: drivers come and go.
func (d *driver) call(ctx context.Context, do func(context.Context, csi.NodeClient) error) error {
	opts := append(pluginrpc.DialOptions(pluginrpc.Limits{Bytes: maxMessage, Elements: maxElements}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", d.endpoint)
		}))
	conn, err := grpc.NewClient("passthrough:///"+d.name, opts...)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return do(ctx, csi.NewNodeClient(conn))
}

func (d *driver) nodeInfo(ctx context.Context) (info *csi.NodeGetInfoResponse, err error) {
	err = d.call(ctx, func(ctx context.Context, c csi.NodeClient) (err error) {
		info, err = c.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("NodeGetInfo: %w", err)
	}
	if info.NodeId == "" {
		return nil, fmt.Errorf("NodeGetInfo: the driver has no id for this node")
	}
	return info, nil
}

func (d *driver) abilities(ctx context.Context) (abilities, error) {
	var got *csi.NodeGetCapabilitiesResponse
	err := d.call(ctx, func(ctx context.Context, c csi.NodeClient) (err error) {
		got, err = c.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("NodeGetCapabilities: %w", err)
	}
	can := abilities{}
	for _, c := range got.Capabilities {
		can[c.GetRpc().GetType()] = true
	}
	return can, nil
}

// Validate implements plugins.Handler.
func (m *Manager) Validate(name, _ string, versions []string) error {
	if faults := validation.IsDNS1123Subdomain(strings.ToLower(name)); len(faults) > 0 || len(name) > 63 {
		return fmt.Errorf("CSI driver name %q is invalid: want at most 63 letters, digits, '-' and '.'", name)
	}
	for _, v := range versions {
		if major, _, _ := strings.Cut(strings.TrimPrefix(v, "v"), "."); major != "" {
			if n, err := strconv.Atoi(major); err == nil && n == 1 {
				return nil
			}
		}
	}
	return fmt.Errorf("CSI driver %s has the versions %q; this node speaks 1.x", name, versions)
}

// Register implements plugins.Handler: it asks the driver who this node is to it.
func (m *Manager) Register(ctx context.Context, name, endpoint string, _ []string) error {
	d := &driver{name: name, endpoint: endpoint}
	var err error
	if d.info, err = d.nodeInfo(ctx); err != nil {
		return err
	}
	if d.can, err = d.abilities(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	m.drivers[name] = d
	m.unswept = append(m.unswept, d)
	m.mu.Unlock()
	m.notify()
	if m.opts.Registered != nil {
		m.opts.Registered()
	}
	return nil
}

// Deregister implements plugins.Handler.
func (m *Manager) Deregister(name, _ string) {
	m.mu.Lock()
	delete(m.drivers, name)
	m.mu.Unlock()
	m.notify()
}

func (m *Manager) notify() {
	m.driversChanged.Notify()
}

func (m *Manager) driver(name string) (*driver, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.drivers[name]; d != nil {
		return d, nil
	}
	return nil, &notFound{name}
}
