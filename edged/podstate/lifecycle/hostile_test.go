package lifecycle

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// FuzzAnswer: whatever a pod answers to a hook over HTTP/1.1 or HTTP/2, reading it takes a bounded amount of memory.
// part is repeated up to 12 MiB, which is more than package net/http takes by itself.
func FuzzAnswer(f *testing.F) {
	const ok = "HTTP/1.1 200 OK\r\n"
	const many = 1 << 24
	for _, seed := range []struct {
		head, part, tail string
		times            uint32
	}{
		{ok + "Content-Length: 2\r\n\r\nok", "", "", 0},
		{ok, "a:\r\n", "\r\n", many},
		{ok + "\r\n", "x", "", many},
		{ok + "Transfer-Encoding: chunked\r\nTrailer: a\r\n\r\n0\r\n", "a:\r\n", "\r\n", many},
		{"", "HTTP/1.1 100 Continue\r\n\r\n", ok, many},
		{"\x00\x00\x00\x04\x00\x00\x00\x00\x00", "\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00", "",
			1000},
	} {
		f.Add(seed.head, seed.part, seed.tail, seed.times, false)
		f.Add(seed.head, seed.part, seed.tail, seed.times, true)
	}
	f.Fuzz(func(t *testing.T, head, part, tail string, times uint32, http2 bool) {
		const size = 12 << 20
		if len(head)+len(tail) > size {
			return
		}
		times = min(times, uint32((size-len(head)-len(tail))/max(len(part), 1)))
		answer := []byte(head + strings.Repeat(part, int(times)) + tail)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		done := make(chan struct{})
		go func() {
			defer close(done)
			var asked [4096]byte
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				stop := context.AfterFunc(ctx, func() { _ = c.Close() })
				if _, err := c.Read(asked[:]); err == nil {
					_, _ = c.Write(answer) // the hook may have enough of it
				}
				stop()
				_ = c.Close()
			}
		}()
		action := &v1.HTTPGetAction{Port: intstr.FromInt(l.Addr().(*net.TCPAddr).Port)}
		limit := uint64(4 << 20) // a head of 64 KiB takes some 30 times its size once it is a map
		if http2 {
			protocol := v1.HTTPProtocolHTTP2
			action.Protocol = &protocol
			// Frames are read one after another. A small one allocates a few times its size, which is garbage before
			// the next.
			limit += 8 * uint64(len(answer))
		}
		membound.Check(t, limit, func() {
			_ = New(nil, "agent").Run(ctx, Target{Address: "127.0.0.1"}, &v1.LifecycleHandler{HTTPGet: action})
		})
		cancel()
		_ = l.Close()
		<-done
	})
}
