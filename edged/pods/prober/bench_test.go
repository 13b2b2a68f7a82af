package prober

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// BenchmarkAttempt is one attempt with its server beside it, both of which a core pays for here.
func BenchmarkAttempt(b *testing.B) {
	t := &testing.T{}
	plain := httptest.NewServer(http.HandlerFunc(pages))
	defer plain.Close()
	safe := httptest.NewTLSServer(http.HandlerFunc(pages))
	defer safe.Close()
	host, port := where(t, plain.Listener.Addr().String())
	_, safePort := where(t, safe.Listener.Addr().String())
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	grpcServer := httptest.NewUnstartedServer(server)
	defer grpcServer.Close()
	l := grpcServer.Listener
	go func() { _ = server.Serve(l) }() // ends with Stop
	defer server.Stop()
	_, grpcPort := where(t, l.Addr().String())
	for name, h := range map[string]v1.ProbeHandler{
		"http": {HTTPGet: &v1.HTTPGetAction{Path: "/status?code=200", Port: intstr.FromInt32(int32(port))}},
		"https": {
			HTTPGet: &v1.HTTPGetAction{
				Path: "/status?code=200", Scheme: v1.URISchemeHTTPS, Port: intstr.FromInt32(int32(safePort)),
			},
		},
		"tcp":  {TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(int32(port))}},
		"grpc": {GRPC: &v1.GRPCAction{Port: int32(grpcPort)}},
	} {
		b.Run(name, func(b *testing.B) {
			a := newAttempts(Options{Recorder: &quiet{}, UserAgent: "kube-probe/1.37"})
			c := &v1.Container{Name: "a"}
			at := ask{target: target{pod: podOf(*c), container: c, address: host}, spec: &v1.Probe{ProbeHandler: h}}
			before := processTime(b)
			for b.Loop() {
				if got := a.attempt(b.Context(), at); got != success {
					b.Fatalf("the probe ended with %v, want %v", got, success)
				}
			}
			b.ReportMetric(float64(processTime(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

// processTime is what this process has used of the processor, in nanoseconds.
func processTime(b *testing.B) int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkHundred is 100 pods with an HTTP probe a second, their servers beside them: the share of a core that both
// use.
func BenchmarkHundred(b *testing.B) {
	plain := httptest.NewServer(http.HandlerFunc(pages))
	defer plain.Close()
	host, port := where(&testing.T{}, plain.Listener.Addr().String())
	h := v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/status?code=200", Port: intstr.FromInt32(int32(port))}}
	p := New(Options{Recorder: &quiet{}, Changed: func(types.UID, bool) {}, UserAgent: "kube-probe/1.37"})
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = p.Run(ctx) }) // never fails
	defer wg.Wait()
	defer cancel()
	for i := range 100 {
		pod := podOf(v1.Container{
			Name: "a", LivenessProbe: &v1.Probe{ProbeHandler: h, PeriodSeconds: 1, TimeoutSeconds: 1},
		})
		pod.UID = types.UID(fmt.Sprint(i))
		p.Sync(pod, seen("a"), View{Address: host})
	}
	const seconds = 10
	for b.Loop() {
		before := processTime(b)
		time.Sleep(seconds * time.Second)
		b.ReportMetric(float64(processTime(b)-before)/seconds/1e7, "%core")
	}
}
