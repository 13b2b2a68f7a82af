package edgeports

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// fakeHub notes what it serves. It refuses to listen for QUIC with refuse.
type fakeHub struct {
	served []string
	refuse error
}

func (h *fakeHub) serve(what string, l net.Listener) error {
	h.served = append(h.served, what+" "+l.Addr().Network())
	return l.Close()
}

func (h *fakeHub) ServeWebSocket(_ context.Context, l net.Listener, config *tls.Config) error {
	return h.serve("WebSocket of "+config.ServerName, l)
}
func (h *fakeHub) ServeStreams(_ context.Context, l net.Listener, config *tls.Config) error {
	return h.serve("stream tunnels of "+config.ServerName, l)
}
func (h *fakeHub) ServeUnix(_ context.Context, l net.Listener) error { return h.serve("CSI", l) }
func (h *fakeHub) ServeQUIC(context.Context, *wire.QUICListener) error {
	return errors.New("QUIC is served, want it not open")
}
func (h *fakeHub) ListenQUIC(address string, _ *tls.Config) (*wire.QUICListener, error) {
	return nil, errors.Join(errors.New("listen "+address), h.refuse)
}

func options(h *fakeHub) Options {
	return Options{
		Hub:        h,
		TLS:        func() *tls.Config { return &tls.Config{ServerName: "test"} },
		ServeHTTPS: func(_ context.Context, l net.Listener) error { return h.serve("HTTPS", l) },
	}
}

// config has every port but QUIC, each at an address that is free.
func config(t *testing.T) *v1alpha1.CloudHub {
	t.Helper()
	hub := v1alpha1.Default().Modules.CloudHub
	for _, l := range []*v1alpha1.Listener{&hub.WebSocket, &hub.HTTPS} {
		l.Enable, l.Address, l.Port = true, "127.0.0.1", 0
	}
	hub.Quic.Enable = false
	hub.UnixSocket.Enable, hub.UnixSocket.Address = true, "unix://"+filepath.Join(t.TempDir(), "hub.sock")
	return &hub
}

func TestOpen(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha1.CloudHub)
		want   []string
	}{
		"all": {func(*v1alpha1.CloudHub) {}, []string{"WebSocket of test tcp", "HTTPS tcp", "CSI unix"}},
		"no certificates": {
			func(h *v1alpha1.CloudHub) { h.HTTPS.Enable = false }, []string{"WebSocket of test tcp", "CSI unix"},
		},
		"certificates alone": {
			func(h *v1alpha1.CloudHub) {
				h.WebSocket.Enable, h.UnixSocket.Enable = false, false
			}, []string{"HTTPS tcp"},
		},
	} {
		hub, cfg := &fakeHub{}, config(t)
		c.change(cfg)
		ports, err := Open(t.Context(), cfg, options(hub))
		if err != nil || len(hub.served) > 0 {
			t.Errorf("%s: Open = %v, served %v; want no error and nothing served yet", name, err, hub.served)
		}
		for _, p := range ports {
			if err := p.Serve(t.Context()); err != nil || !strings.HasPrefix(p.Key, "modules.cloudHub.") {
				t.Errorf("%s: %s: Serve = %v, want no error and a key of modules.cloudHub", name, p.Key, err)
			}
		}
		if diff := cmp.Diff(c.want, hub.served); diff != "" {
			t.Errorf("%s: served (-want +got):\n%s", name, diff)
		}
	}
}

// TestOpenAllOrNone: where one port cannot be opened, the error names its key, and those before it are closed again.
func TestOpenAllOrNone(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for key, change := range map[string]func(*v1alpha1.CloudHub){
		"modules.cloudHub.quic.port": func(h *v1alpha1.CloudHub) { h.Quic.Enable = true },
		"modules.cloudHub.https.port": func(h *v1alpha1.CloudHub) {
			h.HTTPS.Port = int32(taken.Addr().(*net.TCPAddr).Port)
		},
		"modules.cloudHub.unixsocket.address": func(h *v1alpha1.CloudHub) {
			h.UnixSocket.Address = "unix:///proc/none/hub.sock"
		},
	} {
		cfg := config(t)
		free, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		cfg.WebSocket.Port = int32(free.Addr().(*net.TCPAddr).Port)
		if err := free.Close(); err != nil {
			t.Fatal(err)
		}
		change(cfg)
		ports, err := Open(t.Context(), cfg, options(&fakeHub{refuse: errors.New("address already in use")}))
		if err == nil || !strings.HasPrefix(err.Error(), key+": ") ||
			!strings.Contains(err.Error(), "set enable: false") {
			t.Errorf("Open = %v, want an error that begins with %s and has a remedy", err, key)
		}
		if len(ports) > 0 {
			t.Errorf("%s: %d ports, want none", key, len(ports))
		}
		again, err := net.Listen("tcp", Address(&cfg.WebSocket))
		if err != nil {
			t.Errorf("%s: the port of the WebSocket: %v, want it closed again", key, err)
			continue
		}
		_ = again.Close()
	}
}

func TestAddress(t *testing.T) {
	for want, l := range map[string]*v1alpha1.Listener{
		"[::1]:7":     {Address: "::1", Port: 7},
		"192.0.2.1:0": {Address: "192.0.2.1"},
		":10000":      {Port: 10000},
	} {
		if got := Address(l); got != want {
			t.Errorf("Address = %s, want %s", got, want)
		}
	}
}
