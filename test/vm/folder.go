package vm

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

const folderPrefix = "edgecore-vm-"

// newFolder makes the folder of a machine, and removes those of machines whose process has ended without doing
// it: a test that ran into its time limit. A folder is wanted as long as someone holds the lock on its
// file "owner", which the kernel releases with its holder.
func newFolder() (dir string, owner *os.File, err error) {
	if err := sweep(); err != nil {
		return "", nil, err
	}
	if dir, err = os.MkdirTemp("", folderPrefix); err != nil {
		return "", nil, err
	}
	// Locked before it has its name: nobody ever sees one that is not.
	tmp := filepath.Join(dir, ".owner")
	if owner, err = os.OpenFile(tmp, os.O_CREATE|os.O_RDWR, 0o600); err == nil {
		if err = syscall.Flock(int(owner.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			err = os.Rename(tmp, filepath.Join(dir, "owner"))
		}
	}
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	return dir, owner, nil
}

func sweep() error {
	files, err := filepath.Glob(filepath.Join(os.TempDir(), folderPrefix+"*", "owner"))
	if err != nil {
		return err
	}
	for _, path := range files {
		f, err := os.Open(path)
		if err != nil {
			continue // removed meanwhile
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			err = os.RemoveAll(filepath.Dir(path))
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}
