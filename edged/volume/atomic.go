package volume

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// How a volume is changed in one step, as the kubelet does it (so that programs that watch for it work):
// the files lie in a folder "..<time>"; "..data" is a link to the newest; each visible name is a link
// through "..data". Renaming a new "..data" over the old one changes all files at once.
const (
	dataLink   = "..data"
	dataNext   = "..data_tmp"
	timeLayout = "..2006_01_02_15_04_05."
)

// writeAtomically makes the files of a volume what they should be. Nothing is written when they are.
func writeAtomically(dir string, files []file) error {
	current, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if current != "" && filepath.Base(current) != current {
		current = "" // not one of ours
	}
	if current != "" && sameFiles(filepath.Join(dir, current), files) {
		return linkNames(dir, files)
	}
	next, err := os.MkdirTemp(dir, time.Now().UTC().Format(timeLayout))
	if err != nil {
		return err
	}
	if err := writeFiles(next, files); err != nil {
		return errors.Join(err, os.RemoveAll(next))
	}
	tmp := filepath.Join(dir, dataNext)
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(filepath.Base(next), tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, filepath.Join(dir, dataLink)); err != nil {
		return err
	}
	if err := linkNames(dir, files); err != nil {
		return err
	}
	return dropOld(dir, filepath.Base(next), files)
}

func writeFiles(dir string, files []file) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	for _, f := range files {
		path := filepath.Join(dir, f.path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, f.data, 0o600); err != nil {
			return err
		}
		if err := os.Chown(path, 0, f.gid); err != nil {
			return err
		}
		if err := os.Chmod(path, os.FileMode(f.mode&0o777)); err != nil { // whatever the umask says
			return err
		}
	}
	return nil
}

// sameFiles tells whether a folder holds just these files.
func sameFiles(dir string, files []file) bool {
	want := map[string]file{}
	for _, f := range files {
		want[f.path] = f
	}
	seen := 0
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		f, ok := want[rel]
		if !ok {
			return fmt.Errorf("%s is not wanted", rel)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st, isUnix := info.Sys().(*syscall.Stat_t)
		if uint32(info.Mode().Perm()) != f.mode&0o777 || info.Size() != int64(len(f.data)) || (isUnix && int(st.Gid) != f.gid) {
			return fmt.Errorf("%s differs", rel)
		}
		data, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(data, f.data) {
			return fmt.Errorf("%s differs: %w", rel, err)
		}
		seen++
		return nil
	})
	return err == nil && seen == len(want)
}

// linkNames makes the visible names that are missing.
func linkNames(dir string, files []file) error {
	for _, f := range files {
		name, _, _ := strings.Cut(f.path, "/")
		err := os.Symlink(filepath.Join(dataLink, name), filepath.Join(dir, name))
		if err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// dropOld removes the folders of before and the names that are no more.
func dropOld(dir, current string, files []file) error {
	names := map[string]bool{dataLink: true, current: true}
	for _, f := range files {
		name, _, _ := strings.Cut(f.path, "/")
		names[name] = true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if names[e.Name()] {
			continue
		}
		if strings.HasPrefix(e.Name(), "..") || e.Type()&os.ModeSymlink != 0 {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
}
