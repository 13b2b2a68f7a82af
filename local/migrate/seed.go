package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	_ "github.com/mattn/go-sqlite3" // the driver sqlite3

	"github.com/edgecore-io/edgecore/edged/podstate/adopted"
	"github.com/edgecore-io/edgecore/local/adopt"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// besides are the ends of the names of what SQLite keeps beside a file.
func besides() []string { return []string{"-wal", "-shm", "-journal"} }

// copies is how often a store that is being written to is copied again.
const copies = 5

// errTorn: the file changed while it was copied, or is damaged.
var errTorn = errors.New("the copy is not sound")

// readStore reads KubeEdge's store from a copy: to open the file itself, even for reading, could have a write of
// KubeEdge fail, which does not wait for locks. The note says what was wrong with it.
func readStore(ctx context.Context, path string) (rows []adopt.Row, note string, err error) {
	dir, err := os.MkdirTemp("", "edgecore-adopt-")
	if err != nil {
		return nil, "", err
	}
	defer os.RemoveAll(dir)
	to := filepath.Join(dir, "edgecore.db")
	for range copies {
		if err = copyStore(path, to); err != nil {
			return nil, "", err
		}
		rows, err = readRows(ctx, to)
		if err == nil || !errors.Is(err, errTorn) {
			return rows, "", err
		}
		if !retry.Sleep(ctx, 200*time.Millisecond) {
			return nil, "", ctx.Err()
		}
	}
	// It does not become sound: it is damaged. What this agent does for a store of its own is done for the copy.
	if err := copyStore(path, to); err != nil {
		return nil, "", err
	}
	db, recovery, err := store.Open(ctx, to, store.Options{Reserve: -1})
	if err != nil {
		return nil, "", err
	}
	if err := db.Close(); err != nil {
		return nil, "", err
	}
	rows, err = readRows(ctx, to)
	if recovery != nil {
		note = fmt.Sprintf("KubeEdge's store is damaged (%s): %d rows of it can be read, and the cloud sends the "+
			"others again", recovery.Damage, recovery.Saved)
	}
	return rows, note, err
}

// copyStore copies a store and what belongs to it. What was left of an earlier copy goes.
func copyStore(from, to string) error {
	if err := removeStore(to); err != nil {
		return err
	}
	for _, suffix := range append([]string{""}, besides()...) {
		if suffix == "-shm" {
			continue // SQLite makes it again
		}
		if err := copyFile(from+suffix, to+suffix); err != nil && (suffix == "" || !errors.Is(err, fs.ErrNotExist)) {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// readRows reads the table meta of a copy.
func readRows(ctx context.Context, path string) (rows []adopt.Row, err error) {
	db, err := sql.Open("sqlite3", "file:"+path+"?mode=rw")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var said string
	if err := db.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&said); err != nil {
		return nil, fmt.Errorf("%w: %w", errTorn, err)
	}
	if said != "ok" {
		return nil, fmt.Errorf("%w: %s", errTorn, said)
	}
	var tables int
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master WHERE type='table' AND name='meta'").
		Scan(&tables); err != nil {
		return nil, fmt.Errorf("%w: %w", errTorn, err)
	}
	if tables == 0 {
		return nil, errors.New("it has no table meta, so it is not a store of KubeEdge's edgecore")
	}
	list, err := db.QueryContext(ctx, "SELECT key, ifnull(type,''), ifnull(value,'') FROM meta")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errTorn, err)
	}
	defer list.Close()
	for list.Next() {
		var row adopt.Row
		if err := list.Scan(&row.Key, &row.Type, &row.Value); err != nil {
			return nil, fmt.Errorf("%w: %w", errTorn, err)
		}
		rows = append(rows, row)
	}
	if err := list.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", errTorn, err)
	}
	return rows, nil
}

// makeStore makes this agent's store of a plan. It has its name only when it is whole.
func makeStore(ctx context.Context, path string, p *Plan) error {
	part := path + ".adopting"
	if err := errors.Join(removeStore(part), removeStore(path)); err != nil {
		return err
	}
	note, err := p.Findings.Record.Text()
	if err != nil {
		return err
	}
	db, _, err := store.Open(ctx, part, store.Options{Reserve: -1})
	if err != nil {
		return err
	}
	ops := []store.Op{store.AgentSet(adopted.Key, note)}
	for _, row := range p.Stored.Rows {
		ops = append(ops, store.Upsert(store.Meta(row)))
	}
	if err := errors.Join(db.Apply(ctx, ops...), db.Close()); err != nil {
		return errors.Join(err, removeStore(part))
	}
	if err := os.Rename(part, path); err != nil {
		return err
	}
	return errors.Join(removeStore(part), syncDir(filepath.Dir(path)))
}

// removeStore removes a store and all that lies beside it.
func removeStore(path string) error {
	names, err := filepath.Glob(path + ".*")
	if err != nil {
		return err
	}
	for _, suffix := range append([]string{""}, besides()...) {
		names = append(names, path+suffix)
	}
	for _, name := range names {
		if name == path+".adopting" {
			continue // it is a store of its own
		}
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
