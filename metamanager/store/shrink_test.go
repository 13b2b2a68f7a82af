package store

import (
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestQuiet: memory is given back once after each time of work, and what was cached can still be read.
func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var shrunk atomic.Int32
		path := filepath.Join(t.TempDir(), "edgecore.db")
		s, _, err := Open(t.Context(), path, Options{Shrunk: func() { shrunk.Add(1) }})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		want := func(n int32) {
			t.Helper()
			synctest.Wait()
			if got := shrunk.Load(); got != n {
				t.Errorf("memory was given back %d times, want %d", got, n)
			}
		}
		for n := range int32(3) {
			if err := s.Apply(t.Context(), Upsert(Meta{Key: "k", Type: "pod", Value: []byte{byte(n)}})); err != nil {
				t.Fatal(err)
			}
			time.Sleep(quietAfter - 1)
			want(n)
			time.Sleep(10 * quietAfter)
			want(n + 1)
			if m, err := s.Get(t.Context(), "k"); err != nil || int32(m.Value[0]) != n {
				t.Errorf("Get = %v, %v; want %d", m, err, n)
			}
		}
	})
}

// TestShrink: readers give memory back, but those that are reading, and stay open.
func TestShrink(t *testing.T) {
	s := openTest(t, filepath.Join(t.TempDir(), "edgecore.db"))
	if err := s.Apply(t.Context(), Upsert(Meta{Key: "k", Type: "pod", Value: []byte("v")})); err != nil {
		t.Fatal(err)
	}
	err := s.Each(t.Context(), "pod", func(Meta) error {
		before := s.read.Stats().OpenConnections
		if err := s.shrink(); err != nil {
			t.Errorf("while one reads: %v", err)
		}
		if after := s.read.Stats(); after.InUse != 1 || after.OpenConnections != before {
			t.Errorf("while one of %d reads, then: %+v; want as many, and one in use", before, after)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.shrink(); err != nil || s.read.Stats().InUse != 0 {
		t.Errorf("while none reads: %v, then %+v; want none in use", err, s.read.Stats())
	}
}
