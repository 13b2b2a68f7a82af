package join

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// cancelOnWrite ends a context when it is written to.
type cancelOnWrite context.CancelFunc

func (c cancelOnWrite) Write(p []byte) (int, error) {
	c()
	return len(p), nil
}

// TestScriptInterrupted: a script that runs is stopped with the join.
func TestScriptInterrupted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(file, []byte("echo it runs\nexec sleep 3600\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := Script{Flag: "--pre-run", File: file}
	if err := s.Run(ctx, cancelOnWrite(cancel), cancelOnWrite(cancel)); err == nil ||
		!strings.HasPrefix(err.Error(), "--pre-run "+file+": ") {
		t.Errorf("Run = %v, want an error with the flag and the file", err)
	}
}
