package trim

import "testing"

// TestProgramDue: pages are unmapped when many more are mapped than at rest. What the program needs at rest is found
// even if it is busy for a while after its start.
func TestProgramDue(t *testing.T) {
	const mb = 1 << 20
	var p residentProgram
	for i, c := range []struct {
		mapped uint64
		want   bool
	}{
		{30 * mb, true}, {25 * mb, true}, {24 * mb, false}, {26 * mb, true}, {12 * mb, false}, // at rest: 12 MB
		{15 * mb, false}, {16 * mb, false}, {16 * mb, true}, {11 * mb, false}, // now 11 MB
		{15 * mb, false}, {15*mb + 1, true}, {30 * mb, true}, {11 * mb, false}, {11 * mb, false},
	} {
		if got := p.due(c.mapped); got != c.want {
			t.Errorf("check %d with %d bytes: %v, want %v", i+1, c.mapped, got, c.want)
		}
	}
}
