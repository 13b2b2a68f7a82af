package queue

import (
	"cmp"
	"maps"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/pkg/resource"
)

// holds is what the peer holds now, as it tells it.
func (w *fixture) holds() map[resource.Key]State {
	held := map[resource.Key]State{}
	for k, s := range w.peer {
		held[k] = State{UID: s.UID, Version: s.Version}
	}
	return held
}

// tell brings what the peer told that it holds, which may be older than what it acked since.
func (w *fixture) tell(held map[resource.Key]State) {
	w.waits = map[resource.Key]time.Time{}
	byName := func(a, b resource.Key) int { return cmp.Compare(a.Name, b.Name) }
	w.q.Reset(maps.Clone(held), slices.SortedFunc(maps.Keys(w.desired), byName))
}

// TestToldAgain: a peer that tells several times what it holds, each time as it was a while ago, has in the end what it
// is to have: also if it was sent everything before it told anything.
func TestToldAgain(t *testing.T) {
	t.Parallel()
	runs := 1000
	if *long {
		runs = 30000
	}
	for seed := range runs {
		w := newFixture(t, uint64(seed*2))
		told, blind := w.holds(), false
		for range 400 {
			switch w.rnd.IntN(40) {
			case 0, 1:
				told = w.holds()
			case 2:
				w.tell(told)
				blind = false
			case 3:
				if w.rnd.IntN(8) == 0 { // a new link, and it does not tell for long
					w.connect()
					w.q, w.turns = New(w.q.opts), nil
					w.tell(nil)
					told, blind = w.holds(), true
				}
			default:
				link := w.q
				if w.step(); w.q != link {
					told, blind = w.holds(), false // over each link it tells what it has by then
				}
			}
		}
		if blind {
			w.tell(told)
		}
		w.lossy, w.slow = false, false
		w.ackAll()
		want, got := map[string]string{}, map[string]string{}
		for k, s := range w.desired {
			want[k.String()] = string(s.UID) + s.Version
		}
		for k, s := range w.peer {
			got[k.String()] = string(s.UID) + s.Version
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Fatalf("seed %d: the peer's objects mismatch (-want +got):\n%s", seed, diff)
		}
		n := w.n
		w.tell(w.holds())
		w.send()
		if w.n != n || !w.q.Synced() {
			t.Fatalf("seed %d: %d messages after the peer told what it has, synced %v; want none, true",
				seed, w.n-n, w.q.Synced())
		}
	}
}

// TestToldTooLate: what was acked before an older inventory arrives is not forgotten.
func TestToldTooLate(t *testing.T) {
	for name, tt := range map[string]struct {
		script []string
		want   []string
	}{
		"an object that it does not have yet, and is not to have any more": {
			[]string{"reset", "set a u v 1", "run", "ack 1", "gone a", "again", "run"},
			[]string{"1 insert av", "acked a after 0s", "2 delete a/u"}},
		"a version of before": {
			[]string{"hold a u v -", "set a u w 2", "reset", "run", "ack 1", "set a u v 3", "hold a u v -", "again",
				"run"},
			[]string{"1 update aw", "acked a after 0s", "2 update av"}},
		"an object that was deleted, and is to be there again": {
			[]string{"hold a u v -", "reset", "run", "ack 1", "set a u v 3", "hold a u v -", "again", "run"},
			[]string{"1 delete a/u", "acked a after 0s", "2 update av"}},
		"another object of the name": {
			[]string{"hold a u v -", "set a x w 2", "reset", "run", "ack 1", "run", "ack 2", "gone a",
				"hold a u v -", "again", "run", "ack 3", "run"},
			[]string{"1 delete a/u", "acked a after 0s", "2 insert aw", "acked a after 0s",
				"3 delete a/x", "acked a after 0s", "4 delete a/u"}},
		"what it has": {
			[]string{"hold a u v -", "set a u v 2", "set b u w 3", "reset", "run", "ack 1",
				"hold a u v -", "hold b u w -", "again", "run"},
			[]string{"moved a", "1 insert bw", "acked b after 0s"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, testOptions)
			for _, line := range tt.script {
				if line == "again" { // in the order in which objects came, those that are gone left out
					line = "reset"
					s.order = slices.DeleteFunc(s.order, func(k resource.Key) bool { return s.objects[k] == nil })
				}
				s.line(line)
				if line == "reset" {
					s.held = map[resource.Key]State{}
				}
			}
			if diff := gocmp.Diff(tt.want, s.log); diff != "" {
				t.Errorf("messages mismatch (-want +got):\n%s", diff)
			}
		})
	}
}
