package copies

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// makeFiles makes files beside a store in a folder, each written so long ago.
func makeFiles(t *testing.T, store string, files map[string]time.Duration) {
	t.Helper()
	for name, ago := range files {
		path := store + name
		at := time.Now().Add(-ago)
		if err := errors.Join(os.WriteFile(path, []byte("secret"), 0o600), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
	}
}

// names are the files of a folder.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

const day = 24 * time.Hour

// TestExpired has a copy of each name that package store makes.
func TestExpired(t *testing.T) {
	store := filepath.Join(t.TempDir(), "s")
	now := time.Now()
	stamp := func(ago time.Duration) string { return ".corrupt-" + now.Add(-ago).UTC().Format(timeLayout) }
	old, fresh := stamp(15*day), stamp(13*day)
	makeFiles(t, store, map[string]time.Duration{
		"": 99 * day, "-wal": 99 * day, "-shm": 99 * day, ".open": 99 * day, ".reserve": 99 * day,
		".beforehand": 99 * day,
		".before-9":   99 * day, ".before-10": 2 * day, ".before-11": time.Hour, ".before-12.partial": 0, ".rebuild": 0,
		".rebuild-wal": 0,
		old:            15 * day, old + "-wal": 0, fresh: 99 * day, fresh + "-journal": 99 * day,
		".corrupt-by-hand": 15 * day,
		".corrupt-lately":  0,
	})
	if err := removeExpired(store, now); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"s", "s-shm", "s-wal", "s.before-11", "s.beforehand", "s" + fresh, "s" + fresh + "-journal", "s.corrupt-lately",
		"s.open", "s.reserve",
	}
	if diff := cmp.Diff(want, names(t, filepath.Dir(store))); diff != "" {
		t.Errorf("files left (-want +got):\n%s", diff)
	}
	if err := removeExpired(store, now.Add(14*day)); err != nil {
		t.Fatal(err)
	}
	want = []string{"s", "s-shm", "s-wal", "s.beforehand", "s.corrupt-lately", "s.open", "s.reserve"}
	if diff := cmp.Diff(want, names(t, filepath.Dir(store))); diff != "" {
		t.Errorf("files left two weeks later (-want +got):\n%s", diff)
	}
	if err := removeExpired(filepath.Join(t.TempDir(), "none", "s"), now); err != nil {
		t.Errorf("without a folder: %v, want no error", err)
	}
}

// TestStartCleanup: copies go after an hour and then daily, and none goes while rows of the store may be missing.
func TestStartCleanup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := filepath.Join(t.TempDir(), "s")
		makeFiles(t, store, map[string]time.Duration{"": 0, ".corrupt-a": 12 * day, ".corrupt-b": 99 * day})
		var incomplete atomic.Bool
		incomplete.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		wait := StartCleanup(ctx, store, incomplete.Load)
		look := func(after time.Duration, want ...string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if diff := cmp.Diff(want, names(t, filepath.Dir(store))); diff != "" {
				t.Errorf("after %v (-want +got):\n%s", after, diff)
			}
		}
		look(firstCheck, "s", "s.corrupt-a", "s.corrupt-b") // right after a repair
		incomplete.Store(false)
		look(checkPeriod-time.Minute, "s", "s.corrupt-a", "s.corrupt-b")
		look(time.Minute, "s", "s.corrupt-a") // 14 days and an hour old after the next
		look(checkPeriod, "s")
		cancel()
		wait()
	})
}

// TestRemove: nothing of the store is left, whatever a migration or a repair has put beside it.
func TestRemove(t *testing.T) {
	store := filepath.Join(t.TempDir(), "s")
	makeFiles(t, store, map[string]time.Duration{
		"": 0, "-wal": 0, ".open": 0, ".before-3": 0, ".before-4.partial": 0, ".rebuild-journal": 0,
		".corrupt-x-wal": 0, ".mine": 0,
	})
	if err := Remove(store); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"s.mine"}, names(t, filepath.Dir(store))); diff != "" {
		t.Errorf("files left (-want +got):\n%s", diff)
	}
}
