package edgehub

import (
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
)

// TestConfigure: another cloud is connected to at once, with the certificate that the device has; what is of no use
// changes nothing.
func TestConfigure(t *testing.T) {
	ca := wiretest.NewCA(t)
	one, other := newUpstream(t, ca), newUpstream(t, ca)
	e := startEdge(t, ca, one.addr, with{settings: func(s *settings) { s.backoffMin, s.backoffMax = time.Hour, time.Hour }})
	e.told(1)
	c := config(e.files, other.addr)
	c.Heartbeat = 0
	if err := e.hub.Configure(c); err == nil {
		t.Error("a heartbeat of 0 is taken over")
	}
	c.Heartbeat, c.TLSCertFile = 60, "/none"
	if err := e.hub.Configure(c); err != nil {
		t.Fatal(err)
	}
	if e.told(2).Connected || !e.told(3).Connected {
		t.Error("news of the link are wrong")
	}
	other.connected(1)
	if n := len(one.seen()); n != 1 {
		t.Errorf("%d sessions with the first cloud; want the one from before", n)
	}
	if s := e.hub.State(); !s.Connected || s.Server != other.addr {
		t.Errorf("state %+v", s)
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
