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
	"time"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
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
				asking, cancel := context.WithTimeout(context.Background(), time.Minute)
				answer, err := e.ask(asking, m)
				cancel()
				switch {
				case err != nil:
					t.Errorf("request without an answer: %v", err)
				case answer.Header.ParentID != m.Header.ID:
					t.Error("the answer to another request")
				case answer.Route.Operation == model.OpError:
					failed.Add(1)
					time.Sleep(time.Millisecond)
				case string(answer.ContentData()) != m.Route.Resource:
					t.Errorf("%s: answer %s", m.Route.Resource, answer.ContentData())
				default:
					answered.Add(1)
				}
			}
		})
	}
	const seed = 3
	random := rand.New(rand.NewPCG(seed, seed))
	// Enough of both has to be seen; a loaded machine answers less between two faults.
	for round := 0; round < 60 || round < 600 && (answered.Load() < 100 || failed.Load() == 0); round++ {
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
		time.Sleep(time.Duration(random.IntN(60)) * time.Millisecond)
	}
	proxy.CutAfter(-1)
	stop()
	askers.Wait()
	// The last fault may still have to be noticed.
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		answer, err := e.ask(t.Context(), request("default/secret/last"))
		if err == nil && string(answer.ContentData()) == "default/secret/last" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("after the faults (seed %d): %v, %v", seed, answer, err)
		}
	}
	if good, bad := answered.Load(), failed.Load(); good < 100 || bad == 0 {
		t.Errorf("%d requests were answered, %d failed: the test did not test", good, bad)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, link := range e.links {
		if link.Connected != (i%2 == 0) {
			t.Fatalf("news %d of the link: connected is %v", i, link.Connected)
		}
	}
}

// TestSlowLink: a message that takes longer than heartbeat and write limit arrives, and costs not the link. One of some
// tries has to show it: on a machine that is held up a link may make no progress for so long.
func TestSlowLink(t *testing.T) {
	var err error
	for range 5 {
		if err = slowRequest(t); err == nil {
			return
		}
		t.Log(err)
	}
	t.Error(err)
}

func slowRequest(t *testing.T) error {
	u := newUpstream(t, wiretest.NewCA(t))
	u.answer = echo
	proxy := wiretest.NewProxy(t, u.addr)
	e := startEdge(t, u.ca, proxy.Addr(), with{settings: func(s *settings) {
		s.heartbeat = time.Second
		s.targets[0].limits.ReadTimeout, s.targets[0].limits.WriteTimeout = silence(s.heartbeat), time.Second
	}})
	e.told(1)
	proxy.Pace(400 << 10)
	m := request("default/secret/large")
	m.Content = json.RawMessage(`"` + strings.Repeat("x", 3<<19) + `"`)
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	answer, err := e.ask(ctx, m)
	if err != nil || answer.Route.Operation != model.OpResponse || len(u.seen()) != 1 {
		return fmt.Errorf("%v, %v, %d connections", answer, err, len(u.seen()))
	}
	if took := time.Since(began); took < 3*time.Second {
		t.Errorf("it took %v: the link was not slow", took)
	}
	return nil
}

// TestStuckLink: a cloud that takes nothing any more holds senders up, and then they learn it.
func TestStuckLink(t *testing.T) {
	u := newUpstream(t, wiretest.NewCA(t))
	proxy := wiretest.NewProxy(t, u.addr)
	e := startEdge(t, u.ca, proxy.Addr(), with{settings: func(s *settings) {
		s.rate, s.burst = 1e6, 1000
		s.targets[0].limits.ReadTimeout, s.targets[0].limits.WriteTimeout = time.Minute, 500*time.Millisecond
	}})
	e.told(1)
	proxy.Silence()
	content := json.RawMessage(`"` + strings.Repeat("x", 200<<10) + `"`)
	var askers sync.WaitGroup
	for i := range 100 { // more than all buffers on the way hold
		askers.Go(func() {
			m := request(fmt.Sprintf("default/secret/%d", i))
			m.Content = content
			answer, err := e.ask(t.Context(), m)
			if err != nil && !errors.Is(err, context.DeadlineExceeded) || err == nil && answer.Route.Operation != model.OpError {
				t.Errorf("answer %v, %v", answer, err)
			}
		})
	}
	askers.Wait()
	if s := e.told(2); s.Connected {
		t.Error("the link was not given up")
	}
	e.reason("took nothing for 500ms")
	proxy.Resume()
	e.told(3)
}

// TestWrongCloud: one that takes connections only to end them is asked less and less.
func TestWrongCloud(t *testing.T) {
	u := newUpstream(t, wiretest.NewCA(t))
	e := startEdge(t, u.ca, u.addr, with{settings: func(s *settings) { s.backoffMin, s.backoffMax = 10*time.Millisecond, time.Hour }})
	end := time.Now().Add(1500 * time.Millisecond)
	for n := 1; time.Now().Before(end) || n <= 3 && time.Since(end) < time.Minute; {
		if len(u.seen()) >= n {
			n++
			u.drop()
		}
		time.Sleep(time.Millisecond)
	}
	if n := len(u.seen()); n < 3 || n > 20 {
		t.Errorf("%d connections in 1.5 s; want less and less", n)
	}
	_ = e
}
