package cloudhub

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those of all sessions. Counts that sessions keep are summed on collection.
type metrics struct {
	hub *Hub

	connectedNodes, connectedUpstream, waiting, unacked, requests, bytes, messages, handshakes,
	arrivals *prometheus.Desc

	begun    *prometheus.CounterVec
	refused  *prometheus.CounterVec
	dropped  prometheus.Counter
	expired  prometheus.Counter
	resends  prometheus.Counter
	refusals prometheus.Counter
	cloned   prometheus.Counter
	shed     prometheus.Counter
	latency  prometheus.Histogram

	mu   sync.Mutex
	live map[*session]struct{} // includes sessions that were replaced and have not ended yet
	past traffic               // of sessions that ended
}

// traffic is what links carried.
type traffic struct{ bytesIn, bytesOut, messagesIn, messagesOut int64 }

func newMetrics(h *Hub) *metrics {
	const prefix = "cloudcore_cloudhub_"
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + name, Help: help})
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, []string{label})
	}
	return &metrics{
		hub:            h,
		live:           map[*session]struct{}{},
		connectedNodes: prometheus.NewDesc(prefix+"connected_nodes", "Nodes with a session", nil, nil),
		connectedUpstream: prometheus.NewDesc("KubeEdge_CloudHub_connected_nodes",
			"Nodes with a session (KubeEdge's name of the metric)", nil, nil),
		waiting: prometheus.NewDesc(prefix+"queued_objects",
			"Objects waiting to be compared or sent, over all nodes", nil, nil),
		unacked: prometheus.NewDesc(prefix+"unacked_messages", "Messages sent and not acknowledged yet, over all "+
			"nodes", nil,
			nil),
		requests: prometheus.NewDesc(prefix+"pending_requests",
			"Requests of nodes that wait or are carried out", nil, nil),
		bytes: prometheus.NewDesc(prefix+"bytes_total",
			"Bytes over links to nodes, by direction as seen from cloudcore", []string{"direction"}, nil),
		messages: prometheus.NewDesc(prefix+"messages_total",
			"Messages over links to nodes, by direction as seen from cloudcore", []string{"direction"}, nil),
		arrivals: prometheus.NewDesc(prefix+"arrivals",
			"Connections to TCP ports without a request yet, by state: silent (no ClientHello), started",
			[]string{"state"}, nil),
		handshakes: prometheus.NewDesc(prefix+"handshakes",
			"Connections that are not sessions yet and need the processor, by state", []string{"state"}, nil),
		begun:   vec("sessions_total", "Sessions started, by protocol", "protocol"),
		refused: vec("refused_total", "Refused connections, by cause", "cause"),
		dropped: counter("dropped_messages_total", "Messages of nodes that no module receives"),
		expired: counter("expired_requests_total",
			"Requests dropped because the node no longer waited for an answer"),
		resends:  counter("resends_total", "Messages sent again because they were not acknowledged"),
		refusals: counter("node_errors_total", "Messages that nodes could not store"),
		cloned: counter("cloned_devices_total",
			"Times that two devices used the certificate of one node"),
		shed: counter("quic_shed_total",
			"QUIC links ended because the process was short of memory"),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: prefix + "ack_seconds", Help: "Time from the first sending of an object to its ack",
			Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 12),
		}),
	}
}

func (m *metrics) parts() []prometheus.Collector {
	return []prometheus.Collector{m.begun, m.refused, m.dropped, m.expired, m.resends, m.refusals, m.cloned, m.shed,
		m.latency}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.connectedNodes, m.connectedUpstream, m.waiting, m.unacked, m.requests,
		m.bytes, m.messages, m.handshakes, m.arrivals} {
		ch <- d
	}
	for _, c := range m.parts() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	var nodes, waiting, unacked, requests int
	for _, s := range m.hub.allSessions() {
		nodes++
		requests += s.executor.unanswered()
		s.mu.Lock()
		w, u := s.queue.Len()
		s.mu.Unlock()
		waiting += w
		unacked += u
	}
	gauge := func(d *prometheus.Desc, n int) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n))
	}
	gauge(m.connectedNodes, nodes)
	gauge(m.connectedUpstream, nodes)
	gauge(m.waiting, waiting)
	gauge(m.unacked, unacked)
	gauge(m.requests, requests)
	queued, working := m.hub.handshakes.Counts()
	for state, n := range map[string]int{"waiting": queued, "working": working} {
		ch <- prometheus.MustNewConstMetric(m.handshakes, prometheus.GaugeValue, float64(n), state)
	}
	all, silent := m.hub.arrivals.Counts()
	for state, n := range map[string]int{"silent": silent, "started": all - silent} {
		ch <- prometheus.MustNewConstMetric(m.arrivals, prometheus.GaugeValue, float64(n), state)
	}
	sum := m.traffic()
	total := func(d *prometheus.Desc, n int64, direction string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), direction)
	}
	total(m.bytes, sum.bytesIn, "in")
	total(m.bytes, sum.bytesOut, "out")
	total(m.messages, sum.messagesIn, "in")
	total(m.messages, sum.messagesOut, "out")
	for _, c := range m.parts() {
		c.Collect(ch)
	}
}

func (t *traffic) add(s *session) {
	stats := s.conn.Stats()
	t.bytesIn += stats.BytesReceived
	t.bytesOut += stats.BytesSent
	t.messagesIn += stats.MessagesReceived
	t.messagesOut += stats.MessagesSent
}

// started counts a new session.
func (m *metrics) started(s *session) {
	m.begun.WithLabelValues(s.protocol()).Inc()
	m.mu.Lock()
	m.live[s] = struct{}{}
	m.mu.Unlock()
}

// addEnded keeps the counts of an ended session.
func (m *metrics) addEnded(s *session) {
	m.mu.Lock()
	m.past.add(s)
	delete(m.live, s)
	m.mu.Unlock()
}

// traffic sums the counts of all sessions.
func (m *metrics) traffic() traffic {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := m.past
	for s := range m.live {
		sum.add(s)
	}
	return sum
}
