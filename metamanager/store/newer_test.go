package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

const (
	metaQuery   = "SELECT key||' '||value FROM meta ORDER BY key"
	outboxQuery = "SELECT key||' '||value FROM outbox ORDER BY seq"
	agentQuery  = "SELECT key||' '||value FROM agent WHERE key NOT IN ('" + seqKey + "', '" + RolledBackNote +
		"') ORDER BY key"
)

// asNewer runs a function as a newer version does that has more migrations.
func asNewer(t *testing.T, more []migration, do func()) {
	t.Helper()
	known := migrations
	migrations = append(slices.Clone(known), more...)
	defer func() { migrations = known }()
	do()
}

// newerFile makes a store, and has a newer version migrate and change it. leaveLog leaves its last changes in the
// log, as a crash does.
func newerFile(t *testing.T, more []migration, leaveLog bool) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "edgecore.db")
	s := openTest(t, path)
	apply(t, s,
		Upsert(meta("a/pod/kept", `{"n":1}`)), Upsert(meta("a/pod/deleted", `{"n":1}`)),
		Upsert(meta("a/secret/kept", `{"n":1}`)), Upsert(meta("a/configmap/kept", `{"n":1}`)),
		OutboxPut("sent", []byte(`{"n":1}`)), OutboxPut("waits", []byte(`{"n":1}`)),
		AgentSet("kept", "1"), AgentSet("dropped", "1"), AgentSet(ConnectedNote, "of this version"))
	closeTest(t, s)
	asNewer(t, more, func() {
		s := openTest(t, path)
		apply(t, s,
			Upsert(meta("a/pod/kept", `{"n":2}`)), Delete("a/pod/deleted"), Upsert(meta("a/pod/new", `{"n":2}`)),
			Upsert(meta("a/secret/kept", `{"n":2}`)),
			OutboxAck("sent", 1), OutboxPut("waits", []byte(`{"n":2}`)), OutboxPut("new", []byte(`{"n":2}`)),
			AgentSet("kept", "2"), AgentDelete("dropped"), AgentSet(ConnectedNote, "of the newer version"))
		if !leaveLog {
			closeTest(t, s)
			return
		}
		crashed := filepath.Join(t.TempDir(), "edgecore.db")
		for _, suffix := range []string{"", "-wal", ".before-3"} {
			if err := copyFile(path+suffix, crashed+suffix); err != nil {
				t.Fatal(err)
			}
		}
		path = crashed
		leaveUnclean(t, path)
	})
	return path
}

func closeTest(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// runs is a migration that counts how often it was run.
var runs = migration{sql: `CREATE TABLE IF NOT EXISTS runs (n integer); INSERT INTO runs VALUES (1);`}

// TestReadableBy: a file is usable from the newest step on that does not declare to be compatible.
func TestReadableBy(t *testing.T) {
	ok, not := migration{compatible: true}, migration{}
	for name, c := range map[string]struct {
		more []migration
		want int
	}{
		"none":                 {nil, 2},
		"compatible":           {[]migration{ok}, 2},
		"several":              {[]migration{ok, ok, ok}, 2},
		"not declared":         {[]migration{ok, not}, 4},
		"compatible behind it": {[]migration{ok, not, ok, ok}, 4},
	} {
		asNewer(t, c.more, func() {
			if got := readableBy(len(migrations)); got != c.want {
				t.Errorf("%s: readableBy(%d) = %d, want %d", name, len(migrations), got, c.want)
			}
		})
	}
}

// TestMark: what a file says about who can use it. One without a mark, or with an impossible one, is only for its own
// version.
func TestMark(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edgecore.db")
	closeTest(t, openTest(t, path))
	db := raw(t, path)
	for _, c := range []struct {
		version, id, want int
	}{
		{2, -1, 2}, // as it was made
		{7, readableMagic | 3, 3},
		{7, readableMagic | 7, 7},
		{7, 0, 7},
		{7, readableMagic, 7},
		{7, readableMagic | 8, 7},
		{7, 0x11110000 | 3, 7},
		{7, -readableMagic | 3, 7},
	} {
		if c.id != -1 {
			if _, err := db.Exec(fmt.Sprintf("PRAGMA user_version=%d; PRAGMA application_id=%d", c.version,
				c.id)); err != nil {
				t.Fatal(err)
			}
		}
		version, readable, err := readMark(t.Context(), db)
		if err != nil || version != c.version || readable != c.want {
			t.Errorf("application_id %#x of version %d: version %d, readable by %d, %v; want by %d",
				c.id, c.version, version, readable, err, c.want)
		}
	}
}

// TestCompatibleNewerFile: an older version uses the file as it is, and the newer one goes on with it.
func TestCompatibleNewerFile(t *testing.T) {
	more := []migration{runs, {sql: `ALTER TABLE meta ADD COLUMN size integer;
		ALTER TABLE outbox ADD COLUMN tries integer NOT NULL DEFAULT 0;
		CREATE TABLE changes (key text NOT NULL PRIMARY KEY, n integer NOT NULL);
		CREATE TRIGGER count_changes AFTER INSERT ON meta BEGIN
			INSERT INTO changes VALUES (new.key, 1) ON CONFLICT(key) DO UPDATE SET n=n+1; END;`}}
	for i := range more {
		more[i].compatible = true
	}
	for _, leaveLog := range []bool{false, true} {
		path := newerFile(t, more, leaveLog)
		if !leaveLog {
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			closeTest(t, openTest(t, path))
			if after, err := os.ReadFile(path); err != nil || !cmp.Equal(before, after) {
				t.Errorf("the file has %d bytes, %v, after it was only opened; want the %d bytes of before unchanged",
					len(after), err, len(before))
			}
		}
		s := openTest(t, path) // fails if it was recovered
		if got := value(t, s, "a/pod/kept"); got != `{"n":2}` {
			t.Errorf("a/pod/kept = %s, want what the newer version wrote", got)
		}
		apply(t, s, Upsert(meta("a/pod/kept", `{"n":3}`)), Upsert(meta("a/pod/older", `{"n":3}`)),
			Delete("a/secret/kept"), OutboxPut("older", []byte(`{"n":3}`)))
		closeTest(t, s)
		asNewer(t, more, func() {
			s := openTest(t, path)
			apply(t, s, Upsert(meta("a/pod/again", `{"n":4}`)))
			closeTest(t, s)
		})
		got := dump(t, path, "PRAGMA user_version", "SELECT count(*) FROM runs", metaQuery, outboxQuery,
			"SELECT tries FROM outbox WHERE key='older'", "SELECT n FROM changes WHERE key='a/pod/older'")
		want := []string{
			"4", "1",
			`a/configmap/kept {"n":1}`, `a/pod/again {"n":4}`, `a/pod/kept {"n":3}`, `a/pod/new {"n":2}`,
			`a/pod/older {"n":3}`,
			`waits {"n":2}`, `new {"n":2}`, `older {"n":3}`,
			"0", "1",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("log left %v: after the newer version returned (-want +got):\n%s", leaveLog, diff)
		}
		if names := aside(t, path); len(names) != 0 {
			t.Errorf("set aside: %v, want nothing", names)
		}
	}
}

// aside lists what a rollback or a repair has put beside a store.
func aside(t *testing.T, path string) []string {
	t.Helper()
	var names []string
	for _, pattern := range []string{".newer-*", ".rollback*", ".corrupt-*", ".rebuild*"} {
		found, err := filepath.Glob(path + pattern)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, found...)
	}
	return names
}

// rolledBack opens a store, which must have been rolled back, and returns what it holds.
func rolledBack(t *testing.T, path string, opts Options) (rows []string, r *Recovery) {
	t.Helper()
	s, r, err := Open(t.Context(), path, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	note, err := s.AgentValue(t.Context(), RolledBackNote)
	if err != nil || !strings.Contains(note, "newer version of edgecore (schema ") {
		t.Errorf("the note is %q, %v; want what was done", note, err)
	}
	at := s.path
	closeTest(t, s)
	if at != path {
		return nil, r // a copy, which goes with its Close
	}
	return dump(t, path, "PRAGMA user_version", metaQuery, outboxQuery, agentQuery), r
}

// TestRollback: what becomes of the rows when a newer version's file cannot be used.
func TestRollback(t *testing.T) {
	// All tables as they were, but what is in them means something else.
	all := []string{
		"2", `a/configmap/kept {"n":1}`, `a/pod/kept {"n":2}`, `a/pod/new {"n":2}`, `a/secret/kept {"n":2}`,
		`waits {"n":2}`, `new {"n":2}`, "kept 2",
	}
	// What the copy has, without its reports.
	copied := []string{
		"2", `a/configmap/kept {"n":1}`, `a/pod/deleted {"n":1}`, `a/pod/kept {"n":1}`, `a/secret/kept {"n":1}`,
		"dropped 1", "kept 1",
	}
	unreadable := append(slices.Clone(copied[:5]), all[5:]...) // the table meta
	const later = "CREATE TABLE later (x);"
	for name, c := range map[string]struct {
		more   migration
		change string // to the newer file, afterwards
		want   []string
	}{
		"same tables": {migration{sql: later}, "", all},
		"declared wrongly, column": {
			migration{sql: later, compatible: true}, "ALTER TABLE meta RENAME COLUMN value TO v", unreadable,
		},
		"declared wrongly, not null": {
			migration{sql: later, compatible: true},
			"CREATE TABLE m2 (key text PRIMARY KEY, type text, value text, extra text NOT NULL); INSERT INTO m2 " +
				"SELECT key, type, value, 'x' FROM meta; DROP TABLE meta; ALTER TABLE m2 RENAME TO meta", all,
		},
		"declared wrongly, trigger": {
			migration{sql: later, compatible: true},
			"CREATE TRIGGER no BEFORE INSERT ON outbox BEGIN SELECT RAISE(ABORT, 'no'); END", all,
		},
		"without rowid": {
			migration{sql: later},
			"CREATE TABLE m2 (key text PRIMARY KEY, type text, value text) WITHOUT ROWID; INSERT INTO m2 SELECT * " +
				"FROM meta; DROP TABLE meta; ALTER TABLE m2 RENAME TO meta", all,
		},
		"a view": {
			migration{sql: later},
			"ALTER TABLE meta RENAME TO m2; CREATE VIEW meta AS SELECT key, type, value FROM m2", all,
		},
		"secrets are elsewhere": {
			migration{sql: later},
			"CREATE TABLE secret AS SELECT * FROM meta WHERE type='secret'; DELETE FROM meta WHERE type='secret'",
			replace(all, `a/secret/kept {"n":2}`, `a/secret/kept {"n":1}`),
		},
		"a value in another form": {
			migration{sql: later}, "UPDATE meta SET value=x'00ff' WHERE key='a/pod/kept'",
			replace(all, `a/pod/kept {"n":2}`, `a/pod/kept {"n":1}`),
		},
		"no table is readable": {
			migration{sql: later},
			"ALTER TABLE meta RENAME TO m2; ALTER TABLE outbox RENAME TO o2; ALTER TABLE agent RENAME TO a2", copied,
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := newerFile(t, []migration{c.more}, false)
			db := raw(t, path)
			if _, err := db.Exec(c.change); err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			got, r := rolledBack(t, path, Options{})
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("rows (-want +got):\n%s", diff)
			}
			if r == nil || r.Newer != 3 || r.Before != path+".before-3" || r.Complete || r.SetAside == "" {
				t.Fatalf("recovery %+v, want one of a file of schema 3, to the copy, not complete", r)
			}
			if got := dump(t, r.SetAside, "PRAGMA user_version"); got[0] != "3" {
				t.Errorf("the file that was set aside has schema %s, want 3", got[0])
			}
			openTest(t, path) // fails if something is still to be recovered
		})
	}
}

func replace(list []string, old, with string) []string {
	list = slices.Clone(list)
	list[slices.Index(list, old)] = with
	return list
}

// TestRollbackSeqs: no seq is given out twice, also if the newer file cannot tell its own.
func TestRollbackSeqs(t *testing.T) {
	for _, change := range []string{"SELECT 1", "ALTER TABLE outbox RENAME TO o2", "ALTER TABLE agent RENAME TO a2"} {
		path := newerFile(t, []migration{{sql: "CREATE TABLE later (x)"}}, false)
		db := raw(t, path)
		var last int64
		if err := db.QueryRow(sqlLastSeq).Scan(&last); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec(change); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		rolledBack(t, path, Options{})
		s := openTest(t, path)
		apply(t, s, OutboxPut("latest", []byte("{}")))
		if got, err := s.OutboxGet(t.Context(), "latest"); err != nil || got.Seq <= last {
			t.Errorf("%s: seq %d, %v; want one above %d", change, got.Seq, err, last)
		}
	}
}

// TestRollbackAndBack: the newer version migrates the file again that the older one made, and another rollback works.
func TestRollbackAndBack(t *testing.T) {
	more := []migration{runs}
	path := newerFile(t, more, true)
	for i := range keepAside + 2 {
		rolledBack(t, path, Options{})
		asNewer(t, more, func() {
			s := openTest(t, path)
			apply(t, s, Upsert(meta("a/pod/new", fmt.Sprintf(`{"n":%d}`, i))))
			closeTest(t, s)
		})
		got := dump(t, path, "PRAGMA user_version", "SELECT count(*) FROM runs",
			"SELECT value FROM meta WHERE key='a/pod/new'")
		if diff := cmp.Diff([]string{"3", "1", fmt.Sprintf(`{"n":%d}`, i)}, got); diff != "" {
			t.Errorf("after the newer version returned (-want +got):\n%s", diff)
		}
	}
	if names := aside(t, path); len(names) != keepAside {
		t.Errorf("set aside: %v, want the newest %d", names, keepAside)
	}
}

// TestRollbackWithoutCopy: the store begins with what can be read of the newer file alone, whatever is beside it.
func TestRollbackWithoutCopy(t *testing.T) {
	want := []string{
		"2", `a/configmap/kept {"n":1}`, `a/pod/kept {"n":2}`, `a/pod/new {"n":2}`, `a/secret/kept {"n":2}`,
		`waits {"n":2}`, `new {"n":2}`, "kept 2",
	}
	for name, setUp := range map[string]func(copy string) error{
		"none":       os.Remove,
		"unfinished": func(copy string) error { return os.Rename(copy, copy+".partial") },
		"garbage":    func(copy string) error { return os.WriteFile(copy, []byte("no database"), 0o600) },
		"a folder":   func(copy string) error { return errors.Join(os.Remove(copy), os.Mkdir(copy, 0o700)) },
		"empty":      func(copy string) error { return os.Truncate(copy, 0) },
		"cut off":    func(copy string) error { return os.Truncate(copy, 5000) },
		"damaged": func(copy string) error {
			data, err := os.ReadFile(copy)
			if err != nil {
				return err
			}
			return os.WriteFile(copy, everyPage(data, 1, 0xaa), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := newerFile(t, []migration{{sql: "CREATE TABLE later (x)"}}, false)
			if err := setUp(path + ".before-3"); err != nil {
				t.Fatal(err)
			}
			got, _ := rolledBack(t, path, Options{MaxGap: testGap()})
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("rows (-want +got):\n%s", diff)
			}
		})
	}
}

// TestNewestBefore: of several copies, the one with the newest schema that this version can use.
func TestNewestBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edgecore.db")
	closeTest(t, openTest(t, path))
	for name, pragmas := range map[string]string{
		"2": "PRAGMA user_version=1", "3": "PRAGMA user_version=2",
		"5": fmt.Sprintf("PRAGMA user_version=4; PRAGMA application_id=%d", readableMagic|2),
		"6": fmt.Sprintf("PRAGMA user_version=5; PRAGMA application_id=%d", readableMagic|5),
		"7": "PRAGMA user_version=6; PRAGMA application_id=0",
		"x": "PRAGMA user_version=2", "8.partial": "PRAGMA user_version=2",
	} {
		if err := copyFile(path, path+".before-"+name); err != nil {
			t.Fatal(err)
		}
		db := raw(t, path+".before-"+name)
		if _, err := db.Exec(pragmas); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{".before-5", ".before-3", ".before-2", ""} {
		got, err := newestBefore(t.Context(), path)
		if err != nil || strings.TrimPrefix(got, path) != want {
			t.Errorf("newestBefore = %s, %v; want %s", got, err, want)
		}
		if got != "" {
			if err := os.Remove(got); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestInterruptedRollback: the next start goes on after a kill behind each step, and within the first. A kill within a
// rename is one before or behind it.
func TestInterruptedRollback(t *testing.T) {
	more := []migration{{sql: "CREATE TABLE later (x)"}}
	want, _ := rolledBack(t, newerFile(t, more, true), Options{})
	if len(want) != 8 {
		t.Fatalf("rows %v, want 8", want)
	}
	for n := range newRollback("x", "x", 3, "", 0).steps() {
		for _, half := range []string{"", ".rollback", ".rollback-wal"} {
			if half != "" && n != 0 {
				continue
			}
			t.Run(fmt.Sprintf("%d steps%s", n, half), func(t *testing.T) {
				path := newerFile(t, more, true)
				for _, step := range newRollback(path, path, 3, "a reason", 100).steps()[:n] {
					if err := step(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if half != "" { // within the first
					write(t, path+".rollback", nil)
					write(t, path+half, []byte("half"))
				}
				got, r := rolledBack(t, path, Options{})
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("rows (-want +got):\n%s", diff)
				}
				if r == nil || r.Newer != 3 || r.SetAside == "" {
					t.Fatalf("recovery %+v, want one of schema 3", r)
				}
				// The log of the newer file belongs to it.
				if got := dump(t, r.SetAside, "PRAGMA user_version", metaQuery); len(got) != 5 ||
					!slices.Contains(got, `a/pod/new {"n":2}`) {
					t.Errorf("the file that was set aside holds %v, want all that the newer version wrote", got)
				}
				if names := aside(t, path); len(names) != 1 && !(len(names) <= 3 && names[0] == r.SetAside) {
					t.Errorf("beside the store: %v, want what was set aside once", names)
				}
			})
		}
	}
	t.Run("all steps", func(t *testing.T) { // before anyone was told
		path := newerFile(t, more, true)
		for _, step := range newRollback(path, path, 3, "a reason", 100).steps() {
			if err := step(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if got, _ := rolledBack(t, path, Options{}); !cmp.Equal(want, got) {
			t.Errorf("rows %v, want %v", got, want)
		}
	})
}

// TestLogGoesWithItsFile: a log that a crash left behind belongs to the file that was set aside.
func TestLogGoesWithItsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edgecore.db")
	set := path + ".newer-3-20260101T000000.000Z"
	write(t, path+".rollback", filled(t, path))
	if err := os.Rename(path, set); err != nil {
		t.Fatal(err)
	}
	write(t, path+"-wal", []byte("of the newer file"))
	leaveUnclean(t, path)
	s, r, err := Open(t.Context(), path, Options{})
	if err != nil || r == nil || r.Newer != 3 || r.SetAside != set {
		t.Fatalf("Open: recovery %+v, %v; want the rollback of schema 3 finished", r, err)
	}
	defer s.Close()
	if data, err := os.ReadFile(set + "-wal"); err != nil || string(data) != "of the newer file" {
		t.Errorf("log of the file that was set aside: %q, %v; want the one that was left", data, err)
	}
	if list, err := s.List(t.Context(), "pod"); err != nil || len(list) != filledRows {
		t.Errorf("%d rows, %v; want %d", len(list), err, filledRows)
	}
}

// TestNewerReturnsWithinRollback: the newer version finds its file, or what the older one has made of it.
func TestNewerReturnsWithinRollback(t *testing.T) {
	more := []migration{runs}
	for n := range newRollback("x", "x", 3, "", 0).steps() {
		path := newerFile(t, more, true)
		for _, step := range newRollback(path, path, 3, "a reason", 100).steps()[:n] {
			if err := step(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		asNewer(t, more, func() {
			s, _, err := Open(t.Context(), path, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if got := value(t, s, "a/pod/new"); got != `{"n":2}` {
				t.Errorf("after %d steps: a/pod/new = %s, want what was written last", n, got)
			}
			closeTest(t, s)
		})
		got := dump(t, path, "PRAGMA user_version", "SELECT count(*) FROM runs")
		if !cmp.Equal(got, []string{"3", "1"}) {
			t.Errorf("after %d steps: schema and runs of its migration %v, want 3 and 1", n, got)
		}
	}
}

// TestKill9Rollback kills processes that roll a store back at random moments, until one has done it.
func TestKill9Rollback(t *testing.T) {
	rounds := 8
	if *long {
		rounds = 200
	}
	for round := range rounds {
		path := newerFile(t, []migration{{sql: "CREATE TABLE later (x)"}}, true)
		done := false
		for limit := 40 * time.Millisecond; !done; limit *= 2 { // longer than a slow machine takes, at last
			cmd, lines := startWriter(t, path)
			timer := time.AfterFunc(rand.N(limit), func() { _ = cmd.Process.Kill() })
			for lines.Scan() { // it has rolled back, or the one before it has
				done = done || strings.HasPrefix(lines.Text(), "fail the store was written") ||
					strings.HasPrefix(lines.Text(), "open")
				if done {
					_ = cmd.Process.Kill()
				}
			}
			timer.Stop()
			_ = cmd.Wait()
		}
		got, _ := rolledBack(t, path, Options{})
		for _, row := range []string{
			"2", `a/configmap/kept {"n":1}`, `a/pod/kept {"n":2}`, `a/pod/new {"n":2}`, `a/secret/kept {"n":2}`,
			`waits {"n":2}`, `new {"n":2}`, "kept 2",
		} {
			if !slices.Contains(got, row) {
				t.Errorf("round %d: %q is missing in %v", round, row, got)
			}
		}
	}
}

// TestRollbackDamaged: a newer version's file that is damaged, too, gives what can be read of it.
func TestRollbackDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edgecore.db")
	filled(t, path)
	if err := copyFile(path, path+".before-3"); err != nil {
		t.Fatal(err)
	}
	db := raw(t, path)
	if _, err := db.Exec("UPDATE meta SET value=replace(value, 'fill', 'new'); PRAGMA user_version=3; PRAGMA " +
		"application_id=0"); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, everyPage(data, 2, 0xaa))
	leaveUnclean(t, path)
	rolledBack(t, path, Options{MaxGap: testGap()})
	got := dump(t, path, "SELECT count(*) FROM meta", "SELECT count(*)>10 FROM meta WHERE value LIKE '%new%'",
		"SELECT count(*)>10 FROM meta WHERE value LIKE '%fill%'", "PRAGMA integrity_check")
	if diff := cmp.Diff([]string{fmt.Sprint(filledRows), "1", "1", "ok"}, got); diff != "" {
		t.Errorf("rows, some of either version, and integrity (-want +got):\n%s", diff)
	}
}

// TestDamagedCompatibleFile: it is repaired as one of this version, and the newer version migrates it again.
func TestDamagedCompatibleFile(t *testing.T) {
	more := []migration{{sql: runs.sql, compatible: true}}
	path := newerFile(t, more, false)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, data[:len(data)-4096])
	leaveUnclean(t, path)
	s, r, err := Open(t.Context(), path, Options{MaxGap: testGap()})
	if err != nil || r == nil || r.Newer != 0 || r.Complete {
		t.Fatalf("Open: recovery %+v, %v; want a repair that is not complete: the table runs is gone", r, err)
	}
	if got := value(t, s, "a/pod/new"); got != `{"n":2}` {
		t.Errorf("a/pod/new = %s, want it taken over", got)
	}
	closeTest(t, s)
	asNewer(t, more, func() { closeTest(t, openTest(t, path)) })
	if got := dump(t, path, "PRAGMA user_version", "SELECT count(*) FROM runs"); !cmp.Equal(got, []string{"3", "1"}) {
		t.Errorf("schema and runs of the migration once the newer version is back: %v, want 3 and 1", got)
	}
}

// TestRollbackFullDisk: the newer file stays as it is until there is room.
func TestRollbackFullDisk(t *testing.T) {
	dir := tmpfs(t, "512k")
	from := newerFile(t, []migration{{sql: "CREATE TABLE later (x)"}}, false)
	path := filepath.Join(dir, "edgecore.db")
	if err := copyFile(from, path); err != nil {
		t.Fatal(err)
	}
	ballast, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = ballast.Write(make([]byte, 512))
	}
	if err := ballast.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(t.Context(), path, Options{}); !errors.Is(err, ErrFull) {
		t.Fatalf("Open on a full disk: %v, want ErrFull", err)
	}
	if names := aside(t, path); len(names) != 0 {
		t.Errorf("beside the store: %v, want nothing", names)
	}
	if err := os.Remove(ballast.Name()); err != nil {
		t.Fatal(err)
	}
	if got, _ := rolledBack(t, path, Options{}); !slices.Contains(got, `a/pod/new {"n":2}`) {
		t.Errorf("rows %v once there is room, want those of the newer version", got)
	}
}

// TestRollbackReadOnlyDisk: the copy in memory is rolled back, from the copy on the disk, which stays as it is.
func TestRollbackReadOnlyDisk(t *testing.T) {
	dir := tmpfs(t, "2m")
	more := []migration{{sql: "ALTER TABLE meta RENAME TO m2; CREATE TABLE meta (key text PRIMARY KEY, type, value)"}}
	from := newerFile(t, more, false)
	path := filepath.Join(dir, "edgecore.db")
	for _, suffix := range []string{"", ".before-3"} {
		if err := copyFile(from+suffix, path+suffix); err != nil {
			t.Fatal(err)
		}
	}
	remount(t, dir, unix.MS_RDONLY, "")
	scratch := filepath.Join(t.TempDir(), "run")
	for range 2 {
		s, r, err := Open(t.Context(), path, Options{Scratch: scratch})
		if err != nil || r == nil || r.Newer != 3 || !s.Frozen() {
			t.Fatalf("Open: recovery %v, %v; want a rollback in the copy", r, err)
		}
		if got := value(t, s, "a/configmap/kept"); got != `{"n":1}` {
			t.Errorf("a/configmap/kept = %s, want what the copy has", got)
		}
		closeTest(t, s)
		if left, err := os.ReadDir(scratch); err != nil || len(left) != 0 {
			t.Errorf("left in memory: %v, %v; want nothing", left, err)
		}
	}
	remount(t, dir, 0, "")
	if names := aside(t, path); len(names) != 0 {
		t.Errorf("beside the store: %v, want nothing", names)
	}
}

// FuzzRollback: whatever a newer version's file and the copy hold, there is a usable store.
func FuzzRollback(f *testing.F) {
	whole := filled(f, filepath.Join(f.TempDir(), "edgecore.db"))
	f.Add(3, 3, 4096, []byte{13, 0xff}, false)
	f.Add(3, 2, 9000, []byte("abc"), true)
	f.Add(99, 1, 100, []byte{5, 0, 1, 0, 1}, true)
	f.Fuzz(func(t *testing.T, version, readable, at int, with []byte, inCopy bool) {
		path := filepath.Join(t.TempDir(), "edgecore.db")
		newer := slices.Clone(whole)
		for i, b := range []byte{byte(version >> 8), byte(version)} {
			newer[62+i] = b
		}
		copy(newer[68:], []byte{0x45, 0x43, byte(readable >> 8), byte(readable)})
		before := slices.Clone(whole)
		if target := newer; at >= 0 && at < len(target) {
			if inCopy {
				target = before
			}
			copy(target[at:], with)
		}
		write(t, path, newer)
		write(t, path+".before-3", before)
		s, _, err := Open(wait.Context(t), path, Options{MaxGap: testGap()}) // pods wait for it: it must end
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		checkRecovered(t, s, &Recovery{Saved: filledRows}, 0)
	})
}
