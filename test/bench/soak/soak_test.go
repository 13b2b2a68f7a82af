package main

import (
	"flag"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/programs"
)

var (
	built = programs.Flags()
	long  = flag.Bool("long", false, "start 60 pods, compared with 20, instead of 20 compared with 10")
	seed  = flag.Uint64("seed", killsSeed, "the seed of what TestSoak kills, and when")
)

// killsSeed is a seed with which the short form kills processes of pods, and the agent.
const killsSeed = 3

func TestMain(m *testing.M) { os.Exit(built.Run(m)) }

// TestSoak is the short form: it is for what breaks; what grows slowly needs the command.
func TestSoak(t *testing.T) {
	o := options{binary: built.Edge, pods: 20, first: 10, wave: 5, seed: *seed, settle: time.Second, say: t.Logf}
	if *long {
		o.pods, o.first, o.wave, o.settle = 60, 20, 10, 6*time.Second
	}
	r, err := soak(t.Context(), o)
	if err != nil {
		t.Fatalf("seed %d: %v, want no error", o.seed, err)
	}
	t.Log(r.table(o))
	if err := r.verdict(); err != nil {
		t.Errorf("seed %d: %v, want nothing to have grown", o.seed, err)
	}
	if o.seed == killsSeed && !*long && (r.kills == 0 || r.agentKills == 0) {
		t.Errorf("seed %d: killed %d processes of pods, and the agent %d times, want both", o.seed, r.kills,
			r.agentKills)
	}
}

func TestPlan(t *testing.T) {
	for seed := range uint64(200) {
		plan := planOf(2000, 190, 20, rand.New(rand.NewPCG(seed, 1)))
		pods, figures, kills := 0, []int{}, 0
		for _, w := range plan {
			pods += w.pods
			if w.until != pods {
				t.Errorf("seed %d: until = %d, want %d: %+v", seed, w.until, pods, w)
			}
			if w.figures {
				figures = append(figures, pods)
			}
			if w.agent != never {
				kills++
				if pods > 1000 || w.figures {
					t.Errorf("seed %d: the agent is killed after %d pods, want it within 1000, and not before "+
						"figures: %+v", seed,
						pods, w)
				}
			}
		}
		if pods != 2000 || len(figures) != 11 || figures[0] != 190 || figures[1] != 380 || figures[10] != 2000 ||
			kills == 0 {
			t.Errorf("seed %d: %d pods, figures after %v, %d kills of the agent, want 2000, figures after 190, 380, "+
				"..., 2000, and kills",
				seed, pods, figures, kills)
		}
	}
}

func TestVerdict(t *testing.T) {
	at := func(goroutines, rss, mounts int64) []figure {
		return []figure{{name: "goroutines", value: goroutines, slack: 3}, {
			name:  "RSS",
			value: rss,
			bytes: true,
			slack: 1e6,
		}, {name: "mounts", value: mounts}}
	}
	for name, tc := range map[string]struct {
		end  []figure
		want string
	}{
		"as it was":     {at(50, 40e6, 7), ""},
		"what may vary": {at(53, 41e6, 7), ""},
		"less":          {at(1, 1e6, 1), ""},
		"goroutines":    {at(54, 40e6, 7), "goroutines: 50 at first, 54 at the end, of which 3 may vary"},
		"several things": {
			at(50, 41e6+1, 8), "RSS: 40.0 MB at first, 41.0 MB at the end, of which 1.0 MB may vary\nmounts: 7 at " +
				"first, 8 at the end, of which 0 may vary",
		},
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
