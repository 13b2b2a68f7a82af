package command

import "testing"

func TestCounted(t *testing.T) {
	for n, want := range map[int]string{0: "no warnings", 1: "1 warning", 2: "2 warnings"} {
		if got := counted(n, "warning"); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
