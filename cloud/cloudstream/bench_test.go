package cloudstream

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
)

// BenchmarkThroughput compares the bytes a second of a node's kubelet API, reached directly and through a tunnel over
// mutual TLS. All ends run in this process, so that CPU limits both.
func BenchmarkThroughput(b *testing.B) {
	const size = 64 << 20
	chunk := make([]byte, 32<<10)
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range size / len(chunk) {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}))
	defer api.Close()
	f := newFixture(b, api, nil)
	f.dialer = overTLS(b, f)
	for name, address := range map[string]string{
		"direct": api.Listener.Addr().String(), "tunnel": fmt.Sprintf("127.0.0.1:%d", f.existing("edge-1").port),
	} {
		b.Run(name, func(b *testing.B) {
			c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
			defer c.CloseIdleConnections()
			b.SetBytes(size)
			for b.Loop() {
				resp, err := c.Get("https://" + address)
				if err != nil {
					b.Fatal(err)
				}
				n, err := io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				if n != size || err != nil {
					b.Fatalf("read %d bytes, %v; want %d", n, err, size)
				}
			}
		})
	}
}

// overTLS returns how the node dials the server's tunnels over a WebSocket with mutual TLS.
func overTLS(b *testing.B, f *fixture) func(ctx context.Context, token string) (net.Conn, error) {
	ca := wiretest.NewCA(b)
	cloud := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := r.Header.Get(wire.HeaderTunnel)
		conn, err := wire.AcceptTunnel(w, r)
		if err != nil {
			b.Error(err)
			return
		}
		f.Serve(context.Background(), "edge-1", token, conn)
	}))
	cloud.Listener = wire.CountBytes(cloud.Listener)
	cloud.TLS = ca.ServerTLS(b)
	cloud.StartTLS()
	b.Cleanup(cloud.Close)
	o := wire.DialOptions{URL: strings.Replace(cloud.URL, "https", "wss", 1), TLS: ca.ClientTLS(b, "edge-1")}
	return func(ctx context.Context, token string) (net.Conn, error) { return wire.DialTunnel(ctx, o, token) }
}
