package edged

import "testing"

func TestGate(t *testing.T) {
	var g gate
	g.set(false)
	if g.isShut() {
		t.Error("isShut() of a new gate after set(false) = true, want false")
	}
	ctx, cancel := g.within(t.Context())
	defer cancel()
	g.set(true)
	<-ctx.Done() // what was on its way turns back
	late, end := g.within(t.Context())
	defer end()
	<-late.Done()
	g.set(true)
	if !g.isShut() || t.Context().Err() != nil {
		t.Errorf("isShut() = %t, error of the parent context %v, want true, nil", g.isShut(), t.Context().Err())
	}
	g.set(false)
	again, done := g.within(t.Context())
	defer done()
	if g.isShut() || again.Err() != nil {
		t.Errorf("after set(false): isShut() = %t, context error %v, want false, nil", g.isShut(), again.Err())
	}
}
