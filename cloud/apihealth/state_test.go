package apihealth

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// clock runs a state on simulated time.
type clock struct {
	t   *testing.T
	s   *state
	now time.Time
}

func newClock(t *testing.T) *clock {
	return &clock{t, newState(minTime), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
}

// run makes the requests of each second for as many seconds, and decides after each. It returns after how many seconds
// cloudcore was unready first; 0 if never.
func (c *clock) run(seconds int, second func(i int)) (unready int) {
	for i := range seconds {
		second(i)
		if problems := c.s.decide(c.now); len(problems) > 0 && unready == 0 {
			unready = i + 1
		}
		c.now = c.now.Add(time.Second)
	}
	return unready
}

// unready returns the kinds that make cloudcore unready now.
func (c *clock) unready() string {
	var kinds []string
	for _, p := range c.s.decide(c.now) {
		kinds = append(kinds, p.kind)
	}
	return strings.Join(kinds, " ")
}

func (c *clock) see(kind, node string, v verdict) {
	c.s.observe(c.now, target{kind: kind, node: node, write: true}, answer{verdict: v})
}

// seeOwn is see for what cloudcore writes in its own name about an object of a node.
func (c *clock) seeOwn(kind, node string, v verdict) {
	c.s.observe(c.now, target{kind: kind, about: node, write: true}, answer{verdict: v})
}

func node(i int) string { return fmt.Sprintf("edge-%d", i) }

// TestDecide: what makes cloudcore unready, and after how long.
func TestDecide(t *testing.T) {
	// leases lets so many nodes renew their Leases.
	leases := func(c *clock, i, nodes int) {
		if i%10 == 0 {
			for n := range nodes {
				c.see("lease", node(n), accepted)
			}
		}
	}
	for name, tc := range map[string]struct {
		second func(c *clock, i int)
		want   int // seconds; 0 is never
	}{
		"all succeeds": {func(c *clock, i int) { leases(c, i, 3) }, 0},
		"the Leases of one node, the only one: rights are lost": {func(c *clock, i int) {
			if i%10 == 0 {
				c.see("lease", node(0), refusedSelf)
			}
		}, 31},
		"cloudcore's own Lease every 15 s: rights are lost": {func(c *clock, i int) {
			if i%15 == 0 {
				c.see("replica", "", refusedSelf)
			}
		}, 31},
		"two refusals only": {func(c *clock, i int) {
			if i%60 == 0 && i < 120 {
				c.see("lease", node(0), refusedSelf)
			}
		}, 0},
		"refused for 29 s": {func(c *clock, i int) {
			if i < 29 {
				c.see("lease", node(0), refusedSelf)
			}
		}, 0},
		"one in a hundred accepted, as where one of several API servers has other rules": {func(c *clock, i int) {
			c.see("lease", node(0), refusedSelf)
			if i%20 == 0 {
				c.see("lease", node(0), accepted)
			}
		}, 0},
		"an outage": {func(c *clock, _ int) { c.see("lease", node(0), nothing) }, 0},
		"an outage between refusals": {func(c *clock, i int) {
			if i%20 == 0 {
				c.see("lease", node(0), refusedSelf)
			} else {
				c.see("lease", node(0), nothing)
			}
		}, 41},
		"one broken node of three": {func(c *clock, i int) {
			leases(c, i, 3)
			c.see("podstatus", node(0), refusedNode)
		}, 0},
		"one broken node, the only one": {func(c *clock, _ int) {
			c.see("podstatus", node(0), refusedNode)
			c.see("lease", node(0), refusedNode)
		}, 0},
		"two broken nodes of three": {func(c *clock, i int) {
			leases(c, i, 3)
			c.see("podstatus", node(i%2), refusedNode)
		}, 0},
		"all of three nodes": {func(c *clock, i int) {
			leases(c, i, 3)
			c.see("podstatus", node(i%3), refusedNode)
		}, 31},
		"99 of 100 nodes, while one succeeds": {func(c *clock, i int) {
			leases(c, i, 100)
			for n := range 99 {
				c.see("podstatus", node(n), refusedNode)
			}
			c.see("podstatus", node(99), accepted)
		}, 31},
		"each of 100 nodes now and then": {func(c *clock, i int) {
			leases(c, i, 100)
			for n := range 100 {
				c.see("podstatus", node(n), refusedNode)
				c.see("podstatus", node(n), accepted)
			}
		}, 0},
		"a quarter of 100 nodes, while the others have nothing to report": {func(c *clock, i int) {
			leases(c, i, 100)
			c.see("podstatus", node(i%25), refusedNode)
		}, 31},
		"ten of 100 nodes, while the others have nothing to report": {func(c *clock, i int) {
			leases(c, i, 100)
			c.see("podstatus", node(i%10), refusedNode)
		}, 0},
		"devices of one node of three": {func(c *clock, i int) {
			leases(c, i, 3)
			c.seeOwn("device", node(0), refusedNode)
		}, 0},
		"devices of all of three nodes": {func(c *clock, i int) {
			leases(c, i, 3)
			c.seeOwn("device", node(i%3), refusedNode)
		}, 31},
		"the registration of five nodes, while 20 are connected": {func(c *clock, i int) {
			leases(c, i, 20)
			c.seeOwn("registration", node(20+i%5), refusedNode)
		}, 31},
		"the registration of the only node": {func(c *clock, _ int) {
			c.seeOwn("registration", node(0), refusedNode)
		}, 0},
		"another kind succeeds": {func(c *clock, i int) {
			leases(c, i, 1)
			c.see("token", node(0), refusedSelf)
		}, 31},
		"refusals that are further apart than nodes repeat them": {func(c *clock, i int) {
			if i%400 == 0 {
				c.see("registration", "", refusedSelf)
			}
		}, 0},
		"a node that repeats every 5 minutes": {func(c *clock, i int) {
			if i%300 == 0 {
				c.see("token", node(0), refusedSelf)
			}
		}, 601},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock(t)
			if got := c.run(900, func(i int) { tc.second(c, i) }); got != tc.want {
				t.Errorf("unready after %d s, want %d (0: never)", got, tc.want)
			}
		})
	}
}

// TestRecover: what makes cloudcore ready again.
func TestRecover(t *testing.T) {
	refuse := func(c *clock) {
		c.t.Helper()
		c.run(40, func(int) { c.see("lease", node(0), refusedSelf) })
		if got := c.unready(); got != "lease" {
			c.t.Fatalf("unready because of %q, want lease", got)
		}
	}
	expect := func(c *clock, what, want string) {
		c.t.Helper()
		if got := c.unready(); got != want {
			c.t.Errorf("%s: unready because of %q, want %q", what, got, want)
		}
	}
	t.Run("three successes", func(t *testing.T) {
		c := newClock(t)
		refuse(c)
		c.see("lease", node(0), accepted)
		c.see("lease", node(0), refusedSelf)
		c.see("lease", node(1), accepted)
		expect(c, "two successes", "lease")
		c.see("lease", node(2), accepted)
		expect(c, "three successes", "")
		c.see("lease", node(0), refusedSelf)
		expect(c, "one more refusal", "")
	})
	t.Run("one success, then silence", func(t *testing.T) {
		c := newClock(t)
		refuse(c)
		c.see("lease", node(0), accepted)
		c.now = c.now.Add(minTime - 2*time.Second)
		expect(c, "a moment later", "lease")
		c.now = c.now.Add(time.Second)
		expect(c, "30 s after the last refusal", "")
	})
	t.Run("success of another kind", func(t *testing.T) {
		c := newClock(t)
		refuse(c)
		for range 10 {
			c.see("podstatus", node(0), accepted)
		}
		expect(c, "other successes", "lease")
	})
	t.Run("a kind that is requested only while another is refused", func(t *testing.T) {
		c := newClock(t)
		c.run(40, func(int) {
			c.see("lease", node(0), refusedSelf)
			c.see("get pods", "", refusedSelf)
		})
		expect(c, "both refused", "get pods lease")
		for range minSuccesses {
			c.see("lease", node(0), accepted)
		}
		expect(c, "Leases accepted", "get pods")
		c.see("get pods", "", refusedSelf)
		c.now = c.now.Add(minTime - time.Second)
		expect(c, "refused once more, and 29 s later", "get pods")
		c.now = c.now.Add(time.Second)
		expect(c, "30 s later", "")
	})
	t.Run("most nodes of those that are refused", func(t *testing.T) {
		c := newClock(t)
		second := func(refused int) func(int) {
			return func(int) {
				for n := range 10 {
					v := accepted
					if n < refused {
						v = refusedNode
					}
					c.see("podstatus", node(n), v)
				}
			}
		}
		c.run(40, second(9))
		expect(c, "9 of 10 are refused", "podstatus")
		c.run(40, second(6))
		expect(c, "6 of 10 are refused", "podstatus")
		c.run(1, second(2))
		expect(c, "2 of 10 are refused", "")
	})
	t.Run("nobody tries", func(t *testing.T) {
		c := newClock(t)
		refuse(c)
		c.now = c.now.Add(forget - time.Minute)
		expect(c, "five minutes later", "lease")
		c.now = c.now.Add(2 * time.Minute)
		expect(c, "seven minutes later", "")
		if len(c.s.streaks)+len(c.s.active) > 0 {
			t.Errorf("%d kinds and %d nodes are remembered, want none", len(c.s.streaks), len(c.s.active))
		}
	})
}

// TestDescribe: kinds with one remedy are one sentence.
func TestDescribe(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	rights := answer{text: "403 no", remedy: "apply it"}
	got := describe([]problem{
		{kind: "lease", since: since, refusals: 25, nodes: 3, answer: rights},
		{kind: "token", since: since, refusals: 5, nodes: 1, answer: answer{text: "422 bad", remedy: "check it"}},
		{kind: "podstatus", since: since, refusals: 4, nodes: 2, answer: rights},
		{kind: "event", since: since, refusals: 3, nodes: 2, answer: rights},
	})
	want := "lease refused 25 times since 2026-01-02T03:04:05Z, for 3 nodes, and also event, podstatus: 403 no: " +
		"apply it; token refused 5 times since 2026-01-02T03:04:05Z, for 1 node: 422 bad: check it"
	if got != want {
		t.Errorf("describe:\n got %s\nwant %s", got, want)
	}
}
