package wire

import (
	"net/http"
	"strings"
)

// HeaderFeatures lists what an end supports beyond the plain protocol: the edge lists all in its handshake, and the
// cloud answers with those it will use. KubeEdge's ends ignore it.
const HeaderFeatures = "Edgecore-Features"

// Features are what two ends of ours may agree on.
type Features struct {
	// Inventory: after connecting the edge sends what it has, and gets only differences.
	Inventory bool `json:"inventory"`
	// Lease: pings replace keepalive messages and lease updates; the cloud renews the node's lease.
	Lease bool `json:"lease"`
	// Deflate: messages may be compressed (permessage-deflate; WebSocket only).
	Deflate bool `json:"deflate"`
	// Report: the cloud may ask the edge to report the status of a pod again.
	Report bool `json:"report"`
	// Tunnel: the cloud may ask the edge for a tunnel to its kubelet API (package tunnel).
	Tunnel bool `json:"tunnel"`
	// Streams: connections to the kubelet API are streams of the link itself (Streams; QUIC only). Where both ends have
	// Tunnel, the handshake of QUIC adds it.
	Streams bool `json:"streams,omitempty"`
	// Batch: a message may carry several others (Pack): requests of the edge, and the cloud's answers to them.
	Batch bool `json:"batch,omitempty"`
	// API: the edge may connect to the Kubernetes API through the cloud (DialAPI; not over QUIC).
	API bool `json:"api,omitempty"`
}

// AllFeatures returns everything that this version supports of itself. Tunnel and API are offered by ends that have
// what they need: a kubelet API on the edge and ports for nodes in the cloud, or the endpoint of the Kubernetes API on
// the edge and a proxy in the cloud.
func AllFeatures() Features {
	return Features{Inventory: true, Lease: true, Deflate: true, Report: true, Batch: true}
}

// ParseFeatures parses the header; it ignores unknown names, which are of newer versions.
func ParseFeatures(h http.Header) Features {
	var f Features
	for _, line := range h.Values(HeaderFeatures) {
		for name := range strings.SplitSeq(line, ",") {
			switch strings.ToLower(strings.TrimSpace(name)) {
			case "inventory":
				f.Inventory = true
			case "lease":
				f.Lease = true
			case "deflate":
				f.Deflate = true
			case "report":
				f.Report = true
			case "tunnel":
				f.Tunnel = true
			case "streams":
				f.Streams = true
			case "batch":
				f.Batch = true
			case "api":
				f.API = true
			}
		}
	}
	return f
}

// String is the header's value.
func (f Features) String() string {
	var names []string
	if f.Inventory {
		names = append(names, "inventory")
	}
	if f.Lease {
		names = append(names, "lease")
	}
	if f.Deflate {
		names = append(names, "deflate")
	}
	if f.Report {
		names = append(names, "report")
	}
	if f.Tunnel {
		names = append(names, "tunnel")
	}
	if f.Streams {
		names = append(names, "streams")
	}
	if f.Batch {
		names = append(names, "batch")
	}
	if f.API {
		names = append(names, "api")
	}
	return strings.Join(names, ",")
}

// And are the features that both have.
func (f Features) And(g Features) Features {
	return Features{
		Inventory: f.Inventory && g.Inventory,
		Lease:     f.Lease && g.Lease,
		Deflate:   f.Deflate && g.Deflate,
		Report:    f.Report && g.Report,
		Tunnel:    f.Tunnel && g.Tunnel,
		Streams:   f.Streams && g.Streams,
		Batch:     f.Batch && g.Batch,
		API:       f.API && g.API,
	}
}

// set sets the header, unless there are no features.
func (f Features) set(h http.Header) {
	if text := f.String(); text != "" {
		h.Set(HeaderFeatures, text)
	}
}
