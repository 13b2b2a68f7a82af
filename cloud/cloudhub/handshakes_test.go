package cloudhub

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/edgecore-io/edgecore/pkg/wire"
)

// hello returns the first message of a TLS handshake.
func (c *cloud) hello(t *testing.T) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer server.Close()
	go func() { _ = tls.Client(client, c.named(tls.Certificate{})).Handshake() }()
	var all bytes.Buffer
	head := make([]byte, 5)
	if _, err := io.ReadFull(io.TeeReader(server, &all), head); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(&all, server, int64(head[3])<<8|int64(head[4])); err != nil {
		t.Fatal(err)
	}
	return all.Bytes()
}

// socket connects to the hub's port.
func (c *cloud) socket(t *testing.T) net.Conn {
	t.Helper()
	conn, err := c.dial(t.Context(), "tcp", c.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestSilentConnections: connections that say next to nothing take no more places than there are, lose them after 10 s,
// and keep no node away.
func TestSilentConnections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startInMemory(t, func(o *Options) { o.NodeLimit = 10 })
		size := c.hub.limit.arrivalsOf(0, 0)
		hello := c.hello(t)
		const connections = 3000
		ends := make(chan error, connections)
		for range connections {
			conn := c.socket(t)
			go func() {
				_, _ = conn.Write(hello[:5]) // fails if it is closed
				_, err := io.Copy(io.Discard, conn)
				ends <- err
			}()
		}
		synctest.Wait()
		if all, silent := c.hub.arrivals.Counts(); all > size || silent != all || len(ends) < connections-size {
			t.Errorf("%d silent connections have places, %d others, %d are closed; want at most %d, 0, and the others "+
				"closed", silent, all-silent, len(ends), size)
		}
		conn, err := wire.DialWebSocket(t.Context(), c.options("n1", c.ca.Node(t, "n1", time.Now().Add(time.Hour))))
		if err != nil {
			t.Fatalf("a node is kept away: %v", err)
		}
		defer conn.Close(wire.CloseNormal, "")
		time.Sleep(helloTimeout + time.Second)
		synctest.Wait()
		if all, _ := c.hub.arrivals.Counts(); all != 0 || len(ends) != connections {
			t.Errorf("after %v, %d connections have places and %d are closed; want none, and all %d: a session has no "+
				"place", helloTimeout, all, len(ends), connections)
		}
	})
}

// TestSlowClients: hundreds of clients that send nothing, or a byte in a second, do not delay a node, and lose their
// connections in the end.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		c := startInMemory(t, func(o *Options) { o.Registry = registry })
		hello := c.hello(t)
		const each = 300
		ends := make(chan error, 2*each)
		var senders sync.WaitGroup
		for i := range 2 * each {
			conn := c.socket(t)
			go func() {
				_, err := io.Copy(io.Discard, conn) // until cloudcore ends it
				ends <- err
			}()
			if i < each {
				continue
			}
			senders.Go(func() {
				for _, b := range hello {
					if _, err := conn.Write([]byte{b}); err != nil {
						return
					}
					time.Sleep(time.Second)
				}
			})
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		began := time.Now()
		conn, err := wire.DialWebSocket(t.Context(), c.options("n1", c.ca.Node(t, "n1", time.Now().Add(time.Hour))))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(wire.CloseNormal, "")
		if took := time.Since(began); took != 0 {
			t.Errorf("a node waited %v for its connection, want none: nobody needs the processor", took)
		}
		for range 2 * each {
			<-ends
		}
		senders.Wait()
		synctest.Wait()
		if got := gather(t, registry); got["handshakes waiting"] != 0 || got["handshakes working"] != 0 {
			t.Errorf("%v wait and %v work, want none", got["handshakes waiting"], got["handshakes working"])
		}
	})
}

// TestHandshakesFail: connections that fail in any step before they are sessions, and sessions, hold no slots.
func TestHandshakesFail(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(t *testing.T, c *cloud, socket net.Conn){
		"without a byte": func(_ *testing.T, _ *cloud, socket net.Conn) { _ = socket.Close() },
		"no TLS": func(_ *testing.T, _ *cloud, socket net.Conn) {
			_, _ = io.WriteString(socket, "GET / HTTP/1.1\r\n\r\n")
			_, _ = io.Copy(io.Discard, socket)
		},
		"half a hello": func(t *testing.T, c *cloud, socket net.Conn) {
			_, _ = socket.Write(c.hello(t)[:100])
			_ = socket.Close()
		},
		"only a hello": func(t *testing.T, c *cloud, socket net.Conn) {
			_, _ = socket.Write(c.hello(t))
			_ = socket.Close()
		},
		"a hello, then silence": func(t *testing.T, c *cloud, socket net.Conn) {
			_, _ = socket.Write(c.hello(t))
			_, _ = io.Copy(io.Discard, socket)
		},
		"no certificate": func(_ *testing.T, c *cloud, socket net.Conn) {
			_, _ = io.Copy(io.Discard, tls.Client(socket, c.named(tls.Certificate{})))
		},
		"no request": func(t *testing.T, c *cloud, socket net.Conn) {
			_, _ = io.Copy(io.Discard, tls.Client(socket, c.named(c.ca.Node(t, "n1", time.Now().Add(time.Hour)))))
		},
		"half a request": func(t *testing.T, c *cloud, socket net.Conn) {
			conn := tls.Client(socket, c.named(c.ca.Node(t, "n1", time.Now().Add(time.Hour))))
			_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nNode")
			_, _ = io.Copy(io.Discard, conn)
		},
		"nonsense": func(t *testing.T, c *cloud, socket net.Conn) {
			conn := tls.Client(socket, c.named(c.ca.Node(t, "n1", time.Now().Add(time.Hour))))
			_, _ = io.WriteString(conn, "nonsense\r\n\r\n")
			_, _ = io.Copy(io.Discard, conn)
		},
		"large headers": func(t *testing.T, c *cloud, socket net.Conn) {
			conn := tls.Client(socket, c.named(c.ca.Node(t, "n1", time.Now().Add(time.Hour))))
			_, _ = fmt.Fprintf(conn, "GET / HTTP/1.1\r\nA: %s\r\n\r\n", bytes.Repeat([]byte("a"), 2*headerBytes))
			_ = socket.Close()
		},
		"refused": func(t *testing.T, c *cloud, _ net.Conn) {
			if _, err := wire.DialWebSocket(t.Context(),
				c.options("n2", c.ca.Node(t, "n1", time.Now().Add(time.Hour)))); err == nil {
				t.Error("DialWebSocket in another node's name = nil, want an error")
			}
		},
		"a session": func(t *testing.T, c *cloud, _ net.Conn) {
			conn := c.dialNode(t, "n1")
			t.Cleanup(func() { _ = conn.Close(wire.CloseNormal, "") })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := startInMemory(t, nil)
				fail(t, c, c.socket(t))
				time.Sleep(time.Second) // the server waits for half of it before it closes a connection
				synctest.Wait()
				if waiting, working := c.hub.handshakes.Counts(); waiting != 0 || working != 0 {
					t.Errorf("%d connections wait and %d work, want none", waiting, working)
				}
			})
		})
	}
}

// named is the configuration of a client that knows the name of the server.
func (c *cloud) named(cert tls.Certificate) *tls.Config {
	config := c.clientTLS(cert)
	config.ServerName = "127.0.0.1"
	return config
}
