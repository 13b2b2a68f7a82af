// Package store is the device's memory: one SQLite file that outlives power cuts. It owns the file, its
// schema and its repair, and knows nothing of messages or pods. It logs nothing: what is worth knowing is in
// its errors, its Recovery, and the calls to Options.OnDamage.
//
// Promises:
//
//   - What Apply has returned nil for is on the disk, whole, whatever happens next.
//   - The operations of one Apply happen together or not at all. Those of different Applies that come at
//     the same time share a transaction (and its fsync), and do not share their errors.
//   - A value that is what it was is not written: an idle device writes nothing.
//   - Open yields a usable store wherever the disk can be written: a damaged file is set aside, what can be
//     read of it is taken over, and the Recovery says so. It refuses only what would do harm: a file that another
//     process uses, a folder.
//   - A file of a newer version is used as it is if that version's migrations declare that older agents can: neither
//     its version nor what it has beside is touched, so that the newer version goes on with it later. Otherwise it
//     is set aside, and the copy from before the migration takes its place, with the rows of the newer file that this
//     version can read. schema.go says how a file tells, newer.go what is done.
//   - On a full disk nothing is acknowledged that is not stored; deletes still work, out of a reserve, and
//     so does a little of what is urgent; and all is as before once there is room.
//
// Beside edgecore.db there may be:
//
//	edgecore.db-wal, -shm              SQLite's log and its index, bounded to 1 MiB
//	edgecore.db.open                   held while the store is open; left behind, it tells of an unclean end
//	edgecore.db.reserve                space for deletes, and for what is urgent, on a full disk
//	edgecore.db.before-<n>             the file as it was before migration n
//	edgecore.db.corrupt-<time>         a damaged file; the newest three are kept
//	edgecore.db.newer-<n>-<time>       a file of a newer version (schema n) that was rolled back; three are kept
//	edgecore.db.rebuild                a repair that was interrupted
//	edgecore.db.rollback               a rollback that was interrupted
package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Options change a store; zero values are the defaults.
type Options struct {
	// MaxBatch is the most Applies that share a transaction: 256.
	MaxBatch int
	// Reserve is the space kept for deletes on a full disk, in bytes: 512 KiB. Less than 0 is none.
	Reserve int64
	// MaxGap is how many rows in a row may be unreadable before the rest of a damaged table is given up: 20,000.
	MaxGap int64
	// Wait is how long Open waits for another process that has the file open: 0, not at all.
	Wait time.Duration
	// Scratch is a folder in memory. Where the disk takes no writes, a copy of the file is read there, and each
	// Apply fails with ErrReadOnly. Without one, Open fails.
	Scratch string
	// OnDamage, which may be nil, is called once when damage is found while the store is open. It must not block, and
	// must not call the store. The next Open repairs the file.
	OnDamage func(error)
	// Shrunk, which may be nil, is called when SQLite has freed memory because there was nothing to do for a while. It
	// must not call the store.
	Shrunk func()

	// origin is the path of the store that the one to open is a copy of; "" if it is none.
	origin string
}

const (
	defaultMaxBatch = 256
	defaultReserve  = 512 << 10

	// readers is the number of connections that read.
	readers = 2
)

// Store is an open file. Its methods may be called from any goroutine.
type Store struct {
	path   string
	lock   *lock
	write  *sql.DB
	writer *writer
	read   *sql.DB
	stmts  map[string]*sql.Stmt // of the readers

	onDamage func(error)
	damaged  atomic.Bool
	// frozen: this is a copy of a file on a disk that takes no writes.
	frozen bool

	jobs chan *job
	// done is closed when the writer has ended.
	done chan struct{}

	closing sync.RWMutex
	closed  bool
}

// Open opens the file at a path, makes it if there is none, brings its schema up to date, and repairs it if it
// is damaged, or rolls it back if a newer version wrote it; then the Recovery is not nil. ctx bounds Open, not the
// store.
func Open(ctx context.Context, path string, opts Options) (*Store, *Recovery, error) {
	if opts.MaxBatch <= 0 {
		opts.MaxBatch = defaultMaxBatch
	}
	if opts.Reserve == 0 {
		opts.Reserve = defaultReserve
	}
	if opts.MaxGap <= 0 {
		opts.MaxGap = defaultMaxGap
	}
	s, recovery, err := openLocked(ctx, path, opts, nil)
	if opts.Scratch != "" && errors.Is(classify(err), ErrReadOnly) {
		s, recovery, err = openCopy(ctx, path, opts)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("store %s: %w", path, classify(err))
	}
	return s, recovery, nil
}

// openLocked opens a file that no other process has open; prepare, which may be nil, is called when that is sure.
func openLocked(ctx context.Context, path string, opts Options, prepare func() error) (*Store, *Recovery, error) {
	if err := prepareFolder(path); err != nil {
		return nil, nil, err
	}
	l, err := waitForLock(ctx, path, opts.Wait)
	if err != nil {
		return nil, nil, err
	}
	if prepare != nil {
		if err := prepare(); err != nil {
			return nil, nil, errors.Join(err, l.abandon())
		}
	}
	r := reserve{path: path, size: opts.Reserve}
	s, recovery, err := openChecked(ctx, path, opts, l.unclean)
	released := isFull(err) && r.release()
	if released {
		s, recovery, err = openChecked(ctx, path, opts, l.unclean)
	}
	if err == nil {
		err = l.markOpen()
	}
	if err != nil {
		if s != nil {
			err = errors.Join(err, s.closeFiles())
		}
		return nil, nil, errors.Join(err, l.abandon())
	}
	s.lock, s.writer.reserve = l, r
	s.writer.tight = !r.ensure() && released
	go func() {
		defer close(s.done)
		s.writer.run(s.jobs)
	}()
	return s, recovery, nil
}

// openCopy opens a copy of a file whose disk takes no writes. Its log belongs to it: what was acknowledged may
// be there alone.
func openCopy(ctx context.Context, path string, opts Options) (*Store, *Recovery, error) {
	if err := os.MkdirAll(opts.Scratch, 0o700); err != nil {
		return nil, nil, err
	}
	to := filepath.Join(opts.Scratch, strings.ReplaceAll(strings.Trim(filepath.Clean(path), "/"), "/", "_"))
	opts.Reserve, opts.origin = -1, path
	s, recovery, err := openLocked(ctx, to, opts, func() error {
		return errors.Join(removeIfThere(to+"-shm"), copyFile(path, to), copyFile(path+"-wal", to+"-wal"))
	})
	if err != nil {
		return nil, nil, err
	}
	s.frozen = true
	if recovery != nil && recovery.Newer > 0 { // the file itself stays where it is, and the copy takes up memory
		if err := removeStore(recovery.SetAside); err != nil {
			return nil, nil, errors.Join(err, s.Close())
		}
	}
	return s, recovery, nil
}

// Frozen reports whether the disk took no writes when the store was opened, so that it is but a copy.
func (s *Store) Frozen() bool { return s.frozen }

// openChecked opens a file that may be damaged. Damage that only shows when the file is used is repaired too.
func openChecked(ctx context.Context, path string, opts Options, unclean bool) (*Store, *Recovery, error) {
	recovery, err := checkAndRepair(ctx, path, cmp.Or(opts.origin, path), unclean, opts.MaxGap)
	if err != nil {
		return nil, nil, err
	}
	s, err := openFile(ctx, path, opts)
	if err == nil || recovery != nil || !isDamage(err) {
		return s, recovery, err
	}
	if recovery, err = repair(ctx, path, err.Error(), opts.MaxGap); err != nil {
		return nil, nil, err
	}
	s, err = openFile(ctx, path, opts)
	return s, recovery, err
}

// openFile opens the connections, migrates the schema, and prepares what is asked of it.
func openFile(ctx context.Context, path string, opts Options) (s *Store, err error) {
	s = &Store{path: path, onDamage: opts.OnDamage, stmts: map[string]*sql.Stmt{},
		jobs: make(chan *job, opts.MaxBatch), done: make(chan struct{}),
		write: connect(path, readWrite, 1), read: connect(path, readOnly, readers)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.closeFiles())
			s = nil
		}
	}()
	if err := migrate(ctx, s.write, path); err != nil {
		return s, err
	}
	if s.writer, err = newWriter(ctx, s.write, opts.MaxBatch, s.classify); err != nil {
		return s, err
	}
	s.writer.quiet = func() {
		_ = s.shrink() // or the memory stays in use
		if opts.Shrunk != nil {
			opts.Shrunk()
		}
	}
	for _, text := range readerStatements {
		stmt, err := s.read.PrepareContext(ctx, text)
		if err != nil {
			return s, fmt.Errorf("prepare %q: %w", text, err)
		}
		s.stmts[text] = stmt
	}
	return s, nil
}

// prepareFolder makes the folder, and tells early what can never be a store.
func prepareFolder(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.IsDir():
		return errors.New("it is a folder; want the path of a file (database.dataSource)")
	case !info.Mode().IsRegular():
		return errors.New("it is not a regular file; want the path of one (database.dataSource)")
	case info.Mode().Perm()&0o077 != 0:
		return os.Chmod(path, 0o600) // it holds secrets
	}
	return nil
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
	err := errors.Join(s.classify(s.writer.runCheckpoint()), s.closeFiles())
	if s.frozen {
		err = errors.Join(err, removeIfThere(s.path)) // it takes up memory
	}
	if s.damaged.Load() {
		return errors.Join(err, s.lock.abandon()) // the next Open has to look closely
	}
	return errors.Join(err, s.lock.release())
}

func (s *Store) closeFiles() error {
	var errs []error
	for _, stmt := range s.stmts {
		errs = append(errs, stmt.Close())
	}
	if s.writer != nil {
		errs = append(errs, s.writer.close())
	}
	return errors.Join(append(errs, s.read.Close(), s.write.Close())...)
}

// classify classifies an error on its way to the caller, and reports damage.
func (s *Store) classify(err error) error {
	err = classify(err)
	if errors.Is(err, ErrCorrupt) && s.damaged.CompareAndSwap(false, true) && s.onDamage != nil {
		s.onDamage(err)
	}
	return err
}
