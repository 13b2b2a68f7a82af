// Package broker is an MQTT broker inside the agent, for MQTT 3.1.1 and 5, on the server of mochi-mqtt.
//
// Clients are not trusted: what each of them and all together can make the agent hold or do is bounded (see Limits). A
// message beyond a limit is dropped and counted by its cause; a client that sends too fast is slowed down.
//
// Nothing is written to disk: sessions and retained messages end with the process. Wills are sent at once, whatever
// delay the client asked for, and topic aliases are not used.
package broker

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"
	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/eventbus/topic"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// Broker is an MQTT broker. Make it with New. Publish and Subscribe may be called before Run, and by any goroutine.
type Broker struct {
	options  Options
	limits   Limits
	users    *Users
	server   *mqtt.Server
	hook     *hook
	count    counters
	queue    *budget
	inflight *budget
	log      *rate.Limiter

	mu        sync.Mutex
	nextID    int
	listening chan struct{} // closed once address is known
	address   net.Addr
}

// New returns a broker that does not listen yet. Without users and without TLS that asks for certificates, it refuses
// an address that other machines can reach.
func New(o Options) (*Broker, error) {
	if o.Address == "" {
		o.Address = DefaultAddress
	}
	o.Limits = o.Limits.withDefaults()
	if err := checkAccess(&o); err != nil {
		return nil, err
	}
	b := &Broker{
		options:   o,
		limits:    o.Limits,
		users:     o.Users,
		queue:     &budget{limit: int64(o.AllQueueBytes)},
		inflight:  &budget{limit: int64(o.AllQueueBytes)},
		log:       rate.NewLimiter(rate.Every(20*time.Second), 3),
		listening: make(chan struct{}),
	}
	b.server = mqtt.New(&mqtt.Options{
		Capabilities:           b.capabilities(),
		Logger:                 slog.New(slog.DiscardHandler), // it logs payloads
		InlineClient:           true,
		SysTopicResendInterval: 1 << 30, // never: it stops the world to read memory statistics
		// The server then writes each packet by itself; see conn.Write.
		ClientNetWriteBufferSize: 1,
	})
	b.hook = newHook(b)
	if err := b.server.AddHook(b.hook, nil); err != nil {
		return nil, fmt.Errorf("prepare the MQTT broker: %w", err)
	}
	return b, nil
}

func checkAccess(o *Options) error {
	host, _, err := net.SplitHostPort(o.Address)
	if err != nil {
		return fmt.Errorf("MQTT broker: address %q must be HOST:PORT: %w", o.Address, err)
	}
	ip := net.ParseIP(host)
	local := host == "localhost" || ip != nil && ip.IsLoopback()
	certificates := o.TLS != nil && o.TLS.ClientAuth == tls.RequireAndVerifyClientCert
	if !local && o.Users == nil && !certificates {
		return fmt.Errorf("MQTT broker: other machines can reach address %s, and anyone could connect; "+
			"set a user and a password, require client certificates, or listen on 127.0.0.1", o.Address)
	}
	return nil
}

func (b *Broker) capabilities() *mqtt.Capabilities {
	c := mqtt.NewDefaultServerCapabilities()
	c.MaximumClients = int64(b.limits.Clients)
	c.MaximumPacketSize = uint32(b.limits.PayloadBytes + packetOverhead)
	c.MaximumInflight = uint16(b.limits.Inflight)
	c.ReceiveMaximum = uint16(b.limits.Inflight)
	c.MaximumSessionExpiryInterval = uint32(b.limits.SessionExpiry / time.Second)
	// Retained messages are the states of devices, which do not expire unless their publisher says so.
	c.MaximumMessageExpiryInterval = int64(10 * 365 * 24 * time.Hour / time.Second)
	c.MaximumClientWritesPending = 256
	c.TopicAliasMaximum = 0
	return c
}

// Run listens until ctx ends. It may be called once. When the address is in use, it keeps trying.
func (b *Broker) Run(ctx context.Context) error {
	// Serve of the server begins with the listener, so the agent's own messages pass before.
	var n net.Listener
	ok := retry.Until(ctx, time.Second, time.Minute, func(ctx context.Context) (err error) {
		n, err = new(net.ListenConfig).Listen(ctx, "tcp", b.options.Address)
		return err
	}, func(err error, again time.Duration) {
		b.notListening(err)
		klog.ErrorS(err, "MQTT broker cannot listen; stop the other broker, or change eventBus.mqttServerInternal",
			"address", b.options.Address, "retryIn", again)
	})
	if !ok {
		return nil
	}
	if err := b.server.AddListener(newListener(n, b)); err != nil {
		_ = n.Close()
		return fmt.Errorf("start the MQTT broker at %s: %w", n.Addr(), err)
	}
	if err := b.server.Serve(); err != nil {
		_ = n.Close()
		return fmt.Errorf("start the MQTT broker at %s: %w", n.Addr(), err)
	}
	for name := range b.server.Topics.Retained.GetAll() { // statistics that would never change
		if strings.HasPrefix(name, mqtt.SysPrefix) {
			b.server.Topics.RetainMessage(packets.Packet{TopicName: name})
		}
	}
	b.mu.Lock()
	b.address = n.Addr()
	close(b.listening)
	b.mu.Unlock()
	b.notListening(nil)
	klog.V(1).InfoS("MQTT broker listens", "address", n.Addr(), "tls", b.options.TLS != nil)
	<-ctx.Done()
	if err := b.server.Close(); err != nil {
		return fmt.Errorf("stop the MQTT broker at %s: %w", n.Addr(), err)
	}
	return nil
}

// notListening calls Options.Listening.
func (b *Broker) notListening(err error) {
	if b.options.Listening != nil {
		b.options.Listening(b.options.Address, err)
	}
}

// Address waits until the broker listens, and returns where. It returns nil when ctx ends first.
func (b *Broker) Address(ctx context.Context) net.Addr {
	select {
	case <-b.listening:
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.address
	case <-ctx.Done():
		return nil
	}
}

// Listening reports whether clients can connect.
func (b *Broker) Listening() bool {
	select {
	case <-b.listening:
		return true
	default:
		return false
	}
}

// maxOwnPayload is the largest payload of the agent itself: a device with very many properties.
const maxOwnPayload = 1 << 20

// Publish hands a message of QoS 1 to all subscribers; it does not wait for them. An empty payload with retain removes
// the retained message of the topic. The broker keeps payload.
func (b *Broker) Publish(name string, payload []byte, retain bool) error {
	if err := topic.CheckName(name); err != nil {
		return err
	}
	if len(payload) > maxOwnPayload {
		return fmt.Errorf("topic %q: the payload has %d bytes, want at most %d", name, len(payload), maxOwnPayload)
	}
	if err := b.server.Publish(name, payload, retain, 1); err != nil {
		return fmt.Errorf("publish to topic %q: %w", name, err)
	}
	return nil
}

// Subscribe calls handler with each message whose topic the filter matches, beginning with the retained ones, until
// cancel is called. A call that is under way may return after that. The handler is called by the goroutine that
// received the message, so several calls may run at once, and a slow one slows that client down. It must not change
// the payload, and must not publish to a topic that it is subscribed to.
func (b *Broker) Subscribe(filter string, handler func(topic.Message)) (cancel func(), err error) {
	if err := topic.CheckFilter(filter); err != nil {
		return nil, err
	}
	b.mu.Lock()
	b.nextID++
	id := b.nextID
	b.mu.Unlock()
	filters := []string{filter}
	if parent, ok := strings.CutSuffix(filter, "/#"); ok && parent != "" {
		filters = append(filters, parent) // a/# matches a, which the server's subscriptions in the process leave out
	}
	call := func(pk packets.Packet, delivery topic.Delivery) {
		if topic.Match(filter, pk.TopicName) { // the server lets wildcards match topics with $
			handler(topic.Message{Topic: pk.TopicName, Payload: pk.Payload, Delivery: delivery})
		}
	}
	// The retain flag of a message does not say whether it is a retained copy: publishers set it, too. So the copies
	// are read from the server here, and not delivered by its own Subscribe.
	live := func(_ *mqtt.Client, _ packets.Subscription, pk packets.Packet) { call(pk, topic.Direct) }
	cancel = sync.OnceFunc(func() {
		for _, f := range filters {
			_ = b.server.Unsubscribe(f, id) // fails only for invalid filters
		}
	})
	for _, f := range filters {
		b.server.Topics.InlineSubscribe(mqtt.InlineSubscription{
			Subscription: packets.Subscription{Identifier: id, Filter: f}, Handler: live,
		})
		for _, pk := range b.server.Topics.Messages(f) {
			call(pk, topic.Retained)
		}
	}
	return cancel, nil
}

// sleep waits in the goroutine of a client. It returns false when the client is disconnected first.
func sleep(cl *mqtt.Client, d time.Duration) bool {
	c, ok := cl.Net.Conn.(*conn)
	if !ok {
		return true // the agent itself
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-c.done:
		return false
	case <-t.C:
		return true
	}
}

// verified reports whether TLS has verified a certificate of the client.
func verified(cl *mqtt.Client) bool {
	c, ok := cl.Net.Conn.(*conn)
	if !ok {
		return false
	}
	t, ok := c.Conn.(*tls.Conn)
	return ok && len(t.ConnectionState().VerifiedChains) > 0
}
