package certificates

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// FuzzRequests: whatever is sent to the port that anybody may reach, answering it takes memory in proportion to what is
// read of it.
func FuzzRequests(f *testing.F) {
	c := newClock()
	a, err := New(f.Context(), newFakeSecrets(), Options{
		Addresses: []string{"127.0.0.1"}, Now: c.now, RequestsPerSecond: -1,
	})
	if err != nil {
		f.Fatal(err)
	}
	token, err := a.NewToken("", time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	bearer := "Bearer " + token.Bearer
	csr, _ := request(f, "edge1")
	f.Add("/edge.crt", "edge1", bearer, "[2]", csr, uint32(1))
	f.Add("/edge.crt", "edge1", bearer, "", []byte{0x30}, uint32(1<<24))
	f.Add("/edge.crt", "edge1", bearer, "["+strings.Repeat("2,", 4<<10)+"2]", csr, uint32(1))
	f.Add("/edge.crt", "edge1", bearer, strings.Repeat("[", 8<<10), csr, uint32(1))
	f.Add("/edge.crt", "edge1", "Bearer "+strings.Repeat(".", 8<<10), "", csr, uint32(1))
	f.Add("/edge.crt", "edge1", "Bearer "+strings.Repeat("e30.", 3), "", csr, uint32(1))
	f.Add("/edge.crt", strings.Repeat("\x00", 8<<10), bearer, "", csr, uint32(1))
	f.Add("/node/"+strings.Repeat("%00", 4<<10), "", "", "", []byte(nil), uint32(0))
	f.Add("/"+strings.Repeat("/../", 4<<10), "", "", "", []byte(nil), uint32(0))
	f.Add("/ca.crt", "", "", "", []byte("x"), uint32(1<<24))
	handler := a.Handler(fakeNodes{"edge1": nil})
	f.Fuzz(func(t *testing.T, path, node, auth, usages string, part []byte, times uint32) {
		size := len(path) + len(node) + len(auth) + len(usages)
		if size > maxHeader+4<<10 { // package net/http adds 4 KiB to the limit
			return
		}
		times = min(times, uint32((1<<20)/max(len(part), 1)))
		body := bytes.Repeat(part, int(times))
		r, err := http.NewRequest(http.MethodGet, "https://cloud/"+strings.TrimPrefix(path, "/"), bytes.NewReader(body))
		if err != nil {
			return // package net/http answers
		}
		for name, value := range map[string]string{"NodeName": node, "Authorization": auth, "ExtKeyUsages": usages} {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		w := httptest.NewRecorder()
		// A byte of a name is quoted in an answer with four; a request for a certificate is what package certs allows
		// for it, and takes 1 MiB to check and to sign.
		limit := 1<<20 + membound.Linear(size, 64) + 256*uint64(min(len(body), certs.MaxRequest+1))
		membound.Check(t, limit, func() { handler.ServeHTTP(w, r) })
		if w.Code == http.StatusOK && w.Body.Len() == 0 || w.Body.Len() > certs.MaxRequest {
			t.Errorf("status %d with %d bytes, want an answer of at most %d", w.Code, w.Body.Len(), certs.MaxRequest)
		}
	})
}
