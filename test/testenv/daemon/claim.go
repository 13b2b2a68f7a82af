package daemon

import (
	"context"
	"errors"
	"os"
	"syscall"
)

// Claim locks the record of a resource whose owner has died, so that only one process removes the resource. It waits
// while another process has the lock, and returns nil if that process has removed the resource. Otherwise the caller
// closes the file after the removal.
func Claim(ctx context.Context, record string) (*os.File, error) {
	f, err := os.Open(record)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := Poll(ctx, func() error {
		return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	locked, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if now, err := os.Stat(record); err != nil || !os.SameFile(locked, now) {
		return nil, f.Close() // another process has removed it
	}
	return f, nil
}
