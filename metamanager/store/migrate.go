package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
)

// maxVersion is the highest schema version that is believed; what is above it is a damaged head.
const maxVersion = 9999

// isNewer reports whether a version is one that this agent does not know.
func isNewer(version int) bool { return version > len(migrations) && version <= maxVersion }

// readMark returns the version of a file, and the oldest schema whose agents can use it.
func readMark(ctx context.Context, db *sql.DB) (version, readable int, err error) {
	var id int64 // an int has 32 bits on some devices
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return 0, 0, err
	}
	if err := db.QueryRowContext(ctx, "PRAGMA application_id").Scan(&id); err != nil {
		return 0, 0, err
	}
	readable = int(id &^ readableMask)
	if id&readableMask != readableMagic || readable < 1 || readable > version {
		readable = version
	}
	return version, readable, nil
}

// migrate brings the schema up to date, each step in a transaction, with a copy of the file before the first
// step if there is something to lose. A file of a newer version stays as it is: it was found to be usable.
func migrate(ctx context.Context, db *sql.DB, path string) error {
	var version, tables int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if version == len(migrations) || isNewer(version) {
		return nil
	}
	if version < 0 || version > maxVersion {
		return fmt.Errorf("%w: it has schema version %d", ErrCorrupt, version)
	}
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master WHERE type='table'").
		Scan(&tables); err != nil {
		return err
	}
	if tables > 0 {
		if err := backUp(ctx, db, fmt.Sprintf("%s.before-%d", path, version+1)); err != nil {
			return fmt.Errorf("copy before migration %d: %w", version+1, err)
		}
	}
	return runSteps(ctx, db, version)
}

// runSteps does the migrations that a file of a version has not seen.
func runSteps(ctx context.Context, db *sql.DB, version int) error {
	for ; version < len(migrations); version++ {
		if err := step(ctx, db, version); err != nil {
			return fmt.Errorf("migration %d: %w", version+1, err)
		}
	}
	return nil
}

// backUp makes a copy whose name appears only when it is whole and on the disk.
func backUp(ctx context.Context, db *sql.DB, name string) error {
	partial := name + ".partial"
	if err := removeIfThere(partial); err != nil {
		return err
	}
	// SQLite fills an empty file, and leaves its mode as it is.
	f, err := os.OpenFile(partial, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := db.ExecContext(ctx, "VACUUM INTO ?", partial); err != nil {
		return errors.Join(err, removeIfThere(partial))
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return renameDurably(partial, name)
}

func step(ctx context.Context, db *sql.DB, version int) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, migrations[version].sql); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	marks := fmt.Sprintf("PRAGMA user_version=%d; PRAGMA application_id=%d", version+1,
		readableMagic|readableBy(version+1))
	if _, err := tx.ExecContext(ctx, marks); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}
