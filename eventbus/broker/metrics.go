package broker

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// dropCause is why the broker dropped a message, a subscription or a client.
type dropCause int

const (
	dropClients dropCause = iota
	dropQueue
	dropSlow
	dropInflight
	dropRetained
	dropTopic
	dropPayload
	dropSubscriptions
	dropUnauthorized
	dropForbidden
	dropPanic
	dropCauses // how many there are
)

// causes are the values of the metric's label.
func causes() [dropCauses]string {
	return [dropCauses]string{
		dropClients:       "too_many_clients",
		dropQueue:         "queue_full",
		dropSlow:          "slow_client",
		dropInflight:      "unconfirmed",
		dropRetained:      "too_many_retained",
		dropTopic:         "bad_topic",
		dropPayload:       "payload_too_large",
		dropSubscriptions: "too_many_subscriptions",
		dropUnauthorized:  "unauthorized",
		dropForbidden:     "forbidden_topic",
		dropPanic:         "failed",
	}
}

type counters struct{ dropped [dropCauses]atomic.Int64 }

func (c *counters) drop(cause dropCause) { c.dropped[cause].Add(1) }

// Dropped returns what was dropped since the start, by cause.
func (b *Broker) Dropped() map[string]int64 {
	out := map[string]int64{}
	for i, name := range causes() {
		out[name] = b.count.dropped[i].Load()
	}
	return out
}

// Clients returns how many clients are connected.
func (b *Broker) Clients() int { return int(atomic.LoadInt64(&b.server.Info.ClientsConnected)) }

// Describe implements prometheus.Collector.
func (b *Broker) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(b, out) }

// Collect implements prometheus.Collector.
func (b *Broker) Collect(out chan<- prometheus.Metric) {
	send := func(name, help string, kind prometheus.ValueType, value int64, labels ...string) {
		var names []string
		if len(labels) > 0 {
			names = []string{"cause"}
		}
		out <- prometheus.MustNewConstMetric(
			prometheus.NewDesc("edgecore_mqtt_broker_"+name, help, names, nil), kind, float64(value), labels...)
	}
	info := b.server.Info.Clone()
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	send("clients", "Clients that are connected to the broker in the agent", gauge, info.ClientsConnected)
	send("subscriptions", "Subscriptions of clients of the broker", gauge, int64(b.hook.subscriptions()))
	number, bytes := b.hook.retainedNow()
	send("retained_messages", "Messages that the broker keeps for later subscribers", gauge, int64(number))
	send("retained_bytes", "Bytes of topics and payloads of the retained messages", gauge, int64(bytes))
	send("queued_bytes", "Bytes that wait to be written to clients", gauge, b.queue.used.Load())
	send("unconfirmed_bytes", "Bytes of messages that clients have not confirmed", gauge, b.inflight.used.Load())
	send("messages_received_total", "Messages that clients and the agent published", counter, info.MessagesReceived)
	send("messages_sent_total", "Messages that were sent to clients", counter, info.MessagesSent)
	for i, name := range causes() {
		send("dropped_total", "Messages, subscriptions and connections that a limit of the broker refused, by cause",
			counter, b.count.dropped[i].Load(), name)
	}
}
