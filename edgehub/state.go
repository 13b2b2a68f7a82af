package edgehub

import (
	"errors"
	"maps"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// counts holds totals since the start; the current link's traffic is counted by the link.
type counts struct {
	past     wire.Stats
	connects int64
	// failures are dials by kind.
	failures map[string]int64
}

// recordLinkUp records a new link: first the conditions, so that anyone who sees the state sees them too.
func (m *Module) recordLinkUp(s *session) {
	m.health.Clear(health.CloudUnreachable, "")
	m.health.Clear(health.CertificateExpired, "")
	m.mu.Lock()
	m.now = s
	m.count.connects++
	m.state = State{
		Connected: true,
		Since:     time.Now(),
		Protocol:  s.conn.Protocol(),
		Server:    s.conn.RemoteAddr().String(),
		Features:  s.conn.Features(),
	}
	m.mu.Unlock()
	if m.api != nil {
		m.api.LinkUp(s.conn.Features().API)
	}
	m.queue.setBatches(s.conn.Features().Batch)
	klog.V(1).InfoS("Connected to the cloud", "protocol", s.conn.Protocol(), "server", s.conn.RemoteAddr(),
		"features", s.conn.Features().String())
}

// recordLinkDown records the end of the link.
func (m *Module) recordLinkDown(s *session) {
	m.queue.setBatches(false)
	if m.api != nil {
		m.api.LinkDown(silence(m.set.heartbeat))
	}
	last := s.conn.Stats()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = nil
	m.count.past = sum(m.count.past, last)
	m.state.Connected, m.state.Since = false, time.Now()
}

// failed records why there is no link, in the order of begin.
func (m *Module) failed(err error) {
	var why *failure
	text, kind, expired := err.Error(), "lost", false
	if errors.As(err, &why) {
		kind, expired = why.kind, why.expired
	}
	m.health.Set(health.CloudUnreachable, "", text)
	if expired {
		m.health.Set(health.CertificateExpired, "", text)
	} else {
		m.health.Clear(health.CertificateExpired, "")
	}
	m.mu.Lock()
	m.state.Reason = text
	if m.state.Since.IsZero() {
		m.state.Since = time.Now()
	}
	if why != nil {
		m.count.failures[kind]++
	}
	m.mu.Unlock()
	klog.V(2).InfoS("No link to the cloud", "kind", kind, "reason", text)
}

func sum(a, b wire.Stats) wire.Stats {
	return wire.Stats{
		BytesSent: a.BytesSent + b.BytesSent, BytesReceived: a.BytesReceived + b.BytesReceived,
		MessagesSent: a.MessagesSent + b.MessagesSent, MessagesReceived: a.MessagesReceived + b.MessagesReceived,
	}
}

var (
	connectedDesc = prometheus.NewDesc("edgecore_link_connected", "1 while the node is connected to the cloud, else "+
		"0", nil, nil)
	connectsDesc = prometheus.NewDesc("edgecore_link_connects_total", "Connections made to the cloud", nil,
		nil)
	reconnectDesc = prometheus.NewDesc("edgecore_link_reconnects_total", "Connections to the cloud after the first",
		nil, nil)
	failuresDesc = prometheus.NewDesc("edgecore_link_dial_failures_total", "Failed dials by reason",
		[]string{"reason"}, nil)
	bytesDesc = prometheus.NewDesc("edgecore_link_bytes_total",
		"Bytes on the sockets of links, with TLS and framing", []string{"direction"}, nil)
	messagesDesc = prometheus.NewDesc("edgecore_link_messages_total", "Messages over links", []string{"direction"},
		nil)
	tunnelsDesc       = prometheus.NewDesc("edgecore_tunnels", "Open tunnels to the kubelet API", nil, nil)
	tunnelStreamsDesc = prometheus.NewDesc("edgecore_tunnel_streams", "Connections through tunnels", nil, nil)
	linkStreamsDesc   = prometheus.NewDesc("edgecore_tunnel_link_streams",
		"Those of edgecore_tunnel_streams that are streams of the QUIC link, without a tunnel", nil, nil)
	refusedStreamsDesc = prometheus.NewDesc("edgecore_tunnel_link_streams_refused_total",
		"Streams of the QUIC link whose first bytes were not known, or did not come", nil, nil)
	tunnelOpensDesc = prometheus.NewDesc("edgecore_tunnel_opens_total",
		"Tunnels to be opened, by result: opened or failed", []string{"result"}, nil)
	tunnelBytesDesc = prometheus.NewDesc("edgecore_tunnel_bytes_total",
		"Bytes through tunnels, counted when a connection ends", []string{"direction"}, nil)
)

// Describe implements prometheus.Collector.
func (m *Module) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		connectedDesc, connectsDesc, reconnectDesc, failuresDesc, bytesDesc, messagesDesc, tunnelsDesc,
		tunnelStreamsDesc, linkStreamsDesc, refusedStreamsDesc, tunnelOpensDesc, tunnelBytesDesc,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Module) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	total, connects, connected := m.count.past, m.count.connects, 0
	if m.now != nil {
		connected = 1
		total = sum(total, m.now.conn.Stats())
	}
	failures := maps.Clone(m.count.failures)
	m.mu.Unlock()
	counter := func(d *prometheus.Desc, value int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
	ch <- prometheus.MustNewConstMetric(connectedDesc, prometheus.GaugeValue, float64(connected))
	counter(connectsDesc, connects)
	counter(reconnectDesc, max(connects-1, 0))
	for reason, n := range failures {
		counter(failuresDesc, n, reason)
	}
	counter(bytesDesc, total.BytesSent, "sent")
	counter(bytesDesc, total.BytesReceived, "received")
	counter(messagesDesc, total.MessagesSent, "sent")
	counter(messagesDesc, total.MessagesReceived, "received")
	if m.tunnels == nil && m.stream == nil {
		return
	}
	t := m.Tunnels()
	ch <- prometheus.MustNewConstMetric(tunnelsDesc, prometheus.GaugeValue, float64(t.Tunnels))
	ch <- prometheus.MustNewConstMetric(tunnelStreamsDesc, prometheus.GaugeValue, float64(t.Streams))
	ch <- prometheus.MustNewConstMetric(linkStreamsDesc, prometheus.GaugeValue, float64(t.LinkStreams))
	counter(refusedStreamsDesc, t.Refused)
	counter(tunnelOpensDesc, t.Opened, "opened")
	counter(tunnelOpensDesc, t.Failed, "failed")
	counter(tunnelBytesDesc, t.BytesIn, "received")
	counter(tunnelBytesDesc, t.BytesOut, "sent")
}
