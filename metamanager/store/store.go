// Package store is the device's memory: one SQLite file that outlives power cuts. It owns the file, its
// schema and its repair, and knows nothing of messages or pods.
//
// Promises:
//
//   - What Apply has returned nil for is on the disk, whole, whatever happens next.
//   - The operations of one Apply happen together or not at all. Those of different Applies that come at
//     the same time share a transaction (and its fsync), and do not share their errors.
//   - A value that is what it was is not written: an idle device writes nothing.
//   - Open always yields a usable store where the disk can be written: a damaged file is set aside, what can be
//     read of it is taken over, and the Recovery says so.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/mattn/go-sqlite3"
)

// Errors that callers act upon.
var (
	// ErrNotFound: there is no such row.
	ErrNotFound = errors.New("not in the store")
	// ErrFull: the disk has no room. Nothing was stored; trying again later is right.
	ErrFull = errors.New("the disk is full")
	// ErrCorrupt: the file was found to be damaged. The next Open repairs it.
	ErrCorrupt = errors.New("the store is damaged")
	// ErrNewer: the file was written by a newer version of the agent.
	ErrNewer = errors.New("the store was written by a newer version")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("the store is closed")
)

// Meta is a row of the table meta.
type Meta struct {
	Key, Type string
	Value     []byte
}

// Report is a row of the outbox.
type Report struct {
	Key string
	// Seq tells reports on one object apart; an ack names it.
	Seq   int64
	Value []byte
}

// Options change a store; zero values are the defaults.
type Options struct {
	// Readers is the number of connections that read: 2.
	Readers int
	// MaxBatch is the most Applies that share a transaction: 256.
	MaxBatch int
}

const (
	defaultReaders  = 2
	defaultMaxBatch = 256
)

// Store is an open file. Its methods may be called from any goroutine.
type Store struct {
	path  string
	opts  Options
	write *sql.DB
	read  *sql.DB

	jobs chan *job
	// done is closed when the writer has ended.
	done chan struct{}

	closing sync.RWMutex
	closed  bool
}

// Open opens the file at a path, makes it if there is none, brings its schema up to date, and repairs it if it
// is damaged; then the Recovery is not nil.
func Open(ctx context.Context, path string, opts Options) (*Store, *Recovery, error) {
	if opts.Readers <= 0 {
		opts.Readers = defaultReaders
	}
	if opts.MaxBatch <= 0 {
		opts.MaxBatch = defaultMaxBatch
	}
	if err := prepareFile(path); err != nil {
		return nil, nil, fmt.Errorf("store %s: %w", path, err)
	}
	recovery, err := checkAndRepair(ctx, path)
	if err != nil {
		return nil, nil, fmt.Errorf("store %s: %w", path, err)
	}
	s, err := open(ctx, path, opts)
	if err != nil {
		return nil, nil, fmt.Errorf("store %s: %w", path, err)
	}
	return s, recovery, nil
}

// prepareFile makes the folder, and tells early what can never be a store.
func prepareFile(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		// SQLite would make it readable for all.
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		return f.Close()
	case err != nil:
		return err
	case info.IsDir():
		return errors.New("it is a folder; want the path of a file (database.dataSource)")
	case info.Mode().Perm()&0o077 != 0:
		return os.Chmod(path, 0o600) // it holds secrets
	}
	return nil
}

// dsn is how every connection is opened.
func dsn(path string, readOnly bool) string {
	params := []string{
		"_journal_mode=WAL",    // readers and the writer do not wait for each other; one fsync a commit
		"_synchronous=FULL",    // a commit is on the disk before it returns: acks depend on it
		"_busy_timeout=5000",   // only a person with sqlite3 can hold the lock; wait for them
		"_txlock=immediate",    // the writer never has to upgrade a lock, which could fail
		"_cache_size=-512",     // 512 KiB of pages for each connection
		"_foreign_keys=off",    // there are none
		"_secure_delete=false", // deleted secrets go with the file system's own means
	}
	if readOnly {
		params = append(params, "_query_only=true")
	}
	// As a URI, in which '?', '#' and '%' of a path have to be written otherwise.
	escaped := strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(path)
	return "file:" + escaped + "?" + strings.Join(params, "&")
}

func open(ctx context.Context, path string, opts Options) (s *Store, err error) {
	s = &Store{path: path, opts: opts, jobs: make(chan *job, opts.MaxBatch), done: make(chan struct{})}
	if s.write, err = sql.Open("sqlite3", dsn(path, false)); err != nil {
		return nil, err
	}
	s.write.SetMaxOpenConns(1)
	if s.read, err = sql.Open("sqlite3", dsn(path, true)); err != nil {
		return nil, errors.Join(err, s.write.Close())
	}
	s.read.SetMaxOpenConns(opts.Readers)
	s.read.SetMaxIdleConns(opts.Readers)
	if err := s.setUp(ctx); err != nil {
		return nil, errors.Join(classify(err), s.write.Close(), s.read.Close())
	}
	w, err := newWriter(ctx, s.write, opts.MaxBatch)
	if err != nil {
		return nil, errors.Join(classify(err), s.write.Close(), s.read.Close())
	}
	go func() {
		defer close(s.done)
		w.run(s.jobs)
	}()
	return s, nil
}

// setUp bounds the files beside the store and migrates the schema.
func (s *Store) setUp(ctx context.Context) error {
	for _, pragma := range []string{
		"PRAGMA wal_autocheckpoint=256",     // about 1 MiB of log, then it is folded into the file
		"PRAGMA journal_size_limit=2097152", // and the log shrinks again after a burst
		"PRAGMA temp_store=MEMORY",          // no scratch files on flash
	} {
		if _, err := s.write.ExecContext(ctx, pragma); err != nil {
			return err
		}
	}
	return migrate(ctx, s.write, s.path)
}

// migrate brings the schema up to date, each step in a transaction, with a copy of the file before the first
// step if there is something to lose.
func migrate(ctx context.Context, db *sql.DB, path string) error {
	var version int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if version > len(migrations) {
		return fmt.Errorf("%w of edgecore (schema %d, this one knows %d): install that version again, or move the file away to start anew",
			ErrNewer, version, len(migrations))
	}
	if version == len(migrations) {
		return nil
	}
	var tables int
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master WHERE type='table'").Scan(&tables); err != nil {
		return err
	}
	if tables > 0 {
		backup := fmt.Sprintf("%s.before-%d", path, version+1)
		if err := os.Remove(backup); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if _, err := db.ExecContext(ctx, "VACUUM INTO ?", backup); err != nil {
			return fmt.Errorf("copy before migration: %w", err)
		}
		if err := os.Chmod(backup, 0o600); err != nil {
			return err
		}
	}
	for ; version < len(migrations); version++ {
		if err := step(ctx, db, version); err != nil {
			return fmt.Errorf("migration %d: %w", version+1, err)
		}
	}
	return nil
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

// Close ends the writer after what it was given, folds the log into the file, and closes it.
func (s *Store) Close() error {
	s.closing.Lock()
	if s.closed {
		s.closing.Unlock()
		return nil
	}
	s.closed = true
	close(s.jobs)
	s.closing.Unlock()
	<-s.done
	_, err := s.write.Exec("PRAGMA wal_checkpoint(TRUNCATE)")
	return errors.Join(classify(err), s.read.Close(), s.write.Close(), os.Remove(marker(s.path)))
}

// classify gives SQLite's errors the names that callers know.
func classify(err error) error {
	var e sqlite3.Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code {
	case sqlite3.ErrFull:
		return fmt.Errorf("%w: %w", ErrFull, err)
	case sqlite3.ErrCorrupt, sqlite3.ErrNotADB:
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	case sqlite3.ErrIoErr:
		if e.SystemErrno == 28 { // ENOSPC
			return fmt.Errorf("%w: %w", ErrFull, err)
		}
	}
	return err
}

// Get returns a row, or ErrNotFound.
func (s *Store) Get(ctx context.Context, key string) (Meta, error) {
	m := Meta{Key: key}
	err := s.read.QueryRowContext(ctx, "SELECT ifnull(type,''), ifnull(value,'') FROM meta WHERE key=?", key).Scan(&m.Type, &m.Value)
	if errors.Is(err, sql.ErrNoRows) {
		return Meta{}, fmt.Errorf("%s: %w", key, ErrNotFound)
	}
	if err != nil {
		return Meta{}, fmt.Errorf("read %s: %w", key, classify(err))
	}
	return m, nil
}

// List returns all rows of a type, by key.
func (s *Store) List(ctx context.Context, typ string) ([]Meta, error) {
	rows, err := s.read.QueryContext(ctx, "SELECT key, ifnull(value,'') FROM meta WHERE type=? ORDER BY key", typ)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", typ, classify(err))
	}
	defer rows.Close()
	var list []Meta
	for rows.Next() {
		m := Meta{Type: typ}
		if err := rows.Scan(&m.Key, &m.Value); err != nil {
			return nil, fmt.Errorf("list %s: %w", typ, classify(err))
		}
		list = append(list, m)
	}
	return list, classify(rows.Err())
}

// Outbox returns the reports that wait, in the order in which they were made.
func (s *Store) Outbox(ctx context.Context) ([]Report, error) {
	rows, err := s.read.QueryContext(ctx, "SELECT key, seq, value FROM outbox ORDER BY seq")
	if err != nil {
		return nil, fmt.Errorf("list outbox: %w", classify(err))
	}
	defer rows.Close()
	var list []Report
	for rows.Next() {
		var r Report
		if err := rows.Scan(&r.Key, &r.Seq, &r.Value); err != nil {
			return nil, fmt.Errorf("list outbox: %w", classify(err))
		}
		list = append(list, r)
	}
	return list, classify(rows.Err())
}

// AgentValue returns what the agent noted about itself, or ErrNotFound.
func (s *Store) AgentValue(ctx context.Context, key string) (string, error) {
	var value string
	err := s.read.QueryRowContext(ctx, "SELECT value FROM agent WHERE key=?", key).Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		return "", ErrNotFound
	}
	return value, classify(err)
}

// newestTime is for names that sort by time.
func newestTime() string { return time.Now().UTC().Format("20060102T150405.000Z") }
