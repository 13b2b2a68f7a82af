package channels

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// TestRun talks to a runtime that sends back what it gets, the size of the terminal first, and ends with an outcome.
func TestRun(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := (&websocket.Upgrader{Subprotocols: []string{protocol}}).Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		send := func(channel byte, text string) {
			if err := conn.WriteMessage(websocket.BinaryMessage, append([]byte{channel}, text...)); err != nil {
				t.Error(err)
			}
		}
		send(stdout, "")
		got := map[byte]string{}
		for got[stdin] == "" || got[resize] == "" {
			_, data, err := conn.ReadMessage()
			if err != nil {
				t.Error(err)
				return
			}
			got[data[0]] += string(data[1:])
		}
		send(stdout, got[resize])
		send(stderr, got[stdin])
		send(outcome,
			`{"status":"Failure","reason":"NonZeroExitCode","message":"m","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}`)
	}))
	defer server.Close()
	sizes := make(chan Size, 1)
	sizes <- Size{80, 24}
	var out, errOut bytes.Buffer
	code, err := Run(t.Context(), server.URL, Streams{
		In:    strings.NewReader("typed"),
		Out:   &out,
		Err:   &errOut,
		Sizes: sizes,
	})
	if code != 7 || err != nil || out.String() != `{"Width":80,"Height":24}` || errOut.String() != "typed" {
		t.Errorf("%d, %v, %q, %q; want 7, no error, the size and what was typed",
			code, err, out.String(), errOut.String())
	}
}

func TestRunRefused(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "token expired", http.StatusNotFound)
	}))
	defer server.Close()
	if _, err := Run(t.Context(), server.URL, Streams{Out: io.Discard}); err == nil ||
		!strings.Contains(err.Error(), "token expired") {
		t.Errorf("err = %v, want an error with \"token expired\"", err)
	}
}

func TestDecode(t *testing.T) {
	for text, want := range map[string]struct {
		code int
		err  string
	}{
		`{"status":"Success"}`:                     {},
		`{"status":"Failure","message":"no such"}`: {0, "no such"},
		`{"status":"Failure","reason":"NonZeroExitCode","message":"m","details":{"causes":[{"reason":"ExitCode","message":"x"}]}}`: {
			0, "m",
		},
	} {
		code, err := decode([]byte(text))
		if code != want.code || (err == nil) != (want.err == "") || err != nil && err.Error() != want.err {
			t.Errorf("%s: %d, %v; want %d, %q", text, code, err, want.code, want.err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(
		`{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"1"}]}}`))
	for _, text := range membound.JSON(`{"details":{"causes":`, `}}`, 64<<10) {
		f.Add([]byte(text))
	}
	f.Add([]byte(membound.Repeat(`{`, `"details":{"causes":[{}]}`, `,`, `}`, 64<<10)))
	f.Fuzz(func(t *testing.T, data []byte) {
		var code int
		var err error
		// An empty cause has 3 bytes and becomes a struct of 48 in a list that grows by a quarter.
		membound.Check(t, membound.Linear(len(data), 256), func() { code, err = decode(data) })
		if code != 0 && (err != nil || code > 255) {
			t.Errorf("%q: %d, %v; want an error, or a code of at most 255", data, code, err)
		}
	})
}
