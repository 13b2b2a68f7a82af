package volume

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// How a volume is changed in one step, as the kubelet does it (so that programs that watch for it work):
// the files lie in a folder "..<time>"; "..data" is a link to the newest; each visible name is a link
// through "..data". Renaming a new "..data" over the old one changes all files at once.
const (
	dataLink   = "..data"
	dataNext   = "..data_tmp"
	timeLayout = "..2006_01_02_15_04_05."
)

// payload is what a volume holds that the agent fills.
type payload struct {
	files []file
	// group owns the folders and links, as well as the files, unless it is nil.
	group *int64
	// nested are the places of other mounts, see nestedMounts.
	nested []string
}

// writeAtomically makes what a volume holds what it should be. Nothing is written when it is. A call that was killed
// half way is finished, or undone, by the next. Folders for nested mounts come first: where a file has the same name,
// it is not seen.
func writeAtomically(dir string, p payload) error {
	var err error
	if p.files, err = deduplicate(p.files); err != nil {
		return err
	}
	if err := makeNested(dir, p.nested, p.group); err != nil {
		return fmt.Errorf("unable to create nested volume mountpoints: %w", err)
	}
	current, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if current == "" || filepath.Base(current) != current || !sameFiles(filepath.Join(dir, current), p.files) {
		if current, err = replaceData(dir, p); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if err := linkNames(dir, p, entries); err != nil {
		return err
	}
	return dropOld(dir, current, p, entries)
}

// replaceData writes the files to a folder of their own and points "..data" to it.
func replaceData(dir string, p payload) (string, error) {
	next, err := os.MkdirTemp(dir, time.Now().UTC().Format(timeLayout))
	if err != nil {
		return "", err
	}
	if err := writeFiles(next, p); err != nil {
		return "", errors.Join(err, os.RemoveAll(next))
	}
	tmp := filepath.Join(dir, dataNext)
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	if err := p.link(filepath.Base(next), tmp, 0); err != nil {
		return "", err
	}
	return filepath.Base(next), os.Rename(tmp, filepath.Join(dir, dataLink))
}

// link makes a link that belongs to a user and the group.
func (p *payload) link(target, path string, uid int) error {
	if err := os.Symlink(target, path); err != nil {
		return err
	}
	return os.Lchown(path, uid, p.gid())
}

// gid is the group of what is in the volume.
func (p *payload) gid() int {
	if p.group == nil {
		return 0
	}
	return int(*p.group)
}

func writeFiles(dir string, p payload) error {
	if err := p.folder(dir); err != nil {
		return err
	}
	for _, f := range p.files {
		if err := p.parents(dir, f.path); err != nil {
			return err
		}
		path := filepath.Join(dir, f.path)
		if err := os.WriteFile(path, f.data, 0o600); err != nil {
			return err
		}
		if err := os.Chown(path, f.uid, f.gid); err != nil {
			return err
		}
		if err := os.Chmod(path, os.FileMode(f.mode)); err != nil { // whatever the umask says
			return err
		}
	}
	return nil
}

// parents makes the folders above a file.
func (p *payload) parents(dir, name string) error {
	for i, r := range name {
		if r != '/' {
			continue
		}
		if err := p.folder(filepath.Join(dir, name[:i])); err != nil {
			return err
		}
	}
	return nil
}

// folder makes a folder open to all, whatever the umask says.
func (p *payload) folder(path string) error {
	mode := os.FileMode(0o755)
	if p.group != nil {
		mode |= os.ModeSetgid
	}
	return ensureDir(path, mode, p.gid())
}

var errNotRegular = errors.New("not a regular file")

// sameFiles reports whether a folder holds just these files, which have distinct paths.
func sameFiles(dir string, files []file) bool {
	held := 0
	err := filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		switch {
		case err != nil || d.IsDir():
			return err
		case !d.Type().IsRegular():
			return errNotRegular
		}
		held++
		return nil
	})
	if err != nil || held != len(files) {
		return false
	}
	folder, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(folder)
	return !slices.ContainsFunc(files, func(f file) bool { return !sameFile(folder, f) })
}

// sameFile reports whether a file, below an open folder, is as it should be. An idle agent does this for all files each
// minute, so it makes little garbage.
func sameFile(folder int, f file) bool {
	fd, err := unix.Openat(folder, f.path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode != unix.S_IFREG|f.mode || st.Size != int64(len(f.data)) ||
		int(st.Uid) != f.uid || int(st.Gid) != f.gid {
		return false
	}
	var part [1024]byte
	for left := f.data; len(left) > 0; {
		n, err := unix.Read(fd, part[:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 || !bytes.HasPrefix(left, part[:n]) {
			return false
		}
		left = left[n:]
	}
	return true
}

func compareName(e os.DirEntry, name string) int { return strings.Compare(e.Name(), name) }

// linkNames makes the visible names that are not among the entries of the volume, which are sorted.
func linkNames(dir string, p payload, entries []os.DirEntry) error {
	for _, f := range p.files {
		name, _, _ := strings.Cut(f.path, "/")
		if _, there := slices.BinarySearchFunc(entries, name, compareName); there {
			continue
		}
		err := p.link(filepath.Join(dataLink, name), filepath.Join(dir, name), f.uid)
		if err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// dropOld removes the entries that are earlier data folders, or links whose names the volume no longer has.
func dropOld(dir, current string, p payload, entries []os.DirEntry) (err error) {
	names := map[string]bool{dataLink: true, current: true}
	for _, f := range p.files {
		name, _, _ := strings.Cut(f.path, "/")
		names[name] = true
	}
	nested := map[string]bool{}
	for _, path := range p.nested {
		name, _, _ := strings.Cut(path, "/")
		nested[name] = true
	}
	for _, e := range entries {
		if names[e.Name()] {
			continue
		}
		if strings.HasPrefix(e.Name(), "..") && !nested[e.Name()] || e.Type()&os.ModeSymlink != 0 {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
}
