package mapper

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"

	dmi "github.com/edgecore-io/edgecore/pkg/dmi/v1beta1"
	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

const (
	// maxPushes is how many values may wait for a broker; more replace the oldest.
	maxPushes   = 256
	pushTimeout = 10 * time.Second
	// maxBrokers is how many brokers have a connection at a time, and maxOwnBrokers how many of those are for one
	// namespace.
	maxBrokers    = 32
	maxOwnBrokers = 8
	// idleBroker is how long a connection stays open without a value.
	idleBroker = 5 * time.Minute
)

// Pushed is the payload of a value that is pushed to MQTT.
type Pushed struct {
	Namespace string `json:"namespace"`
	Device    string `json:"device"`
	Property  string `json:"property"`
	Value     string `json:"value"`
	// Timestamp is when the value was read, in milliseconds since 1970.
	Timestamp int64 `json:"timestamp"`
}

// pusher publishes values as spec.properties[].pushMethod.mqtt says. Each broker of a namespace has a goroutine and a
// connection, so that one that is away delays no other.
type pusher struct {
	opts Options

	ctx     context.Context // of the brokers
	running sync.WaitGroup

	mu      sync.Mutex
	ended   bool
	brokers map[place]*broker
	refused map[refusal]bool // what was logged
}

// place is a broker as a namespace names it.
type place struct{ namespace, address string }

// refusal is a reason not to publish values of a namespace.
type refusal struct{ namespace, reason string }

// broker is the connection to a place. pusher.mu guards waiting and dropped.
type broker struct {
	p       *pusher
	place   place
	wake    notify.Signal
	waiting []push
	dropped int
}

type push struct {
	to      *dmi.PushMethodMQTT
	payload Pushed
}

// ignoredPush names what pushMethod has beside mqtt; "" is nothing.
func ignoredPush(m *dmi.PushMethod) string {
	switch {
	case m.GetHttp() != nil:
		return "http"
	case m.GetOtel() != nil:
		return "otel"
	case m.GetDbMethod() != nil:
		return "dbMethod"
	case m.GetAnomalyDetection() != nil:
		return "anomalyDetection"
	}
	return ""
}

func newPusher(ctx context.Context, o Options) *pusher {
	return &pusher{opts: o, ctx: ctx, brokers: map[place]*broker{}, refused: map[refusal]bool{}}
}

// push queues a value to be published; to may be nil. It does not block.
func (p *pusher) push(namespace, name, property, value string, at time.Time, to *dmi.PushMethodMQTT) {
	if to.GetAddress() == "" || to.GetTopic() == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	if strings.HasPrefix(to.GetTopic(), "$") {
		// Such as the topics on which an agent takes desired values of all devices.
		p.refuse(refusal{namespace, "pushMethod.mqtt.topic begins with $, which is for brokers and agents"}, to)
		return
	}
	b := p.broker(place{namespace, to.GetAddress()}, to)
	if b == nil {
		return
	}
	if len(b.waiting) >= maxPushes {
		b.waiting = b.waiting[1:]
		b.dropped++
	}
	b.waiting = append(b.waiting, push{to, Pushed{namespace, name, property, value, at.UnixMilli()}})
	b.wake.Notify()
}

// broker returns a broker, which runs; it is nil if there are too many. mu is held.
func (p *pusher) broker(at place, to *dmi.PushMethodMQTT) *broker {
	if b := p.brokers[at]; b != nil {
		return b
	}
	own := 0
	for other := range p.brokers {
		if other.namespace == at.namespace {
			own++
		}
	}
	if own >= maxOwnBrokers || len(p.brokers) >= maxBrokers {
		p.refuse(refusal{at.namespace, fmt.Sprintf("too many MQTT brokers: a namespace may use %d at a time, and all "+
			"%d", maxOwnBrokers, maxBrokers)}, to)
		return nil
	}
	b := &broker{p: p, place: at, wake: notify.NewSignal()}
	p.brokers[at] = b
	p.running.Go(func() { b.run(p.ctx) })
	return b
}

// refuse logs a reason not to publish, once. mu is held.
func (p *pusher) refuse(r refusal, to *dmi.PushMethodMQTT) {
	if p.refused[r] || len(p.refused) >= 1024 {
		return
	}
	p.refused[r] = true
	p.opts.Log.Warn("Values not published", "namespace", r.namespace, "broker", hidden(to.GetAddress()), "topic",
		to.GetTopic(), "err", r.reason)
}

// run waits until ctx, that of the brokers, and they have ended.
func (p *pusher) run() {
	<-p.ctx.Done()
	p.mu.Lock()
	p.ended = true // no broker starts any more
	p.mu.Unlock()
	p.running.Wait()
}

// run publishes until ctx ends, or until there has been no value for idleBroker.
func (b *broker) run(ctx context.Context) {
	var client mqtt.Client
	defer func() {
		if client != nil {
			client.Disconnect(100)
		}
	}()
	backoff := retry.NewBackoff(firstRetry, lastRetry)
	idle := time.NewTimer(idleBroker)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-idle.C:
			if b.forget() {
				return
			}
		case <-b.wake:
		}
		list, dropped := b.takeWaiting()
		if dropped > 0 {
			b.p.opts.Log.Warn("Values not published: the MQTT broker is too slow", "broker", hidden(b.place.address),
				"values", dropped)
		}
		if len(list) == 0 {
			continue
		}
		idle.Reset(idleBroker)
		var err error
		if client == nil {
			client, err = b.connect(ctx)
		}
		for _, x := range list {
			if err != nil || ctx.Err() != nil {
				break
			}
			err = publish(client, x)
		}
		if err == nil {
			backoff.Reset()
			continue
		}
		pause := backoff.Next()
		b.p.opts.Log.Warn("Values not published", "namespace", b.place.namespace, "broker", hidden(b.place.address),
			"err", err, "retryIn", pause)
		if !retry.Sleep(ctx, pause) {
			return
		}
	}
}

// takeWaiting returns what is to be published, and how many values were dropped before it.
func (b *broker) takeWaiting() ([]push, int) {
	b.p.mu.Lock()
	defer b.p.mu.Unlock()
	list, dropped := b.waiting, b.dropped
	b.waiting, b.dropped = nil, 0
	return list, dropped
}

// forget ends the broker, unless a value has come.
func (b *broker) forget() bool {
	b.p.mu.Lock()
	defer b.p.mu.Unlock()
	if len(b.waiting) > 0 {
		return false
	}
	delete(b.p.brokers, b.place)
	return true
}

// hidden returns an address without a password.
func hidden(address string) string {
	if u, err := url.Parse(address); err == nil {
		return u.Redacted()
	}
	return "(not a URL)"
}

// connect connects to the broker, which is as little trusted as the Device that names it.
func (b *broker) connect(ctx context.Context) (mqtt.Client, error) {
	u, err := url.Parse(b.place.address)
	if err != nil || u.Hostname() == "" {
		return nil, errors.New("pushMethod.mqtt.address: want a URL such as tcp://192.0.2.7:1883")
	}
	port, secure := "1883", false
	switch u.Scheme {
	case "tcp", "mqtt":
	case "ssl", "tls", "mqtts":
		port, secure = "8883", true
	default:
		return nil, fmt.Errorf("pushMethod.mqtt.address: want tcp:// or ssl://, not %.20q", u.Scheme)
	}
	host := net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port))
	options := mqtt.NewClientOptions().AddBroker(b.place.address).SetConnectTimeout(pushTimeout).
		SetAutoReconnect(true).SetMaxReconnectInterval(lastRetry).
		SetCustomOpenConnectionFn(func(*url.URL, mqtt.ClientOptions) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, pushTimeout)
			defer cancel()
			conn, err := b.p.opts.Brokers.Dial(ctx, host)
			if err != nil {
				return nil, err
			}
			if secure {
				t := tls.Client(conn, &tls.Config{ServerName: u.Hostname(), MinVersion: tls.VersionTLS12})
				if err := t.HandshakeContext(ctx); err != nil {
					_ = conn.Close() // the other error is the cause
					return nil, err
				}
				conn = t
			}
			return &answers{Conn: conn}, nil
		})
	client := mqtt.NewClient(options)
	token := client.Connect()
	if !token.WaitTimeout(pushTimeout) {
		client.Disconnect(0)
		return nil, context.DeadlineExceeded
	}
	if err := token.Error(); err != nil {
		return nil, err
	}
	return client, nil
}

func publish(client mqtt.Client, x push) error {
	data, err := json.Marshal(x.payload)
	if err != nil {
		return err
	}
	token := client.Publish(x.to.GetTopic(), byte(min(max(x.to.GetQos(), 0), 2)), x.to.GetRetained(), data)
	if !token.WaitTimeout(pushTimeout) {
		return context.DeadlineExceeded
	}
	return token.Error()
}

// answers fails when a broker sends anything but what a client gets that only publishes. The MQTT library would
// allocate a packet of any size that the broker announces.
type answers struct {
	net.Conn
	ahead int // bytes of the packet that is being read, 0 before its type
	size  bool
}

// Read implements net.Conn.
func (a *answers) Read(p []byte) (int, error) {
	n, err := a.Conn.Read(p)
	for _, x := range p[:n] {
		switch {
		case a.size:
			a.ahead, a.size = int(x), false
			if x > 2 {
				return 0, fmt.Errorf("the broker sent a packet of more than %d bytes; want an acknowledgement", 2)
			}
		case a.ahead > 0:
			a.ahead--
		default:
			switch x >> 4 {
			case 2, 4, 5, 7, 13: // CONNACK, PUBACK, PUBREC, PUBCOMP, PINGRESP
				a.size = true
			default:
				return 0, fmt.Errorf("the broker sent a packet of type %d; want an acknowledgement", x>>4)
			}
		}
	}
	return n, err
}
