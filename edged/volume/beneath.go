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

// openBeneath opens a path within root and returns it as an O_PATH descriptor. It makes folders that are
// missing, with the mode of root.
//
// Whoever writes the volume may change it meanwhile, so nothing is looked up by more than one name at a
// time: each step opens one name in a folder that is held open, never following a link; a link is read and
// its steps are taken in the same way; ".." goes back to the folder that the walk came from, and not above
// root. The result is therefore always below root, as with openat2(RESOLVE_BENEATH), which the kernels of
// older devices (before 5.6) do not have.
func openBeneath(root, sub string) (int, error) {
	fd, err := unix.Open(root, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open volume %s: %w", root, err)
	}
	w := &walk{open: []int{fd}}
	defer w.close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return -1, fmt.Errorf("stat volume %s: %w", root, err)
	}
	w.mode = st.Mode & 0o7777
	for part := range strings.SplitSeq(filepath.Clean(sub), "/") {
		w.todo = append(w.todo, step{part, true})
	}
	for len(w.todo) > 0 {
		if err := w.next(); err != nil {
			return -1, fmt.Errorf("subPath %q: %w", sub, err)
		}
	}
	return w.take(), nil
}

// step is a name still to be opened. Those of the path itself may be made, those that a link names not.
type step struct {
	name string
	make bool
}

// walk is a way down from a root: the folders from the root to here, and the steps ahead.
type walk struct {
	open  []int
	todo  []step
	links int
	mode  uint32
}

func (w *walk) here() int { return w.open[len(w.open)-1] }

// take hands out the place that was reached.
func (w *walk) take() int {
	fd := w.here()
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
			return errors.New("a link leads out of the volume")
		}
		unix.Close(w.take())
		return nil
	}
	fd, err := unix.Openat(w.here(), s.name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
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
		return w.follow(fd, s.name)
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

// follow puts the steps of a link ahead of the others.
func (w *walk) follow(fd int, name string) error {
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
		return fmt.Errorf("link %q to %q leads out of the volume", name, target)
	}
	var steps []step
	for part := range strings.SplitSeq(target, "/") {
		steps = append(steps, step{part, false})
	}
	w.todo = slices.Concat(steps, w.todo)
	return nil
}

// mkdir makes a folder where the walk is, and opens what is there then.
func (w *walk) mkdir(name string) (int, error) {
	err := unix.Mkdirat(w.here(), name, w.mode&0o777)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	made := err == nil
	fd, err := unix.Openat(w.here(), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil || !made {
		return fd, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return fd, err // the container was faster; the caller sees what it is
	}
	// Whatever the umask says: a container of another user has to be able to write as it can in the volume.
	return fd, unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), w.mode)
}
