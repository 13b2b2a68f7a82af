package store

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	"k8s.io/klog/v2"
)

// maxRestored bounds what a damaged head may ask for, in bytes; the file stays sparse.
const maxRestored = 1 << 30

// Recovery says what Open did about a damaged file.
type Recovery struct {
	// Damage is what was found.
	Damage string
	// SetAside is where the damaged file is now.
	SetAside string
	// Saved is the number of rows that were taken over.
	Saved int
	// Complete is false when there were rows that could not be read.
	Complete bool
}

func (r *Recovery) String() string {
	whole := "all that it held"
	if !r.Complete {
		whole = "what could be read"
	}
	return fmt.Sprintf("the store was damaged (%s); it was set aside as %s, and %s (%d rows) was taken over", r.Damage, r.SetAside, whole, r.Saved)
}

// marker is a file that is there while the store is open: after a clean end there is nothing to check.
func marker(path string) string { return path + ".open" }

// checkAndRepair makes sure that the file is sound. Where it is not, it is set aside and a new one made of
// what can be read.
func checkAndRepair(ctx context.Context, path string) (*Recovery, error) {
	_, err := os.Stat(marker(path))
	unclean := err == nil
	damage := check(ctx, path, unclean)
	if damage == "" {
		return nil, os.WriteFile(marker(path), nil, 0o600)
	}
	recovery, err := repair(ctx, path, damage)
	if err != nil {
		return nil, err
	}
	klog.ErrorS(nil, "Store recovered", "what", recovery.String())
	return recovery, os.WriteFile(marker(path), nil, 0o600)
}

// check returns what is wrong with a file, "" when nothing is. After a clean end only its head is read.
func check(ctx context.Context, path string, thorough bool) string {
	db, err := sql.Open("sqlite3", dsn(path, false))
	if err != nil {
		return err.Error()
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	var n int
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master").Scan(&n); err != nil {
		return damageOf(err)
	}
	if !thorough {
		return ""
	}
	rows, err := db.QueryContext(ctx, "PRAGMA integrity_check(10)")
	if err != nil {
		return damageOf(err)
	}
	defer rows.Close()
	var faults []string
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return damageOf(err)
		}
		if text != "ok" {
			faults = append(faults, text)
		}
	}
	if err := rows.Err(); err != nil {
		return damageOf(err)
	}
	return strings.Join(faults, "; ")
}

// damageOf returns the text of an error that says that the file is damaged; other errors (a full disk, a
// lock) are no reason to replace it, and Open meets them again.
func damageOf(err error) string {
	if errors.Is(classify(err), ErrCorrupt) {
		return err.Error()
	}
	return ""
}

// repair sets a file aside and makes a new one of what can be read of it.
func repair(ctx context.Context, path, damage string) (*Recovery, error) {
	aside := path + ".corrupt-" + newestTime()
	for _, suffix := range []string{"-wal", "-shm", ""} { // the file last: a crash in between repeats the check
		if err := os.Rename(path+suffix, aside+suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("set damaged file aside: %w", err)
		}
	}
	r := &Recovery{Damage: damage, SetAside: aside}
	if err := prepareFile(path); err != nil {
		return nil, err
	}
	fresh, err := sql.Open("sqlite3", dsn(path, false))
	if err != nil {
		return nil, err
	}
	defer fresh.Close()
	fresh.SetMaxOpenConns(1)
	if err := migrate(ctx, fresh, path); err != nil {
		return nil, err
	}
	if err := restoreLength(aside); err != nil {
		klog.V(2).InfoS("Length of the damaged file not restored", "file", aside, "err", err)
	}
	r.Saved, r.Complete, err = salvage(ctx, aside, fresh)
	return r, err
}

// restoreLength gives a file that was cut off the length that its head tells, in zeros: SQLite reads nothing at
// all of a file that is too short.
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

// salvage copies the rows that can be read. It reads each table from both ends, and by its index, so that one
// bad page does not cost what lies behind it.
func salvage(ctx context.Context, from string, to *sql.DB) (saved int, complete bool, err error) {
	old, err := sql.Open("sqlite3", "file:"+strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(from)+"?_query_only=true")
	if err != nil {
		return 0, false, err
	}
	defer old.Close()
	complete = true
	for _, table := range []struct {
		name, columns, put string
		width              int
	}{
		{"meta", "key, ifnull(type,''), ifnull(value,'')", "INSERT OR IGNORE INTO meta(key,type,value) VALUES(?,?,?)", 3},
		{"outbox", "key, seq, value", "INSERT OR IGNORE INTO outbox(key,seq,value) VALUES(?,?,?)", 3},
		{"agent", "key, value", "INSERT OR IGNORE INTO agent(key,value) VALUES(?,?)", 2},
	} {
		whole := false
		for _, order := range []string{"rowid", "rowid DESC", "key", "key DESC"} {
			n, err := copyRows(ctx, old, to, "SELECT "+table.columns+" FROM "+table.name+" ORDER BY "+order, table.put, table.width)
			saved += n
			if err == nil {
				whole = true
				break
			}
			if errors.Is(classify(err), ErrFull) {
				return saved, false, classify(err)
			}
		}
		complete = complete && whole
	}
	return saved, complete, nil
}

// copyRows copies until it meets an error, and keeps what it has by then.
func copyRows(ctx context.Context, from, to *sql.DB, query, put string, width int) (int, error) {
	rows, err := from.QueryContext(ctx, query)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	tx, err := to.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	copied, readErr := 0, error(nil)
	for rows.Next() {
		values, targets := make([]any, width), make([]any, width)
		for i := range values {
			targets[i] = &values[i]
		}
		if readErr = rows.Scan(targets...); readErr != nil {
			break
		}
		for i, v := range values {
			if b, ok := v.([]byte); ok {
				values[i] = string(b)
			}
		}
		res, err := tx.ExecContext(ctx, put, values...)
		if err != nil {
			return 0, errors.Join(err, tx.Rollback())
		}
		if n, err := res.RowsAffected(); err == nil {
			copied += int(n)
		}
	}
	if readErr == nil {
		readErr = rows.Err()
	}
	if err := tx.Commit(); err != nil {
		return 0, err
	}
	return copied, readErr
}
