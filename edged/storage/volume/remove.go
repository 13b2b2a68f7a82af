package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxOpen is how many folders a removal holds open: what lies deeper is moved up first, so that no pod can
// nest folders beyond what can be removed.
const maxOpen = 64

// removeTree removes a file or folder with what is in it, on its own mount only: a mount below it, be it of
// the same file system, is left alone and reported. Links are removed, never followed.
func removeTree(ctx context.Context, path string) error {
	parent, err := os.Open(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	r := &removal{ctx: ctx}
	if r.mount, err = mountID(int(parent.Fd())); err != nil {
		return err
	}
	return r.entry(parent, filepath.Base(path))
}

// removal is the state of one removal.
type removal struct {
	ctx   context.Context
	mount uint64 // everything removed is on it
	open  []*os.File
	moved int
}

// entry removes one name of a folder.
func (r *removal) entry(parent *os.File, name string) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	at, path := int(parent.Fd()), filepath.Join(parent.Name(), name)
	err := unix.Unlinkat(at, name, 0)
	if errors.Is(err, unix.EPERM) && r.unlock(parent, name) {
		err = unix.Unlinkat(at, name, 0)
	}
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) {
		return &os.PathError{Op: "remove", Path: path, Err: err}
	}
	if len(r.open) >= maxOpen {
		return r.moveUp(parent, name)
	}
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	mount, err := mountID(fd)
	if err != nil {
		return err
	}
	if mount != r.mount {
		return fmt.Errorf("%s is a mount; it is left alone", path)
	}
	r.open = append(r.open, dir)
	err = r.content(dir)
	r.open = r.open[:len(r.open)-1]
	if err != nil {
		return err
	}
	err = unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.EPERM) && r.unlock(parent, name) {
		err = unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "rmdir", Path: path, Err: err}
	}
	return nil
}

// The flags of a file that keep even root from removing it (chattr(1)): immutable, and only to be appended to.
const (
	fsImmutable = 0x10
	fsAppend    = 0x20
)

// unlock takes those flags from an entry of a folder and from the folder, and reports whether any was there: a
// container with the capability may have set them. Only files and folders on the mount that is being removed have
// theirs taken.
func (r *removal) unlock(parent *os.File, name string) bool {
	unlocked := len(r.open) > 0 && clearFlags(int(parent.Fd()))
	fd, err := unix.Openat(int(parent.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return unlocked
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return unlocked
	}
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return unlocked // to open a device may do something
	}
	if mount, err := mountID(fd); err != nil || mount != r.mount {
		return unlocked
	}
	open, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return unlocked
	}
	defer unix.Close(open)
	return clearFlags(open) || unlocked
}

func clearFlags(fd int) bool {
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err != nil || flags&(fsImmutable|fsAppend) == 0 {
		return false
	}
	return unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags&^(fsImmutable|fsAppend))) == nil
}

// content removes what is in a folder. It removes what it can, and returns why the rest stays.
func (r *removal) content(dir *os.File) error {
	for {
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
		seen := 0
		var errs []error
		for {
			names, err := dir.Readdirnames(256)
			for _, name := range names {
				seen++
				if err := r.entry(dir, name); err != nil && len(errs) < 8 {
					errs = append(errs, err)
				}
			}
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return errors.Join(append(errs, err)...)
			}
		}
		// Removing while reading may hide names: only a reading without any is the end.
		if len(errs) > 0 || seen == 0 {
			return errors.Join(errs...)
		}
	}
}

// moveUp moves a folder to the top of the tree, where it is found again.
func (r *removal) moveUp(parent *os.File, name string) error {
	top := r.open[0]
	for {
		r.moved++
		err := unix.Renameat(int(parent.Fd()), name, int(top.Fd()), ".removing-"+strconv.Itoa(r.moved))
		if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.ENOTDIR) {
			continue // of an earlier attempt, or of the pod's
		}
		if errors.Is(err, unix.EPERM) && r.unlock(parent, name) {
			continue
		}
		if err != nil {
			return &os.PathError{Op: "move", Path: filepath.Join(parent.Name(), name), Err: err}
		}
		return nil
	}
}
