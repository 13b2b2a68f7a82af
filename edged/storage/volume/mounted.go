package volume

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// mountsBelow returns the mount points at and below a path, the deepest first; of several on one place the
// newest first.
func mountsBelow(path string) ([]string, error) {
	infos, err := mountInfosBelow(path)
	if err != nil {
		return nil, err
	}
	points := make([]string, 0, len(infos))
	for _, i := range infos {
		points = append(points, i.Mountpoint)
	}
	return points, nil
}

// mountInfosBelow returns what mountsBelow does with all that is known of each mount. The kernel writes the list of all
// mounts each time, which takes long on a node with many pods; so only lines that may be of interest are parsed.
func mountInfosBelow(path string) ([]*mountinfo.Info, error) {
	real, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	path = filepath.Join(real, filepath.Base(path))
	lines, err := mountLines(path)
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	infos, err := mountinfo.GetMountsFromReader(lines, func(i *mountinfo.Info) (skip, stop bool) {
		return i.Mountpoint != path && !strings.HasPrefix(i.Mountpoint, path+"/"), false
	})
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	slices.Reverse(infos)
	smallsort.SortStableFunc(infos, func(a, b *mountinfo.Info) int {
		return cmp.Compare(strings.Count(b.Mountpoint, "/"), strings.Count(a.Mountpoint, "/"))
	})
	return infos, nil
}

const (
	// mountLine is the longest line of the list of mounts: paths of up to 4096 bytes, all of them escaped, and options
	// of up to a page each.
	mountLine = 64 << 10
	// escaped are the characters that the kernel writes as octal numbers.
	escaped = " \t\n\\"
)

// mountLines returns the lines of the kernel's list of mounts that contain a path, and maybe others.
func mountLines(path string) (io.Reader, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	part := []byte(path[strings.LastIndexAny(path, escaped)+1:])
	var found bytes.Buffer
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, mountLine)
	for lines.Scan() {
		if bytes.Contains(lines.Bytes(), part) {
			found.Write(lines.Bytes())
			found.WriteByte('\n')
		}
	}
	return &found, lines.Err()
}

// unmountAll unmounts a path and all that is mounted below it.
func unmountAll(path string) error {
	infos, err := mountInfosBelow(path)
	if err != nil {
		return err
	}
	return unmount(infos)
}

// unmount unmounts what mountInfosBelow has returned. What has been unmounted since is not an error.
func unmount(infos []*mountinfo.Info) error {
	// Mounts that are shared with the node's own would take those along.
	for _, i := range infos {
		if err := unix.Mount("", i.Mountpoint, "", unix.MS_PRIVATE, ""); err != nil && !gone(err) {
			return fmt.Errorf("make %s private before unmounting it: %w", i.Mountpoint, err)
		}
	}
	for _, i := range infos {
		err := unix.Unmount(i.Mountpoint, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) {
			// Nothing of the pod runs any more; what holds it open loses it when it closes it.
			err = unix.Unmount(i.Mountpoint, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
		if err != nil && !gone(err) {
			return fmt.Errorf("unmount %s: %w", i.Mountpoint, err)
		}
	}
	return nil
}

// gone reports whether an error of mount or umount says that nothing is mounted there.
func gone(err error) bool { return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) }

// isMountpoint reports whether something is mounted on a path, be it of the same file system.
func isMountpoint(path string) (bool, error) {
	own, err := mountIDOf(path)
	if err != nil {
		return false, err
	}
	parent, err := mountIDOf(filepath.Dir(path))
	return err == nil && own != parent, err
}

func mountIDOf(path string) (uint64, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	return mountID(fd)
}

// mountID returns the kernel's number of the mount on which an open file is. A file's device does not tell
// as much: a bind mount has that of what is bound.
func mountID(fd int) (uint64, error) {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID, &st)
	if err == nil && st.Mask&unix.STATX_MNT_ID != 0 {
		return st.Mnt_id, nil
	}
	return mountIDFromProc(fd) // before Linux 5.8
}

func mountIDFromProc(fd int) (uint64, error) {
	name := "/proc/self/fdinfo/" + strconv.Itoa(fd)
	data, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(data) {
		if value, ok := bytes.CutPrefix(line, []byte("mnt_id:")); ok {
			return strconv.ParseUint(string(bytes.TrimSpace(value)), 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no mnt_id", name)
}
