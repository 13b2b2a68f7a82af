package edgehub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestRandomFaults: while a network does its worst, each request is answered, by its own answer or by an error, in
// time; news of the link alternate; and when the faults are over, all works.
func TestRandomFaults(t *testing.T) {
	u := newUpstream(t, wiretest.NewCA(t))
	u.answer = echo
	proxy := wiretest.NewProxy(t, u.addr)
	e := startEdge(t, u.ca, proxy.Addr(), with{settings: func(s *settings) {
		s.rate, s.burst = 1e6, 1000
		impatient(s)
	}})
	e.told(1)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var askers sync.WaitGroup
	var answered, failed atomic.Int64
	for a := range 4 {
		askers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				m := request(fmt.Sprintf("default/secret/%d-%d", a, i))
				m.Content = json.RawMessage(`"` + strings.Repeat("x", i*37%9000) + `"`)
				asking, cancel := context.WithTimeout(context.Background(), wait.Max())
				answer, err := e.ask(asking, m)
				cancel()
				switch {
				case err != nil:
					t.Errorf("request without an answer: %v", err)
				case answer.Header.ParentID != m.Header.ID:
					t.Errorf("the answer is to request %s, want %s", answer.Header.ParentID, m.Header.ID)
				case answer.Route.Operation == model.OpError:
					failed.Add(1)
					time.Sleep(time.Millisecond)
				case string(answer.ContentData()) != m.Route.Resource:
					t.Errorf("answer %s, want %s", answer.ContentData(), m.Route.Resource)
				default:
					answered.Add(1)
				}
			}
		})
	}
	const seed = 3
	random := rand.New(rand.NewPCG(seed, seed))
	// After most faults the link is let work for some requests. Enough of both has to be seen.
	rounds := 60
	if *long {
		rounds = 600
	}
	for round := 0; round < rounds || answered.Load() < 100 || failed.Load() == 0; round++ {
		switch random.IntN(5) {
		case 0:
			proxy.Cut()
		case 1:
			proxy.CutAfter(random.Int64N(20000))
		case 2:
			proxy.Silence()
			time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
			proxy.Resume()
		case 3:
			u.drop()
		case 4:
			e.hub.Reconnect()
		}
		if enough := answered.Load() + random.Int64N(8) - 2; enough > 0 {
			wait.True(t, "answers after a fault", func() bool { return answered.Load() >= enough })
		}
	}
	proxy.CutAfter(-1)
	stop()
	askers.Wait()
	// The last fault may still have to be noticed.
	wait.Until(t, fmt.Sprintf("the link to work after the faults (seed %d)", seed), func() error {
		answer, err := e.ask(t.Context(), request("default/secret/last"))
		if err == nil && string(answer.ContentData()) != "default/secret/last" {
			return fmt.Errorf("answer %s", answer.ContentData())
		}
		return err
	})
	t.Logf("%d requests were answered, %d failed", answered.Load(), failed.Load())
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, link := range e.links {
		if link.Connected != (i%2 == 0) {
			t.Fatalf("news %d of the link: connected is %v, want %v", i, link.Connected, i%2 == 0)
		}
	}
}

// TestSlowLink: a message that takes longer than heartbeat and write limit arrives, and costs not the link.
func TestSlowLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		links, proxy, e := simulateOurs(t, func(s *settings) {
			s.heartbeat = time.Second
			impatient(s)
			s.targets[0].limits.WriteTimeout = time.Second
		})
		e.told(1)
		proxy.LimitRate(400 << 10)
		m := request("default/secret/large")
		m.Content = json.RawMessage(`"` + strings.Repeat("x", 3<<19) + `"`)
		began := time.Now()
		answer, err := e.ask(t.Context(), m)
		if err != nil || answer.Route.Operation != model.OpResponse || links.Load() != 1 {
			t.Errorf("answer %v, %v, over %d links; want a response over one", answer, err, links.Load())
		}
		if took := time.Since(began); took < 3*time.Second {
			t.Errorf("it took %v, want at least 3s: the link was not slow", took)
		}
	})
}

// TestStuckLink: a cloud that takes nothing any more holds senders up, and then they learn it.
func TestStuckLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, proxy, e := simulateOurs(t, func(s *settings) {
			s.rate, s.burst = 1e6, 1000
			s.targets[0].limits.ReadTimeout, s.targets[0].limits.WriteTimeout = time.Minute, 500*time.Millisecond
		})
		e.told(1)
		proxy.Silence()
		content := json.RawMessage(`"` + strings.Repeat("x", 200<<10) + `"`)
		var askers sync.WaitGroup
		for i := range 100 {
			askers.Go(func() {
				m := request(fmt.Sprintf("default/secret/%d", i))
				m.Content = content
				answer, err := e.ask(t.Context(), m)
				if err != nil && !errors.Is(err, context.DeadlineExceeded) ||
					err == nil && answer.Route.Operation != model.OpError {
					t.Errorf("answer %v, %v; want an error", answer, err)
				}
			})
		}
		askers.Wait()
		if s := e.told(2); s.Connected {
			t.Errorf("news 2 of the link: %+v, want the loss", s)
		}
		e.reason("took nothing for 500ms")
		proxy.Resume()
		e.told(3)
	})
}

// TestWrongCloud: one that takes connections only to end them is asked less and less.
func TestWrongCloud(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u, _, _ := simulate(t, time.Hour, func(s *settings) {
			s.heartbeat, s.targets[0].limits.ReadTimeout = time.Minute, time.Hour
			s.backoffMin, s.backoffMax = time.Second, time.Hour
		})
		n := 0
		for began := time.Now(); time.Since(began) < 20*time.Hour; time.Sleep(10 * time.Second) {
			if len(u.seen()) > n {
				n++
				u.drop()
			}
		}
		// Twelve while the waits grow to an hour, then one in half an hour on average.
		if n < 30 || n > 200 {
			t.Errorf("%d connections in 20 h, want 30 to 200", n)
		}
	})
}
