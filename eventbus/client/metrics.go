package client

import "github.com/prometheus/client_golang/prometheus"

// Dropped returns what was dropped since the start, by cause.
func (c *Client) Dropped() map[string]int64 {
	return map[string]int64{
		"queue_full":     c.spool.Dropped(),
		"queue_damaged":  c.count.lost.Load(),
		"queue_failed":   c.count.refused.Load(),
		"handler_behind": c.count.receiveDropped.Load(),
	}
}

// Queued returns how many messages wait for the broker, and their bytes.
func (c *Client) Queued() (messages int, bytes int64) { return c.spool.Len() }

// Describe implements prometheus.Collector.
func (c *Client) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, out) }

// Collect implements prometheus.Collector.
func (c *Client) Collect(out chan<- prometheus.Metric) {
	send := func(name, help string, kind prometheus.ValueType, value int64) {
		out <- prometheus.MustNewConstMetric(
			prometheus.NewDesc("edgecore_mqtt_client_"+name, help, nil, nil), kind, float64(value))
	}
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	connected := int64(0)
	if c.Connected() {
		connected = 1
	}
	messages, bytes := c.Queued()
	send("connected", "Whether the agent is connected to the external MQTT broker", gauge, connected)
	send("queued_messages", "Messages that wait for the external broker", gauge, int64(messages))
	send("queued_bytes", "Bytes of the messages that wait for the external broker", gauge, bytes)
	send("connects_total", "Connections to the external broker", counter, c.count.connects.Load())
	send("messages_sent_total", "Messages that the external broker has confirmed", counter, c.count.sent.Load())
	send("messages_received_total", "Messages of the external broker that were handled", counter,
		c.count.received.Load())
	dropped := prometheus.NewDesc("edgecore_mqtt_client_dropped_total",
		"Messages that were dropped, by cause; damaged ends of the queue count once each", []string{"cause"}, nil)
	for cause, n := range c.Dropped() {
		out <- prometheus.MustNewConstMetric(dropped, counter, float64(n), cause)
	}
}
