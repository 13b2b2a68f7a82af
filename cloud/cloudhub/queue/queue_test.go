package queue

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/pkg/resource"
)

var testOptions = Options{
	Window:     2,
	Resend:     5 * time.Second,
	Tries:      3,
	Backoff:    time.Second,
	MaxBackoff: 4 * time.Second,
}

func pod(name string) resource.Key {
	return resource.Key{Namespace: "default", Type: "pod", Name: name}
}

// script runs lines against a queue and writes down what it sends. Times are in seconds.
//
//	set a u v rv | gone a | mark a | run | ack ID | nack ID | at SECONDS | hold a u v rv | reset | fail a
type script struct {
	t       *testing.T
	q       *Queue
	now     time.Time
	start   time.Time
	objects map[resource.Key]*Desired
	order   []resource.Key
	held    map[resource.Key]State
	failing map[resource.Key]bool
	n       int
	log     []string
}

func newScript(t *testing.T, opts Options) *script {
	start := time.Unix(1000, 0)
	return &script{t: t, q: New(opts), now: start, start: start, objects: map[resource.Key]*Desired{},
		held: map[resource.Key]State{}, failing: map[resource.Key]bool{}}
}

func (s *script) run() {
	for {
		key, ok := s.q.next(s.now)
		if !ok {
			return
		}
		if s.failing[key] {
			s.q.Fail(key, s.now)
			s.log = append(s.log, "fail "+key.Name)
			continue
		}
		act := s.q.Take(key, s.objects[key], func() string { s.n++; return fmt.Sprint(s.n) }, s.now)
		switch {
		case act.Op == None && act.Moved:
			s.log = append(s.log, "moved "+key.Name)
		case act.Op != None:
			line := fmt.Sprintf("%s %s %s%s", act.ID, act.Op, key.Name, act.State.Version)
			if act.Op == Delete {
				line += "/" + string(act.State.UID)
			}
			if act.Resend {
				line += " again"
			}
			s.log = append(s.log, line)
		}
	}
}

func (s *script) line(text string) {
	f := strings.Fields(text)
	key := resource.Key{}
	if len(f) > 1 {
		key = pod(f[1])
	}
	switch f[0] {
	case "set":
		s.objects[key] = want(f[2], f[3], f[4])
		s.order = append(s.order, key)
		s.q.Mark(key)
	case "gone":
		delete(s.objects, key)
		s.q.Mark(key)
	case "mark":
		s.q.Mark(key)
	case "hold":
		s.held[key] = *state(f[2], strings.Trim(f[3], "-"), strings.Trim(f[4], "-"))
	case "reset":
		s.q.Reset(s.held, s.order)
	case "fail":
		s.failing[key] = true
	case "mend":
		delete(s.failing, key)
	case "drop":
		s.q.Drop(key)
	case "run":
		s.run()
	case "ack":
		if a, ok := s.q.Ack(f[1], s.now); !ok {
			s.log = append(s.log, "ack ignored")
		} else {
			s.log = append(s.log, fmt.Sprintf("acked %s after %v", a.Key.Name, a.Took))
		}
	case "nack":
		if a, ok := s.q.Nack(f[1], s.now); !ok {
			s.log = append(s.log, "nack ignored")
		} else {
			s.log = append(s.log, fmt.Sprintf("refused %s, failures before: %d", a.Key.Name, a.Failures))
		}
	case "at":
		d, err := time.ParseDuration(f[1] + "s")
		if err != nil {
			s.t.Fatal(err)
		}
		s.now = s.start.Add(d)
	case "wake":
		at := s.q.Wake(s.now)
		if at.IsZero() {
			s.log = append(s.log, "wake never")
		} else {
			s.log = append(s.log, fmt.Sprintf("wake %v", at.Sub(s.start)))
		}
	case "len":
		waiting, unacked := s.q.Len()
		s.log = append(s.log, fmt.Sprintf("len %d %d synced %v", waiting, unacked, s.q.Synced()))
	default:
		s.t.Fatalf("step %q, want a verb that the script knows", text)
	}
}

func TestQueue(t *testing.T) {
	for _, tt := range []struct {
		name   string
		script string
		want   []string
	}{
		{"in order, and not again",
			"set a u v 1; set b u v 2; mark a; run; ack 1; ack 2; mark a; run; wake",
			[]string{"1 insert av", "2 insert bv", "acked a after 0s", "acked b after 0s", "wake never"}},
		{
			"the window holds others back",
			"set a u v 1; set b u v 2; set c u v 3; run; len; ack 1; run; len",
			[]string{
				"1 insert av", "2 insert bv", "len 1 2 synced true", "acked a after 0s", "3 insert cv",
				"len 0 2 synced true",
			},
		},
		{"newest wins after the ack",
			"set a u v 1; run; set a u w 2; set a u x 3; run; ack 1; run; ack 2; run; wake",
			[]string{"1 insert av", "acked a after 0s", "2 update ax", "acked a after 0s", "wake never"}},
		{"status only: nothing, but the resource version is known",
			"set a u v 1; run; ack 1; set a u v 2; run; set a u v 2; run",
			[]string{"1 insert av", "acked a after 0s", "moved a"}},
		{
			"the same message again, then a pause, then again; a late ack counts",
			"set a u v 1; run; wake; at 4; run; at 5; run; at 10; run; at 15; run; wake; at 16; run; at 18; ack 1; " +
				"run; wake",
			[]string{
				"1 insert av", "wake 5s", "1 insert av again", "1 insert av again", "wake 16s", "1 insert av again",
				"acked a after 18s", "wake never",
			},
		},
		{
			"a parked message leaves its place",
			"set a u v 1; set b u v 1; set c u v 1; run; at 5; run; at 10; run; at 15; run; len; ack 3; mark c; run; " +
				"ack 1; run; len",
			[]string{"1 insert av", "2 insert bv", "1 insert av again", "2 insert bv again", "1 insert av again",
				"2 insert bv again",
				"3 insert cv", "len 0 3 synced true", "acked c after 0s", "acked a after 15s", "len 0 1 synced true"},
		},
		{"a newer state instead of what was not acked; the old ack is ignored",
			"set a u v 1; run; set a u w 2; at 5; run; ack 1; run; ack 2; run; wake",
			[]string{"1 insert av", "2 update aw", "ack ignored", "acked a after 0s", "wake never"}},
		{"gone before the ack: deleted all the same",
			"set a u v 1; run; gone a; run; at 5; run; ack 1; ack 2; run; wake",
			[]string{"1 insert av", "2 delete a/u", "ack ignored", "acked a after 0s", "wake never"}},
		{
			"came back while its delete was on the way",
			"set a u v 1; run; ack 1; gone a; run; set a u v 1; run; ack 2; run; ack 3; run; wake",
			[]string{
				"1 insert av", "acked a after 0s", "2 delete a/u", "acked a after 0s", "3 insert av",
				"acked a after 0s", "wake never",
			},
		},
		{
			"another object takes the name",
			"set a u v 1; run; ack 1; set a x w 2; run; run; ack 2; run; ack 3; run; wake",
			[]string{
				"1 insert av", "acked a after 0s", "2 delete a/u", "acked a after 0s", "3 insert aw",
				"acked a after 0s", "wake never",
			},
		},
		{
			"refused: pauses grow, and a change does not shorten them",
			"set a u v 1; run; nack 1; set a u w 2; run; wake; at 1; run; nack 2; wake; at 3; run; nack 3; wake; at " +
				"7; run; nack 4; wake; at 11; run; ack 5; run; wake; nack 5",
			[]string{
				"1 insert av", "refused a, failures before: 0", "wake 1s", "2 update aw",
				"refused a, failures before: 1", "wake 3s",
				"3 update aw", "refused a, failures before: 2", "wake 7s", "4 update aw",
				"refused a, failures before: 3", "wake 11s",
				"5 update aw", "acked a after 0s", "wake never", "nack ignored",
			},
		},
		{"nobody knows the object now",
			"fail a; set a u v 1; run; len; at 1; mend a; run; ack 1; wake",
			[]string{"fail a", "len 1 0 synced true", "1 insert av", "acked a after 0s", "wake never"}},
		{
			"what the peer tells that it holds",
			"hold a u v -; hold b u old -; hold c u v -; set a u v 1; set b u v 2; set d u v 3; reset; len; run; " +
				"len; ack 1; run; ack 2; len; ack 3; run; len; mark a; run; wake",
			[]string{
				"len 4 0 synced false", "1 delete c/u", "moved a", "2 update bv", "len 1 2 synced false",
				"acked c after 0s",
				"3 insert dv", "acked b after 0s", "len 0 1 synced false", "acked d after 0s", "len 0 0 synced true",
				"wake never",
			},
		},
		{"a node's object is forgotten, not deleted",
			"set a u v 1; run; drop a; len; ack 1; gone a; run; wake",
			[]string{"1 insert av", "len 0 0 synced true", "ack ignored", "wake never"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newScript(t, testOptions)
			for _, line := range strings.Split(tt.script, ";") {
				s.line(strings.TrimSpace(line))
			}
			if diff := cmp.Diff(tt.want, s.log); diff != "" {
				t.Errorf("messages mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

// TestResetOfWhatIsOnTheWay: while a message about an object is on the way, it is unknown what the peer holds.
func TestResetOfWhatIsOnTheWay(t *testing.T) {
	s := newScript(t, testOptions)
	for _, line := range []string{"set a u v 1", "set b u v 1", "run", "hold a u v -", "reset", "run"} {
		s.line(line)
	}
	want := []string{"1 insert av", "2 insert bv", "3 update av", "4 update bv"}
	if diff := cmp.Diff(want, s.log); diff != "" {
		t.Errorf("messages mismatch (-want +got):\n%s", diff)
	}
}

// TestIdleQueueIsSmall: a queue at rest keeps what the peer holds, and nothing else.
func TestIdleQueueIsSmall(t *testing.T) {
	q := New(Options{Window: 16, Resend: time.Minute, Tries: 1, Backoff: time.Second, MaxBackoff: time.Second})
	now := time.Now()
	for i := range 40 {
		q.Mark(pod(fmt.Sprint(i)))
	}
	for n := 0; ; {
		key, ok := q.Next(now)
		if !ok {
			break
		}
		act := q.Take(key, &Desired{State: State{UID: types.UID(key.Name), Version: "v"}}, func() string {
			n++
			return fmt.Sprint(n)
		}, now)
		q.Ack(act.ID, now)
	}
	if len(q.held) != 40 || q.order != nil || q.queued != nil || q.flights != nil || q.ids != nil || q.syncing != nil {
		t.Errorf("a queue at rest is %+v, want 40 held objects and nothing else", q)
	}
}
