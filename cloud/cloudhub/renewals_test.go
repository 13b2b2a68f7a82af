package cloudhub

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/pkg/wire"
)

func TestLeasePace(t *testing.T) {
	type renewalRate struct {
		period time.Duration
		limit  int
	}
	for nodes, want := range map[int]renewalRate{
		0: {10 * time.Second, 15}, 1: {10 * time.Second, 15}, 500: {10 * time.Second, 75},
		1000: {10 * time.Second, 150},
		1500: {15 * time.Second, 150}, 2000: {20 * time.Second, 150}, 5000: {20 * time.Second, 375},
		100_000: {20 * time.Second, 7500},
	} {
		if got := (renewalRate{leasePeriod(nodes), leaseBudget(nodes, time.Second)}); got != want {
			t.Errorf("%d nodes: %+v, want %+v", nodes, got, want)
		}
	}
	if n := leaseBudget(1, 20*time.Millisecond); n != 1 {
		t.Errorf("leaseBudget(1, 20ms) = %d, want 1", n)
	}
}

func TestLeaseDue(t *testing.T) {
	at := func(seconds int) time.Time { return time.Unix(int64(seconds), 0) }
	const period = 20 * time.Second
	for name, test := range map[string]struct {
		lease leaseState
		now   time.Time
		want  bool
	}{
		"never renewed":              {leaseState{heard: at(100)}, at(100), true},
		"just renewed":               {leaseState{tried: at(100), heard: at(115)}, at(119), false},
		"a period later":             {leaseState{tried: at(100), heard: at(115)}, at(120), true},
		"nothing came since":         {leaseState{tried: at(100), heard: at(99)}, at(120), false},
		"failed just now":            {leaseState{tried: at(100), heard: at(100), failed: true}, at(102), false},
		"failed":                     {leaseState{tried: at(100), heard: at(100), failed: true}, at(103), true},
		"failed, nothing came since": {leaseState{tried: at(100), heard: at(90), failed: true}, at(103), true},
		"under way":                  {leaseState{tried: at(100), heard: at(125), busy: true}, at(130), false},
	} {
		if got := test.lease.due(test.now, period); got != test.want {
			t.Errorf("%s: due = %v, want %v", name, got, test.want)
		}
	}
}

func TestMostUrgent(t *testing.T) {
	list := func(tried ...int64) (l []*session) {
		for _, n := range tried {
			l = append(l, &session{tried: n})
		}
		return l
	}
	times := func(l []*session) (n []int64) {
		for _, s := range l {
			n = append(n, s.tried)
		}
		return n
	}
	if diff := cmp.Diff([]int64{0, 3, 5}, times(mostUrgent(list(9, 5, 0, 7, 3), 3))); diff != "" {
		t.Errorf("sessions mismatch (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int64{9, 5}, times(mostUrgent(list(9, 5), 3))); diff != "" {
		t.Errorf("sessions mismatch (-want +got):\n%s", diff)
	}
}

// TestLeasesAreSpread: of many nodes that connect at the same moment, each is renewed within a period, and never more
// than the API server is to be asked for; later renewals stay as far apart.
func TestLeasesAreSpread(t *testing.T) {
	t.Parallel()
	const nodes = 3000
	api := &api{}
	hub, err := New(Options{Downstream: newCluster(), Upstream: api, NodeLimit: nodes})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	sessions := make([]*session, nodes)
	for i := range sessions {
		conn := &link{features: wire.Features{Lease: true, Inventory: true}, heard: began, closed: make(chan string, 1)}
		s := newSession(hub, "n", conn)
		s.begun, s.ready = true, true
		sessions[i], hub.sessions[time.Duration(i).String()] = s, s
	}
	last := make([]int64, nodes)
	for second := range 61 {
		now := began.Add(time.Duration(second) * time.Second)
		before := api.beats
		for _, s := range sessions {
			s.kept.Store(hub.moment(now))
		}
		hub.sweep(now, time.Second)
		for i, s := range sessions {
			s.work.Wait()
			if s.tried == last[i] {
				if age := now.Sub(hub.timeOf(s.tried)); s.tried != 0 && age > longestLeasePeriod+2*time.Second {
					t.Fatalf("after %d s a lease is %v old, want at most %v", second, age,
						longestLeasePeriod+2*time.Second)
				}
				continue
			}
			last[i] = s.tried
		}
		if n := api.beats - before; n > leaseBudget(nodes, time.Second) {
			t.Fatalf("%d renewals in second %d, want at most %d", n, second, leaseBudget(nodes, time.Second))
		}
		if second == 20 && api.beats < nodes {
			t.Fatalf("%d leases renewed after a period, want all %d", api.beats, nodes)
		}
	}
	if want := 3 * nodes; api.beats < want-leaseBudget(nodes, time.Second) || api.beats > want+nodes/2 {
		t.Errorf("%d renewals in a minute, want about %d", api.beats, want)
	}
	for _, s := range sessions {
		s.closeLink(wire.CloseNormal, "")
		<-s.closed
	}
}

// TestSlowAPI: while renewals are not answered, no more than a step's are under way; then those go on that waited
// longest.
func TestSlowAPI(t *testing.T) {
	const nodes = 1000
	hub, err := New(Options{Downstream: newCluster(), Upstream: &api{}})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for i := range nodes {
		s := newSession(hub, "n", &link{
			features: wire.Features{Lease: true, Inventory: true}, heard: began, closed: make(chan string, 1),
		})
		s.begun, s.ready, s.tried = true, true, hub.moment(began.Add(-time.Hour))
		if i < leaseBudget(nodes, time.Second)-10 {
			s.renewal.Store(renewalUnderWay)
		}
		hub.sessions[time.Duration(i).String()] = s
	}
	hub.sweep(began, time.Second)
	started := 0
	for _, s := range hub.allSessions() {
		if s.tried == hub.moment(began) {
			started++
		}
		s.closeLink(wire.CloseNormal, "")
		<-s.closed
		s.work.Wait()
	}
	if started != 10 {
		t.Errorf("%d renewals begun, want 10", started)
	}
}
