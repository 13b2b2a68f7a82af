// Package client talks to an MQTT broker outside of the agent, such as mosquitto, in MQTT 3.1.1: every broker speaks
// it, also one that does not know MQTT 5. It uses paho.mqtt.golang for one connection at a time, and does the rest
// itself.
//
// Publishing is QoS 1 from end to end. Publish returns when the broker has confirmed the message, or when the message
// is in the queue on disk (package spool) because the broker cannot be reached; then it is sent, in order, once the
// broker is back. Nothing is written to disk while the broker confirms. A message can arrive twice, and one that was
// queued can arrive after a newer one that another goroutine published at the moment of the reconnection; a
// message that must not be overtaken needs a time or a version.
//
// Subscriptions are of QoS 1 and are restored after each reconnection. A message is confirmed to the broker when its
// handlers have returned. Each message says whether it is a retained copy, or may have waited at the broker. A message
// that the broker delivers again because its confirmation was lost is not handled again by the same process.
package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"
	"github.com/eclipse/paho.mqtt.golang/packets"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/eventbus/spool"
	"github.com/edgecore-io/edgecore/eventbus/topic"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// Client is a client of an external broker. Make it with New. Its methods may be called before Run, and by any
// goroutine.
type Client struct {
	options  Options
	endpoint endpoint
	spool    *spool.Spool
	slots    chan struct{}
	received chan arrival
	arrivals *arrivals
	count    counters

	mu       sync.Mutex
	session  *session // nil while there is no connection
	subs     map[int]subscription
	nextID   int
	lastErr  error
	draining bool // messages in the queue come first
	// onBehind and onCaughtUp are those of Watch.
	onBehind   func(since time.Time)
	onCaughtUp func()
}

type subscription struct {
	filter  string
	handler func(topic.Message)
}

type counters struct {
	sent, received, connects, refused, receiveDropped, lost atomic.Int64
	receiving                                               atomic.Int64 // bytes that are not handled
}

// session is one connection.
type session struct {
	mqtt mqtt.Client
	conn net.Conn
	// resumed is whether the broker had kept the agent's session.
	resumed bool
	// heard is how long after begun the broker was last heard of.
	begun time.Time
	heard atomic.Int64
	ends  sync.Once
	// ended is closed when the connection is lost; cause says why.
	ended chan struct{}
	cause error
}

func (s *session) endWith(cause error) {
	s.ends.Do(func() {
		s.cause = cause
		close(s.ended)
	})
}

// New reads the queue that an earlier process has left, and returns a client that is not connected yet.
func New(o Options) (*Client, error) {
	o = o.withDefaults()
	e, err := parseServer(o.Server)
	if err != nil {
		return nil, err
	}
	q, lost, err := spool.Open(o.SpoolPath, o.Spool)
	if err != nil {
		return nil, err
	}
	c := &Client{
		options:  o,
		endpoint: e,
		spool:    q,
		slots:    make(chan struct{}, window),
		received: make(chan arrival, receiveQueue),
		arrivals: newArrivals(o.ClientID != ""),
		subs:     map[int]subscription{},
		draining: true,

		onBehind:   func(time.Time) {},
		onCaughtUp: func() {},
	}
	if lost > 0 {
		c.count.lost.Add(1)
		klog.InfoS("The MQTT queue has a damaged end, which was cut off", "path", o.SpoolPath, "bytes", lost)
	}
	return c, nil
}

// Run connects, and reconnects, until ctx ends. It may be called once; it closes the queue.
func (c *Client) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	all.Go(func() { c.handle(inner) })
	all.Go(func() {
		for inner.Err() == nil {
			if err := c.spool.Run(inner); err != nil {
				klog.ErrorS(err, "Cannot flush the MQTT queue to the disk")
			}
		}
	})
	again := retry.NewSpread(c.options.FirstRetry, c.options.LastRetry)
	for ctx.Err() == nil {
		s, err := c.connect(ctx)
		if err == nil {
			again.Reset()
			err = c.serve(ctx, s)
		}
		if ctx.Err() != nil {
			break
		}
		c.failed(err)
		retry.Sleep(ctx, again.Next())
	}
	cancel()
	all.Wait()
	return c.spool.Close()
}

// failed records why there is no connection. It logs an error once.
func (c *Client) failed(err error) {
	c.mu.Lock()
	known := c.lastErr != nil && c.lastErr.Error() == err.Error()
	c.lastErr = err
	c.mu.Unlock()
	c.reachable(err)
	if !known {
		waiting, _ := c.spool.Len()
		klog.ErrorS(err, "No connection to the MQTT broker; messages are queued", "server", c.endpoint.address,
			"queued", waiting)
	}
}

// reachable calls Options.Reachable.
func (c *Client) reachable(err error) {
	if c.options.Reachable != nil {
		c.options.Reachable(c.endpoint.address, err)
	}
}

// Err returns why there is no connection, or nil.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastErr
}

// connect opens a connection and a session.
func (c *Client) connect(ctx context.Context) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	s := &session{ended: make(chan struct{}), begun: time.Now()}
	var dialErr error
	open := func(*url.URL, mqtt.ClientOptions) (net.Conn, error) {
		s.conn, dialErr = c.dial(ctx, func() { s.heard.Store(int64(time.Since(s.begun))) })
		return s.conn, dialErr
	}
	s.mqtt = mqtt.NewClient(mqtt.NewClientOptions().
		AddBroker("tcp://" + c.endpoint.address). // open does what ssl:// would
		SetCustomOpenConnectionFn(open).
		SetProtocolVersion(4). // 3.1.1
		SetClientID(c.options.ClientID).
		SetCleanSession(c.options.ClientID == "").
		SetUsername(c.options.Username).
		SetPassword(c.options.Password).
		SetAutoReconnect(false).
		SetConnectTimeout(c.options.Timeout).
		SetWriteTimeout(c.options.Timeout).
		SetPingTimeout(c.options.Timeout).
		SetKeepAlive(keepAlive).
		SetAutoAckDisabled(true).
		SetDefaultPublishHandler(func(_ mqtt.Client, m mqtt.Message) { c.receive(s, m) }).
		SetConnectionLostHandler(func(_ mqtt.Client, err error) { s.endWith(err) }))
	token := s.mqtt.Connect()
	<-token.Done() // dial ends with ctx, and the library sets a deadline for the rest
	err := token.Error()
	if err == nil {
		t, ok := token.(*mqtt.ConnectToken)
		s.resumed = ok && t.SessionPresent()
		return s, nil
	}
	if s.conn != nil {
		_ = s.conn.Close()
	}
	if dialErr != nil {
		err = dialErr
	}
	return nil, fmt.Errorf("MQTT broker %s: connect: %w; %s", c.endpoint.address, err, remedy(err))
}

// remedy says what a person can do about a failed attempt to connect.
func remedy(err error) string {
	var certificate *tls.CertificateVerificationError
	var header tls.RecordHeaderError
	switch {
	case errors.Is(err, packets.ErrorRefusedBadUsernameOrPassword), errors.Is(err, packets.ErrorRefusedNotAuthorised):
		return "check mqttUsername and mqttPassword of modules.eventBus"
	case errors.Is(err, packets.ErrorRefusedIDRejected):
		return "set mqttSubClientID of modules.eventBus to an id that the broker accepts"
	case errors.As(err, &certificate):
		return "set eventBusTLS.tlsMqttCAFile of modules.eventBus to the authority of the broker's certificate"
	case errors.As(err, &header):
		return "the broker does not use TLS at this port; check mqttServerExternal of modules.eventBus"
	}
	return "check that the broker runs, and mqttServerExternal of modules.eventBus"
}

// dial opens a connection, with TLS if the server's address says so. heard is called when the broker sends something.
func (c *Client) dial(ctx context.Context, heard func()) (net.Conn, error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", c.endpoint.address)
	if err != nil {
		return nil, err
	}
	if !c.endpoint.tls {
		return &checkedConn{Conn: raw, limit: maxPacket, heard: heard}, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.options.TLS != nil {
		config = c.options.TLS.Clone()
	}
	if config.ServerName == "" {
		config.ServerName = c.endpoint.host
	}
	t := tls.Client(raw, config)
	if err := t.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return &checkedConn{Conn: t, limit: maxPacket, heard: heard}, nil
}

// serve uses a connection until it is lost or ctx ends.
func (c *Client) serve(ctx context.Context, s *session) error {
	ctx, cancel := context.WithCancel(ctx)
	var parts sync.WaitGroup
	defer func() {
		c.mu.Lock()
		c.session, c.draining = nil, true
		c.mu.Unlock()
		s.endWith(errors.New("the agent closes it")) // those who wait for an answer use the queue
		s.mqtt.Disconnect(250)                       // milliseconds
		_ = s.conn.Close()
		cancel()
		parts.Wait()
		c.connectionLost(s)
	}()
	if !s.resumed {
		c.arrivals.renewed()
		c.onCaughtUp()
	}
	if err := c.restore(ctx, s); err != nil {
		return err
	}
	if s.resumed {
		parts.Go(func() { c.catchUp(ctx, s) })
	}
	c.count.connects.Add(1)
	waiting, _ := c.spool.Len()
	klog.V(1).InfoS("Connected to the MQTT broker", "server", c.endpoint.address, "queued", waiting)
	for {
		if err := c.drain(ctx, s); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ended:
			return fmt.Errorf("MQTT broker %s: the connection was lost: %w", c.endpoint.address, s.cause)
		case <-c.spool.Changed():
		}
	}
}

// connectionLost tells those who Watch that messages may wait at the broker. What the broker sent before its last sign
// of life has arrived, except what was on its way then.
func (c *Client) connectionLost(s *session) {
	c.arrivals.connectionLost()
	if c.options.ClientID != "" {
		c.onBehind(s.begun.Add(time.Duration(s.heard.Load()) - c.options.Timeout))
	}
}

// The pauses between two tries to find out whether anything waits at the broker.
const (
	firstCatchUp = 10 * time.Millisecond
	lastCatchUp  = time.Second
)

// nothing is a filter that the client never subscribes to. Brokers answer a request to unsubscribe from it, too.
const nothing = "$edgecore/nothing"

// catchUp returns when all messages that waited at the broker have been handled, or the connection is lost. The broker
// answers in order: if all messages are confirmed, and nothing comes before the answer to the next request, nothing
// waits. Messages that keep coming without a pause delay the end.
func (c *Client) catchUp(ctx context.Context, s *session) {
	pause := retry.NewBackoff(firstCatchUp, lastCatchUp)
	for {
		if n, settled := c.arrivals.allHandled(); settled {
			if c.await(ctx, s, s.mqtt.Unsubscribe(nothing), "answer a request") != nil {
				return // serve reports it
			}
			if c.arrivals.catchUp(n) {
				c.onCaughtUp()
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-c.arrivals.quiet:
		}
		if !pause.Wait(ctx) {
			return
		}
	}
}

// Watch has behind called when messages may wait at the broker, which are Waiting when they arrive: those that were
// published after since. caughtUp is called when none waits any more. A client with a session begins behind. Watch must
// be called before Run. Calls come one by one, and must return soon.
func (c *Client) Watch(behind func(since time.Time), caughtUp func()) {
	c.onBehind, c.onCaughtUp = behind, caughtUp
	if c.options.ClientID != "" {
		behind(time.Time{})
	}
}

// restore makes all subscriptions, also those that come while it does, and only then lets others use the session: what
// is published next reaches all handlers.
func (c *Client) restore(ctx context.Context, s *session) error {
	var done []string
	for {
		c.mu.Lock()
		missing := slices.DeleteFunc(c.filters(), func(filter string) bool { return slices.Contains(done, filter) })
		if len(missing) == 0 {
			waiting, _ := c.spool.Len()
			c.session, c.lastErr, c.draining = s, nil, waiting > 0
		}
		c.mu.Unlock()
		if len(missing) == 0 {
			c.reachable(nil)
			return nil
		}
		for _, filter := range missing {
			if err := c.subscribe(ctx, s, filter); err != nil {
				return err
			}
		}
		done = append(done, missing...)
	}
}

// drain sends what is in the queue.
func (c *Client) drain(ctx context.Context, s *session) error {
	for {
		messages, seqs, err := c.spool.Peek(window)
		if err != nil {
			c.count.lost.Add(1)
			klog.ErrorS(err, "The MQTT queue cannot be read; its messages are dropped")
			if err := c.spool.Clear(); err != nil {
				return err
			}
			continue
		}
		c.mu.Lock()
		c.draining = len(messages) > 0
		c.mu.Unlock()
		if len(messages) == 0 {
			return nil
		}
		var tokens []mqtt.Token
		for _, m := range messages {
			tokens = append(tokens, s.mqtt.Publish(m.Topic, 1, m.Retain, m.Payload))
		}
		for i, token := range tokens {
			if err := c.await(ctx, s, token, "confirm a queued message to topic "+messages[i].Topic); err != nil {
				return err
			}
			c.count.sent.Add(1)
			if err := c.spool.Ack(seqs[i]); err != nil {
				return err
			}
		}
	}
}

// await waits until the broker has answered. When it does not, the connection is of no use any more.
func (c *Client) await(ctx context.Context, s *session, token mqtt.Token, what string) error {
	timer := time.NewTimer(c.options.Timeout)
	defer timer.Stop()
	var err error
	select {
	case <-token.Done():
		if err = token.Error(); err == nil {
			return nil
		}
	case <-ctx.Done():
		return ctx.Err()
	case <-s.ended:
		err = s.cause
	case <-timer.C:
		err = fmt.Errorf("no answer within %v", c.options.Timeout)
	}
	err = fmt.Errorf("MQTT broker %s: %s: %w", c.endpoint.address, what, err)
	s.endWith(err)
	return err
}

// Publish sends a message, or queues it. It returns nil when the message will arrive unless the queue overflows: the
// broker has confirmed it, or it is in the queue's file. It waits for the broker until ctx ends, or for up to twice
// Options.Timeout when the connection breaks at this moment.
func (c *Client) Publish(ctx context.Context, name string, payload []byte, retain bool) error {
	if err := topic.CheckName(name); err != nil {
		return err
	}
	if len(payload) > maxPayload {
		return fmt.Errorf("topic %q: the payload has %d bytes, want at most %d", name, len(payload), maxPayload)
	}
	if s := c.direct(); s != nil {
		select {
		case c.slots <- struct{}{}:
			err := c.await(ctx, s, s.mqtt.Publish(name, 1, retain, payload), "confirm a message to topic "+name)
			<-c.slots
			if err == nil {
				c.count.sent.Add(1)
				return nil
			}
		case <-s.ended:
		case <-ctx.Done():
		}
	}
	before := c.spool.Dropped()
	if err := c.spool.Append(spool.Message{Topic: name, Payload: payload, Retain: retain}); err != nil {
		c.count.refused.Add(1)
		return err
	}
	if n := c.spool.Dropped(); before == 0 && n > 0 {
		klog.InfoS("The MQTT queue is full: its oldest messages are dropped", "server", c.endpoint.address,
			"path", c.options.SpoolPath)
	}
	return nil
}

// direct returns the session when nothing waits in the queue.
func (c *Client) direct() *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.draining {
		return nil
	}
	if n, _ := c.spool.Len(); n > 0 {
		return nil
	}
	return c.session
}

// Subscribe calls handler with each message whose topic the filter matches, until cancel is called. Messages are
// handled one by one, by one goroutine; the handler may publish. A slow handler delays all others.
func (c *Client) Subscribe(filter string, handler func(topic.Message)) (cancel func(), err error) {
	if err := topic.CheckFilter(filter); err != nil {
		return nil, err
	}
	c.mu.Lock()
	if len(c.subs) >= maxSubscriptions {
		c.mu.Unlock()
		return nil, fmt.Errorf("subscribe to %q: there are %d subscriptions already", filter, maxSubscriptions)
	}
	c.nextID++
	id, s := c.nextID, c.session
	c.subs[id] = subscription{filter, handler}
	c.mu.Unlock()
	if s != nil { // else the next connection does it, as it does when this fails
		if err := c.subscribe(context.Background(), s, filter); err != nil {
			klog.ErrorS(err, "Cannot subscribe yet")
		}
	}
	return sync.OnceFunc(func() { c.unsubscribe(id) }), nil
}

func (c *Client) unsubscribe(id int) {
	c.mu.Lock()
	filter, s := c.subs[id].filter, c.session
	delete(c.subs, id)
	for _, other := range c.subs {
		if other.filter == filter {
			s = nil // still used
		}
	}
	c.mu.Unlock()
	if s != nil {
		// The answer does not matter: a message without a subscription is dropped.
		_ = c.await(context.Background(), s, s.mqtt.Unsubscribe(filter), "unsubscribe from "+filter)
	}
}

func (c *Client) subscribe(ctx context.Context, s *session, filter string) error {
	token := s.mqtt.Subscribe(filter, 1, nil)
	if err := c.await(ctx, s, token, "subscribe to "+filter); err != nil {
		return err
	}
	const refused = 0x80 // and higher ones of brokers that mean MQTT 5
	if t, ok := token.(*mqtt.SubscribeToken); ok && t.Result()[filter] >= refused {
		klog.ErrorS(nil, "The MQTT broker refused a subscription; allow it in the broker's access list",
			"server", c.endpoint.address, "filter", filter, "user", c.options.Username, "code", t.Result()[filter])
	}
	return nil
}

// filters returns those that are subscribed to, each once. The caller holds c.mu.
func (c *Client) filters() []string {
	var out []string
	for _, s := range c.subs {
		out = append(out, s.filter)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// receive queues a message for handle. It must not block, or confirmations of what is published would wait, too. When
// the queue is full, a message of QoS 0 is dropped. One of QoS 1 ends the connection: the broker sends it again with
// the next one, and would otherwise wait for its confirmation for ever.
func (c *Client) receive(s *session, m mqtt.Message) {
	size := int64(len(m.Payload()) + len(m.Topic()))
	a := c.arrivals.addArrival(m)
	if c.count.receiving.Add(size) <= receiveBytes {
		select {
		case c.received <- a:
			return
		default:
		}
	}
	c.arrivals.drop(a)
	c.count.receiving.Add(-size)
	if c.count.receiveDropped.Add(1) == 1 {
		klog.InfoS("The MQTT broker sends faster than messages are handled; some are dropped",
			"server", c.endpoint.address)
	}
	if m.Qos() > 0 {
		s.endWith(errors.New("the broker sends faster than messages are handled"))
	}
}

// handle calls the handlers until ctx ends.
func (c *Client) handle(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-c.received:
			if !m.again {
				for _, handler := range c.handlers(m.Topic()) {
					handler(topic.Message{Topic: m.Topic(), Payload: m.Payload(), Delivery: m.delivery})
				}
			}
			m.Ack()
			c.arrivals.finish(m.Message)
			c.count.received.Add(1)
			c.count.receiving.Add(-int64(len(m.Payload()) + len(m.Topic())))
		}
	}
}

func (c *Client) handlers(name string) []func(topic.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ids []int
	for id, s := range c.subs {
		if topic.Match(s.filter, name) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	var out []func(topic.Message)
	for _, id := range ids {
		out = append(out, c.subs[id].handler)
	}
	return out
}

// Connected reports whether the broker can be reached.
func (c *Client) Connected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session != nil
}
