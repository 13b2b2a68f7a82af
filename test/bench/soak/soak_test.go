package main

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/agent"
)

// TestSoak is the short form: 60 pods, compared with 20. It is for what breaks; what grows slowly needs the long one.
func TestSoak(t *testing.T) {
	binary, err := agent.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	o := options{binary: binary, pods: 60, first: 20, wave: 10, seed: uint64(time.Now().UnixNano()), settle: 6 * time.Second, say: t.Logf}
	r, err := soak(t.Context(), o)
	if err != nil {
		t.Fatalf("seed %d: %v", o.seed, err)
	}
	t.Log(r.table(o))
	if err := r.verdict(); err != nil {
		t.Error(err)
	}
}

func TestPlan(t *testing.T) {
	for seed := range uint64(200) {
		plan := planOf(2000, 190, 20, rand.New(rand.NewPCG(seed, 1)))
		pods, figures, kills := 0, []int{}, 0
		for _, w := range plan {
			pods += w.pods
			if w.until != pods {
				t.Errorf("seed %d: %+v after %d pods", seed, w, pods)
			}
			if w.figures {
				figures = append(figures, pods)
			}
			if w.agent != never {
				kills++
				if pods > 1000 || w.figures {
					t.Errorf("seed %d: the agent is killed after %d pods", seed, pods)
				}
			}
		}
		if pods != 2000 || len(figures) != 11 || figures[0] != 190 || figures[1] != 380 || figures[10] != 2000 || kills == 0 {
			t.Errorf("seed %d: %d pods, figures after %v, %d kills of the agent", seed, pods, figures, kills)
		}
	}
}

func TestVerdict(t *testing.T) {
	at := func(goroutines, rss, mounts int64) []figure {
		return []figure{{name: "goroutines", value: goroutines, slack: 3}, {name: "RSS", value: rss, bytes: true, slack: 1e6}, {name: "mounts", value: mounts}}
	}
	for name, tc := range map[string]struct {
		end  []figure
		want string
	}{
		"as it was":      {at(50, 40e6, 7), ""},
		"what may vary":  {at(53, 41e6, 7), ""},
		"less":           {at(1, 1e6, 1), ""},
		"goroutines":     {at(54, 40e6, 7), "goroutines: 50 at first, 54 at the end, of which 3 may vary"},
		"several things": {at(50, 41e6+1, 8), "RSS: 40.0 MB at first, 41.0 MB at the end, of which 1.0 MB may vary\nmounts: 7 at first, 8 at the end, of which 0 may vary"},
	} {
		r := result{first: at(50, 40e6, 7), end: tc.end}
		got := ""
		if err := r.verdict(); err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
