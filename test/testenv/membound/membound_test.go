package membound

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"strings"
	"testing"
)

// failures notes that a test failed, without failing.
type failures struct {
	testing.TB
	failed bool
}

func (f *failures) Helper()               {}
func (f *failures) Errorf(string, ...any) { f.failed = true }

// kept keeps the compiler from leaving out an allocation.
type kept struct{ data []byte }

// TestCheck also counts what goroutines of the function allocate, and what is garbage.
func TestCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		limit  uint64
		f      func(*kept)
		failed bool
	}{
		// Not 0: the Go runtime allocates at times of its own, such as when it starts a worker of the collector.
		"nothing":        {Base, func(*kept) {}, false},
		"within":         {2 << 20, func(k *kept) { k.data = make([]byte, 1<<20) }, false},
		"above":          {1 << 19, func(k *kept) { k.data = make([]byte, 1<<20) }, true},
		"small and many": {1 << 19, func(k *kept) { many(k) }, true},
		"in a goroutine": {1 << 19, func(k *kept) {
			done := make(chan struct{})
			go func() { defer close(done); many(k) }()
			<-done
		}, true},
	} {
		got := &failures{TB: t}
		var k kept
		Check(got, tc.limit, func() { tc.f(&k) })
		if got.failed != tc.failed {
			t.Errorf("%s: failed = %v, want %v", name, got.failed, tc.failed)
		}
	}
}

func many(k *kept) {
	for range 1 << 14 {
		k.data = make([]byte, 64)
	}
}

func TestSeeds(t *testing.T) {
	if got, want := Repeat("<", "ab", ",", ">", 10), "<ab,ab>"; got != want {
		t.Errorf("Repeat = %q, want %q", got, want)
	}
	for _, text := range JSON(`{"a":`, `}`, 64<<10) {
		if len(text) > 65<<10 || !json.Valid([]byte(text)) {
			t.Errorf("%d bytes beginning %.20s, want valid JSON of at most %d", len(text), text, 65<<10)
		}
	}
	text := strings.Repeat("a", 1<<20)
	small := Gzip(t, []byte(text))
	r, err := gzip.NewReader(bytes.NewReader(small))
	if err != nil {
		t.Fatal(err)
	}
	if back, err := io.ReadAll(r); err != nil || string(back) != text || len(small) > 2<<10 {
		t.Errorf("%d bytes became %d and then %d bytes, %v; want %d, at most %d and the same", len(text), len(small),
			len(back),
			err, 1<<20, 2<<10)
	}
}
