package migrate

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Lock keeps a second command from working on the same device until unlock is called or the process ends. Its file is
// in the folder run below root, which is / except in tests.
func Lock(root string) (unlock func(), err error) {
	path := filepath.Join(root, "run/edgecore-adopt.lock")
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		err = fmt.Errorf("another `edgecore adopt` is at work (%s): %w", path, err)
		return nil, errors.Join(err, unix.Close(fd))
	}
	return func() { _ = unix.Close(fd) }, nil // closing releases the lock
}
