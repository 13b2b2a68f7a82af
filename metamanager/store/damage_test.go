package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

const filledRows = 300

// filledFile is what filled writes, once it has been made.
var filledFile []byte

// filled makes a store of 300 pods, in about as many pages, that ended cleanly; and returns its bytes.
func filled(t testing.TB, path string) []byte {
	t.Helper()
	if filledFile != nil {
		write(t, path, filledFile)
		return bytes.Clone(filledFile)
	}
	s, _, err := Open(t.Context(), path, Options{MaxGap: testGap()})
	if err != nil {
		t.Fatal(err)
	}
	for i := range filledRows {
		apply(t, s, Upsert(Meta{Key: fmt.Sprintf("a/pod/p%03d", i), Type: "pod", Value: podValue(i)}))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	filledFile = bytes.Clone(data)
	return data
}

func podValue(i int) []byte {
	return fmt.Appendf(nil, `{"metadata":{"name":"p%03d"},"fill":%q}`, i, strings.Repeat("x", 2000))
}

// leaveUnclean makes it look as after a crash: the check is thorough then.
func leaveUnclean(t testing.TB, path string) {
	t.Helper()
	if err := os.WriteFile(path+".open", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestDamagedFiles(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(data []byte) []byte
		saved  int // at the least
		clean  bool
	}{
		"garbage":        {func([]byte) []byte { return bytes.Repeat([]byte("no"), 5000) }, 0, false},
		"garbage, clean": {func([]byte) []byte { return bytes.Repeat([]byte("no"), 5000) }, 0, true},
		"zero length":    {func([]byte) []byte { return nil }, 0, false},
		"head":           {func(d []byte) []byte { copy(d, bytes.Repeat([]byte{0xff}, 64)); return d }, 0, false},
		"a page": {func(d []byte) []byte {
			copy(d[len(d)/8192*4096:], bytes.Repeat([]byte{0xaa}, 4096))
			return d
		}, filledRows - 2, false},
		"ten pages":     {func(d []byte) []byte { return everyPage(d, 30, 0xaa) }, filledRows * 8 / 10, false},
		"ten zeroed":    {func(d []byte) []byte { return everyPage(d, 30, 0) }, filledRows * 8 / 10, false},
		"truncated":     {func(d []byte) []byte { return d[:len(d)*3/4] }, filledRows * 7 / 10, false},
		"one page left": {func(d []byte) []byte { return d[:4096] }, 0, false},
		"random bytes":  {func(d []byte) []byte { flip(d[8192:], 200); return d }, 30, false},
		"version absurd": {func(d []byte) []byte { binary.BigEndian.PutUint32(d[60:], 1<<31); return d }, filledRows,
			true},
		"version too low": {func(d []byte) []byte { binary.BigEndian.PutUint32(d[60:], 1); return d }, filledRows,
			true},
		"odd format": {func(d []byte) []byte { d[47] = 9; return d }, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "edgecore.db")
			data := c.damage(filled(t, path))
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			if !c.clean {
				leaveUnclean(t, path)
			}
			s, recovery, err := Open(t.Context(), path, Options{MaxGap: testGap()})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if recovery == nil {
				t.Fatal("Open: recovery = nil, want one: the file is damaged")
			}
			t.Log(recovery)
			checkRecovered(t, s, recovery, c.saved)
		})
	}
}

// checkRecovered checks that a recovery is true, and its store sound.
func checkRecovered(t *testing.T, s *Store, r *Recovery, atLeast int) {
	t.Helper()
	list, err := s.List(t.Context(), "pod")
	if err != nil {
		t.Fatal(err)
	}
	wrong := 0
	for _, m := range list {
		var i int
		if _, err := fmt.Sscanf(m.Key, "a/pod/p%d", &i); err != nil || !bytes.Equal(m.Value, podValue(i)) {
			wrong++ // damage inside of a text, which nothing tells of
		}
	}
	if len(list)-wrong < atLeast || len(list) > filledRows || r.Saved < len(list) {
		t.Errorf("%d rows, %d of them wrong, want %d or more; saved %d", len(list), wrong, atLeast, r.Saved)
	}
	if r.Complete && len(list) != filledRows {
		t.Errorf("%d rows, complete %v; want %d rows or incomplete", len(list), r.Complete, filledRows)
	}
	if r.Lost > 0 && r.Lost < filledRows-len(list) {
		t.Errorf("%d rows reported as lost, want %d or more", r.Lost, filledRows-len(list))
	}
	if r.SetAside != "" {
		if _, err := os.Stat(r.SetAside); err != nil {
			t.Errorf("the damaged file: %v, want it kept", err)
		}
	}
	apply(t, s, Upsert(meta("a/node/new", "1")), OutboxPut("o", []byte("{}")))
	if got := value(t, s, "a/node/new"); got != "1" {
		t.Errorf("a/node/new is %q afterwards, want 1", got)
	}
	var text string
	if err := s.read.QueryRow("PRAGMA integrity_check").Scan(&text); err != nil || text != "ok" {
		t.Errorf("integrity_check = %s, %v; want ok", text, err)
	}
}

// everyPage overwrites one page in so many, from the third.
func everyPage(data []byte, n int, with byte) []byte {
	for at := 20 * 4096; at+4096 <= len(data); at += n * 4096 {
		copy(data[at:], bytes.Repeat([]byte{with}, 4096))
	}
	return data
}

func flip(data []byte, n int) {
	r := rand.New(rand.NewPCG(1, 2))
	for range n {
		data[r.IntN(len(data))] ^= byte(1 + r.IntN(255))
	}
}

// TestFileRemovedWhileOpen: a store that vanished is not taken for a new one.
func TestFileRemovedWhileOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edgecore.db")
	filled(t, path)
	leaveUnclean(t, path)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	s, recovery, err := Open(t.Context(), path, Options{MaxGap: testGap()})
	if err != nil || recovery == nil || !strings.Contains(recovery.String(), "removed") {
		t.Fatalf("Open: recovery %v, err %v; want a recovery that says that the file was removed", recovery, err)
	}
	checkRecovered(t, s, recovery, 0)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestInterruptedRepair: a crash at any step of a repair loses nothing of what was saved.
func TestInterruptedRepair(t *testing.T) {
	for name, c := range map[string]struct {
		setUp func(t *testing.T, path string, whole []byte)
		noted bool
	}{
		"while copying": {func(t *testing.T, path string, whole []byte) {
			write(t, path, whole)
			write(t, path+".rebuild", whole[:8192])
			write(t, path+".rebuild-wal", []byte("half"))
		}, false},
		"before the new file has its name": {func(t *testing.T, path string, whole []byte) {
			write(t, path+".rebuild", whole)
			write(t, path+".corrupt-20260101T000000.000Z", []byte("the damaged one"))
			write(t, path+"-wal", []byte("of the damaged one"))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "edgecore.db")
			whole := filled(t, path)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			leaveUnclean(t, path)
			c.setUp(t, path, whole)
			s, recovery, err := Open(t.Context(), path, Options{MaxGap: testGap()})
			if err != nil || (recovery != nil) != c.noted {
				t.Fatalf("Open: recovery %v, err %v; want a recovery: %v", recovery, err, c.noted)
			}
			defer s.Close()
			if list, err := s.List(t.Context(), "pod"); err != nil || len(list) != filledRows {
				t.Errorf("%d rows, %v; want %d", len(list), err, filledRows)
			}
		})
	}
}

func write(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestDamageWhileOpen: damage that shows later is an error of its kind, told once, and repaired at the next
// Open even after a clean end.
func TestDamageWhileOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edgecore.db")
	data := everyPage(filled(t, path), 2, 0xaa)
	write(t, path, data)
	var told atomic.Int32
	s, recovery, err := Open(t.Context(), path, Options{MaxGap: testGap(), OnDamage: func(error) { told.Add(1) }})
	if err != nil || recovery != nil {
		t.Fatalf("Open: recovery %v, err %v; want neither", recovery, err)
	}
	for range 2 {
		if _, err := s.List(t.Context(), "pod"); !errors.Is(err, ErrCorrupt) {
			t.Errorf("err = %v, want ErrCorrupt", err)
		}
	}
	if got := told.Load(); got != 1 {
		t.Errorf("told %d times, want once", got)
	}
	if err := s.Close(); err != nil && !errors.Is(err, ErrCorrupt) {
		t.Fatalf("Close = %v, want no error or ErrCorrupt", err)
	}
	s, recovery, err = Open(t.Context(), path, Options{MaxGap: testGap()})
	if err != nil || recovery == nil {
		t.Fatalf("Open: recovery %v, err %v; want a recovery", recovery, err)
	}
	defer s.Close()
	checkRecovered(t, s, recovery, 1)
}

// TestOldDamagedFilesGo: a device with a bad card does not fill it with damaged files.
func TestOldDamagedFilesGo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edgecore.db")
	last := ""
	for i := range keepAside + 3 {
		write(t, path, fmt.Appendf(nil, "garbage %d", i))
		s, recovery, err := Open(t.Context(), path, Options{MaxGap: testGap()})
		if err != nil || recovery == nil || recovery.SetAside == last {
			t.Fatalf("Open: recovery %v, err %v; want one whose file is not %q", recovery, err, last)
		}
		last = recovery.SetAside
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	aside, err := asideFiles(path, ".corrupt-")
	if err != nil || len(aside) != keepAside || aside[keepAside-1] != last {
		t.Errorf("%v, %v; want %d with the newest", aside, err, keepAside)
	}
}

// FuzzOpen: whatever the file holds, Open yields a usable store.
func FuzzOpen(f *testing.F) {
	whole := filled(f, filepath.Join(f.TempDir(), "edgecore.db"))
	f.Add(0, []byte("SQLite format 4\x00"), len(whole))
	f.Add(16, []byte{2, 0}, len(whole))
	f.Add(56, []byte{0, 0, 0, 2}, len(whole)) // text encoding
	f.Add(60, []byte{0, 0, 0, 200}, len(whole))
	f.Add(60, []byte{0, 0, 0, 200, 0, 0, 0, 0, 0x45, 0x43, 0, 1}, len(whole)) // usable by schema 1
	f.Add(60, []byte{0, 0, 0, 200}, 3*4096)
	f.Add(100, []byte{5, 0, 1, 0, 1}, len(whole)) // the schema's page
	f.Add(4096, []byte{13, 0xff, 0xff}, len(whole))
	f.Add(9000, []byte("abc"), 10000)
	f.Fuzz(func(t *testing.T, at int, with []byte, size int) {
		data := bytes.Clone(whole)
		if size >= 0 && size < len(data) {
			data = data[:size]
		}
		if at >= 0 && at < len(data) {
			copy(data[at:], with)
		}
		path := filepath.Join(t.TempDir(), "edgecore.db")
		write(t, path, data)
		leaveUnclean(t, path)
		s, recovery, err := Open(wait.Context(t), path, Options{MaxGap: testGap()}) // pods wait for it: it must end
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if recovery == nil {
			recovery = &Recovery{Saved: filledRows}
		}
		checkRecovered(t, s, recovery, 0)
	})
}
