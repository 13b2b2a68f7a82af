// Package eventbus is the agent's side of MQTT: one interface over the broker in the agent (package broker), a client
// of an external broker (package client), or both, as modules.eventBus of the configuration says.
package eventbus

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/edgecore-io/edgecore/eventbus/broker"
	"github.com/edgecore-io/edgecore/eventbus/client"
	"github.com/edgecore-io/edgecore/eventbus/topic"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

// MQTT publishes to brokers, and subscribes to topics. Publish and Subscribe may be called before Run, and by any
// goroutine.
type MQTT interface {
	// Publish hands a message of QoS 1 over. It returns nil when the broker in the agent has handed it to all
	// subscribers, and when the external broker has confirmed it or it is in the queue on disk.
	Publish(ctx context.Context, name string, payload []byte, retain bool) error
	// Notify is Publish to those brokers that can be reached now, and does not queue: for what is soon out of date.
	Notify(ctx context.Context, name string, payload []byte) error
	// Subscribe calls handler with each message whose topic the filter matches, until cancel is called. Calls may
	// run at once. The handler should return soon, must not change the payload, and must not publish to a topic
	// that it is subscribed to. Message.Delivery says which messages are events, and which may be old.
	Subscribe(filter string, handler func(topic.Message)) (cancel func(), err error)
	// Watch has behind called when messages may wait in the agent's session at the external broker, published after
	// since, and caughtUp when none waits any more. Without such a session, neither is ever called. Watch must be
	// called before Run. Calls come one by one, and must return soon.
	Watch(behind func(since time.Time), caughtUp func())
	// Run serves until ctx ends. It may be called once.
	Run(ctx context.Context) error
	// Connected reports whether others can be reached: the broker in the agent listens, and the external one is
	// connected.
	Connected() bool
	prometheus.Collector
}

// part is an MQTT of one broker.
type part interface {
	Publish(ctx context.Context, name string, payload []byte, retain bool) error
	Subscribe(filter string, handler func(topic.Message)) (cancel func(), err error)
	Watch(behind func(since time.Time), caughtUp func())
	Run(ctx context.Context) error
	Connected() bool
	prometheus.Collector
}

// The values of modules.eventBus.mqttMode.
const (
	ModeInternal = 0
	ModeBoth     = 1
	ModeExternal = 2
)

// Options are what the configuration does not say.
type Options struct {
	// SpoolPath is the file of messages that wait for the external broker.
	SpoolPath string
	// ClientID names the agent's session at the external broker if mqttSubClientID does not; such as
	// "edgecore-" and the node's name. It must stay the same over restarts.
	ClientID string
	// PasswordFile is a file of mosquitto_passwd with more users of the broker in the agent; none if empty.
	PasswordFile string
	// MayPublish reports whether clients of the broker in the agent may publish to a topic; nil allows all.
	MayPublish func(topic string) bool
	// Limits are those of the broker in the agent. Inflight is mqttSessionQueueSize if it is 0.
	Limits broker.Limits
	// Listening is that of broker.Options.
	Listening func(address string, err error)
	// Reachable is that of client.Options.
	Reachable func(server string, err error)
}

// New returns the bus that the configuration asks for. It reads certificates and the queue, but opens no socket.
//
// mqttUsername and mqttPassword are what the client shows to the external broker, and what the broker in the agent asks
// for. With TLS, the latter also accepts clients with a certificate of tlsMqttCAFile, and only those if there is
// neither a user nor a password file. mqttRetain makes every message a retained one. Messages have QoS 1, whatever
// mqttQOS says.
func New(config *v1alpha2.EventBus, o Options) (MQTT, error) {
	var parts []part
	if config.MqttMode != ModeExternal {
		b, err := newInternal(config, o)
		if err != nil {
			return nil, err
		}
		parts = append(parts, b)
	}
	if config.MqttMode != ModeInternal {
		c, err := newExternal(config, o)
		if err != nil {
			return nil, err
		}
		parts = append(parts, c)
	}
	return &bus{parts: parts, retain: config.MqttRetain}, nil
}

// Check says what keeps New from making a bus. It changes nothing.
func Check(config *v1alpha2.EventBus, o Options) error {
	var errs []error
	if config.MqttMode != ModeExternal {
		out, err := brokerOptions(config, o)
		if err == nil {
			_, err = broker.New(out)
		}
		errs = append(errs, err)
	}
	if config.MqttMode != ModeInternal {
		_, err := clientOptions(config, o)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func newInternal(config *v1alpha2.EventBus, o Options) (part, error) {
	out, err := brokerOptions(config, o)
	if err != nil {
		return nil, err
	}
	b, err := broker.New(out)
	if err != nil {
		return nil, err
	}
	return internal{b}, nil
}

func brokerOptions(config *v1alpha2.EventBus, o Options) (broker.Options, error) {
	u, err := url.Parse(config.MqttServerInternal)
	if err != nil || u.Host == "" || u.User != nil {
		return broker.Options{}, errors.New("modules.eventBus.mqttServerInternal: want tcp://HOST:PORT")
	}
	out := broker.Options{
		Address: u.Host, MayPublish: o.MayPublish, Limits: o.Limits, Listening: o.Listening,
	}
	if out.Inflight == 0 {
		out.Inflight = int(config.MqttSessionQueueSize)
	}
	if config.MqttUsername != "" {
		out.Users = broker.NewUsers(map[string]string{config.MqttUsername: config.MqttPassword})
	}
	if o.PasswordFile != "" {
		users, err := broker.ReadUsers(o.PasswordFile)
		if err != nil {
			return broker.Options{}, err
		}
		if out.Users != nil {
			users.Add(out.Users)
		}
		out.Users = users
	}
	if config.TLS.Enable {
		pool, pair, err := readTLS(&config.TLS)
		if err != nil {
			return broker.Options{}, err
		}
		if pair == nil {
			return broker.Options{}, errors.New("modules.eventBus.eventBusTLS: the broker in the agent needs a " +
				"certificate; set tlsMqttCertFile and tlsMqttPrivateKeyFile")
		}
		out.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*pair}, ClientCAs: pool}
		switch {
		case pool == nil: // passwords only
		case out.Users == nil:
			out.TLS.ClientAuth = tls.RequireAndVerifyClientCert
		default:
			out.TLS.ClientAuth = tls.VerifyClientCertIfGiven
		}
	}
	return out, nil
}

// internal makes a part of the broker in the agent.
type internal struct{ *broker.Broker }

// Publish implements part.
func (i internal) Publish(_ context.Context, name string, payload []byte, retain bool) error {
	return i.Broker.Publish(name, payload, retain)
}

// Watch implements part. The agent has no session here: nothing waits for it.
func (i internal) Watch(func(time.Time), func()) {}

// Connected implements part.
func (i internal) Connected() bool { return i.Listening() }

func newExternal(config *v1alpha2.EventBus, o Options) (part, error) {
	out, err := clientOptions(config, o)
	if err != nil {
		return nil, err
	}
	c, err := client.New(out)
	if err != nil {
		return nil, fmt.Errorf("modules.eventBus.mqttServerExternal: %w", err)
	}
	return c, nil
}

func clientOptions(config *v1alpha2.EventBus, o Options) (client.Options, error) {
	if o.SpoolPath == "" || !filepath.IsAbs(o.SpoolPath) {
		return client.Options{}, fmt.Errorf("event bus: the path of the queue, %q, must be absolute", o.SpoolPath)
	}
	out := client.Options{
		Server:    config.MqttServerExternal,
		ClientID:  cmp.Or(config.MqttSubClientID, o.ClientID),
		Username:  config.MqttUsername,
		Password:  config.MqttPassword,
		SpoolPath: o.SpoolPath,
		Reachable: o.Reachable,
	}
	if config.TLS.Enable {
		pool, pair, err := readTLS(&config.TLS)
		if err != nil {
			return out, err
		}
		out.TLS = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
		if pair != nil {
			out.TLS.Certificates = []tls.Certificate{*pair}
		}
		if u, err := url.Parse(out.Server); err == nil && (u.Scheme == "tcp" || u.Scheme == "mqtt") {
			u.Scheme = "ssl" // KubeEdge's configurations say tcp with TLS, too
			out.Server = u.String()
		}
	}
	return out, nil
}

// readTLS reads the authority and the certificate; each is nil if its path is empty.
func readTLS(t *v1alpha2.EventBusTLS) (*x509.CertPool, *tls.Certificate, error) {
	const field = "modules.eventBus.eventBusTLS"
	var pool *x509.CertPool
	if t.TLSMqttCAFile != "" {
		content, err := os.ReadFile(t.TLSMqttCAFile)
		if err != nil {
			return nil, nil, fmt.Errorf("%s.tlsMqttCAFile: %w", field, err)
		}
		pool = x509.NewCertPool()
		if !pool.AppendCertsFromPEM(content) {
			return nil, nil, fmt.Errorf("%s.tlsMqttCAFile: %s has no certificate in PEM form", field, t.TLSMqttCAFile)
		}
	}
	if t.TLSMqttCertFile == "" && t.TLSMqttPrivateKeyFile == "" {
		return pool, nil, nil
	}
	pair, err := tls.LoadX509KeyPair(t.TLSMqttCertFile, t.TLSMqttPrivateKeyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("%s.tlsMqttCertFile and tlsMqttPrivateKeyFile: %w", field, err)
	}
	return pool, &pair, nil
}

// bus joins the broker in the agent and the client of the external one.
type bus struct {
	parts  []part
	retain bool
}

// Publish implements MQTT. It publishes to all parts, also when one fails.
func (b *bus) Publish(ctx context.Context, name string, payload []byte, retain bool) error {
	var errs []error
	for _, p := range b.parts {
		errs = append(errs, p.Publish(ctx, name, payload, retain || b.retain))
	}
	return errors.Join(errs...)
}

// Notify implements MQTT.
func (b *bus) Notify(ctx context.Context, name string, payload []byte) error {
	var errs []error
	for _, p := range b.parts {
		// The broker in the agent has clients a moment before it is Connected, and queues nothing without them.
		if _, own := p.(internal); own || p.Connected() {
			errs = append(errs, p.Publish(ctx, name, payload, b.retain))
		}
	}
	return errors.Join(errs...)
}

// Subscribe implements MQTT.
func (b *bus) Subscribe(filter string, handler func(topic.Message)) (cancel func(), err error) {
	var cancels []func()
	cancel = func() {
		for _, c := range cancels {
			c()
		}
	}
	for _, p := range b.parts {
		c, err := p.Subscribe(filter, handler)
		if err != nil {
			cancel()
			return nil, err
		}
		cancels = append(cancels, c)
	}
	return cancel, nil
}

// Watch implements MQTT.
func (b *bus) Watch(behind func(since time.Time), caughtUp func()) {
	for _, p := range b.parts {
		p.Watch(behind, caughtUp)
	}
}

// Run implements MQTT. When one part fails, all end.
func (b *bus) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(b.parts))
	var all sync.WaitGroup
	for i, p := range b.parts {
		all.Go(func() {
			defer cancel()
			errs[i] = p.Run(ctx)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// Connected implements MQTT.
func (b *bus) Connected() bool {
	for _, p := range b.parts {
		if !p.Connected() {
			return false
		}
	}
	return true
}

// Describe implements prometheus.Collector.
func (b *bus) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(b, out) }

// Collect implements prometheus.Collector.
func (b *bus) Collect(out chan<- prometheus.Metric) {
	for _, p := range b.parts {
		p.Collect(out)
	}
}
