package metamanager

import (
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/mattn/go-sqlite3" // changes a store as a newer version would

	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// TestRecovery: that rows may have been lost is known until the cloud has sent everything again, also after a restart.
func TestRecovery(t *testing.T) {
	db, _, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "edgecore.db"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	says := func(c *health.Registry) bool {
		list := c.Snapshot()
		return len(list) == 1 && list[0].Code == health.StoreRecovered
	}
	for _, step := range []struct {
		name          string
		recovery      *store.Recovery
		damaged, told bool
		forget        bool
	}{
		{name: "whole"},
		{name: "repaired, nothing was lost", recovery: &store.Recovery{Complete: true}, told: true},
		{name: "after a repair without loss"},
		{name: "repaired, rows were lost", recovery: &store.Recovery{}, damaged: true, told: true},
		{name: "started again", damaged: true, told: true, forget: true},
		{name: "the cloud has told all"},
	} {
		conditions := &health.Registry{}
		damaged, err := RememberRecovery(t.Context(), db, step.recovery, conditions)
		if err != nil || damaged != step.damaged || says(conditions) != step.told ||
			Recovered(t.Context(), db) != step.damaged {
			t.Errorf("%s: damaged = %v, %v, conditions %v, noted %v; want %v, no error, told %v",
				step.name, damaged, err, conditions.Snapshot(), Recovered(t.Context(), db), step.damaged, step.told)
		}
		if step.forget {
			ForgetRecovery(t.Context(), db, conditions)
			if list := conditions.Snapshot(); len(list) != 0 {
				t.Errorf("%s: conditions once the cloud has told all = %v, want none", step.name, list)
			}
		}
	}
}

// TestRolledBack: a store of a newer version that was rolled back is known as one until the cloud has sent everything.
func TestRolledBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edgecore.db")
	open := func() (*store.Store, *store.Recovery) {
		t.Helper()
		db, r, err := store.Open(t.Context(), path, store.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return db, r
	}
	db, _ := open()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	raw, err := sql.Open("sqlite3", path)
	if err == nil {
		_, err = raw.Exec("PRAGMA user_version=99; PRAGMA application_id=0")
		err = errors.Join(err, raw.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, start := range []string{"the first", "the second"} {
		db, r := open()
		conditions := &health.Registry{}
		damaged, err := RememberRecovery(t.Context(), db, r, conditions)
		list := conditions.Snapshot()
		if err != nil || !damaged || !Recovered(t.Context(), db) || len(list) != 1 ||
			list[0].Code != health.StoreRolledBack || !strings.Contains(list[0].Detail, "(schema 99, ") {
			t.Errorf("%s start: damaged = %v, %v, conditions %v; want StoreRolledBack of schema 99",
				start, damaged, err, list)
		}
		if start == "the second" {
			ForgetRecovery(t.Context(), db, conditions)
			if list := conditions.Snapshot(); len(list) != 0 || Recovered(t.Context(), db) {
				t.Errorf("once the cloud has sent everything: conditions %v, want none", list)
			}
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	db, r := open()
	defer db.Close()
	if damaged, err := RememberRecovery(t.Context(), db, r, &health.Registry{}); damaged || err != nil {
		t.Errorf("the start after that: damaged = %v, %v; want false", damaged, err)
	}
}

// TestInUse: opening a store that is in use is an error that says so.
func TestInUse(t *testing.T) {
	file := filepath.Join(t.TempDir(), "edgecore.db")
	if store.InUse(file) {
		t.Errorf("InUse(%s) before the store is made = true, want false", strings.TrimPrefix(file, "/"))
	}
	db, _, err := store.Open(t.Context(), file, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !store.InUse(file) {
		t.Error("InUse of an open store = false, want true")
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if store.InUse(file) {
		t.Error("InUse of a store that was closed = true, want false")
	}
}
