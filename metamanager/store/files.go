package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lock keeps a store for one process, and remembers whether the one before ended cleanly: its file is there
// while the store is open. Its size is the mark, since a size needs no room on a full disk.
type lock struct {
	f *os.File
	// unclean: the previous owner did not close the store.
	unclean bool
}

// InUse reports whether a process has a store open.
func InUse(path string) bool {
	f, err := os.OpenFile(lockFile(path), os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// lockFile is the file by which a store is locked.
func lockFile(path string) string { return path + ".open" }

// waitForLock takes the lock, and waits for a process that has it: one that was killed has it until the kernel has
// ended it, which takes a moment while it writes to a slow disk.
func waitForLock(ctx context.Context, path string, limit time.Duration) (*lock, error) {
	const pause = 100 * time.Millisecond
	for end := time.Now().Add(limit); ; {
		l, err := takeLock(path)
		if !errors.Is(err, ErrInUse) || !time.Now().Before(end) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		case <-time.After(pause):
		}
	}
}

func takeLock(path string) (*lock, error) {
	name := lockFile(path)
	for {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			if errors.Is(err, unix.EWOULDBLOCK) {
				err = ErrInUse
			}
			return nil, errors.Join(err, f.Close())
		}
		mine, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if there, err := os.Stat(name); err == nil && os.SameFile(mine, there) {
			return &lock{f: f, unclean: mine.Size() > 0}, nil
		}
		// Its last holder removed it between the two steps.
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}

// markOpen makes an end without release an unclean one, also when the power goes.
func (l *lock) markOpen() error {
	if err := l.f.Truncate(1); err != nil {
		return err
	}
	if err := l.f.Sync(); err != nil {
		return err
	}
	return syncFolder(l.f.Name())
}

// release is the clean end.
func (l *lock) release() error {
	return errors.Join(removeIfThere(l.f.Name()), l.f.Close())
}

// abandon ends without saying that all is well.
func (l *lock) abandon() error {
	info, err := l.f.Stat()
	if err == nil && info.Size() == 0 {
		return l.release()
	}
	return errors.Join(err, l.f.Close())
}

// reserve is a file that holds space for deletes on a full disk.
type reserve struct {
	path string // of the store
	size int64  // none when not above 0
}

func (r reserve) name() string { return r.path + ".reserve" }

// ensure makes the reserve if there is none, and if that leaves as much room again for others. It tells
// whether there is one now.
func (r reserve) ensure() bool {
	if r.size <= 0 {
		return true
	}
	if info, err := os.Stat(r.name()); err == nil && info.Size() == r.size {
		return true
	}
	if r.free() < 2*r.size {
		return false
	}
	f, err := os.OpenFile(r.name(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return false
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, r.size); err != nil {
		_ = removeIfThere(r.name()) // a file system without fallocate: it goes without
		return !errors.Is(err, unix.ENOSPC)
	}
	return true
}

// free is the room on the disk in bytes.
func (r reserve) free() int64 {
	var fs unix.Statfs_t
	if unix.Statfs(filepath.Dir(r.path), &fs) != nil {
		return 0
	}
	return int64(fs.Bavail) * int64(fs.Bsize)
}

// release gives the room back, and reports whether there was any.
func (r reserve) release() bool { return os.Remove(r.name()) == nil }

// createFile makes an empty file that only root reads, if there is none.
func createFile(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return syncFolder(path)
}

// copyFile copies a file for root alone to read; one that is not there leaves none.
func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if errors.Is(err, os.ErrNotExist) {
		return removeIfThere(to)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o600)
}

// syncFile puts the content of a file on the disk.
func syncFile(name string) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func removeIfThere(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// renameDurably renames a file of the store's folder, and waits until the name is on the disk.
func renameDurably(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return syncFolder(to)
}

// syncFolder puts the names in a file's folder on the disk.
func syncFolder(path string) error {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
