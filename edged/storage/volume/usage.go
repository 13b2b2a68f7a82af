package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// DiskUsage returns how many bytes of the disk a file or folder takes, see Measure.
func DiskUsage(ctx context.Context, path string) (int64, error) {
	size, err := Measure(ctx, path)
	return size.Bytes, err
}

// Size is what something takes of a disk.
type Size struct{ Bytes, Inodes int64 }

// Measure returns what a file or folder takes of the disk with all in it, each file once however many names it has, and
// nothing of what is mounted in it or of links' targets. What changes meanwhile is counted as it is met; one that is
// not there takes nothing. A folder that cannot be read is left out: the size is then that of the rest, with the first
// error.
func Measure(ctx context.Context, path string) (Size, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return Size{}, nil
		}
		return Size{}, &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	c := &counter{ctx: ctx, seen: map[uint64]bool{}, dev: st.Dev}
	c.add(&st)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return c.size, nil
	}
	at, err := openDir(unix.AT_FDCWD, path)
	if err != nil {
		return Size{}, err
	}
	err = c.folders(at)
	return c.size, err
}

// counter adds up the blocks of files, and the files.
type counter struct {
	ctx  context.Context
	size Size
	dev  uint64
	seen map[uint64]bool // inodes with more than one name
	// unread is why the first folder that was left out could not be read.
	unread error
}

// leaveOut notes that a folder could not be read.
func (c *counter) leaveOut(err error) {
	if c.unread == nil {
		c.unread = err
	}
}

func (c *counter) add(st *unix.Stat_t) {
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if c.seen[st.Ino] {
			return
		}
		c.seen[st.Ino] = true
	}
	c.size.Bytes += st.Blocks * 512
	c.size.Inodes++
}

// folders counts what is in a folder and below. Few folders are open at a time, however deep they are nested: the way
// back is by "..".
func (c *counter) folders(top *os.File) error {
	here := level{dir: top}
	defer func() { here.close() }()
	if err := c.files(&here); err != nil {
		c.leaveOut(err)
	}
	var above []level
	for {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		if len(here.names) > 0 {
			name := here.names[len(here.names)-1]
			here.names = here.names[:len(here.names)-1]
			dir, err := openDir(int(here.dir.Fd()), name)
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
				continue // changed meanwhile
			}
			if err != nil {
				c.leaveOut(err)
				continue
			}
			below := level{dir: dir}
			if err := c.files(&below); err != nil {
				c.leaveOut(err) // what it told of is counted, and so are the folders among that
			}
			here.close()
			above, here = append(above, here), below
			continue
		}
		if len(above) == 0 {
			return c.unread
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

// files counts the entries of a folder, and leaves in it the names of the folders.
func (c *counter) files(at *level) error {
	fd := int(at.dir.Fd())
	if err := unix.Fstat(fd, &at.st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if at.st.Dev != c.dev {
		return nil // a mount
	}
	for {
		names, err := at.dir.Readdirnames(512)
		for _, name := range names {
			var st unix.Stat_t
			if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Dev != c.dev {
				continue // gone meanwhile, or a mount
			}
			c.add(&st)
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				at.names = append(at.names, name)
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Usage returns how many bytes of the disk the volumes of a pod take that are its own and on it, by name. Of one that
// cannot be read it is what was counted, and the error says which.
func (m *Manager) Usage(ctx context.Context, pod *v1.Pod) (map[string]int64, error) {
	out := map[string]int64{}
	var failed []error
	for vol := range usedVolumes(pod) {
		plugin := ""
		switch {
		case vol.EmptyDir != nil && vol.EmptyDir.Medium != v1.StorageMediumMemory:
			plugin = pluginEmptyDir
		case vol.ConfigMap != nil:
			plugin = pluginConfigMap
		default:
			continue
		}
		dir, err := m.podVolume(pod.UID, plugin, vol.Name)
		if err != nil {
			return nil, err
		}
		if out[vol.Name], err = DiskUsage(ctx, dir); err != nil {
			failed = append(failed, fmt.Errorf("measure volume %q: %w", vol.Name, err))
		}
	}
	return out, errors.Join(failed...)
}

// podVolume is where a volume lies.
func (m *Manager) podVolume(uid types.UID, plugin, name string) (string, error) {
	dir, err := m.podDir(uid)
	return filepath.Join(dir, volumesDir, pluginDir(plugin), name), err
}
