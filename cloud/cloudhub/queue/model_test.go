package queue

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/pkg/resource"
)

var long = flag.Bool("long", false, "run the random tests in their long form")

// sent is a message on the way to the peer, or what was acked.
type sent struct {
	id    string
	op    Op
	key   resource.Key
	state State
}

// fixture is a cloud and a peer with a link between them that loses, doubles and cuts.
type fixture struct {
	t       *testing.T
	rnd     *rand.Rand
	q       *Queue
	now     time.Time
	desired map[resource.Key]State
	// peer is what the peer really holds, records what upstream's sync objects say of it.
	peer, records map[resource.Key]State
	inventory     bool
	down          []sent   // to the peer
	up            []string // acks; a "!" before an id is a refusal
	waits         map[resource.Key]time.Time
	ids           map[string]sent
	rv, uid, n    int
	lossy         bool
	slow          bool // it takes long to find out what the peer is to have
	turns         []found
}

func newFixture(t *testing.T, seed uint64) *fixture {
	w := &fixture{t: t, rnd: rand.New(rand.NewPCG(seed, 7)), now: time.Unix(0, 0), desired: map[resource.Key]State{},
		peer: map[resource.Key]State{}, records: map[resource.Key]State{}}
	w.inventory = seed%2 == 0
	w.lossy, w.slow = seed%3 != 0, seed%5 != 0
	w.connect()
	return w
}

func (w *fixture) connect() {
	opts := Options{Window: 16, Resend: 5 * time.Second, Tries: 3, Backoff: time.Second, MaxBackoff: 20 * time.Second}
	held := map[resource.Key]State{}
	if w.inventory {
		for k, s := range w.peer {
			held[k] = State{UID: s.UID, Version: s.Version}
		}
	} else {
		opts.Window = 1
		for k, s := range w.records {
			held[k] = State{UID: s.UID, ResourceVersion: s.ResourceVersion}
		}
	}
	w.q = New(opts)
	w.turns, w.down, w.up = nil, nil, nil
	w.waits, w.ids = map[resource.Key]time.Time{}, map[string]sent{}
	var keys []resource.Key
	for k := range w.desired {
		keys = append(keys, k)
	}
	w.q.Reset(held, keys)
}

func (w *fixture) change() {
	key := pod(fmt.Sprint(w.rnd.IntN(6)))
	w.rv++
	old, ok := w.desired[key]
	switch {
	case !ok || w.rnd.IntN(8) == 0:
		w.uid++
		w.desired[key] = State{
			UID: types.UID(fmt.Sprint("u", w.uid)), Version: fmt.Sprint("v", w.rv), ResourceVersion: fmt.Sprint(w.rv),
		}
	case w.rnd.IntN(4) == 0:
		delete(w.desired, key)
	case w.rnd.IntN(3) == 0: // only the status
		old.ResourceVersion = fmt.Sprint(w.rv)
		w.desired[key] = old
	default:
		old.ResourceVersion, old.Version = fmt.Sprint(w.rv), fmt.Sprint("v", w.rv)
		w.desired[key] = old
	}
	w.q.Mark(key)
}

// next is the turn of any key, the doubtful ones first.
func (q *Queue) next(now time.Time) (resource.Key, bool) {
	if key, ok := q.NextDoubtful(now); ok {
		return key, true
	}
	return q.Next(now)
}

// found is what the peer is to have of a key, as it was at the beginning of the key's turn.
type found struct {
	key  resource.Key
	want *Desired
}

// send lets the queue send what it wants to. Until the fixture settles, finding out may take long for some keys.
func (w *fixture) send() {
	for {
		key, ok := w.q.next(w.now)
		if ok {
			for _, other := range w.turns {
				if other.key == key {
					w.t.Fatalf("%v has a second turn, want one at a time", key)
				}
			}
			f := found{key: key}
			if s, ok := w.desired[key]; ok {
				f.want = &Desired{State: s}
			}
			w.turns = append(w.turns, f)
		}
		if len(w.turns) == 0 || w.slow && !ok {
			return
		}
		if w.slow && len(w.turns) < 4 && w.rnd.IntN(3) == 0 {
			continue
		}
		i := 0
		if w.slow {
			i = w.rnd.IntN(len(w.turns))
		}
		f := w.turns[i]
		w.turns = slices.Delete(w.turns, i, i+1)
		if w.slow && w.rnd.IntN(10) == 0 {
			w.q.Fail(f.key, w.now)
			continue
		}
		w.take(f)
	}
}

// take sends what a turn comes to, and checks what is promised for each key.
func (w *fixture) take(f found) {
	act := w.q.Take(f.key, f.want, func() string { w.n++; return fmt.Sprint("m", w.n) }, w.now)
	if act.Op == None {
		return
	}
	m := sent{act.ID, act.Op, f.key, act.State}
	if other, ok := w.ids[act.ID]; ok && other.state != m.state {
		w.t.Fatalf("id %s was used for %+v and %+v, want it for one", act.ID, other, m)
	}
	w.ids[act.ID] = m
	if at, ok := w.waits[f.key]; ok && w.now.Sub(at) < 5*time.Second {
		w.t.Fatalf("%+v was sent while another waits for its ack since %v, want that after 5s", m, w.now.Sub(at))
	}
	w.waits[f.key] = w.now
	if _, ok := w.records[f.key]; !ok && act.Op != Delete {
		w.records[f.key] = State{UID: act.State.UID, ResourceVersion: "0"}
	}
	w.down = append(w.down, m)
	if _, unacked := w.q.Len(); unacked > 40 {
		w.t.Fatalf("%d messages wait for an ack, want at most 40", unacked)
	}
}

// deliver brings the next message to the peer, which stores it and acks, or refuses.
func (w *fixture) deliver() {
	if len(w.down) == 0 {
		return
	}
	m := w.down[0]
	w.down = w.down[1:]
	if w.lossy && w.rnd.IntN(6) == 0 {
		return // lost
	}
	for range 1 + w.rnd.IntN(6)/5 { // some come twice
		if w.lossy && w.rnd.IntN(10) == 0 {
			w.up = append(w.up, "!"+m.id)
			return
		}
		if m.op == Delete {
			if w.peer[m.key].UID == m.state.UID {
				delete(w.peer, m.key)
			}
		} else {
			w.peer[m.key] = m.state
		}
		w.up = append(w.up, m.id)
	}
}

func (w *fixture) answer() {
	if len(w.up) == 0 {
		return
	}
	i := 0
	if w.lossy {
		i = w.rnd.IntN(len(w.up)) // in any order
	}
	id := w.up[i]
	w.up = append(w.up[:i:i], w.up[i+1:]...)
	if id[0] == '!' {
		if a, ok := w.q.Nack(id[1:], w.now); ok {
			delete(w.waits, a.Key)
		}
		return
	}
	if w.lossy && w.rnd.IntN(8) == 0 {
		return
	}
	a, ok := w.q.Ack(id, w.now)
	if !ok {
		return
	}
	delete(w.waits, a.Key)
	if a.Op == Delete {
		delete(w.records, a.Key)
	} else {
		w.records[a.Key] = State{UID: a.State.UID, ResourceVersion: a.State.ResourceVersion}
	}
}

func (w *fixture) step() {
	switch n := w.rnd.IntN(20); {
	case n < 4:
		w.change()
	case n < 9:
		w.send()
	case n < 14:
		w.deliver()
	case n < 18:
		w.answer()
	case n < 19:
		w.now = w.now.Add(time.Duration(w.rnd.IntN(4000)) * time.Millisecond)
	case w.rnd.IntN(12) == 0:
		w.connect()
	}
}

// ackAll runs without losses until nothing more happens.
func (w *fixture) ackAll() {
	for range 10000 {
		w.send()
		for len(w.down) > 0 {
			w.deliver()
		}
		for len(w.up) > 0 {
			w.answer()
		}
		at := w.q.Wake(w.now)
		if at.IsZero() && !w.q.Doubtful() {
			return
		}
		if at.After(w.now) {
			w.now = at
		}
	}
	w.t.Fatalf("still work to do at %v, want the queue to come to rest", w.now)
}

// TestRandomRuns: after any sequence of changes, losses, doubles, refusals and reconnects the peer has what it is
// to have, the records of a peer without an inventory say so, and nothing is sent any more.
func TestRandomRuns(t *testing.T) {
	t.Parallel()
	runs := 500
	if *long {
		runs = 30000
	}
	for seed := range runs {
		w := newFixture(t, uint64(seed))
		for range 300 {
			w.step()
		}
		w.lossy, w.slow = false, false
		w.ackAll()
		want := map[resource.Key]string{}
		for k, s := range w.desired {
			want[k] = string(s.UID) + s.Version
		}
		got, recorded := map[resource.Key]string{}, map[resource.Key]string{}
		for k, s := range w.peer {
			got[k] = string(s.UID) + s.Version
		}
		for k, s := range w.records {
			recorded[k] = string(s.UID) + w.desired[k].Version
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("seed %d: the peer's objects mismatch (-want +got):\n%s", seed, diff)
		}
		if diff := cmp.Diff(want, recorded); diff != "" && !w.inventory {
			t.Fatalf("seed %d: the records mismatch (-want +got):\n%s", seed, diff)
		}
		n := w.n
		for k := range w.desired {
			w.q.Mark(k)
		}
		w.send()
		if w.n != n || !w.q.Synced() {
			t.Fatalf("seed %d: at rest: %d sent, synced %v; want %d, true", seed, w.n, w.q.Synced(), n)
		}
		if w.inventory {
			w.connect()
			w.send()
			if w.n != n {
				t.Fatalf("seed %d: after a reconnect with nothing changed: %d sent, want %d as before", seed, w.n, n)
			}
		}
	}
}

// TestNothingTwice: without losses each state goes over once, whatever happens between.
func TestNothingTwice(t *testing.T) {
	t.Parallel()
	runs := 60
	if *long {
		runs = 5000
	}
	for seed := range runs {
		w := newFixture(t, uint64(seed*6)) // inventory, no losses
		once := map[string]bool{}
		for range 300 {
			if w.rnd.IntN(3) == 0 {
				w.change()
			}
			before := len(w.down)
			w.send()
			for _, m := range w.down[before:] {
				id := fmt.Sprint(m.key, m.op == Delete, m.state.UID, m.state.Version)
				if once[id] {
					t.Fatalf("seed %d: %+v was sent twice, want once", seed, m)
				}
				once[id] = true
			}
			w.deliver()
			w.answer()
		}
	}
}
