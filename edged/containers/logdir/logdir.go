// Package logdir opens the logs of containers: the files in the folders <logs>/<pod>/<container> of the node's pod log
// folder.
//
// A pod that mounts /var/log writable can put anything there: a link to the agent's key, a pipe that blocks anyone who
// opens it, a million files. The package promises:
//
//   - The pod's folder, the container's folder and the log itself are never reached by a link. The folder of all pods'
//     logs is the operator's and may be one.
//   - An open never blocks, and an opened file is a regular file.
//   - A listing reads no more than a bounded number of entries.
package logdir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// maxEntries is how many entries of a folder are read. A container has a few attempts, and a few rotated parts of each.
const maxEntries = 10_000

// ErrRefused is returned for what is not opened because it is not a log: a link, a pipe, a device, a folder.
var ErrRefused = errors.New("not opened")

// Open opens the folder of a container's logs, dir being <logs>/<pod>/<container>. The caller closes it. An error wraps
// fs.ErrNotExist if the folder does not exist, and ErrRefused if it or the pod's folder is anything but a folder.
func Open(dir string) (*os.Root, error) {
	logs, names, err := split(dir)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(logs)
	if err != nil {
		return nil, fmt.Errorf("log folder: %w", err)
	}
	for _, name := range names {
		below, err := openDir(root, name)
		_ = root.Close() // nothing was written
		if err != nil {
			return nil, err
		}
		root = below
	}
	return root, nil
}

// Make makes the folder of a container's logs and that of the pod, dir being <logs>/<pod>/<container>, where they do
// not exist. Its errors are those of Open.
func Make(dir string) error {
	logs, names, err := split(dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return fmt.Errorf("log folder: %w", err)
	}
	root, err := os.OpenRoot(logs)
	if err != nil {
		return fmt.Errorf("log folder: %w", err)
	}
	defer func() { _ = root.Close() }() // nothing was written
	for _, name := range names {
		if err := root.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("log folder: %w", err)
		}
		below, err := openDir(root, name)
		if err != nil {
			return err
		}
		_, root = root.Close(), below
	}
	return nil
}

// split returns the folder of all pods' logs, and the names of the pod's and of the container's folder.
func split(dir string) (logs string, names []string, err error) {
	pod, container := filepath.Split(dir)
	logs, pod = filepath.Split(filepath.Clean(pod))
	if filepath.Clean(dir) != dir || !filepath.IsAbs(dir) || pod == "" || container == "" {
		return "", nil, fmt.Errorf("log folder %q: %w: it is not an absolute path of the form <logs>/<pod>/<container>",
			dir, ErrRefused)
	}
	return logs, []string{pod, container}, nil
}

// openDir opens a folder in a folder.
func openDir(root *os.Root, name string) (*os.Root, error) {
	want, err := root.Lstat(name)
	if err != nil {
		return nil, fmt.Errorf("log folder %s: %w", filepath.Join(root.Name(), name), err)
	}
	if !want.IsDir() {
		return nil, refused(root, name, want)
	}
	below, err := root.OpenRoot(name)
	if err != nil {
		return nil, fmt.Errorf("log folder: %w", err)
	}
	// os.Root follows a link that stays below it: what is open must be the folder that was seen.
	got, err := below.Stat(".")
	if err == nil && !os.SameFile(want, got) {
		err = fmt.Errorf("log folder %s: %w: it was replaced meanwhile", below.Name(), ErrRefused)
	}
	if err != nil {
		_ = below.Close()
		return nil, err
	}
	return below, nil
}

// OpenFile opens a file in a container's folder for reading. An error wraps fs.ErrNotExist if there is none of that
// name, and ErrRefused if it is anything but a regular file.
func OpenFile(root *os.Root, name string) (*os.File, error) {
	want, err := Lstat(root, name)
	if err != nil {
		return nil, err
	}
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	got, err := f.Stat()
	if err == nil && !os.SameFile(want, got) {
		err = fmt.Errorf("log %s: %w: it was replaced meanwhile", f.Name(), ErrRefused)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// Lstat returns what a regular file in a container's folder is. Its errors are those of OpenFile.
func Lstat(root *os.Root, name string) (fs.FileInfo, error) {
	if name != filepath.Base(name) {
		return nil, fmt.Errorf("log %q: %w: it is not in the folder of the container", name, ErrRefused)
	}
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, refused(root, name, info)
	}
	return info, nil
}

// ReadDir returns the entries of a container's folder, ordered by name. The folder's time of access stays where the
// kernel allows that; see package readdir.
func ReadDir(root *os.Root) ([]fs.DirEntry, error) {
	const flags = os.O_RDONLY | unix.O_DIRECTORY
	dir, err := root.OpenFile(".", flags|unix.O_NOATIME, 0)
	if errors.Is(err, fs.ErrPermission) {
		dir, err = root.OpenFile(".", flags, 0)
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(maxEntries + 1)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if err == nil && len(entries) > maxEntries {
		err = fmt.Errorf("log folder %s: %w: it has more than %d entries", root.Name(), ErrRefused, maxEntries)
	}
	smallsort.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

func refused(root *os.Root, name string, info fs.FileInfo) error {
	return fmt.Errorf("log %s: %w: it is %s", filepath.Join(root.Name(), name), ErrRefused, kind(info.Mode()))
}

// kind names what a file is.
func kind(mode fs.FileMode) string {
	switch mode.Type() {
	case 0:
		return "a regular file"
	case fs.ModeDir:
		return "a folder"
	case fs.ModeSymlink:
		return "a symbolic link"
	case fs.ModeNamedPipe:
		return "a named pipe"
	case fs.ModeSocket:
		return "a socket"
	}
	return "a device"
}
