package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if os.Getenv(crashEnv) != "" {
		crashWriter()
		return
	}
	goleak.VerifyTestMain(m)
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
		t.Error(diff)
	}
	apply(t, s, DeleteIf("a/pod/x", func([]byte) bool { return false }), Delete("a/pod/nothing"),
		UpsertIf(meta("a/pod/y", "5"), func(old []byte) bool { return string(old) == "not this" }))
	if got := value(t, s, "a/pod/x") + value(t, s, "a/pod/y"); got != "42" {
		t.Errorf("guards did not hold: %s", got)
	}
	apply(t, s, DeleteIf("a/pod/x", func(old []byte) bool { return string(old) == "4" }))
	if got := value(t, s, "a/pod/x"); got != "(none)" {
		t.Error("not deleted:", got)
	}

	apply(t, s, OutboxPut("o1", []byte("first")))
	apply(t, s, OutboxPut("o2", []byte("second")))
	old, err := s.Outbox(t.Context())
	if err != nil || len(old) != 2 {
		t.Fatalf("%v, %v", old, err)
	}
	apply(t, s, OutboxPut("o1", []byte("newer")))
	apply(t, s, OutboxAck("o1", old[0].Seq)) // of the report that was replaced
	now, err := s.Outbox(t.Context())
	if err != nil || len(now) != 2 || now[0].Key != "o2" || string(now[1].Value) != "newer" {
		t.Errorf("outbox %v, %v: want o2, then the newer o1", now, err)
	}
	apply(t, s, OutboxAck("o1", now[1].Seq), OutboxAck("o2", now[0].Seq))
	if now, err := s.Outbox(t.Context()); err != nil || len(now) != 0 {
		t.Errorf("outbox %v, %v", now, err)
	}
	apply(t, s, AgentSet("k", "v"))
	if v, err := s.AgentValue(t.Context(), "k"); err != nil || v != "v" {
		t.Error(v, err)
	}
	apply(t, s, AgentDelete("k"))
	if _, err := s.AgentValue(t.Context(), "k"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
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
	ops := []Op{Upsert(meta("a/pod/x", "1")), OutboxPut("o", []byte("r")), AgentSet("k", "v"), Delete("a/pod/none"), OutboxAck("none", 1)}
	apply(t, s, ops...)
	before := contents(t, path)
	for range 10 {
		apply(t, s, ops...)
	}
	if after := contents(t, path); !maps.EqualFunc(before, after, bytes.Equal) {
		t.Error("the files changed")
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
	bad := Op{kind: 99}
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			key := fmt.Sprintf("a/pod/p%d", i)
			if i%10 == 0 {
				if err := s.Apply(context.Background(), Upsert(meta(key, "half")), bad); err == nil {
					t.Error("a bad operation was taken")
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
	if err != nil || len(list) != 360 {
		t.Errorf("%d rows, %v; want 360", len(list), err)
	}
}

func TestKubeEdgeFileIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edgecore.db")
	db, err := sql.Open("sqlite3", path)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		"CREATE TABLE `meta` (`key` text(256),`type` text(32),`value` text,PRIMARY KEY (`key`))",
		"CREATE TABLE `device` (`id` text(64),`name` text,PRIMARY KEY (`id`))",
		"INSERT INTO meta VALUES('default/pod/x','pod','{}')",
		"INSERT INTO device VALUES('d','n')",
	} {
		if _, err := db.Exec(text); err != nil {
			t.Fatal(err)
		}
	}
	db.Close()
	s := openTest(t, path)
	if got := value(t, s, "default/pod/x"); got != "{}" {
		t.Error(got)
	}
	apply(t, s, OutboxPut("o", []byte("r")))
	var n int
	if err := s.read.QueryRow("SELECT count(*) FROM device").Scan(&n); err != nil || n != 1 {
		t.Errorf("another table was not kept: %d, %v", n, err)
	}
	if _, err := os.Stat(path + ".before-1"); err != nil {
		t.Error("no copy from before the migration:", err)
	}
}

func TestNewerFileIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edgecore.db")
	s := openTest(t, path)
	apply(t, s, Upsert(meta("a/pod/x", "1")))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite3", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("PRAGMA user_version=999"); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(t.Context(), path, Options{}); !errors.Is(err, ErrNewer) {
		t.Errorf("err = %v, want ErrNewer", err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Error("the file was changed")
	}
}

func TestDamagedFiles(t *testing.T) {
	fill := func(t *testing.T, path string) {
		s := openTest(t, path)
		for i := range 300 {
			apply(t, s, Upsert(meta(fmt.Sprintf("a/pod/p%03d", i), strings.Repeat("x", 2000))))
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		// As after a crash: the check is thorough then.
		if err := os.WriteFile(marker(path), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		damage func(data []byte) []byte
		saved  int // at the least
	}{
		"garbage":      {func([]byte) []byte { return bytes.Repeat([]byte("no"), 5000) }, 0},
		"head":         {func(d []byte) []byte { copy(d, bytes.Repeat([]byte{0xff}, 64)); return d }, 0},
		"a page":       {func(d []byte) []byte { copy(d[len(d)/2:], bytes.Repeat([]byte{0xaa}, 4096)); return d }, 250},
		"truncated":    {func(d []byte) []byte { return d[:len(d)*3/4] }, 100},
		"random bytes": {func(d []byte) []byte { flip(d[8192:], 200); return d }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "edgecore.db")
			fill(t, path)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, c.damage(data), 0o600); err != nil {
				t.Fatal(err)
			}
			s, recovery, err := Open(t.Context(), path, Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if recovery == nil {
				t.Fatal("the damage was not noticed")
			}
			t.Log(recovery)
			if recovery.Saved < c.saved || (recovery.Complete && recovery.Saved != 300) {
				t.Errorf("saved %d rows (complete: %v), want %d or more", recovery.Saved, recovery.Complete, c.saved)
			}
			if _, err := os.Stat(recovery.SetAside); err != nil {
				t.Error("the damaged file is gone:", err)
			}
			apply(t, s, Upsert(meta("a/pod/new", "1")))
			if got := value(t, s, "a/pod/new"); got != "1" {
				t.Error("not usable afterwards")
			}
		})
	}
}

func flip(data []byte, n int) {
	r := rand.New(rand.NewPCG(1, 2))
	for range n {
		data[r.IntN(len(data))] ^= byte(1 + r.IntN(255))
	}
}

func TestEmptyFileAndFolder(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "edgecore.db")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	apply(t, openTest(t, path), Upsert(meta("a/pod/x", "1")))
	if _, _, err := Open(t.Context(), dir, Options{}); err == nil || !strings.Contains(err.Error(), "it is a folder") {
		t.Errorf("err = %v", err)
	}
}

// TestFullDisk: on a file system that is really full nothing is lost, and work goes on when there is room.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(dir, "edgecore.db")
	s, _, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	stored := 0
	for ; stored < 1000; stored++ {
		if err = s.Apply(t.Context(), Upsert(meta(fmt.Sprintf("a/pod/p%d", stored), strings.Repeat("x", 4000)))); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrFull) {
		t.Fatalf("after %d rows: %v, want ErrFull", stored, err)
	}
	for i := range stored {
		if value(t, s, fmt.Sprintf("a/pod/p%d", i)) == "(none)" {
			t.Fatalf("row %d of %d was lost", i, stored)
		}
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=8m"); err != nil {
		t.Fatal(err)
	}
	apply(t, s, Upsert(meta("a/pod/after", "1")))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again, recovery, err := Open(t.Context(), path, Options{})
	if err != nil || recovery != nil {
		t.Fatal(recovery, err)
	}
	defer again.Close()
	if list, err := again.List(t.Context(), "pod"); err != nil || len(list) != stored+1 {
		t.Errorf("%d rows, %v; want %d", len(list), err, stored+1)
	}
}

// TestAgainstModel: random operations, with reopenings, do what a map does.
func TestAgainstModel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edgecore.db")
	r := rand.New(rand.NewPCG(3, 4))
	model := map[string]string{}
	s, _, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2000 {
		key := fmt.Sprintf("a/pod/p%d", r.IntN(20))
		switch v := fmt.Sprint(i); r.IntN(10) {
		case 0, 1:
			apply(t, s, Delete(key))
			delete(model, key)
		case 2:
			apply(t, s, Upsert(meta(key, v)), Delete(key))
			delete(model, key)
		case 3:
			if i%20 != 0 {
				continue
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if s, _, err = Open(t.Context(), path, Options{}); err != nil {
				t.Fatal(err)
			}
		default:
			apply(t, s, Upsert(meta(key, v)))
			model[key] = v
		}
	}
	defer s.Close()
	got := map[string]string{}
	list, err := s.List(t.Context(), "pod")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		got[m.Key] = string(m.Value)
	}
	if diff := cmp.Diff(model, got); diff != "" {
		t.Error(diff)
	}
}

func TestClosedStore(t *testing.T) {
	s := openTest(t, filepath.Join(t.TempDir(), "edgecore.db"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(t.Context(), Delete("x")); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// insert stores 500 pods of 4 KB, one Apply each.
func insert(b testing.TB, s *Store, senders int, round int) time.Duration {
	b.Helper()
	value := bytes.Repeat([]byte("x"), 4096)
	jobs := make(chan int)
	began := time.Now()
	var wg sync.WaitGroup
	for range senders {
		wg.Go(func() {
			for i := range jobs {
				m := Meta{Key: fmt.Sprintf("default/pod/p%d-%d", round, i), Type: "pod", Value: value}
				if err := s.Apply(context.Background(), Upsert(m)); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for i := range 500 {
		jobs <- i
	}
	close(jobs)
	wg.Wait()
	return time.Since(began)
}

// TestGroupCommitPays: 16 senders that wait for the disk together are at least 3 times as fast as one
// transaction a message, in the same run.
func TestGroupCommitPays(t *testing.T) {
	s := openTest(t, filepath.Join(t.TempDir(), "edgecore.db"))
	var ratios []float64
	for round := range 7 {
		alone := insert(t, s, 1, 2*round)
		together := insert(t, s, 16, 2*round+1)
		ratios = append(ratios, float64(alone)/float64(together))
	}
	slices.Sort(ratios)
	t.Logf("ratios %.1f", ratios)
	if median := ratios[len(ratios)/2]; median < 3 && !raceEnabled {
		t.Errorf("median ratio %.1f, want 3 or more", median)
	}
}

// TestReadAtStart: the pods of a full node are read in a moment.
func TestReadAtStart(t *testing.T) {
	s := openTest(t, filepath.Join(t.TempDir(), "edgecore.db"))
	insert(t, s, 16, 0)
	best := time.Hour
	for range 5 {
		began := time.Now()
		list, err := s.List(t.Context(), "pod")
		if err != nil || len(list) != 500 {
			t.Fatal(len(list), err)
		}
		best = min(best, time.Since(began))
	}
	t.Logf("500 pods of 4 KB in %v", best)
	if best > 30*time.Millisecond && !raceEnabled {
		t.Errorf("took %v, want less than 30 ms", best)
	}
}

func BenchmarkInsert500Pods(b *testing.B) {
	for _, senders := range []int{1, 16} {
		b.Run(fmt.Sprintf("senders=%d", senders), func(b *testing.B) {
			s := openTest(b, filepath.Join(b.TempDir(), "edgecore.db"))
			var total time.Duration
			for i := range b.N {
				total += insert(b, s, senders, i)
			}
			b.ReportMetric(float64(500*b.N)/total.Seconds(), "pods/s")
		})
	}
}
