package daemon

import (
	"context"
	"errors"
	"os"
	"syscall"
)

// Claim locks the record of something whose owner has died, so that one process alone removes it, and waits while
// another one has it locked. It returns nil if that one has removed it. The caller closes the file after the removal.
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
