package prober

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// maxAllocated is what one attempt may allocate, whatever a pod answers: the head of an answer of at most maxHead takes
// some 30 times its size once it is a map, and a TLS handshake takes 200 KiB with both its ends in this process.
const maxAllocated = 4 << 20

// raw is a server that answers each connection with the same bytes, once it was asked something, and reads no more.
type raw struct {
	listener net.Listener
	done     chan struct{}

	mu     sync.Mutex
	closed bool
	open   net.Conn
}

func serveRaw(t testing.TB, config *tls.Config, answer []byte) *raw {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if config != nil {
		l = tls.NewListener(l, config)
	}
	r := &raw{listener: l, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		var asked [4096]byte
		for {
			c, err := l.Accept()
			if err != nil || !r.serves(c) {
				return
			}
			if _, err := c.Read(asked[:]); err == nil {
				_, _ = c.Write(answer) // the probe may have enough of it
			}
			_ = c.Close()
		}
	}()
	return r
}

// serves notes the connection that is answered, and closes it if there is to be none.
func (r *raw) serves(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open = c; r.closed {
		_ = c.Close()
	}
	return !r.closed
}

func (r *raw) close() {
	_ = r.listener.Close()
	r.mu.Lock()
	r.closed = true
	if r.open != nil {
		if t, ok := r.open.(*tls.Conn); ok { // which would wait to say goodbye
			r.open = t.NetConn()
		}
		_ = r.open.Close()
	}
	r.mu.Unlock()
	<-r.done
}

// TestHugeHeads: an answer whose head is too large fails the probe, over HTTP/2 and gRPC, too.
func TestHugeHeads(t *testing.T) {
	const size = 1 << 20
	web := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Large", strings.Repeat("x", size))
	})
	safe := httptest.NewUnstartedServer(web)
	safe.EnableHTTP2 = true
	safe.StartTLS()
	defer safe.Close()
	older := httptest.NewTLSServer(web)
	defer older.Close()
	for name, server := range map[string]*httptest.Server{"HTTP/2": safe, "HTTP/1.1": older} {
		host, port := where(t, server.Listener.Addr().String())
		h := v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromInt(port), Scheme: v1.URISchemeHTTPS}}
		if got, want := try(t, h, v1.Container{Name: "a"}, host), "failure"; !strings.HasPrefix(got, want) {
			t.Errorf("%s: %.200q, want %q", name, got, want)
		}
	}
	large := func(ctx context.Context) error {
		return grpc.SetHeader(ctx, metadata.Pairs("x", strings.Repeat("x", size)))
	}
	for name, server := range map[string]func(context.Context) error{
		"header":  large,
		"message": func(context.Context) error { return status.Error(codes.Internal, strings.Repeat("x", size)) },
	} {
		port := serveGRPC(t, func(s *grpc.Server) { grpc_health_v1.RegisterHealthServer(s, answering{server}) })
		got := try(t, v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: int32(port)}}, v1.Container{Name: "a"}, "127.0.0.1")
		if want := "failure"; !strings.HasPrefix(got, want) || len(got) > maxHead {
			t.Errorf("%s: %d bytes %.200q, want %q in at most %d bytes", name, len(got), got, want, maxHead)
		}
	}
}

// answering is a health service that does something before it says that it serves.
type answering struct{ first func(context.Context) error }

func (answering) List(context.Context, *grpc_health_v1.HealthListRequest) (*grpc_health_v1.HealthListResponse, error) {
	return nil, status.Error(codes.Unimplemented, "")
}

func (answering) Watch(
	*grpc_health_v1.HealthCheckRequest, grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse],
) error {
	return status.Error(codes.Unimplemented, "")
}

func (a answering) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (
	*grpc_health_v1.HealthCheckResponse, error,
) {
	return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}, a.first(ctx)
}

// FuzzAnswer: whatever a pod answers to a probe over HTTP/1.1, HTTP/2, TLS or gRPC, reading it takes a bounded amount
// of memory. part is repeated up to 12 MiB, which is more than package net/http takes by itself.
func FuzzAnswer(f *testing.F) {
	const ok = "HTTP/1.1 200 OK\r\n"
	const many = 1 << 24
	for _, seed := range []struct {
		head, part, tail string
		times            uint32
	}{
		{ok + "Content-Length: 2\r\n\r\nok", "", "", 0},
		{ok, "a:\r\n", "\r\n", many},
		{ok, "a:", "\r\n\r\n", many},
		{ok, "a: b\r\n", "\r\n", 10_000},
		{ok + "\r\n", "x", "", many},
		{ok + "Content-Length: 99999999999\r\n\r\n", "x", "", many},
		{ok + "Transfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n", "0\r\n\r\n", many},
		{ok + "Transfer-Encoding: chunked\r\nTrailer: a\r\n\r\n0\r\n", "a:\r\n", "\r\n", many},
		{ok + "Content-Encoding: gzip\r\n\r\n", "\x1f\x8b", "", many},
		{"", "HTTP/1.1 100 Continue\r\n\r\n", ok, many},
		{"", "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n", ok, many},
		{"HTTP/1.1 302 Found\r\nLocation: ", "/", "\r\n\r\n", many},
		{"\x00\x00\x00\x04\x00\x00\x00\x00\x00", "\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00", "",
			many},
		{"\x00\x00\x00\x04\x00\x00\x00\x00\x00", "\x00\x00\x08\x06\x00\x00\x00\x00\x00aaaaaaaa", "", 50_000},
	} {
		for way := range uint8(4) {
			f.Add(seed.head, seed.part, seed.tail, seed.times, way)
		}
	}
	web := httptest.NewTLSServer(nil) // for its certificate
	config := &tls.Config{Certificates: web.TLS.Certificates}
	web.Close()
	f.Fuzz(func(t *testing.T, head, part, tail string, times uint32, way uint8) {
		const size = 12 << 20
		if len(head)+len(tail) > size {
			return
		}
		times = min(times, uint32((size-len(head)-len(tail))/max(len(part), 1)))
		answer := []byte(head + strings.Repeat(part, int(times)) + tail)
		action, own := &v1.HTTPGetAction{Path: "/", Scheme: v1.URISchemeHTTP}, (*tls.Config)(nil)
		if way%4 == 1 {
			action.Scheme, own = v1.URISchemeHTTPS, config
		}
		if way%4 == 2 {
			protocol := v1.HTTPProtocolHTTP2
			action.Protocol = &protocol
		}
		server := serveRaw(t, own, answer)
		defer server.close()
		host, port := where(t, server.listener.Addr().String())
		action.Port = intstr.FromInt(port)
		handler := v1.ProbeHandler{HTTPGet: action}
		if way%4 == 3 {
			handler = v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: int32(port)}}
		}
		limit := uint64(maxAllocated)
		if way%4 > 1 {
			// Until the probe's time is up, frames are read one after another. A small one allocates a few times its
			// size, which is garbage before the next one is read.
			limit += 8 * uint64(len(answer))
		}
		membound.Check(t, limit, func() { tryWithin(t, 1, handler, v1.Container{Name: "a"}, host) })
	})
}
