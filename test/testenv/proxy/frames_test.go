package proxy

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gorilla/websocket"

	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// TestFrames: each mischief does to one message what it says, in both directions, also to large ones, which travel in
// several frames, and to compressed ones.
func TestFrames(t *testing.T) {
	long := strings.Repeat("long ", 20000)
	for _, tc := range []struct {
		do   Mischief
		want []string
		ends bool
	}{
		{"", []string{"0", "1", long, "3", "4", "5", "6", "7"}, false},
		{Drop, []string{"0", "1", "3", "4", "5", "6", "7"}, false},
		{Duplicate, []string{"0", "1", long, long, "3", "4", "5", "6", "7"}, false},
		{Delay, []string{"0", "1", long, "3", "4", "5", "6", "7"}, false},
		{Reorder, []string{"0", "1", "3", "4", "5", "6", "7", long}, false},
		{Echo, []string{"0", "1", long, "3", "4", "5", "6", "7", long}, false},
		{CutFrame, []string{"0", "1"}, true},
	} {
		for _, dir := range []Direction{ToCloud, ToEdge} {
			t.Run(fmt.Sprint(tc.do, dir), func(t *testing.T) {
				ends, f, delays := link(t)
				from, to := ends[dir], ends[1-dir]
				var got []string
				for i, text := range []string{"0", "1", long, "3", "4", "5", "6", "7"} {
					if i == 2 && tc.do != "" {
						got = readAll(t, to, 2) // so that it is done to the third
						f.Arm(dir, tc.do)
					}
					from.EnableWriteCompression(i%2 == 0)
					if err := from.WriteMessage(websocket.TextMessage, []byte(text)); err != nil && !tc.ends {
						t.Fatal(err)
					}
				}
				got = append(got, readAll(t, to, len(tc.want)-len(got))...)
				delayed := 0
				for len(delays) > 0 {
					if d := <-delays; d < 20*time.Millisecond || d > time.Minute {
						t.Errorf("a message was delayed by %v, want 20 ms to a minute", d)
					}
					delayed++
				}
				if want := map[bool]int{true: 1}[tc.do == Delay]; delayed != want {
					t.Errorf("%d messages were delayed, want %d", delayed, want)
				}
				if tc.ends {
					_ = to.SetReadDeadline(time.Now().Add(wait.Max()))
					if _, more, err := to.ReadMessage(); err == nil {
						t.Errorf("after the cut came %.20q, want the end", more)
					} else if strings.Contains(err.Error(), "timeout") {
						t.Errorf("read after the cut: %v, want the end of the connection", err)
					}
				} else { // nothing else came before a last message
					if err := from.WriteMessage(websocket.TextMessage, []byte("last")); err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff([]string{"last"}, readAll(t, to, 1)); diff != "" {
						t.Errorf("messages after those that were sent (-want +got):\n%.500s", diff)
					}
				}
				if n := f.Done()[tc.do]; tc.do != "" && n != 1 {
					t.Errorf("%s was done %d times, want once", tc.do, n)
				}
				if tc.do == Reorder || tc.do == Echo { // after how many is left to chance
					at := len(got) - 1 - slices.Index(reversed(got), long)
					if at < 3 || at > 7 {
						t.Errorf("%s: it came at place %d, want 3 to 7", tc.do, at)
					}
					got = append(slices.Delete(got, at, at+1), long)
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("messages mismatch (-want +got):\n%.500s", diff)
				}
			})
		}
	}
}

func reversed(in []string) []string {
	out := slices.Clone(in)
	slices.Reverse(out)
	return out
}

// readAll reads so many messages, or those until the link ends.
func readAll(t *testing.T, c *websocket.Conn, n int) (got []string) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(wait.Max())); err != nil {
		t.Fatal(err)
	}
	for len(got) < n {
		_, data, err := c.ReadMessage()
		if err != nil {
			return got
		}
		got = append(got, string(data))
	}
	return got
}

// link makes a WebSocket through a man in the middle; its ends are those of the edge and the cloud. The man in the
// middle sends by how long it would delay a message, and does not.
func link(t *testing.T) ([2]*websocket.Conn, *Frames, <-chan time.Duration) {
	t.Helper()
	delays := make(chan time.Duration, 10)
	ca := wiretest.NewCA(t)
	accepted := make(chan *websocket.Conn, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		upgrader := websocket.Upgrader{EnableCompression: true}
		c, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		accepted <- c
	}))
	server.TLS = ca.ServerTLS(t)
	server.StartTLS()
	t.Cleanup(server.Close)
	client := ca.ClientTLS(t, "edge-1").Certificates[0]
	f, err := StartFrames(FramesOptions{
		Target:   server.Listener.Addr().String(),
		Server:   ca.Server(t),
		Roots:    ca.Pool(),
		Client:   func() (tls.Certificate, error) { return client, nil },
		Seed:     1,
		HeldTime: time.Hour,
		Sleep:    func(d time.Duration) { delays <- d },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	dialer := websocket.Dialer{
		TLSClientConfig: ca.ClientTLS(t, "edge-1"), EnableCompression: true, WriteBufferSize: 4096,
	}
	edge, _, err := dialer.Dial("wss://"+f.Addr()+"/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	cloud := <-accepted
	t.Cleanup(func() { _, _ = edge.Close(), cloud.Close() })
	return [2]*websocket.Conn{ToCloud: edge, ToEdge: cloud}, f, delays
}
