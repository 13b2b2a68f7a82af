package cloudstream

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/tunnel"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// BenchmarkThroughput compares the bytes a second of a node's kubelet API, reached directly and through a tunnel over
// mutual TLS. All ends run in this process, so that CPU limits both.
func BenchmarkThroughput(b *testing.B) {
	api := bulkAPI()
	defer api.Close()
	f := newFixture(b, api, nil)
	f.dialer = overTLS(b, f)
	for name, address := range map[string]string{
		"direct": api.Listener.Addr().String(), "tunnel": fmt.Sprintf("127.0.0.1:%d", f.existing("edge-1").port),
	} {
		b.Run(name, func(b *testing.B) { download(b, address) })
	}
}

// bulkSize is how many bytes bulkAPI, a kubelet API, answers.
const bulkSize = 64 << 20

func bulkAPI() *httptest.Server {
	chunk := make([]byte, 32<<10)
	return httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range bulkSize / len(chunk) {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}))
}

// download gets what bulkAPI answers, again and again.
func download(b *testing.B, address string) {
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer c.CloseIdleConnections()
	b.SetBytes(bulkSize)
	for b.Loop() {
		resp, err := c.Get("https://" + address)
		if err != nil {
			b.Fatal(err)
		}
		n, err := io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if n != bulkSize || err != nil {
			b.Fatalf("read %d bytes, %v; want %d", n, err, bulkSize)
		}
	}
}

// BenchmarkLinkThroughput does the same where the link is QUIC, and its streams carry the bytes.
func BenchmarkLinkThroughput(b *testing.B) {
	api := bulkAPI()
	defer api.Close()
	f := newFixture(b, api, nil)
	linkOf(b, f)
	download(b, fmt.Sprintf("127.0.0.1:%d", f.existing("edge-1").port))
}

// BenchmarkLinkLatency measures how long messages of a QUIC link take to reach the node, without anything else on the
// link, and while its streams carry as many bytes as they can to and from the node.
func BenchmarkLinkLatency(b *testing.B) {
	for _, streams := range []int{0, 1, 8} {
		b.Run(fmt.Sprintf("streams=%d", streams), func(b *testing.B) {
			api := bulkAPI()
			defer api.Close()
			f := newFixture(b, api, nil)
			node, cloud := linkOf(b, f)
			ctx, cancel := context.WithCancel(b.Context())
			var bulk sync.WaitGroup
			defer bulk.Wait()
			defer cancel()
			address := "https://" + fmt.Sprintf("127.0.0.1:%d", f.existing("edge-1").port)
			for range streams {
				bulk.Go(func() {
					c := client(b)
					defer c.CloseIdleConnections()
					for ctx.Err() == nil {
						req, _ := http.NewRequestWithContext(ctx, http.MethodGet, address, nil) // the URL is valid
						if resp, err := c.Do(req); err == nil {
							_, _ = io.Copy(io.Discard, resp.Body)
							_ = resp.Body.Close()
						}
					}
				})
			}
			go func() {
				for {
					if _, err := cloud.Read(); err != nil {
						return
					}
				}
			}()
			came := make(chan struct{})
			go func() {
				for {
					if _, err := node.Read(); err != nil {
						return
					}
					came <- struct{}{}
				}
			}()
			m := model.New("edgecontroller", model.GroupResource, model.OpUpdate, "default/pod/web",
				[]byte(`"`+strings.Repeat("x", 4000)+`"`))
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				if err := cloud.Write(m); err != nil {
					b.Fatal(err)
				}
				<-came
				took = append(took, time.Since(began))
				time.Sleep(2 * time.Millisecond) // as messages come now and then
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkFirstByte compares the time until a new connection to the kubelet API has an answer: directly, through a
// tunnel that is open, and through one that is opened for it.
func BenchmarkFirstByte(b *testing.B) {
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "one line of a log\n")
	}))
	defer api.Close()
	f := newFixture(b, api, nil)
	f.open = unlimited(b, f)
	n := f.existing("edge-1")
	direct, through := api.Listener.Addr().String(), fmt.Sprintf("127.0.0.1:%d", n.port)
	for _, c := range []struct {
		name, address string
		before        func()
	}{
		{"direct", direct, func() {}},
		{"warm", through, func() {}},
		{"cold", through, func() { n.dropTunnel("the benchmark begins again") }},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				c.before()
				transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
				resp, err := (&http.Client{Transport: transport}).Get("https://" + c.address)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadAll(resp.Body); err != nil {
					b.Error(err)
				}
				_ = resp.Body.Close()
				transport.CloseIdleConnections()
			}
		})
	}
}

// unlimited returns a node's end that opens tunnels over TLS as often as it is asked.
func unlimited(b *testing.B, f *fixture) func(tunnel.Request) {
	dial := overTLS(b, f)
	return func(r tunnel.Request) {
		conn, err := dial(context.Background(), r.Token)
		if err != nil {
			b.Error(err)
			return
		}
		a, err := tunnel.NewAcceptor(conn)
		if err != nil {
			b.Error(err)
			return
		}
		go func() {
			for {
				stream, err := a.Accept()
				if err != nil {
					return
				}
				backend, err := net.Dial("tcp", f.api.Listener.Addr().String())
				if err != nil {
					return
				}
				go tunnel.Join(stream, backend, nil, nil)
			}
		}()
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

// BenchmarkOpenStreams measures the memory of both ends for each connection that is open and idle, as kubectl logs -f
// of a silent container is.
func BenchmarkOpenStreams(b *testing.B) {
	const streams = 200
	api, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer api.Close()
	var mu sync.Mutex
	var accepted []net.Conn
	go func() {
		for {
			c, err := api.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			accepted = append(accepted, c)
			mu.Unlock()
		}
	}()
	f := newFixture(b, &httptest.Server{Listener: api, Config: &http.Server{}}, nil)
	f.open = unlimited(b, f)
	address := fmt.Sprintf("127.0.0.1:%d", f.existing("edge-1").port)
	var callers []net.Conn
	open := func(n int) {
		for range n {
			c, err := net.Dial("tcp", address)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := io.WriteString(c, "hello"); err != nil { // a caller that says nothing is not carried
				b.Fatal(err)
			}
			callers = append(callers, c)
		}
		wait.True(b, "the connections to be carried", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(accepted) == len(callers)
		})
	}
	open(1) // and the tunnel
	before := inUse()
	open(streams)
	used := inUse() - before
	for b.Loop() { // the time says nothing
	}
	b.ReportMetric(float64(used)/streams/1024, "KB/stream")
	b.ReportMetric(0, "ns/op")
	for _, c := range append(callers, accepted...) {
		_ = c.Close()
	}
}

// inUse is the memory of heap and stacks after a collection.
func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
