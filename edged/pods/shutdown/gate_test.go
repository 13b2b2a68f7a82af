package shutdown

import "testing"

func TestGate(t *testing.T) {
	var g Gate
	g.Set(false)
	if g.Closed() {
		t.Error("Closed() of a new gate after Set(false) = true, want false")
	}
	ctx, cancel := g.Within(t.Context())
	defer cancel()
	g.Set(true)
	<-ctx.Done() // what is under way is canceled
	late, end := g.Within(t.Context())
	defer end()
	<-late.Done()
	g.Set(true)
	if !g.Closed() || t.Context().Err() != nil {
		t.Errorf("Closed() = %t, error of the parent context %v, want true, nil", g.Closed(), t.Context().Err())
	}
	g.Set(false)
	again, done := g.Within(t.Context())
	defer done()
	if g.Closed() || again.Err() != nil {
		t.Errorf("after Set(false): Closed() = %t, context error %v, want false, nil", g.Closed(), again.Err())
	}
}
