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
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// Ownership is how a volume is given to the group of a pod, its fsGroup.
type Ownership struct {
	Group int64
	// Policy OnRootMismatch leaves a volume whose top folder is right as it is; anything else looks at all of it.
	Policy *v1.PodFSGroupChangePolicy
	// ReadOnly lets the group read only.
	ReadOnly bool
}

// OwnershipOf returns what a pod asks of the ownership of its volumes, nil where it has no fsGroup.
func OwnershipOf(pod *v1.Pod) *Ownership {
	group := fsGroup(pod)
	if group == nil {
		return nil
	}
	return &Ownership{Group: *group, Policy: pod.Spec.SecurityContext.FSGroupChangePolicy}
}

// bits are what the group needs of a file or folder.
func (o Ownership) bits(folder bool) uint32 {
	bits := uint32(0o660)
	if o.ReadOnly {
		bits = 0o440
	}
	if folder {
		bits |= 0o110 | unix.S_ISGID
	}
	return bits
}

// fits reports whether a file or folder needs no change. It is pure.
func (o Ownership) fits(st *unix.Stat_t) bool {
	if int64(st.Gid) != o.Group {
		return false
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return true
	}
	bits := o.bits(st.Mode&unix.S_IFMT == unix.S_IFDIR)
	return st.Mode&bits == bits
}

// SetOwnership gives a volume to a group: the group of all in it, what the group needs of their modes, and folders
// whose files get the group. Links are changed, never followed; what is mounted below is left alone; what is right
// already is not written. The top folder comes last, so that with OnRootMismatch a call that was killed half way is
// done again.
//
// A file that may not be changed is logged and left, as the kubelet does: a container can make one.
func SetOwnership(ctx context.Context, dir string, o Ownership) error {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("set group %d of volume %s: %w", o.Group, dir, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	folder := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if folder && o.Policy != nil && *o.Policy == v1.FSGroupChangeOnRootMismatch && o.fits(&st) {
		return nil
	}
	g := &giver{ctx: ctx, Ownership: o}
	if folder {
		if g.mount, err = mountID(fd); err != nil {
			return err
		}
		if err := g.content(fd); err != nil {
			return fmt.Errorf("set group %d of volume %s: %w", o.Group, dir, err)
		}
	}
	if err := g.change(fd, &st, dir); err != nil {
		return fmt.Errorf("set group %d of volume %s: %w", o.Group, dir, err)
	}
	if g.refused > 0 {
		klog.InfoS("Group of some files of a volume not set", "volume", dir, "group", o.Group, "files", g.refused,
			"one", g.first)
	}
	return nil
}

// giver is the state of one SetOwnership.
type giver struct {
	Ownership
	ctx     context.Context
	mount   uint64
	refused int
	first   string
}

// change sets group and mode of what is open.
func (g *giver) change(fd int, st *unix.Stat_t, name string) error {
	if g.fits(st) {
		return nil
	}
	err := unix.Fchownat(fd, "", -1, int(g.Group), unix.AT_EMPTY_PATH)
	kind := st.Mode & unix.S_IFMT
	if err == nil && kind != unix.S_IFLNK {
		// After the change of the group, which takes bits away.
		err = unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), st.Mode&0o7777|g.bits(kind == unix.S_IFDIR))
	}
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.EOPNOTSUPP) {
		if g.refused++; g.refused == 1 {
			g.first = fmt.Sprintf("%s: %v", filepath.Base(name), err)
		}
		return nil
	}
	return err
}

// content changes what is in a folder, the deepest first. No folder is held open while those below it are looked at:
// however deep they are nested, a few descriptors are enough. The way back is by "..", as long as that is still the
// folder that it was.
func (g *giver) content(top int) error {
	dir, err := openDir(top, ".")
	if err != nil {
		return err
	}
	here := level{dir: dir}
	defer func() { here.close() }()
	var above []level
	for {
		if err := g.ctx.Err(); err != nil {
			return err
		}
		name, ok, err := here.next()
		if err != nil {
			return err
		}
		if ok {
			down, err := g.entry(&here, name)
			if err != nil {
				return err
			}
			if down != nil {
				here.close()
				above, here = append(above, here), *down
			}
			continue
		}
		if len(above) == 0 {
			return nil // the top itself is the caller's
		}
		if err := g.change(int(here.dir.Fd()), &here.st, here.dir.Name()); err != nil {
			return err
		}
		parent := above[len(above)-1]
		above = above[:len(above)-1]
		if err := parent.reopen(here.dir); err != nil {
			return err
		}
		here.close()
		here = parent
	}
}

// entry changes one name of a folder, or returns the folder that it is.
func (g *giver) entry(at *level, name string) (*level, error) {
	fd, err := unix.Openat(int(at.dir.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil // removed meanwhile
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, g.change(fd, &st, name)
	}
	if mount, err := mountID(fd); err != nil || mount != g.mount {
		return nil, err
	}
	dir, err := openDir(fd, ".")
	if err != nil {
		return nil, err
	}
	return &level{dir: dir, st: st}, nil
}

// level is a folder on the way down: its names are read in one go, before anything in it is changed.
type level struct {
	dir   *os.File
	st    unix.Stat_t
	names []string
	read  bool
}

func (l *level) next() (string, bool, error) {
	if !l.read {
		names, err := l.dir.Readdirnames(-1)
		if err != nil && !errors.Is(err, io.EOF) {
			return "", false, err
		}
		if err := unix.Fstat(int(l.dir.Fd()), &l.st); err != nil {
			return "", false, os.NewSyscallError("fstat", err)
		}
		l.names, l.read = names, true
	}
	if len(l.names) == 0 {
		return "", false, nil
	}
	name := l.names[len(l.names)-1]
	l.names = l.names[:len(l.names)-1]
	return name, true, nil
}

// reopen opens the folder again from one that was in it.
func (l *level) reopen(below *os.File) error {
	dir, err := openDir(int(below.Fd()), "..")
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return errors.Join(os.NewSyscallError("fstat", err), dir.Close())
	}
	if st.Dev != l.st.Dev || st.Ino != l.st.Ino {
		return errors.Join(errors.New("a folder was moved while its group was being set"), dir.Close())
	}
	l.dir = dir
	return nil
}

func (l *level) close() { l.dir.Close() }

func openDir(at int, name string) (*os.File, error) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}
