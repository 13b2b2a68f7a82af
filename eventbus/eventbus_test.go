package eventbus

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/edgecore-io/edgecore/eventbus/topic"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

func freeAddress(t *testing.T) string {
	t.Helper()
	address, err := daemon.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

func start(t *testing.T, config v1alpha2.EventBus, o Options) MQTT {
	t.Helper()
	o.SpoolPath = filepath.Join(t.TempDir(), "queue")
	b, err := New(&config, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
	return b
}

func publish(t *testing.T, b MQTT, topic, payload string, retain bool) {
	t.Helper()
	if err := b.Publish(t.Context(), topic, []byte(payload), retain); err != nil {
		t.Fatal(err)
	}
}

func subscribe(t *testing.T, b MQTT, filter string) <-chan string {
	t.Helper()
	out := make(chan string, 1000)
	cancel, err := b.Subscribe(filter, func(m topic.Message) { out <- m.Topic + "=" + string(m.Payload) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cancel)
	return out
}

func receive(t *testing.T, from <-chan string, want string) {
	t.Helper()
	if got := wait.Receive(t, want, from); got != want {
		t.Errorf("message = %q, want %q", got, want)
	}
}

// TestModes: an agent with a broker, another that uses it, and a third with both.
func TestModes(t *testing.T) {
	ca := wiretest.NewCA(t)
	files := ca.Write(t, t.TempDir(), ca.Server(t))
	config := v1alpha2.EventBus{
		MqttSessionQueueSize: 100,
		MqttUsername:         "agent",
		MqttPassword:         "secret",
		TLS: v1alpha2.EventBusTLS{
			Enable: true, TLSMqttCAFile: files.CA, TLSMqttCertFile: files.Cert, TLSMqttPrivateKeyFile: files.Key,
		},
	}
	first, second := freeAddress(t), freeAddress(t)
	config.MqttServerInternal, config.MqttMode = "tcp://"+first, ModeInternal
	serving := start(t, config, Options{})
	// A server's certificate does not make a client; the password does.
	config.TLS.TLSMqttCertFile, config.TLS.TLSMqttPrivateKeyFile = "", ""
	config.MqttServerExternal, config.MqttMode = "tcp://"+first, ModeExternal
	using := start(t, config, Options{ClientID: "using"})
	config.TLS.TLSMqttCertFile, config.TLS.TLSMqttPrivateKeyFile = files.Cert, files.Key
	node := ca.Write(t, t.TempDir(), ca.Node(t, "both", time.Now().Add(time.Hour)))
	config.TLS.TLSMqttCertFile, config.TLS.TLSMqttPrivateKeyFile = node.Cert, node.Key
	config.MqttServerInternal, config.MqttMode = "tcp://"+second, ModeBoth
	both := start(t, config, Options{ClientID: "both"})
	for _, b := range []MQTT{serving, using, both} {
		wait.True(t, "the connection", b.Connected)
	}
	here, there, third := subscribe(t, serving, "a/+"), subscribe(t, using, "a/+"), subscribe(t, both, "a/+")
	for _, b := range []MQTT{serving, using} {
		publish(t, b, "a/b", "1", false)
		receive(t, here, "a/b=1")
		receive(t, there, "a/b=1")
		receive(t, third, "a/b=1")
	}
	publish(t, both, "a/c", "2", true)
	receive(t, here, "a/c=2")
	receive(t, there, "a/c=2")
	receive(t, third, "a/c=2") // from its own broker
	receive(t, third, "a/c=2") // from the external one
	late := subscribe(t, using, "a/c")
	receive(t, late, "a/c=2")
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(both)
	if families, err := registry.Gather(); err != nil || len(families) != 16 {
		t.Errorf("metrics = %d, %v; want 16 without an error", len(families), err)
	}
}

// TestBadConfig: errors name the field.
func TestBadConfig(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		config v1alpha2.EventBus
		want   string
	}{
		"no internal address": {v1alpha2.EventBus{}, "mqttServerInternal"},
		"open to the world":   {v1alpha2.EventBus{MqttServerInternal: "tcp://0.0.0.0:1884"}, "anyone could connect"},
		"no external address": {v1alpha2.EventBus{MqttMode: ModeExternal}, "mqttServerExternal"},
		"no authority": {v1alpha2.EventBus{
			MqttMode: ModeExternal, MqttServerExternal: "ssl://host", TLS: v1alpha2.EventBusTLS{
				Enable: true, TLSMqttCAFile: empty,
			},
		}, "tlsMqttCAFile"},
		"no certificate": {v1alpha2.EventBus{
			MqttServerInternal: "tcp://127.0.0.1:1884", TLS: v1alpha2.EventBusTLS{Enable: true},
		}, "tlsMqttCertFile"},
	} {
		_, err := New(&c.config, Options{SpoolPath: filepath.Join(t.TempDir(), "queue")})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error = %v, want one with %q", name, err, c.want)
		}
	}
}
