package volume

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// tmpfs is a file system in memory; size 0 leaves the size to the kernel.
type tmpfs struct {
	size int64
	mode os.FileMode
	gid  int
}

// options are those of mount(8). Mode and group are mount options, so the mount never has others.
func (t tmpfs) options() string {
	options := []string{fmt.Sprintf("mode=%04o", modeBits(t.mode))}
	if t.gid != 0 {
		options = append(options, fmt.Sprintf("gid=%d", t.gid))
	}
	if t.size > 0 {
		options = append(options, fmt.Sprintf("size=%d", t.size))
	}
	return strings.Join(options, ",")
}

// modeBits returns a mode as the kernel has it.
func modeBits(mode os.FileMode) uint32 {
	bits := uint32(mode.Perm())
	if mode&os.ModeSticky != 0 {
		bits |= unix.S_ISVTX
	}
	if mode&os.ModeSetgid != 0 {
		bits |= unix.S_ISGID
	}
	return bits
}

// ensureTmpfs mounts a tmpfs on a folder unless one is there, and makes the folder.
func ensureTmpfs(dir string, t tmpfs) error {
	if err := os.Mkdir(dir, 0o750); err != nil && !os.IsExist(err) {
		return err
	}
	mounted, err := isMountpoint(dir)
	if err != nil {
		return err
	}
	if mounted {
		var fs unix.Statfs_t
		if err := unix.Statfs(dir, &fs); err != nil {
			return &os.PathError{Op: "statfs", Path: dir, Err: err}
		}
		if fs.Type != unix.TMPFS_MAGIC {
			return fmt.Errorf("something else than a tmpfs is mounted on %s; unmount it", dir)
		}
		return nil
	}
	// What is in memory is not to reach the disk by way of swap, where the kernel can see to that (Linux 6.4).
	err = unix.Mount("tmpfs", dir, "tmpfs", 0, t.options()+",noswap")
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("tmpfs", dir, "tmpfs", 0, t.options())
	}
	if err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", dir, err)
	}
	return nil
}
