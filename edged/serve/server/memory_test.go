package server

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// FuzzRequests: whatever a request to one of the ports says, whether its client is admitted or not, reading and
// answering it takes memory in proportion to its head, of which no more than maxHeader is read.
func FuzzRequests(f *testing.F) {
	const host = "Host: localhost\r\n"
	f.Add("GET /pods HTTP/1.1\r\n"+host, "", uint16(0))
	f.Add("GET /pods HTTP/1.1\r\n"+host, "a:\r\n", uint16(5_000))
	f.Add("GET /healthz?", "a&", uint16(8_000))
	f.Add("GET /", "../", uint16(6_000))
	f.Add("GET /", "%00", uint16(6_000))
	f.Add("GET /metrics HTTP/1.1\r\n"+host, "Accept: text/plain;q=0.1,\r\n", uint16(600))
	f.Add("GET /metrics HTTP/1.1\r\n"+host, "Accept-Encoding: gzip,\r\n", uint16(700))
	f.Add("GET /pods HTTP/1.1\r\nHost: [", ":", uint16(16_000))
	f.Add("GET /pods HTTP/1.1\r\n"+host, "Authorization: Bearer a\r\n", uint16(600))
	f.Add("POST /debug HTTP/1.1\r\n"+host+"Content-Length: 99999999999\r\n", "", uint16(0))
	n := &node{}
	options := Options{Node: n, Registry: NewRegistry("node1", n, &health.Registry{}), Debugging: true}
	handlers := []http.Handler{New(options), NewSecure(options, &guardian{may: "all"}), NewSecure(options, &guardian{})}
	f.Fuzz(func(t *testing.T, head, part string, times uint16) {
		const most = maxHeader + 4<<10 // package net/http adds 4 KiB to the limit
		text := head + strings.Repeat(part, min(int(times), most/max(len(part), 1)))
		if !strings.Contains(text, " HTTP/1.1\r\n") {
			text += " HTTP/1.1\r\n" + host
		}
		text = text[:min(len(text), most)] + "\r\n\r\n"
		for _, h := range handlers {
			// What the agent says of itself has a fixed size. A line of a head of 4 bytes becomes an entry of a map,
			// and a parameter of 2 bytes a list of one string in one.
			membound.Check(t, 2<<20+membound.Linear(len(text), 256), func() {
				r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
				if err == nil {
					h.ServeHTTP(httptest.NewRecorder(), r)
				}
			})
		}
	})
}
