package trim

import "testing"

// TestProgramDue: pages are unmapped after the start of the program, when it has needed many more than at rest, and
// from time to time.
func TestProgramDue(t *testing.T) {
	const mb = 1 << 20
	var p residentProgram
	for i, c := range []struct {
		mapped uint64
		want   bool
	}{
		{30 * mb, true}, {12 * mb, false}, {15 * mb, false}, {16 * mb, false}, {25 * mb, true}, {14 * mb, false},
		{18 * mb, false}, {18*mb + 1, true}, {11 * mb, false}, {11 * mb, false},
	} {
		if got := p.due(c.mapped); got != c.want {
			t.Errorf("check %d with %d bytes: %v, want %v", i, c.mapped, got, c.want)
		}
	}
	var busy residentProgram
	busy.due(30 * mb)
	unmapped := 0
	for range 2 * programChecks {
		if busy.due(25 * mb) { // it was busy at the first of these checks, so this counts as needed at rest
			unmapped++
		}
	}
	if unmapped != 2 {
		t.Errorf("unmapped %d times in %d checks, want twice", unmapped, 2*programChecks)
	}
}
