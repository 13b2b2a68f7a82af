package store

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) {
	if os.Getenv(crashEnv) != "" {
		crashWriter()
		return
	}
	flag.Parse()
	leak.VerifyTestMain(m)
}

func openTest(t testing.TB, path string) *Store {
	t.Helper()
	s, recovery, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if recovery != nil {
		t.Fatalf("unexpected recovery: %v", recovery)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func meta(key, value string) Meta {
	return Meta{Key: key, Type: strings.Split(key, "/")[1], Value: []byte(value)}
}

func apply(t testing.TB, s *Store, ops ...Op) {
	t.Helper()
	if err := s.Apply(context.Background(), ops...); err != nil {
		t.Fatal(err)
	}
}

func value(t testing.TB, s *Store, key string) string {
	t.Helper()
	m, err := s.Get(t.Context(), key)
	if errors.Is(err, ErrNotFound) {
		return "(none)"
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(m.Value)
}

func TestRowsAndReports(t *testing.T) {
	s := openTest(t, filepath.Join(t.TempDir(), "dir", "edgecore.db"))
	apply(t, s, Upsert(meta("a/pod/x", "1")), Upsert(meta("a/pod/y", "2")), Upsert(meta("a/secret/x", "3")))
	apply(t, s, Upsert(meta("a/pod/x", "4")))
	list, err := s.List(t.Context(), "pod")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Meta{meta("a/pod/x", "4"), meta("a/pod/y", "2")}, list); diff != "" {
		t.Errorf("List mismatch (-want +got):\n%s", diff)
	}
	apply(t, s, DeleteIf("a/pod/x", func([]byte) bool { return false }), Delete("a/pod/nothing"),
		ReplaceIf(meta("a/pod/x", "6"), func(old []byte) bool { return string(old) != "4" }),
		ReplaceIf(meta("a/pod/nothing", "6"), func([]byte) bool { return true }),
		UpsertIf(meta("a/pod/y", "5"), func(old []byte) bool { return string(old) == "not this" }))
	if got := value(t, s, "a/pod/x") + value(t, s, "a/pod/y"); got != "42" {
		t.Errorf("values after guarded changes = %s, want 42 as before", got)
	}
	if got := value(t, s, "a/pod/nothing"); got != "(none)" {
		t.Errorf("a row that was to replace another is %q, want none", got)
	}
	apply(t, s, ReplaceIf(meta("a/pod/x", "6"), func(old []byte) bool { return string(old) == "4" }))
	if got := value(t, s, "a/pod/x"); got != "6" {
		t.Errorf("a replaced row is %q, want 6", got)
	}
	apply(t, s, DeleteIf("a/pod/x", func(old []byte) bool { return string(old) == "6" }))
	if got := value(t, s, "a/pod/x"); got != "(none)" {
		t.Errorf("a deleted row is %q, want none", got)
	}

	apply(t, s, OutboxPut("o1", []byte("first")))
	apply(t, s, OutboxPut("o2", []byte("second")))
	old, err := s.Outbox(t.Context())
	if err != nil || len(old) != 2 {
		t.Fatalf("Outbox returned %v, %v; want two reports", old, err)
	}
	apply(t, s, OutboxPut("o1", []byte("newer")))
	apply(t, s, OutboxAck("o1", old[0].Seq)) // of the report that was replaced
	now, err := s.Outbox(t.Context())
	if err != nil || len(now) != 2 || now[0].Key != "o2" || string(now[1].Value) != "newer" ||
		now[1].First != old[0].Seq {
		t.Errorf("outbox %v, %v: want o2, then the newer o1, which waits since %d", now, err, old[0].Seq)
	}
	keys, err := s.OutboxKeys(t.Context())
	want := []Report{{Key: "o1", Seq: now[1].Seq, First: old[0].Seq}, {Key: "o2", Seq: now[0].Seq, First: now[0].Seq}}
	if diff := cmp.Diff(want, keys); diff != "" || err != nil {
		t.Errorf("OutboxKeys: %v, the longest waiting first (-want +got):\n%s", err, diff)
	}
	if r, err := s.OutboxGet(t.Context(), "o1"); err != nil || !cmp.Equal(r, now[1]) {
		t.Errorf("OutboxGet(o1) = %v, %v; want %v", r, err, now[1])
	}
	apply(t, s, OutboxAck("o1", now[1].Seq), OutboxAck("o2", now[0].Seq))
	if r, err := s.OutboxGet(t.Context(), "o1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("OutboxGet(o1) = %v, %v; want ErrNotFound", r, err)
	}
	if now, err := s.Outbox(t.Context()); err != nil || len(now) != 0 {
		t.Errorf("outbox %v, %v; want none", now, err)
	}
	apply(t, s, AgentSet("k", "v"))
	if v, err := s.AgentValue(t.Context(), "k"); err != nil || v != "v" {
		t.Errorf("AgentValue = %q, %v; want v", v, err)
	}
	apply(t, s, AgentDelete("k"))
	if _, err := s.AgentValue(t.Context(), "k"); !errors.Is(err, ErrNotFound) {
		t.Errorf("AgentValue of a deleted note: %v, want %v", err, ErrNotFound)
	}
}

func TestFilesArePrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir", "edgecore.db")
	s := openTest(t, path)
	apply(t, s, Upsert(meta("a/secret/x", "1")))
	for name, want := range map[string]os.FileMode{filepath.Dir(path): 0o700, path: 0o600, path + "-wal": 0o600} {
		info, err := os.Stat(name)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", name, info.Mode(), err, want)
		}
	}
}

// TestUnchangedValueWritesNothing: flash wears.
func TestUnchangedValueWritesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edgecore.db")
	s := openTest(t, path)
	ops := []Op{Upsert(meta("a/pod/x", "1")), OutboxPut("o", []byte("r")), AgentSet("k", "v"), Delete("a/pod/none"),
		OutboxAck("none", 1)}
	apply(t, s, ops...)
	before := contents(t, path)
	for range 10 {
		apply(t, s, ops...)
		for _, op := range ops {
			apply(t, s, op)
		}
	}
	if after := contents(t, path); !maps.EqualFunc(before, after, bytes.Equal) {
		t.Errorf("files after unchanged values (-want +got):\n%s", cmp.Diff(before, after))
	}
}

func contents(t *testing.T, path string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, suffix := range []string{"", "-wal"} {
		data, err := os.ReadFile(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		all[suffix] = data
	}
	return all
}

// TestOneFailureIsNotOthers: applies that share a transaction do not share errors.
func TestOneFailureIsNotOthers(t *testing.T) {
	s := openTest(t, filepath.Join(t.TempDir(), "edgecore.db"))
	bad := []Op{{kind: 99}, UpsertIf(meta("a/pod/known", "2"), func([]byte) bool { panic("a bad guard") })}
	apply(t, s, Upsert(meta("a/pod/known", "1")))
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			key := fmt.Sprintf("a/pod/p%d", i)
			if i%10 == 0 {
				if err := s.Apply(context.Background(), Upsert(meta(key, "half")), bad[i/10%2]); err == nil {
					t.Error("Apply with a bad operation = nil, want an error")
				}
				if err := s.Apply(context.Background(), bad[i/10%2]); err == nil {
					t.Error("Apply of a bad operation = nil, want an error")
				}
				return
			}
			if err := s.Apply(context.Background(), Upsert(meta(key, "1")), Upsert(meta(key+"-b", "1"))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	list, err := s.List(t.Context(), "pod")
	if err != nil || len(list) != 361 {
		t.Errorf("%d rows, %v; want 361", len(list), err)
	}
}

func TestClosedStore(t *testing.T) {
	s := openTest(t, filepath.Join(t.TempDir(), "edgecore.db"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(t.Context(), Delete("x")); !errors.Is(err, ErrClosed) {
		t.Errorf("Apply on a closed store: %v, want %v", err, ErrClosed)
	}
}

// TestSeqIsNeverGivenOutTwice: an ack that comes late, even after a restart, must not meet another report.
func TestSeqIsNeverGivenOutTwice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edgecore.db")
	seen := map[int64]bool{}
	for range 5 {
		s := openTest(t, path)
		for i := range 3 {
			apply(t, s, OutboxPut("o", fmt.Append(nil, i)))
			list, err := s.Outbox(t.Context())
			if err != nil || len(list) != 1 {
				t.Fatalf("Outbox returned %v, %v; want one report", list, err)
			}
			if seen[list[0].Seq] {
				t.Fatalf("seq = %d once more, want a new one", list[0].Seq)
			}
			seen[list[0].Seq] = true
			apply(t, s, OutboxAck("o", list[0].Seq))
		}
		// An undone transaction must not leave the bound on the seq behind.
		if err := s.Apply(t.Context(), OutboxPut("o", []byte("undone")), Op{kind: 99}); err == nil {
			t.Fatal("Apply with a bad operation = nil, want an error")
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s := openTest(t, path)
	if err := s.Apply(t.Context(), AgentDelete(seqKey)); err == nil {
		t.Error("AgentDelete of the store's own note = nil, want an error")
	}
}

// TestEachIsOneMoment: a reader sees the rows as they were when it began, in order, and can be stopped.
func TestEachIsOneMoment(t *testing.T) {
	s := openTest(t, filepath.Join(t.TempDir(), "edgecore.db"))
	for i := range 50 {
		apply(t, s, Upsert(meta(fmt.Sprintf("a/pod/p%02d", 49-i), "1")))
	}
	var keys []string
	err := s.Each(t.Context(), "pod", func(m Meta) error {
		if len(keys) == 0 {
			apply(t, s, Delete("a/pod/p40"), Upsert(meta("a/pod/p99", "1")))
		}
		keys = append(keys, m.Key)
		return nil
	})
	if err != nil || len(keys) != 50 || !slices.IsSorted(keys) {
		t.Errorf("Each read %v, %v; want the 50 keys of when it began, in order", keys, err)
	}
	stop := errors.New("enough")
	if err := s.Each(t.Context(), "pod", func(Meta) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("Each: %v, want the error of its function, %v", err, stop)
	}
	// Without a sort: the index has the order.
	var id, parent, unused int
	var plan string
	if err := s.read.QueryRow("EXPLAIN QUERY PLAN "+sqlList, "pod").Scan(&id, &parent, &unused, &plan); err != nil ||
		!strings.Contains(plan, "idx_meta_type_key") {
		t.Errorf("plan = %q, %v; want idx_meta_type_key used", plan, err)
	}
}

// TestLogIsBounded: many writes do not make the log grow, and a clean end leaves none.
func TestLogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edgecore.db")
	s := openTest(t, path)
	for i := range 1500 {
		apply(t, s, Upsert(meta("a/pod/x", strings.Repeat(fmt.Sprint(i%10), 4000))))
	}
	info, err := os.Stat(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	if limit := int64(3 << 20); info.Size() > limit {
		t.Errorf("the log has %d bytes after 6 MB of writes, want at most %d", info.Size(), limit)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range append([]string{".open"}, besides...) {
		if _, err := os.Stat(path + suffix); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s after a clean end: %v, want it removed", suffix, err)
		}
	}
}

// TestPragmas: what the promises rest on is what every connection has.
func TestPragmas(t *testing.T) {
	s := openTest(t, filepath.Join(t.TempDir(), "edgecore.db"))
	query := func(text string) (reader, writer string) {
		if err := errors.Join(s.read.QueryRow(text).Scan(&reader), s.writer.conn.QueryRowContext(t.Context(), text).
			Scan(&writer)); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return reader, writer
	}
	for pragma, want := range map[string]string{
		"journal_mode": "wal", "synchronous": "2", "wal_autocheckpoint": "256", "journal_size_limit": "1048576",
		"busy_timeout": "5000", "temp_store": "2", "secure_delete": "2",
	} {
		if r, w := query("PRAGMA " + pragma); r != want || w != want {
			t.Errorf("%s is %s for readers and %s for the writer, want %s", pragma, r, w, want)
		}
	}
	if r, w := query("PRAGMA cache_size"); r != "-128" || w != "-512" {
		t.Errorf("cache_size is %s for readers and %s for the writer, want -128 and -512", r, w)
	}
	if r, w := query("PRAGMA query_only"); r != "1" || w != "0" {
		t.Errorf("query_only is %s for readers and %s for the writer, want 1 and 0", r, w)
	}
}
