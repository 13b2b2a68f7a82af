package volume

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits of a walk: of the links that it follows, as the kernel's, and of the folders that it holds open.
const (
	maxLinks = 40
	maxDepth = 256
)

// folderAccess is how openBeneath makes folders: with a mode, and for a group unless that is nil.
type folderAccess struct {
	mode  uint32
	group *int64
}

// openBeneath opens a path within root and returns it as an O_PATH descriptor. It makes folders that are
// missing.
//
// Anyone who writes the volume may change it meanwhile, so nothing is looked up by more than one name at a
// time: each step opens one name in a folder that is held open, never following a link; a link is read and
// its steps are taken in the same way; ".." goes back to the folder that the walk came from. The result is
// therefore always below root, as with openat2(RESOLVE_BENEATH), which the kernels of older devices (before
// 5.6) do not have.
//
// A link may leave root and come back, as an absolute one to a place in the volume does. Outside, nothing is
// opened: the names on the way back are compared with those of root's own path, and the walk goes on in root.
func openBeneath(root, sub string, access folderAccess) (int, error) {
	fd, err := unix.Open(root, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open volume %s: %w", root, err)
	}
	w := &walk{root: filepath.Clean(root), open: []int{fd}, access: access}
	defer w.close()
	for part := range strings.SplitSeq(filepath.Clean(sub), "/") {
		w.todo = append(w.todo, step{part, true})
	}
	for len(w.todo) > 0 {
		if err := w.next(); err != nil {
			return -1, fmt.Errorf("subPath %q: %w", sub, err)
		}
	}
	if w.above > 0 {
		return -1, fmt.Errorf("subPath %q: %w", sub, errLeavesVolume)
	}
	return w.pop(), nil
}

// accessOf returns the mode of a volume: what is made in it gets the same.
func accessOf(root string) (folderAccess, error) {
	var st unix.Stat_t
	if err := unix.Stat(root, &st); err != nil {
		return folderAccess{}, fmt.Errorf("stat volume %s: %w", root, err)
	}
	return folderAccess{mode: st.Mode & 0o7777}, nil
}

var errLeavesVolume = errors.New("a link leads out of the volume")

// errNotMade marks a folder that could not be made.
var errNotMade = errors.New("make folder")

// step is a name still to be opened. Those of the path itself may be made, those that a link names not.
type step struct {
	name string
	make bool
}

// walk is a way down from a root: the folders from the root to here, and the steps ahead.
type walk struct {
	root   string
	open   []int
	todo   []step
	links  int
	access folderAccess
	// home are the names of root's path without links, from "/" on; nil until a link leaves the volume. While above is
	// not 0, the walk is outside, at the folder that is so many names above root; only root itself is open then.
	home  []string
	above int
}

func (w *walk) current() int { return w.open[len(w.open)-1] }

// pop removes the folder that was reached from the open ones, and returns its descriptor.
func (w *walk) pop() int {
	fd := w.current()
	w.open = w.open[:len(w.open)-1]
	return fd
}

func (w *walk) close() {
	for _, fd := range w.open {
		unix.Close(fd)
	}
}

func (w *walk) next() error {
	s := w.todo[0]
	w.todo = w.todo[1:]
	switch s.name {
	case "", ".":
		return nil
	case "..":
		if len(w.open) == 1 {
			return w.stepUp()
		}
		unix.Close(w.pop())
		return nil
	}
	if w.above > 0 {
		return w.comeBack(s.name)
	}
	fd, err := unix.Openat(w.current(), s.name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) && s.make {
		fd, err = w.mkdir(s.name)
	}
	if err != nil {
		return fmt.Errorf("open %q: %w", s.name, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return fmt.Errorf("stat %q: %w", s.name, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		defer unix.Close(fd)
		return w.followLink(fd, s.name)
	}
	w.open = append(w.open, fd)
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR && len(w.todo) > 0:
		return fmt.Errorf("open %q: %w", s.name, unix.ENOTDIR)
	case len(w.open) > maxDepth:
		return fmt.Errorf("more than %d folders deep", maxDepth)
	}
	return nil
}

// followLink puts the steps of a link before the remaining ones.
func (w *walk) followLink(fd int, name string) error {
	if w.links++; w.links > maxLinks {
		return fmt.Errorf("follow %q: %w", name, unix.ELOOP)
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return fmt.Errorf("read link %q: %w", name, err)
	}
	target := string(buf[:n])
	if filepath.IsAbs(target) {
		if target, err = w.restart(target); err != nil {
			return err
		}
	}
	var steps []step
	for part := range strings.SplitSeq(target, "/") {
		steps = append(steps, step{part, false})
	}
	w.todo = slices.Concat(steps, w.todo)
	return nil
}

// stepUp takes a step up from root, or from a folder above it.
func (w *walk) stepUp() error {
	if err := w.findHome(); err != nil {
		return err
	}
	w.above = min(w.above+1, len(w.home))
	return nil
}

// comeBack takes a step down outside, which has to be one towards root.
func (w *walk) comeBack(name string) error {
	if w.home[len(w.home)-w.above] != name {
		return errLeavesVolume
	}
	w.above--
	return nil
}

// restart goes to the beginning of an absolute path, and returns what of it is still ahead.
func (w *walk) restart(target string) (string, error) {
	if err := w.findHome(); err != nil {
		return "", err
	}
	for len(w.open) > 1 {
		unix.Close(w.pop())
	}
	// The path of root may go through links of the node, which a link may name as well.
	if ahead, ok := strings.CutPrefix(target, w.root+"/"); ok {
		w.above = 0
		return ahead, nil
	}
	w.above = len(w.home)
	return target, nil
}

func (w *walk) findHome() error {
	if w.home != nil {
		return nil
	}
	real, err := filepath.EvalSymlinks(w.root)
	if err != nil {
		return fmt.Errorf("find the path of the volume: %w", err)
	}
	w.home = slices.DeleteFunc(strings.Split(real, "/"), func(name string) bool { return name == "" })
	return nil
}

// mkdir makes a folder where the walk is, and opens what is there then.
func (w *walk) mkdir(name string) (int, error) {
	err := unix.Mkdirat(w.current(), name, w.access.mode&0o777)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, fmt.Errorf("%w: %w", errNotMade, err)
	}
	made := err == nil
	fd, err := unix.Openat(w.current(), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil || !made {
		return fd, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return fd, err // the container was faster; the caller sees what it is
	}
	if w.access.group != nil {
		err = unix.Fchownat(fd, "", -1, int(*w.access.group), unix.AT_EMPTY_PATH)
	}
	if err == nil {
		// Whatever the umask says: a container of another user has to be able to write as it can in the volume.
		err = unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), w.access.mode)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("%w: %w", errNotMade, err)
	}
	return fd, nil
}
