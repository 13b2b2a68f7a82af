package main

import (
	"strings"
	"testing"
)

func TestUnknownProgram(t *testing.T) {
	err := run(t.Context(), []string{"kubernetes", "kublet"})
	for _, part := range []string{`"kublet"`, "kubelet", "gcepd"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("run of an unknown program = %v, want an error with %s", err, part)
		}
	}
}
