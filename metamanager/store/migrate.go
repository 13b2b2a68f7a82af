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

// checkVersion refuses a file of a newer version.
func checkVersion(version int) error {
	if version <= len(migrations) || version > maxVersion {
		return nil
	}
	return fmt.Errorf("%w of edgecore (schema %d, this one knows %d): install that version again, or move the file "+
		"away to start with an empty store",
		ErrNewer, version, len(migrations))
}

// migrate brings the schema up to date, each step in a transaction, with a copy of the file before the first
// step if there is something to lose.
func migrate(ctx context.Context, db *sql.DB, path string) error {
	var version, tables int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if err := checkVersion(version); err != nil {
		return err
	}
	if version == len(migrations) {
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
	if _, err := tx.ExecContext(ctx, migrations[version]); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version=%d", version+1)); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}
