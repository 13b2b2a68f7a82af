package wire

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestParseInstance(t *testing.T) {
	t.Parallel()
	instance := NewInstance()
	if other := NewInstance(); instance == other {
		t.Errorf("NewInstance twice = %s both times, want two instances", instance)
	}
	for name, tc := range map[string]struct {
		values []string
		want   Instance
	}{
		"good":       {values: []string{instance.String()}, want: instance},
		"upper case": {values: []string{strings.ToUpper(instance.String())}, want: instance},
		"none":       {},
		"empty":      {values: []string{""}},
		"zero":       {values: []string{strings.Repeat("0", 32)}},
		"short":      {values: []string{strings.Repeat("a", 31)}},
		"long":       {values: []string{strings.Repeat("a", 34)}},
		"huge":       {values: []string{strings.Repeat("a", 1<<16)}},
		"no digits":  {values: []string{strings.Repeat("g", 32)}},
		"half good":  {values: []string{strings.Repeat("a", 30) + "zz"}},
		"two":        {values: []string{instance.String(), instance.String()}},
	} {
		got := ParseInstance(http.Header{HeaderInstance: tc.values})
		if got != tc.want || got.Known() != (tc.want != Instance{}) {
			t.Errorf("%s: ParseInstance(%.40q) = %s, known %v; want %s", name, tc.values, got, got.Known(), tc.want)
		}
	}
}

// TestInstanceInHandshake: the instance travels over both transports, and only if there is one. The cloud that the edge
// dials by QUIC is told from where, and since when.
func TestInstanceInHandshake(t *testing.T) {
	t.Parallel()
	for _, instance := range []Instance{NewInstance(), {}} {
		headers, callers := make(chan http.Header, 1), make(chan Caller, 1)
		ca := wiretest.NewCA(t)
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			headers <- r.Header
		}))
		server.TLS = ca.ServerTLS(t)
		server.StartTLS()
		defer server.Close()
		o := DialOptions{
			URL: "wss://" + server.Listener.Addr().String(), TLS: ca.ClientTLS(t, "n1"), Instance: instance,
		}
		if _, err := DialWebSocket(t.Context(), o); err == nil {
			t.Error("DialWebSocket to a server without WebSockets = nil, want an error")
		}
		header := wait.Receive(t, "the WebSocket's header", headers)
		if got := ParseInstance(header); got != instance || len(header.Values(HeaderInstance)) > 0 != instance.Known() {
			t.Errorf("header of the WebSocket has instance %q, want %s if it is known", header.Values(HeaderInstance),
				instance)
		}
		cloud := newQUICCloud(t, func(c Caller) (AcceptOptions, error) {
			callers <- c
			return AcceptOptions{}, nil
		})
		q := cloud.options(cloud.addr, Features{})
		q.Instance = instance
		ctx, cancel := context.WithCancel(t.Context())
		conn, err := DialQUIC(ctx, q)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(CloseNormal, "") }()
		caller := wait.Receive(t, "the caller by QUIC", callers)
		values := caller.Header.Values(HeaderInstance)
		if got := ParseInstance(caller.Header); got != instance || len(values) > 0 != instance.Known() {
			t.Errorf("header by QUIC has instance %q, want %s if it is known", values, instance)
		}
		if caller.Remote == nil || caller.Since.IsZero() || len(caller.Chain) == 0 {
			t.Errorf("caller = from %v since %v with %d certificates, want all three", caller.Remote, caller.Since,
				len(caller.Chain))
		}
	}
}
