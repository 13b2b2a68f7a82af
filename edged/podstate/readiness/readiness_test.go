package readiness

import "testing"

// TestTracker: what is allowed after each step of a start, in every order in which the sources can answer.
func TestTracker(t *testing.T) {
	type state struct{ mayStart, sourcesRead, started, known bool }
	static := func(r *Tracker) { r.StaticRead() }
	start := func(r *Tracker) { r.Start() }
	for name, tc := range map[string]struct {
		damaged bool
		steps   []func(*Tracker)
		want    state
	}{
		"at the start":       {false, nil, state{}},
		"the store only":     {false, []func(*Tracker){(*Tracker).StoreAsked, (*Tracker).StoreRead}, state{}},
		"the manifests only": {false, []func(*Tracker){static}, state{}},
		"the store failed": {
			false, []func(*Tracker){(*Tracker).StoreAsked, static, start}, state{mayStart: true, started: true},
		},
		"both, not started": {false, []func(*Tracker){static, (*Tracker).StoreAsked, (*Tracker).StoreRead},
			state{mayStart: true, sourcesRead: true}},
		"both": {false, []func(*Tracker){static, (*Tracker).StoreAsked, (*Tracker).StoreRead, start},
			state{true, true, true, true}},
		"a damaged store": {true, []func(*Tracker){static, (*Tracker).StoreAsked, (*Tracker).StoreRead, start},
			state{true, true, true, false}},
		"a repaired store": {
			true, []func(*Tracker){
				static, (*Tracker).StoreAsked, (*Tracker).StoreRead, start, (*Tracker).StoreRepaired,
			}, state{true, true, true, true},
		},
		"repaired, not yet read": {
			true, []func(*Tracker){static, (*Tracker).StoreAsked, start, (*Tracker).StoreRepaired},
			state{mayStart: true, started: true},
		},
	} {
		r := New(tc.damaged)
		for _, step := range tc.steps {
			step(r)
		}
		if got := (state{r.MayStart(), r.SourcesRead(), r.Started(), r.AllPodsKnown()}); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

func TestFirst(t *testing.T) {
	r := New(false)
	if first, again := r.StaticRead(), r.StaticRead(); !first || again {
		t.Errorf("StaticRead() twice = %t, %t, want true, false", first, again)
	}
	if first, again := r.Start(), r.Start(); !first || again {
		t.Errorf("Start() twice = %t, %t, want true, false", first, again)
	}
}
