package nodecert_test

import (
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"unicode"

	"github.com/edgecore-io/edgecore/edgehub/nodecert"
	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// write answers a request with text, whatever that is in HTTP.
func write(w http.ResponseWriter, text string) error {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return err
	}
	_, _ = conn.Write([]byte(text)) // fails when the client has read enough
	_ = conn.Close()                // so does this
	return nil
}

// FuzzAnswer: whatever answers a device that joins, its head, its CA and its certificate take memory in proportion to a
// small answer, no file is written for it, and the error has one line that is not long.
func FuzzAnswer(f *testing.F) {
	const ok = "HTTP/1.1 200 OK\r\n"
	f.Add(uint8(0), ok, "a: b\r\n", uint32(200_000), "\r\nx")
	f.Add(uint8(1), ok, "a:\r\n", uint32(200_000), "\r\nx")
	f.Add(uint8(0), ok, "Set-Cookie: a=b\r\n", uint32(50_000), "\r\n")
	f.Add(uint8(0), "", "HTTP/1.1 103 Early Hints\r\na: b\r\n\r\n", uint32(50_000), ok+"\r\n")
	f.Add(uint8(0), ok+"\r\n", "x", uint32(4<<20), "")
	f.Add(uint8(1), ok+"Transfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n", uint32(500_000), "0\r\n\r\n")
	f.Add(uint8(1), ok+"Transfer-Encoding: chunked\r\n\r\n0\r\n", "a: b\r\n", uint32(500_000), "\r\n")
	f.Add(uint8(1), ok+"Content-Encoding: gzip\r\n\r\n", string(membound.Gzip(f, make([]byte, 16<<20))), uint32(1), "")
	f.Add(uint8(1), "HTTP/1.1 401 No\r\n\r\n", "certificate\x1b[2J\r\n", uint32(9_000), "")
	f.Add(uint8(1), "HTTP/1.1 302 Found\r\nLocation: /", "a", uint32(9_000), "\r\n\r\n")
	clk := newClock()
	c := newCloud(f, clk, nil)
	token := c.token(f, "")
	f.Fuzz(func(t *testing.T, path uint8, head, part string, times uint32, tail string) {
		const most = 4 << 20
		text := head + strings.Repeat(part, min(int(times), most/max(len(part), 1))) + tail
		o := &oldCloud{t: t, ca: c.Authority, now: clk.now}
		o.answer = func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != []string{"/ca.crt", "/edge.crt"}[path%2] {
				return false
			}
			if err := write(w, text); err != nil {
				t.Error(err)
			}
			return true
		}
		opts := c.options(t, token)
		opts.Server = o.start(t)
		var err error
		// What is counted has both ends of two TLS connections. Of the answer, 1 MiB is read.
		membound.Check(t, 10<<20, func() { err = nodecert.New(opts).Ensure(t.Context()) })
		if err == nil {
			t.Fatal("a certificate was taken, want an error")
		}
		if line := err.Error(); len(line) > 2<<10 || strings.ContainsFunc(line, unicode.IsControl) {
			t.Errorf("the error has %d bytes, %.300q; want one line of at most 2 KiB", len(line), line)
		}
		if _, err := os.Stat(opts.Files.Key); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("Stat(%s) = %v, want that there is no file", opts.Files.Key, err)
		}
	})
}
