package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// raw opens a file as a person with sqlite3 would.
func raw(t testing.TB, path string) *sql.DB {
	t.Helper()
	db := connect(path, asItIs, 1)
	if _, err := db.Exec("PRAGMA query_only=OFF"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// fromTestdata copies an old file to where a store may be opened.
func fromTestdata(t *testing.T, name string) (path string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "edgecore.db")
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// dump returns each row of some tables as text.
func dump(t *testing.T, path string, queries ...string) []string {
	t.Helper()
	db := raw(t, path)
	defer db.Close()
	var list []string
	for _, q := range queries {
		rows, err := db.Query(q)
		if err != nil {
			t.Fatalf("%s of %s: %v", q, path, err)
		}
		for rows.Next() {
			var line string
			if err := rows.Scan(&line); err != nil {
				t.Fatal(err)
			}
			list = append(list, line)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return list
}

// TestUpgrade opens real old files: what they hold is kept, the old file is kept beside, and the result is
// what a new store has.
func TestUpgrade(t *testing.T) {
	const metaRows = "SELECT key||' '||type||' '||ifnull(value,'') FROM meta ORDER BY key"
	for name, c := range map[string]struct {
		keep   []string // queries whose result must not change
		backup string
	}{
		"edgecore-schema1.db": {
			[]string{
				metaRows, "SELECT key||seq||value FROM outbox ORDER BY key",
				"SELECT key||value FROM agent WHERE key<>'" + seqKey + "'",
			}, ".before-2",
		},
		"kubeedge-gorm.db": {
			[]string{
				metaRows, "SELECT key||group_version_resource||resource_version||value FROM meta_v2",
				"SELECT id||name||state FROM device",
				"SELECT url FROM target_urls",
			}, ".before-1",
		},
		"kubeedge-beego.db": {[]string{metaRows, "SELECT id||name||state FROM device"}, ".before-1"},
	} {
		t.Run(name, func(t *testing.T) {
			path := fromTestdata(t, name)
			before := dump(t, path, c.keep...)
			if len(before) < 3 {
				t.Fatalf("the old file holds %q, want 3 rows or more", before)
			}
			s := openTest(t, path)
			apply(t, s, Upsert(meta("a/pod/new", "1")), Delete("a/pod/new"), OutboxPut("o", []byte("{}")),
				OutboxAck("o", 1))
			if list, err := s.List(t.Context(), "pod"); err != nil || len(list) == 0 {
				t.Errorf("pods = %v, %v; want some", list, err)
			}
			reports, err := s.Outbox(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range reports {
				if r.Key == "o" {
					apply(t, s, OutboxAck(r.Key, r.Seq))
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, dump(t, path, c.keep...)); diff != "" {
				t.Errorf("kept rows (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, dump(t, path+c.backup, c.keep...)); diff != "" {
				t.Errorf("rows in the copy (-want +got):\n%s", diff)
			}
			if got := dump(t, path, "PRAGMA user_version",
				"PRAGMA integrity_check"); got[0] != fmt.Sprint(len(migrations)) || got[1] != "ok" {
				t.Errorf("version and integrity = %q, want %d and ok", got, len(migrations))
			}
			for _, f := range []string{path, path + c.backup} {
				if info, err := os.Stat(f); err != nil || info.Mode().Perm() != 0o600 {
					t.Errorf("%s: %v, %v; want 0600", f, info.Mode(), err)
				}
			}
		})
	}
}

// TestUpgradeKeepsOrderOfReports: those of an old file keep their order, and go before new ones.
func TestUpgradeKeepsOrderOfReports(t *testing.T) {
	s := openTest(t, fromTestdata(t, "edgecore-schema1.db"))
	apply(t, s, OutboxPut("new", []byte("{}")), OutboxPut("delete default/pod/p1", []byte(`{"n":4}`)))
	list, err := s.Outbox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range list {
		got = append(got, fmt.Sprintf("%s %s since %d", r.Key, r.Value, r.First))
	}
	if diff := cmp.Diff([]string{
		`patch default/podpatch/p0 {"n":3} since 3`, "new {} since 4", `delete default/pod/p1 {"n":4} since 2`,
	}, got); diff != "" {
		t.Errorf("reports mismatch (-want +got):\n%s", diff)
	}
}

// TestFailedMigrationChangesNothing: a step is whole or not at all.
func TestFailedMigrationChangesNothing(t *testing.T) {
	path := fromTestdata(t, "edgecore-schema1.db")
	db := raw(t, path)
	// which the second migration drops, after other changes
	if _, err := db.Exec("DROP INDEX idx_meta_type"); err != nil {
		t.Fatal(err)
	}
	if err := step(t.Context(), db, 1); err == nil {
		t.Fatal("migration = nil, want an error: an index is missing")
	}
	got := dump(t, path, "PRAGMA user_version", "SELECT count(*) FROM pragma_table_info('outbox')")
	if diff := cmp.Diff([]string{"1", "3"}, got); diff != "" {
		t.Errorf("version and columns mismatch (-want +got):\n%s", diff)
	}
}

// TestWaitForLock: an agent that starts while its predecessor is being ended waits for it, and not for one that stays.
func TestWaitForLock(t *testing.T) {
	for name, c := range map[string]struct {
		holds, wait, cancelled time.Duration
		want                   error
	}{
		"it ends":         {3 * time.Second, 10 * time.Second, time.Hour, nil},
		"it stays":        {time.Hour, 10 * time.Second, time.Hour, ErrInUse},
		"without waiting": {time.Second, 0, time.Hour, ErrInUse},
		"interrupted":     {time.Hour, time.Hour, time.Minute, context.DeadlineExceeded},
	} {
		path := filepath.Join(t.TempDir(), "edgecore.db")
		synctest.Test(t, func(t *testing.T) {
			predecessor, err := takeLock(path)
			if err != nil {
				t.Fatal(err)
			}
			released := time.AfterFunc(c.holds, func() { _ = predecessor.release() })
			ctx, cancel := context.WithTimeout(t.Context(), c.cancelled)
			defer cancel()
			l, err := waitForLock(ctx, path, c.wait)
			if !errors.Is(err, c.want) {
				t.Errorf("%s: err = %v, want %v", name, err, c.want)
			}
			if l != nil {
				err = l.release()
			}
			if released.Stop() {
				err = predecessor.release()
			}
			if l != nil && err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOneProcessOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edgecore.db")
	s := openTest(t, path)
	apply(t, s, Upsert(meta("a/pod/x", "1")))
	if _, _, err := Open(t.Context(), path, Options{}); !errors.Is(err, ErrInUse) {
		t.Errorf("err = %v, want ErrInUse", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := value(t, openTest(t, path), "a/pod/x"); got != "1" {
		t.Errorf("a/pod/x is %q, want 1", got)
	}
}

func TestOddPaths(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty.db")
	if err := os.WriteFile(empty, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, good := range []string{
		empty, filepath.Join(dir, "new", "folders", "x.db"), filepath.Join(dir, "a?b#c%20d e.db"),
	} {
		s := openTest(t, good)
		apply(t, s, Upsert(meta("a/pod/x", "1")))
		if info, err := os.Stat(good); err != nil {
			t.Error(err)
		} else if got := info.Mode().Perm(); got != 0o600 {
			t.Errorf("%s: mode %v, want %v", good, got, os.FileMode(0o600))
		}
	}
	for bad, want := range map[string]string{
		dir:                             "it is a folder",
		pipe:                            "not a regular file",
		filepath.Join(empty, "edge.db"): "not a directory",
	} {
		if _, _, err := Open(t.Context(), bad, Options{}); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), bad) {
			t.Errorf("%s: err = %v, want %q", bad, err, want)
		}
	}
}

func TestReadOnlyDisk(t *testing.T) {
	dir := tmpfs(t, "1m")
	path := filepath.Join(dir, "edgecore.db")
	s := openTest(t, path)
	apply(t, s, Upsert(meta("a/pod/x", "1")))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	remount(t, dir, unix.MS_RDONLY, "")
	_, _, err := Open(t.Context(), path, Options{})
	if !errors.Is(err, ErrReadOnly) || !strings.Contains(err.Error(), path) {
		t.Errorf("err = %v, want ErrReadOnly", err)
	}
	for range 2 { // and again, over the copy of before
		s, recovery, err := Open(t.Context(), path, Options{Scratch: filepath.Join(t.TempDir(), "run")})
		if err != nil || recovery != nil || !s.Frozen() {
			t.Fatalf("recovery %v, err %v; want the copy", recovery, err)
		}
		if got := value(t, s, "a/pod/x"); got != "1" {
			t.Errorf("the copy has %q, want 1", got)
		}
		if err := s.Apply(t.Context(), Upsert(meta("a/pod/x", "2"))); !errors.Is(err, ErrReadOnly) {
			t.Errorf("a write: %v, want ErrReadOnly", err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	remount(t, dir, 0, "")
	if got := value(t, openTest(t, path), "a/pod/x"); got != "1" {
		t.Errorf("a/pod/x is %q after the disk was writable again, want 1", got)
	}
}
