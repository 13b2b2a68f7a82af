package store

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/mattn/go-sqlite3"
)

// Errors that callers act upon; errors.Is finds them.
var (
	// ErrNotFound: the row does not exist.
	ErrNotFound = errors.New("not in the store")
	// ErrFull: the disk has no room. Nothing was stored; trying again later is right.
	ErrFull = errors.New("the disk is full: free some space; the agent then continues by itself")
	// ErrReadOnly: the disk takes no writes, as after a failure of an SD card.
	ErrReadOnly = errors.New("the disk is read-only: check dmesg for its errors, and remount or replace it")
	// ErrCorrupt: the file was found to be damaged. The next Open repairs it.
	ErrCorrupt = errors.New("the store is damaged; it is repaired at the next start")
	// ErrInUse: another process has the store open.
	ErrInUse = errors.New("another edgecore is using the store: stop it first")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("the store is closed")
)

// classify gives the errors of SQLite and of the file system the names that callers know.
func classify(err error) error {
	if err == nil {
		return nil
	}
	if kind := kindOf(err); kind != nil && !errors.Is(err, kind) {
		return fmt.Errorf("%w: %w", kind, err)
	}
	return err
}

func kindOf(err error) error {
	var e sqlite3.Error
	if !errors.As(err, &e) {
		var pathErr *fs.PathError
		if errors.As(err, &pathErr) {
			return kindOfErrno(err)
		}
		return nil
	}
	switch e.Code {
	case sqlite3.ErrFull:
		return ErrFull
	case sqlite3.ErrCorrupt, sqlite3.ErrNotADB:
		return ErrCorrupt
	case sqlite3.ErrReadonly:
		return ErrReadOnly
	case sqlite3.ErrIoErr, sqlite3.ErrCantOpen:
		if kind := kindOfErrno(e.SystemErrno); kind != nil {
			return kind
		}
		// A sector that cannot be read any more is damage: a new file does not use it.
		if e.ExtendedCode == sqlite3.ErrIoErrRead && e.SystemErrno == syscall.EIO {
			return ErrCorrupt
		}
	}
	return nil
}

func kindOfErrno(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return ErrFull
	case errors.Is(err, syscall.EROFS):
		return ErrReadOnly
	}
	return nil
}

func isFull(err error) bool { return errors.Is(classify(err), ErrFull) }

// ownError reports whether an error is of one operation alone: the transaction around it still stands.
func ownError(err error) bool {
	var e sqlite3.Error
	if !errors.As(err, &e) {
		return errors.Is(err, errBadOp)
	}
	return e.Code == sqlite3.ErrTooBig || e.Code == sqlite3.ErrConstraint || e.Code == sqlite3.ErrMismatch
}
