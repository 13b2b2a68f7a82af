package edgehub

import (
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
)

// TestConfigure: another cloud is connected to at once, with the certificate that the device has; what is invalid
// changes nothing.
func TestConfigure(t *testing.T) {
	ca := wiretest.NewCA(t)
	one, other := newUpstream(t, ca), newUpstream(t, ca)
	e := startEdge(t, ca, one.addr, with{settings: func(s *settings) {
		s.backoffMin, s.backoffMax = time.Hour, time.Hour
	}})
	e.told(1)
	c := config(e.files, other.addr)
	c.Heartbeat = 0
	if err := e.hub.Configure(c); err == nil {
		t.Error("Configure with a heartbeat of 0 = nil, want an error")
	}
	c.Heartbeat, c.TLSCertFile = 60, "/none"
	if err := e.hub.Configure(c); err != nil {
		t.Fatal(err)
	}
	if lost, again := e.told(2), e.told(3); lost.Connected || !again.Connected {
		t.Errorf("news of the link = %+v and %+v, want it lost and connected again", lost, again)
	}
	other.connected(1)
	if n := len(one.seen()); n != 1 {
		t.Errorf("%d sessions with the first cloud; want the one from before", n)
	}
	if s := e.hub.State(); !s.Connected || s.Server != other.addr {
		t.Errorf("state %+v, want connected with server %s", s, other.addr)
	}
	// With no link and an hour to wait, it is taken over at once, too.
	other.drop()
	e.told(4)
	if err := e.hub.Configure(config(e.files, one.addr)); err != nil {
		t.Fatal(err)
	}
	e.told(5)
	one.connected(2)
}
