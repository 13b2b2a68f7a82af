package edgehub

import (
	"net/http"
	"testing"

	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
)

// TestInstance: the agent tells the cloud the same instance with each connection, also after a change of the
// configuration, and another one after a restart.
func TestInstance(t *testing.T) {
	u := newUpstream(t, wiretest.NewCA(t))
	u.answer = echo
	instanceOf := func(r *http.Request) wire.Instance { return wire.ParseInstance(r.Header) }
	e := startEdge(t, u.ca, u.addr, with{})
	u.connected(1)
	e.hub.Reconnect()
	u.connected(2)
	if err := e.hub.Configure(config(e.files, u.addr)); err != nil {
		t.Fatal(err)
	}
	u.connected(3)
	startEdge(t, u.ca, u.addr, with{})
	u.connected(4)
	seen := u.seen()
	first := instanceOf(seen[0])
	if !first.Known() {
		t.Errorf("header %s = %q, want an instance", wire.HeaderInstance, seen[0].Header.Values(wire.HeaderInstance))
	}
	for i := 1; i <= 2; i++ {
		if got := instanceOf(seen[i]); got != first {
			t.Errorf("instance of connection %d of one agent = %s, want %s", i, got, first)
		}
	}
	if got := instanceOf(seen[3]); !got.Known() || got == first {
		t.Errorf("instance after a restart = %s, want another one than %s", got, first)
	}
}

// TestInstanceGiven: the instance of the options is the one that is told.
func TestInstanceGiven(t *testing.T) {
	u := newUpstream(t, wiretest.NewCA(t))
	want := wire.NewInstance()
	startEdge(t, u.ca, u.addr, with{options: func(o *Options) { o.Instance = want }})
	u.connected(1)
	if got := wire.ParseInstance(u.seen()[0].Header); got != want {
		t.Errorf("instance = %s, want %s", got, want)
	}
}
