package edged

import "testing"

func TestGate(t *testing.T) {
	var g gate
	g.set(false)
	if g.isShut() {
		t.Error("it is shut from the beginning")
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
		t.Error("it is not shut, or more than what passes it has ended")
	}
	g.set(false)
	again, done := g.within(t.Context())
	defer done()
	if g.isShut() || again.Err() != nil {
		t.Error("it does not open again")
	}
}
