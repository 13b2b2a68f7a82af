package mapper

import (
	"context"
	"encoding/json"
	"net/url"
	"sync"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"

	dmi "github.com/edgecore-io/edgecore/pkg/dmi/v1beta1"
	"github.com/edgecore-io/edgecore/pkg/notify"
)

const (
	// maxPushes is how many values may wait for the brokers; more replace the oldest.
	maxPushes   = 1024
	pushTimeout = 10 * time.Second
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

// pusher publishes values as spec.properties[].pushMethod.mqtt says.
type pusher struct {
	opts    Options
	wake    notify.Signal
	mu      sync.Mutex
	waiting []push
	dropped int
}

type push struct {
	to      *dmi.PushMethodMQTT
	payload Pushed
}

func newPusher(o Options) *pusher { return &pusher{opts: o, wake: notify.NewSignal()} }

// push has a value published; to may be nil. It does not block.
func (p *pusher) push(namespace, name, property, value string, at time.Time, to *dmi.PushMethodMQTT) {
	if to.GetAddress() == "" || to.GetTopic() == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) >= maxPushes {
		p.waiting = p.waiting[1:]
		p.dropped++
	}
	p.waiting = append(p.waiting, push{to, Pushed{namespace, name, property, value, at.UnixMilli()}})
	p.wake.Notify()
}

// run publishes until ctx ends. A broker that is away delays the others by pushTimeout for each value.
func (p *pusher) run(ctx context.Context) {
	clients := map[string]mqtt.Client{}
	defer func() {
		for _, c := range clients {
			c.Disconnect(100)
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		}
		p.mu.Lock()
		list, dropped := p.waiting, p.dropped
		p.waiting, p.dropped = nil, 0
		p.mu.Unlock()
		if dropped > 0 {
			p.opts.Log.Warn("Values not published: the MQTT broker is too slow", "values", dropped)
		}
		away := map[string]bool{}
		for _, x := range list {
			if ctx.Err() != nil {
				return
			}
			if away[x.to.GetAddress()] {
				continue
			}
			if err := p.publish(clients, x); err != nil {
				away[x.to.GetAddress()] = true // until the next values
				p.opts.Log.Warn("Values not published", "broker", hidden(x.to.GetAddress()), "err", err)
			}
		}
	}
}

// hidden returns an address without a password.
func hidden(address string) string {
	if u, err := url.Parse(address); err == nil {
		return u.Redacted()
	}
	return "(not a URL)"
}

func (p *pusher) publish(clients map[string]mqtt.Client, x push) error {
	address := x.to.GetAddress()
	c := clients[address]
	if c == nil {
		c = mqtt.NewClient(mqtt.NewClientOptions().AddBroker(address).SetConnectTimeout(pushTimeout).
			SetAutoReconnect(true).SetMaxReconnectInterval(lastRetry))
		token := c.Connect()
		if !token.WaitTimeout(pushTimeout) {
			c.Disconnect(0)
			return context.DeadlineExceeded
		}
		if err := token.Error(); err != nil {
			return err
		}
		clients[address] = c
	}
	data, err := json.Marshal(x.payload)
	if err != nil {
		return err
	}
	token := c.Publish(x.to.GetTopic(), byte(min(max(x.to.GetQos(), 0), 2)), x.to.GetRetained(), data)
	if !token.WaitTimeout(pushTimeout) {
		return context.DeadlineExceeded
	}
	return token.Error()
}
