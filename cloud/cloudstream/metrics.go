package cloudstream

import "github.com/prometheus/client_golang/prometheus"

// byteCounter counts bytes of one direction.
type byteCounter struct{ prometheus.Counter }

func (c byteCounter) add(n int) { c.Add(float64(n)) }

// metrics are those of tunnels. The numbers of nodes are not labels: a fleet has too many.
type metrics struct {
	s                *Server
	opened, carried  prometheus.Counter
	cut              prometheus.Counter
	failed, bytes    *prometheus.CounterVec
	toNode, fromNode byteCounter
	tunnels, streams *prometheus.Desc
	linkStreams      *prometheus.Desc
	waiting, unread  *prometheus.Desc
}

func newMetrics(s *Server) *metrics {
	m := &metrics{
		s: s,
		opened: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cloudcore_tunnels_opened_total", Help: "Tunnels that nodes have opened",
		}),
		carried: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cloudcore_tunnel_connections_total", Help: "Connections that were carried to nodes",
		}),
		cut: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cloudcore_tunnel_unread_cuts_total",
			Help: "Connections that were ended because their callers did not read what the node sent",
		}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cloudcore_tunnel_failures_total",
			Help: "Connections that were not carried to their node, by cause: offline, limit, tunnel, stopping",
		}, []string{"cause"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cloudcore_tunnel_bytes_total",
			Help: "Bytes that were carried, by direction",
		}, []string{"direction"}),
		tunnels: prometheus.NewDesc("cloudcore_tunnels", "Tunnels to nodes", nil, nil),
		streams: prometheus.NewDesc("cloudcore_tunnel_streams", "Connections through tunnels", nil, nil),
		linkStreams: prometheus.NewDesc("cloudcore_tunnel_link_streams",
			"Connections of cloudcore_tunnel_streams that the node's QUIC link carries, without a tunnel", nil, nil),
		unread: prometheus.NewDesc("cloudcore_tunnel_unread_bytes",
			"Memory of what nodes have sent and callers have not read", nil, nil),
		waiting: prometheus.NewDesc("cloudcore_tunnel_nodes_waiting",
			"Connected nodes that have no port, since all in the range are taken", nil, nil),
	}
	m.toNode = byteCounter{m.bytes.WithLabelValues("to_node")}
	m.fromNode = byteCounter{m.bytes.WithLabelValues("from_node")}
	return m
}

func (m *metrics) counters() []prometheus.Collector {
	return []prometheus.Collector{m.opened, m.carried, m.cut, m.failed, m.bytes}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.counters() {
		c.Describe(ch)
	}
	ch <- m.tunnels
	ch <- m.streams
	ch <- m.linkStreams
	ch <- m.waiting
	ch <- m.unread
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.counters() {
		c.Collect(ch)
	}
	tunnels, streams, linkStreams := m.s.count()
	m.s.mu.Lock()
	waiting := len(m.s.waiting)
	m.s.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(m.tunnels, prometheus.GaugeValue, float64(tunnels))
	ch <- prometheus.MustNewConstMetric(m.streams, prometheus.GaugeValue, float64(streams))
	ch <- prometheus.MustNewConstMetric(m.linkStreams, prometheus.GaugeValue, float64(linkStreams))
	ch <- prometheus.MustNewConstMetric(m.unread, prometheus.GaugeValue, float64(m.s.opts.Memory.Taken()))
	ch <- prometheus.MustNewConstMetric(m.waiting, prometheus.GaugeValue, float64(waiting))
}

// count returns how many tunnels and streams there are, and how many of these are a link's.
func (s *Server) count() (tunnels, streams, linkStreams int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.nodes {
		n.mu.Lock()
		if n.tunnel != nil {
			tunnels++
		}
		streams += int(n.streams.Taken())
		linkStreams += n.linkStreams
		n.mu.Unlock()
	}
	return tunnels, streams, linkStreams
}
