package wire

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestTable: docs/wire.md names every text, and only texts that there are.
func TestTable(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "..", "docs", "wire.md"))
	if err != nil {
		t.Fatal(err)
	}
	var patterns []string
	for _, m := range regexp.MustCompile("`((?:cloud|edge|https)/[^`]+\\.txt)`").FindAllStringSubmatch(string(data),
		-1) {
		if !strings.Contains(m[1], "FILE") {
			patterns = append(patterns, m[1])
		}
	}
	texts, err := filepath.Glob(filepath.Join("testdata", "*", "*.txt"))
	if err != nil || len(texts) < 75 {
		t.Fatalf("testdata has %d texts, %v, want 75 or more", len(texts), err)
	}
	matches := func(pattern, text string) bool {
		ok, err := filepath.Match(pattern, strings.TrimPrefix(text, "testdata/"))
		return ok && err == nil
	}
	for _, text := range texts {
		if !slices.ContainsFunc(patterns, func(p string) bool { return matches(p, text) }) {
			t.Errorf("patterns of docs/wire.md = %q, want one for %s", patterns, text)
		}
	}
	for _, p := range patterns {
		if !slices.ContainsFunc(texts, func(text string) bool { return matches(p, text) }) {
			t.Errorf("files for %s, which docs/wire.md names, = none, want at least one", p)
		}
	}
}
