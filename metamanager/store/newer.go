package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/mattn/go-sqlite3"
)

// A file of a newer version is used as it is if its mark says so (schema.go). Otherwise it is rolled back. The steps,
// and what a crash or a power cut after each of them leaves:
//
//	1. edgecore.db.rollback is made: a copy of .before-<n>,
//	   migrated to this version's schema, or an empty store;
//	   then the rows of the newer file that this version can
//	   read; then the note RolledBackNote; then it is synced    the newer file is still there: all starts again
//	2. edgecore.db becomes edgecore.db.newer-<n>-<time>
//	3. so do its -wal, -shm and -journal                        only .rollback is there, and it is whole: step 3 again
//	4. .rollback becomes edgecore.db                            the store is there, with the note

// RolledBackNote is the note of the agent (AgentValue) that is in a store which was rolled back: text for a person.
// Who reads it deletes it when the cloud has sent everything again.
const RolledBackNote = "store-rolled-back"

// ConnectedNote is the note of the agent that says since when the device is connected with a schema. It is about one
// file: the one that takes its place after a rollback has none.
const ConnectedNote = "connected-with-schema"

// SchemaVersion returns the schema that this version knows.
func SchemaVersion() int { return len(migrations) }

// seqGap is how far the seqs of reports go on above those of the copy, if the newer file cannot tell its own.
const seqGap = 1_000_000

// rollback replaces the file of a newer version.
type rollback struct {
	path string
	// origin is the path of the store beside which its copies are: path, unless that is a copy itself.
	origin string
	// schema is the newer file's.
	schema int
	// why says why the newer file cannot be used as it is.
	why    string
	aside  string
	maxGap int64
	// result is filled in by build.
	result Recovery
}

func newRollback(path, origin string, schema int, why string, maxGap int64) *rollback {
	return &rollback{
		path:   path,
		origin: origin,
		schema: schema,
		why:    why,
		aside:  fmt.Sprintf("%s.newer-%d-%s", path, schema, timeName()),
		maxGap: maxGap,
	}
}

func (b *rollback) fresh() string { return b.path + ".rollback" }

// steps returns the steps of the list above, those of 3 one by one.
func (b *rollback) steps() []func(context.Context) error {
	list := []func(context.Context) error{b.build}
	for _, suffix := range append([]string{""}, besides...) {
		list = append(list, func(context.Context) error {
			err := renameDurably(b.path+suffix, b.aside+suffix)
			if suffix != "" && errors.Is(err, os.ErrNotExist) {
				return nil
			}
			return err
		})
	}
	return append(list, func(context.Context) error { return renameDurably(b.fresh(), b.path) })
}

// run does all steps.
func (b *rollback) run(ctx context.Context) (*Recovery, error) {
	for _, step := range b.steps() {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("roll back a store of schema %d: %w", b.schema, err)
		}
	}
	return &b.result, dropOld(b.path, ".newer-")
}

// finishRollback goes on where a crash interrupted a rollback after step 2. The note in the file says what was done.
func finishRollback(path string) (*Recovery, error) {
	aside, err := asideFiles(path, ".newer-")
	if err != nil {
		return nil, err
	}
	r := &Recovery{Damage: "its rollback was interrupted", Lost: -1}
	if len(aside) > 0 {
		r.SetAside = aside[len(aside)-1]
		schema, _, _ := strings.Cut(strings.TrimPrefix(r.SetAside, path+".newer-"), "-")
		r.Newer, _ = strconv.Atoi(schema)
		for _, suffix := range besides {
			if err := os.Rename(path+suffix, r.SetAside+suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, err
			}
		}
	}
	r.Newer = max(r.Newer, len(migrations)+1) // whoever removed the file, it was one of a newer version
	return r, errors.Join(setStrayAside(path), renameDurably(path+".rollback", path))
}

// build makes the file that takes the newer one's place.
func (b *rollback) build(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, removeStore(b.fresh()))
		}
	}()
	if err := removeStore(b.fresh()); err != nil {
		return err
	}
	before, err := b.startFrom(ctx)
	if err != nil {
		return err
	}
	to := connect(b.fresh(), readWrite, 1)
	defer to.Close()
	version, _, err := readMark(ctx, to)
	if err == nil && !isNewer(version) {
		err = runSteps(ctx, to, version)
	}
	if err != nil {
		return err
	}
	_ = restoreLength(b.path) // as in repair
	newer := connect(b.path, asItIs, 1)
	defer newer.Close()
	tx, err := to.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	c := &carryOver{from: newer, tx: tx, maxGap: b.maxGap}
	if err := c.copyTables(ctx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	b.result = Recovery{
		Damage:   b.why,
		Newer:    b.schema,
		Before:   before,
		SetAside: b.aside,
		Saved:    c.saved,
		Lost:     -1,
	}
	if _, err := tx.ExecContext(ctx, sqlAgentPut, RolledBackNote, b.result.String()); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	if _, err := to.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
		return err
	}
	if err := errors.Join(to.Close(), newer.Close()); err != nil {
		return err
	}
	return errors.Join(syncFile(b.fresh()), syncFolder(b.fresh()))
}

// startFrom makes the file that the newer one's rows are put into: the newest copy that this version can use, or what
// can be read of it, or an empty store. It returns the path of the copy; "" without one.
func (b *rollback) startFrom(ctx context.Context) (before string, err error) {
	before, err = newestBefore(ctx, b.origin)
	if err != nil {
		return "", err
	}
	if before == "" {
		return "", createFile(b.fresh())
	}
	if err := copyFile(before, b.fresh()); err != nil {
		return "", err
	}
	state, err := check(ctx, b.fresh(), true)
	if err != nil || state.damage == "" && state.newer == 0 {
		return before, err
	}
	if err := errors.Join(removeStore(b.fresh()), createFile(b.fresh())); err != nil {
		return "", err
	}
	return before, salvage(ctx, before, b.fresh(), b.maxGap, &Recovery{})
}

// newestBefore returns the copy made before a migration that has the newest schema which this version can use; "" if
// there is none.
func newestBefore(ctx context.Context, path string) (string, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	best, bestVersion := "", -1
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), filepath.Base(path)+".before-")
		if _, err := strconv.Atoi(rest); !ok || err != nil || !e.Type().IsRegular() {
			continue
		}
		name := filepath.Join(filepath.Dir(path), e.Name())
		if version, err := usableVersion(ctx, name); err == nil && version > bestVersion {
			best, bestVersion = name, version
		}
	}
	return best, ctx.Err()
}

// usableVersion returns the version of a copy, or an error if this agent cannot use it.
func usableVersion(ctx context.Context, name string) (int, error) {
	db := connect(name, asItIs, 1)
	defer db.Close()
	version, readable, err := readMark(ctx, db)
	if err == nil && (version < 0 || readable > len(migrations)) {
		err = fmt.Errorf("%s has schema %d", name, version)
	}
	return version, err
}

// probe reports why this version cannot use a file of a newer one as it is; "" if it can. The mark has to say so, and
// this version's statements have to work: what the probe writes is rolled back.
func probe(ctx context.Context, path string, readable int) (why string, err error) {
	if readable > len(migrations) {
		return fmt.Sprintf("only agents that know schema %d or newer can use it", readable), nil
	}
	db := connect(path, readWrite, 1)
	defer db.Close()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return notUsable(err)
	}
	defer tx.Rollback() //nolint:errcheck // on purpose: nothing is to be written
	const key = "null/probe/probe"
	for _, s := range []struct {
		text string
		args []any
	}{
		{sqlUpsert, []any{key, "probe", "{}"}}, {sqlUpsert, []any{key, "probe", "{ }"}}, {sqlDelete, []any{key}},
		{sqlOutboxPut, []any{key, int64(1) << 40, "{}"}}, {sqlOutboxPut, []any{key, int64(1)<<40 + 1, "{ }"}},
		{sqlOutboxAck, []any{key, int64(1)<<40 + 1}},
		{sqlAgentSet, []any{key, "1"}}, {sqlAgentSet, []any{key, "2"}}, {sqlAgentDelete, []any{key}},
	} {
		if _, err := tx.ExecContext(ctx, s.text, s.args...); err != nil {
			return notUsable(err)
		}
	}
	for _, text := range readerStatements {
		stmt, err := tx.PrepareContext(ctx, text)
		if err != nil {
			return notUsable(err)
		}
		if err := stmt.Close(); err != nil {
			return "", err
		}
	}
	return "", nil
}

// notUsable tells errors of a schema that does not fit from others, which say nothing about it.
func notUsable(err error) (why string, other error) {
	var e sqlite3.Error
	if errors.As(err, &e) && (e.Code == sqlite3.ErrError || ownError(err)) {
		return "the statements of this version do not work on it: " + shorten(err.Error()), nil
	}
	return "", err
}

// carryOver puts the rows of a newer file into an older one.
type carryOver struct {
	from   *sql.DB
	tx     *sql.Tx
	maxGap int64
	saved  int
}

const (
	sqlMetaPut  = "INSERT OR REPLACE INTO meta(key,type,value) VALUES(?,?,?)"
	sqlAgentPut = "INSERT OR REPLACE INTO agent(key,value) VALUES(?,?)"
)

// copyTables carries over each table that this version can read.
func (c *carryOver) copyTables(ctx context.Context) error {
	var seq int64
	if err := c.tx.QueryRowContext(ctx, sqlLastSeq).Scan(&seq); err != nil {
		return err
	}
	// The copy's reports were sent, or newer ones took their place; its notes are older than the newer file's.
	if _, err := c.tx.ExecContext(ctx, "DELETE FROM outbox"); err != nil {
		return err
	}
	tables, _ := tablesOf(ctx, c.from)
	told := 0 // tables that tell the seqs
	for _, t := range tables {
		var err error
		switch t.name {
		case "meta":
			err = c.meta(ctx, t)
		case "agent":
			told++
			if _, err = c.tx.ExecContext(ctx, "DELETE FROM agent"); err == nil {
				t.put = sqlAgentPut
				_, err = c.table(ctx, t, nil)
			}
		default:
			told++
			_, err = c.table(ctx, t, nil)
		}
		if err != nil {
			return err
		}
	}
	if _, err := c.tx.ExecContext(ctx, sqlAgentDelete, ConnectedNote); err != nil {
		return err
	}
	var newest int64
	if err := c.tx.QueryRowContext(ctx, sqlLastSeq).Scan(&newest); err != nil {
		return err
	}
	if newest = max(seq, newest); told < 2 {
		newest += seqGap
	}
	_, err := c.tx.ExecContext(ctx, sqlAgentPut, seqKey, fmt.Sprint(newest))
	return err
}

// table copies what can be read of a table; each, which may be nil, is called with each row and whether it was taken.
func (c *carryOver) table(
	ctx context.Context, t salvageTable, each func(values []any, taken bool),
) (whole bool, err error) {
	r := &rowCopy{table: &t, from: c.from, tx: c.tx, maxGap: c.maxGap, next: 1, sound: true, each: each}
	if _, noRowID := c.from.ExecContext(ctx, "SELECT rowid FROM "+t.name+" LIMIT 0"); noRowID != nil {
		// A view, or WITHOUT ROWID.
		whole, err = r.query(ctx, "SELECT 0, "+t.columns+" FROM "+t.name, func(int64) bool { return true })
		r.gap = !whole
	} else {
		err = r.copyTable(ctx)
	}
	c.saved += r.saved
	return !r.gap, err
}

// meta copies the objects. Of each type that the newer file has, rows that are only in the copy were deleted since; a
// type that it does not have at all may be somewhere else in it by now, so the copy's rows of that type stay.
func (c *carryOver) meta(ctx context.Context, t salvageTable) error {
	t.put = sqlMetaPut
	keys, types := map[string]bool{}, map[string]bool{}
	whole, err := c.table(ctx, t, func(values []any, taken bool) {
		if key, ok := values[0].(string); ok {
			keys[key] = true
		}
		if typ, ok := values[1].(string); ok && taken {
			types[typ] = true
		}
	})
	if err != nil || !whole {
		return err
	}
	rows, err := c.tx.QueryContext(ctx, "SELECT key, ifnull(type,'') FROM meta")
	if err != nil {
		return err
	}
	defer rows.Close()
	var deleted []string
	for rows.Next() {
		var key, typ string
		if err := rows.Scan(&key, &typ); err != nil {
			return err
		}
		if types[typ] && !keys[key] {
			deleted = append(deleted, key)
		}
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return err
	}
	for key := range slices.Values(deleted) {
		if _, err := c.tx.ExecContext(ctx, sqlDelete, key); err != nil {
			return err
		}
	}
	return nil
}
