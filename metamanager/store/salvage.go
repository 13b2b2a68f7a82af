package store

import (
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// maxRestored bounds what a damaged head may ask for, in bytes; the file stays sparse.
	maxRestored = 1 << 30
	// defaultMaxGap is how many rows in a row may be unreadable before the rest of a table is given up.
	defaultMaxGap = 20_000
)

// salvageTable is how a table is read and filled when its file is damaged. The first column is the key, the
// last the value.
type salvageTable struct {
	name, columns, put string
	width              int
	// json: a value that is none is invalid to anyone.
	json bool
}

// salvageTables are the tables of the schema. Tables that others made stay in the file that is set aside.
var salvageTables = []salvageTable{
	{"meta", "key, ifnull(type,''), ifnull(value,'')", "INSERT OR IGNORE INTO meta(key,type,value) VALUES(?,?,?)", 3,
		true},
	{"outbox", "key, seq, first, value", "INSERT OR IGNORE INTO outbox(key,seq,first,value) VALUES(?,?,?,?)", 4, true},
	// Files of schema 1; used where the form above does not fit.
	{"outbox", "key, seq, seq, value", "INSERT OR IGNORE INTO outbox(key,seq,first,value) VALUES(?,?,?,?)", 4, true},
	{"agent", "key, value", "INSERT OR IGNORE INTO agent(key,value) VALUES(?,?)", 2, false},
}

// salvage copies the rows that can be read into a fresh file, and fills in what became of them. Its errors are
// those of the fresh file.
func salvage(ctx context.Context, from, fresh string, maxGap int64, r *Recovery) error {
	to := connect(fresh, readWrite, 1)
	defer to.Close()
	if err := migrate(ctx, to, fresh); err != nil {
		return err
	}
	old := connect(from, asItIs, 1)
	defer old.Close()
	tables, known := tablesOf(ctx, old)
	r.Complete = known
	for _, t := range tables {
		saved, sound, err := t.copyRows(ctx, old, to, maxGap)
		if err != nil {
			return err
		}
		r.Saved += saved
		// The count comes from the smallest index, which may be sound where the table is not.
		var all int
		err = old.QueryRowContext(ctx, "SELECT count(*) FROM "+t.name).Scan(&all)
		if sound && err == nil && all == saved {
			continue
		}
		r.Complete = false
		if err != nil || all <= saved {
			known = false
		}
		r.Lost += all - saved
	}
	if !known {
		r.Lost = -1
	}
	if _, err := to.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
		return err
	}
	return ctx.Err()
}

// tablesOf returns the tables that a file has. all is false if it should have more, or does not even tell.
func tablesOf(ctx context.Context, db *sql.DB) (list []salvageTable, all bool) {
	var version, master int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return nil, false
	}
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master").Scan(&master); err != nil {
		return nil, false
	}
	found := map[string]bool{}
	for _, t := range salvageTables {
		if found[t.name] {
			continue
		}
		if _, err := db.ExecContext(ctx, "SELECT "+t.columns+" FROM "+t.name+" LIMIT 0"); err == nil {
			list, found[t.name] = append(list, t), true
		}
	}
	// KubeEdge's files have no version, and only this table. A newer version may have tables of its own.
	return list, found["meta"] && !isNewer(version) && (version == 0 || found["outbox"] && found["agent"])
}

// copyRows copies a table by rowid. Where it cannot be read it tries the rows behind one by one, so that one bad
// page costs the rows on it and no others. sound is false if there was such a place.
func (t *salvageTable) copyRows(
	ctx context.Context, from, to *sql.DB, maxGap int64,
) (saved int, sound bool, err error) {
	tx, err := to.BeginTx(ctx, nil)
	if err != nil {
		return 0, false, err
	}
	c := &rowCopy{table: t, from: from, tx: tx, maxGap: maxGap, next: 1, sound: true}
	if err := c.copyTable(ctx); err != nil {
		return 0, false, errors.Join(err, tx.Rollback())
	}
	return c.saved, c.sound, tx.Commit()
}

// rowCopy is the copy of one table.
type rowCopy struct {
	table  *salvageTable
	from   *sql.DB
	tx     *sql.Tx
	maxGap int64
	next   int64 // rowid to go on at
	saved  int
	sound  bool
	// gap: some rows could not be read at all.
	gap bool
	// each, which may be nil, is called with each row that was read, and whether it was taken.
	each func(values []any, taken bool)
}

// copyTable goes through the table, over the places that cannot be read.
func (c *rowCopy) copyTable(ctx context.Context) error {
	for {
		whole, err := c.scan(ctx, "rowid >= ? ORDER BY rowid", c.next)
		if err != nil || whole {
			return err
		}
		c.sound, c.gap = false, true
		found := false
		for rowid, end := c.next, c.next+c.maxGap; rowid < end && !found && ctx.Err() == nil; rowid++ {
			before := c.next
			if _, err := c.scan(ctx, "rowid = ?", rowid); err != nil {
				return err
			}
			found = c.next > before
		}
		if !found {
			return c.fromEnd(ctx)
		}
	}
}

// scan copies rows, by growing rowid, until it meets one that cannot be read; whole tells that there was none.
func (c *rowCopy) scan(ctx context.Context, where string, rowid int64) (whole bool, err error) {
	return c.read(ctx, where, rowid, func(id int64) bool {
		if id < c.next {
			return false // in a circle
		}
		c.next = id + 1
		return true
	})
}

// fromEnd copies the rows behind the last place that cannot be read.
func (c *rowCopy) fromEnd(ctx context.Context) error {
	above := int64(math.MaxInt64)
	_, err := c.read(ctx, "rowid >= ? ORDER BY rowid DESC", c.next, func(id int64) bool {
		ok := id < above
		above = id
		return ok
	})
	return err
}

// read copies the rows that a query finds as long as they can be read and take agrees.
func (c *rowCopy) read(
	ctx context.Context, where string, rowid int64, take func(id int64) bool,
) (whole bool, err error) {
	return c.query(ctx, "SELECT rowid, "+c.table.columns+" FROM "+c.table.name+" WHERE "+where, take, rowid)
}

// query copies the rows of a query, whose first column is a number, as long as they can be read and take agrees.
func (c *rowCopy) query(
	ctx context.Context, text string, take func(id int64) bool, args ...any,
) (whole bool, err error) {
	rows, err := c.from.QueryContext(ctx, text, args...)
	if err != nil {
		return false, ctx.Err()
	}
	defer rows.Close()
	var id int64
	values := make([]any, c.table.width)
	targets := []any{&id}
	for i := range values {
		targets = append(targets, &values[i])
	}
	for rows.Next() {
		if rows.Scan(targets...) != nil || !take(id) {
			return false, ctx.Err()
		}
		if err := c.copyRow(ctx, values); err != nil {
			return false, err
		}
	}
	return rows.Err() == nil, ctx.Err()
}

// copyRow copies one row, unless it is plainly not what was once written.
func (c *rowCopy) copyRow(ctx context.Context, values []any) error {
	for i, v := range values {
		if b, ok := v.([]byte); ok {
			values[i] = string(b)
		}
	}
	taken, err := c.insert(ctx, values)
	if taken {
		c.saved++
	} else {
		c.sound = false
	}
	if c.each != nil {
		c.each(values, taken)
	}
	return err
}

func (c *rowCopy) insert(ctx context.Context, values []any) (taken bool, err error) {
	if !c.table.sane(values) {
		return false, nil
	}
	res, err := c.tx.ExecContext(ctx, c.table.put, values...)
	if ownError(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err // 0: a key that is there twice
}

// sane reports whether a row may be one that was written. SQLite has no checksums: damage inside of a text is not
// an error to it.
func (t *salvageTable) sane(values []any) bool {
	for _, v := range values {
		switch v := v.(type) {
		case int64:
		case string:
			if !utf8.ValidString(v) {
				return false
			}
		default:
			return false
		}
	}
	key, ok := values[0].(string)
	if !ok || key == "" || strings.ContainsFunc(key, unicode.IsControl) {
		return false
	}
	value, ok := values[len(values)-1].(string)
	// KubeEdge has rows without a value.
	return ok && (!t.json || value == "" || json.Valid([]byte(value)))
}

// restoreLength gives a file that was cut off the length that its head tells, in zeros.
func restoreLength(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var head [32]byte
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return err
	}
	pageSize := int64(binary.BigEndian.Uint16(head[16:18])) // of 512 to 32768, as this agent's files have
	want := pageSize * int64(binary.BigEndian.Uint32(head[28:32]))
	info, err := f.Stat()
	if err != nil || want <= info.Size() || want > maxRestored {
		return err
	}
	return f.Truncate(want)
}
