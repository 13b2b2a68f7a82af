package edged

import (
	"context"
	"errors"
	"testing"

	"github.com/edgecore-io/edgecore/edged/options"
)

// TestParts: each part has a name of its own and does something, and what is served follows from the list.
func TestParts(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	m := runnable(t, deafBus{})
	e := &Edged{opts: m.opts, state: m.state}
	if err := e.build(ctx); err != nil {
		t.Fatal(err)
	}
	names, routes := map[string]bool{}, 0
	for _, p := range e.list {
		if p.name == "" || names[p.name] {
			t.Errorf("part %q is there twice or has no name, want a name of its own", p.name)
		}
		names[p.name] = true
		if p.run == nil && p.reload == nil && len(p.routes) == 0 && len(p.collectors) == 0 {
			t.Errorf("part %q does nothing, want it to run, to be reloaded, to be served or to be measured", p.name)
		}
		routes += len(p.routes)
	}
	served := e.serve.Served()
	if got := len(served.Routes); got != routes || routes == 0 {
		t.Errorf("%d routes are served, want the %d of all parts", got, routes)
	}
	if families, err := served.Registry.Gather(); err != nil || len(families) == 0 {
		t.Errorf("metrics: %d families, %v; want some and no error", len(families), err)
	}
	cancel()
	if err := e.run(ctx, cancel); err != nil {
		t.Errorf("run with a context that has ended = %v, want nil", err)
	}
}

// TestRunParts: the error of a part ends the others, and names the part.
func TestRunParts(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	broken := errors.New("broken")
	ended := false
	err := runParts(ctx, cancel, []part{
		{name: "waits", run: func(ctx context.Context) error { <-ctx.Done(); ended = true; return ctx.Err() }},
		{name: "idle"},
		{name: "returns early", run: func(context.Context) error { return nil }},
		{name: "fails", run: func(context.Context) error { return broken }},
	})
	if !errors.Is(err, broken) || err.Error() != "fails: broken" || !ended {
		t.Errorf("runParts = %v, the other part ended: %t; want fails: broken, true", err, ended)
	}
}

// TestReloads: parts of a later run get the settings that changed before it, and parts of an earlier run no more.
func TestReloads(t *testing.T) {
	var r reloads
	var first, second []int
	take := func(got *[]int) []part {
		reload := func(s *options.Settings) { *got = append(*got, s.LogFiles) }
		return []part{{name: "p", reload: reload}, {name: "other"}}
	}
	r.setParts(take(&first))
	r.set(options.Settings{LogFiles: 1})
	r.setParts(take(&second))
	r.set(options.Settings{LogFiles: 2})
	if len(first) != 1 || len(second) != 2 || second[0] != 1 || second[1] != 2 {
		t.Errorf("settings of the first run %v, of the second %v; want [1], [1 2]", first, second)
	}
}
