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
	stamp := func(ago time.Duration) string { return now.Add(-ago).UTC().Format(timeLayout) }
	old, fresh := ".corrupt-"+stamp(15*day), ".corrupt-"+stamp(13*day)
	oldNewer, freshNewer := ".newer-4-"+stamp(15*day), ".newer-3-"+stamp(13*day)
	makeFiles(t, store, map[string]time.Duration{
		"": 99 * day, "-wal": 99 * day, "-shm": 99 * day, ".open": 99 * day, ".reserve": 99 * day,
		".beforehand": 99 * day,
		".before-9":   3 * day, ".before-10": 2 * day, ".before-11": time.Hour, ".before-7": 15 * day,
		".before-8":          2 * day,
		".before-12.partial": 0, ".rebuild": 0, ".rebuild-wal": 0, ".rollback": 0, ".rollback-wal": 0,
		oldNewer: 0, oldNewer + "-wal": 0, freshNewer: 99 * day, freshNewer + "-wal": 99 * day,
		old: 15 * day, old + "-wal": 0, fresh: 99 * day, fresh + "-journal": 99 * day,
		".corrupt-by-hand": 15 * day,
		".corrupt-lately":  0,
	})
	if err := removeExpired(store, now, time.Time{}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"s", "s-shm", "s-wal", "s.before-10", "s.before-11", "s.before-8", "s.beforehand", "s" + fresh,
		"s" + fresh + "-journal", "s.corrupt-lately", "s" + freshNewer, "s" + freshNewer + "-wal", "s.open",
		"s.reserve",
	}
	if diff := cmp.Diff(want, names(t, filepath.Dir(store))); diff != "" {
		t.Errorf("files left (-want +got):\n%s", diff)
	}
	if err := removeExpired(store, now.Add(14*day), time.Time{}); err != nil {
		t.Fatal(err)
	}
	want = []string{"s", "s-shm", "s-wal", "s.beforehand", "s.corrupt-lately", "s.open", "s.reserve"}
	if diff := cmp.Diff(want, names(t, filepath.Dir(store))); diff != "" {
		t.Errorf("files left two weeks later (-want +got):\n%s", diff)
	}
	if err := removeExpired(filepath.Join(t.TempDir(), "none", "s"), now, time.Time{}); err != nil {
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
		wait := StartCleanup(ctx, store, CleanupOptions{Incomplete: incomplete.Load})
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

// TestBeforeStaysUntilConnected: a copy from before a migration goes two weeks after the device is connected with the
// new version, however old it is, and other copies do not wait for that.
func TestBeforeStaysUntilConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := filepath.Join(t.TempDir(), "s")
		if AnyBefore(store) {
			t.Error("AnyBefore without files = true, want false")
		}
		makeFiles(t, store, map[string]time.Duration{"": 0, ".before-3": 99 * day, ".corrupt-a": 99 * day})
		if !AnyBefore(store) {
			t.Error("AnyBefore = false, want true")
		}
		var since atomic.Pointer[time.Time]
		since.Store(&time.Time{})
		ctx, cancel := context.WithCancel(t.Context())
		wait := StartCleanup(ctx, store, CleanupOptions{Connected: func() time.Time { return *since.Load() }})
		look := func(after time.Duration, want ...string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if diff := cmp.Diff(want, names(t, filepath.Dir(store))); diff != "" {
				t.Errorf("after %v (-want +got):\n%s", after, diff)
			}
		}
		look(100*day, "s", "s.before-3") // never connected
		connected := time.Now()
		since.Store(&connected)
		look(13*day, "s", "s.before-3")
		look(2*day, "s")
		cancel()
		wait()
	})
}

// TestRemove: nothing of the store is left, whatever a migration or a repair has put beside it.
func TestRemove(t *testing.T) {
	store := filepath.Join(t.TempDir(), "s")
	makeFiles(t, store, map[string]time.Duration{
		"": 0, "-wal": 0, ".open": 0, ".before-3": 0, ".before-4.partial": 0, ".rebuild-journal": 0,
		".corrupt-x-wal": 0, ".newer-3-x": 0, ".newer-3-x-wal": 0, ".rollback": 0, ".rollback-wal": 0, ".mine": 0,
	})
	if err := Remove(store); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"s.mine"}, names(t, filepath.Dir(store))); diff != "" {
		t.Errorf("files left (-want +got):\n%s", diff)
	}
}
