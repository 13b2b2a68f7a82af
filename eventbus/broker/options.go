package broker

import (
	"crypto/tls"
	"math"
	"time"
)

// Options say where a broker listens, who may connect and how much clients may use. A limit of 0 is its default.
type Options struct {
	// Address is where the broker listens, as HOST:PORT; 127.0.0.1:1883 if empty.
	Address string
	// TLS makes the broker listen with TLS only.
	TLS *tls.Config
	// Users may connect with their passwords; if it is nil, anyone may who reaches Address. A client that shows a
	// certificate that TLS accepts needs no password.
	Users *Users
	// MayPublish reports whether clients may publish to a topic; if it is nil, they may publish to all.
	MayPublish func(topic string) bool
	// Listening is called with the error that keeps the broker from listening, and with nil once it does. It may be
	// nil.
	Listening func(address string, err error)
	Limits
}

// Limits bound what clients can cost the agent.
type Limits struct {
	// Clients is how many may be connected, and Sessions how many the broker remembers, with those that are not. A
	// new one takes the place of the session that has been disconnected for the longest time.
	Clients, Sessions int
	// SessionExpiry is how long the broker keeps the session of a disconnected client.
	SessionExpiry time.Duration
	// PayloadBytes is the largest payload; the packet may have 4 KiB more for its topic and properties.
	PayloadBytes int
	// Subscriptions are those of one client, Wildcards those among them with + or #, AllSubscriptions all clients'.
	Subscriptions, Wildcards, AllSubscriptions int
	// Retained and RetainedBytes are the number and the bytes (topics and payloads) of the retained messages.
	Retained, RetainedBytes int
	// Inflight is how many messages of QoS 1 and 2 one client has not confirmed yet.
	Inflight int
	// QueueBytes is what waits for one client, AllQueueBytes for all clients: once in the connection's queue, and
	// once more as messages that the client has not confirmed.
	QueueBytes, AllQueueBytes int
	// MessagesPerSecond is how fast a client may publish; Burst messages may come at once. A faster client is slowed
	// down, not cut off. A subscription counts as a message, and as 20 if it has wildcards.
	MessagesPerSecond, Burst int
	// ConnectTimeout is how long a client may take to send its first packet, WriteTimeout how long to accept one.
	ConnectTimeout, WriteTimeout time.Duration
}

// The defaults of Limits. Altogether, clients can make the agent hold about 40 MiB.
const (
	DefaultAddress           = "127.0.0.1:1883"
	DefaultClients           = 64
	DefaultSessions          = 128
	DefaultSessionExpiry     = time.Hour
	DefaultPayloadBytes      = 64 << 10
	DefaultSubscriptions     = 64
	DefaultWildcards         = 16
	DefaultAllSubscriptions  = 1024
	DefaultRetained          = 1000
	DefaultRetainedBytes     = 4 << 20
	DefaultInflight          = 100
	DefaultQueueBytes        = 1 << 20
	DefaultAllQueueBytes     = 16 << 20
	DefaultMessagesPerSecond = 1000
	DefaultBurst             = 2000
	DefaultConnectTimeout    = 10 * time.Second
	DefaultWriteTimeout      = 10 * time.Second
)

const (
	// packetOverhead is what a packet may have beside its payload.
	packetOverhead = 4 << 10
	// wildcardCost is how many messages a subscription with wildcards counts for: the broker goes through all
	// retained messages.
	wildcardCost = 20
	// maxClientID is the longest client id, in bytes.
	maxClientID = 256
	// connectsPerSecond and connectBurst bound how often clients connect: each connection costs a handshake and a
	// check of a password.
	connectsPerSecond = 50
	connectBurst      = 200
)

func (l Limits) withDefaults() Limits {
	for _, c := range []struct {
		value    *int
		fallback int
	}{
		{&l.Clients, DefaultClients}, {&l.Sessions, DefaultSessions}, {&l.PayloadBytes, DefaultPayloadBytes},
		{&l.Subscriptions, DefaultSubscriptions}, {&l.Wildcards, DefaultWildcards},
		{&l.AllSubscriptions, DefaultAllSubscriptions}, {&l.Retained, DefaultRetained},
		{&l.RetainedBytes, DefaultRetainedBytes}, {&l.Inflight, DefaultInflight}, {&l.QueueBytes, DefaultQueueBytes},
		{&l.AllQueueBytes, DefaultAllQueueBytes}, {&l.MessagesPerSecond, DefaultMessagesPerSecond},
		{&l.Burst, DefaultBurst},
	} {
		if *c.value <= 0 {
			*c.value = c.fallback
		}
	}
	for _, c := range []struct {
		value    *time.Duration
		fallback time.Duration
	}{
		{&l.SessionExpiry, DefaultSessionExpiry}, {&l.ConnectTimeout, DefaultConnectTimeout},
		{&l.WriteTimeout, DefaultWriteTimeout},
	} {
		if *c.value <= 0 {
			*c.value = c.fallback
		}
	}
	l.Sessions = max(l.Sessions, l.Clients)
	l.Inflight = min(l.Inflight, math.MaxUint16)
	l.Burst = max(l.Burst, 1+wildcardCost)
	// The largest packet must fit into a queue.
	l.QueueBytes = max(l.QueueBytes, l.PayloadBytes+packetOverhead)
	l.AllQueueBytes = max(l.AllQueueBytes, l.QueueBytes)
	return l
}
