package client

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/edgecore-io/edgecore/eventbus/spool"
)

// Options say which broker to use, and how.
type Options struct {
	// Server is tcp://HOST:PORT, or ssl://, tls:// or mqtts:// for TLS. The port is 1883 or 8883 if there is none.
	Server string
	// ClientID names the session at the broker, which keeps messages for it while the client is away. It must be
	// unique among the broker's clients, and the same after a restart. If it is empty, the broker keeps nothing.
	ClientID           string
	Username, Password string
	// TLS is used with the schemes for TLS; nil trusts the system's authorities.
	TLS *tls.Config
	// SpoolPath is the file of messages that the broker has not accepted.
	SpoolPath string
	Spool     spool.Limits
	// Timeout is how long connecting, a subscription and a confirmation may take. 0 is DefaultTimeout.
	Timeout time.Duration
	// FirstRetry and LastRetry bound the random delay between attempts to connect. 0 is the default of each.
	FirstRetry, LastRetry time.Duration
	// Reachable is called with the server and the reason why there is no connection, and with nil once there is one. It
	// may be nil, and must not block.
	Reachable func(server string, err error)
}

// The defaults of Options, and limits.
const (
	DefaultTimeout    = 10 * time.Second
	DefaultFirstRetry = time.Second
	DefaultLastRetry  = time.Minute

	// keepAlive is how often an idle connection is checked.
	keepAlive = 30 * time.Second
	// window is how many messages may be sent and not confirmed, receiveQueue and receiveBytes how many and how
	// much may be received and not handled.
	window       = 32
	receiveQueue = 256
	receiveBytes = 8 << 20
	// maxPayload is the largest payload that may be published, maxPacket the largest packet that the client accepts
	// from the broker.
	maxPayload = 256 << 10
	maxPacket  = maxPayload + 4<<10
	// maxSubscriptions is how many filters the agent may subscribe to.
	maxSubscriptions = 1024
)

// endpoint is a server's address as a connection needs it.
type endpoint struct {
	address, host string
	tls           bool
}

func parseServer(server string) (endpoint, error) {
	u, err := url.Parse(server)
	if err != nil {
		return endpoint{}, errors.New("MQTT server: not a URL; want tcp://HOST:PORT or ssl://HOST:PORT")
	}
	e := endpoint{host: u.Hostname()}
	port := "1883"
	switch u.Scheme {
	case "tcp", "mqtt":
	case "ssl", "tls", "mqtts", "tcps":
		e.tls, port = true, "8883"
	default:
		return endpoint{}, fmt.Errorf("MQTT server: scheme %q is unknown; want tcp://HOST:PORT or ssl://HOST:PORT",
			u.Scheme)
	}
	if u.User != nil {
		return endpoint{}, errors.New("MQTT server: must not contain a password; set the user and password fields")
	}
	if e.host == "" {
		return endpoint{}, errors.New("MQTT server: has no host; want tcp://HOST:PORT or ssl://HOST:PORT")
	}
	if u.Port() != "" {
		port = u.Port()
	}
	e.address = net.JoinHostPort(e.host, port)
	return e, nil
}

func (o Options) withDefaults() Options {
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	if o.FirstRetry <= 0 {
		o.FirstRetry = DefaultFirstRetry
	}
	if o.LastRetry <= 0 {
		o.LastRetry = DefaultLastRetry
	}
	return o
}
