package plugins

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/edgecore-io/edgecore/pkg/pluginrpc"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

const (
	// callTimeout bounds one call of a plugin's registration service.
	callTimeout = 10 * time.Second
	// registerTimeout bounds what a handler does to take a plugin.
	registerTimeout = 2 * time.Minute
	// The delays between attempts. A socket is there a moment before anybody listens on it.
	firstRetry = 50 * time.Millisecond
	lastRetry  = time.Minute
	// maxAnswer bounds what a plugin may say of itself.
	maxAnswer = 64 << 10
)

// registerUntilDone registers the plugin of a socket. It tries again until that works or the context ends.
func (w *Watcher) registerUntilDone(ctx context.Context, path string) {
	register := func(ctx context.Context) error { return w.register(ctx, path) }
	retry.Until(ctx, firstRetry, lastRetry, register, func(err error, again time.Duration) {
		if again > 10*firstRetry { // a plugin that has just started may not listen yet
			klog.ErrorS(err, "Plugin not registered; trying again", "socket", path, "in", again)
		}
	})
}

// register asks a plugin what it is, hands it to its handler, and tells it the result.
func (w *Watcher) register(ctx context.Context, path string) error {
	conn, err := dial(path)
	if err != nil {
		return err
	}
	defer conn.Close()
	client := registration.NewRegistrationClient(conn)
	info, err := getInfo(ctx, client)
	if err != nil {
		return fmt.Errorf("get info of plugin %s: %w", path, err)
	}
	p := plugin{info.Type, info.Name}
	endpoint := cmp.Or(info.Endpoint, path)
	w.comes(p)
	result := w.callHandler(ctx, p, endpoint, info.SupportedVersions)
	w.recordOutcome(p, holder{path, endpoint}, result == nil) // also when the socket has gone: it is forgotten next
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if result == nil {
		klog.InfoS("Plugin registered", "type", p.kind, "name", p.name, "endpoint", endpoint)
	}
	status := &registration.RegistrationStatus{PluginRegistered: result == nil}
	if result != nil {
		status.Error = result.Error()
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := client.NotifyRegistrationStatus(ctx, status); err != nil && result == nil {
		// It is registered, and works: only its author's log lacks a line.
		klog.ErrorS(err, "Plugin not notified of its registration", "type", p.kind, "name", p.name)
	}
	return result
}

func getInfo(ctx context.Context, client registration.RegistrationClient) (*registration.PluginInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return client.GetInfo(ctx, &registration.InfoRequest{})
}

// callHandler gives a plugin to the handler of its type.
func (w *Watcher) callHandler(ctx context.Context, p plugin, endpoint string, versions []string) error {
	handler, ok := w.handlers[p.kind]
	if !ok {
		return fmt.Errorf("plugin type %q is unknown; this node supports %s", p.kind,
			strings.Join(slices.Sorted(maps.Keys(w.handlers)), ", "))
	}
	if p.name == "" {
		return fmt.Errorf("plugin of type %s has no name", p.kind)
	}
	if !filepath.IsAbs(endpoint) {
		return fmt.Errorf("plugin %s: endpoint %q must be an absolute path", p.name, endpoint)
	}
	if err := handler.Validate(p.name, endpoint, versions); err != nil {
		return fmt.Errorf("plugin %s refused: %w", p.name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	if err := handler.Register(ctx, p.name, endpoint, versions); err != nil {
		return fmt.Errorf("register plugin %s: %w", p.name, err)
	}
	return nil
}

// dial makes a connection to a socket; it connects with the first call.
func dial(path string) (*grpc.ClientConn, error) {
	opts := append(pluginrpc.DialOptions(pluginrpc.Limits{Bytes: maxAnswer}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}))
	return grpc.NewClient("passthrough:///plugin", opts...)
}
