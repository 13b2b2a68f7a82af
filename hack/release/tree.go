package main

import (
	"bytes"
	"compress/gzip"
	"crypto/md5"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// entry is a file of a package, or an empty folder, whose name ends in a slash.
type entry struct {
	data []byte
	mode fs.FileMode
}

// tree are the files of a package by their paths, without a slash in front.
type tree map[string]entry

func (t tree) add(name string, data []byte) { t[name] = entry{data, 0o644} }

// compressed adds a file as Debian wants those below /usr/share/doc and /usr/share/man: in gzip's best form, without
// its time.
func (t tree) compressed(name string, data []byte) error {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	if err := errors.Join(err, w.Close()); err != nil {
		return err
	}
	t.add(name+".gz", out.Bytes())
	return nil
}

// copyFiles adds files of a folder to one of the package.
func (t tree) copyFiles(from, to string, names ...string) error {
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return err
		}
		t.add(path.Join(to, path.Base(name)), data)
	}
	return nil
}

// size is what the package takes on a disk, in units of 1024 bytes, as Debian counts.
func (t tree) size() int {
	total := 0
	for _, e := range t {
		total += max((len(e.data)+1023)/1024, 1)
	}
	return total
}

// sums are the contents' sums, as dpkg --verify reads them.
func (t tree) sums() []byte {
	var out bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(t)) {
		if !strings.HasSuffix(name, "/") && !strings.HasPrefix(name, "DEBIAN/") {
			fmt.Fprintf(&out, "%x  %s\n", md5.Sum(t[name].data), name)
		}
	}
	return out.Bytes()
}

// write writes the tree into a folder that is not there yet.
func (t tree) write(dir string) error {
	for _, name := range slices.Sorted(maps.Keys(t)) {
		at := filepath.Join(dir, name)
		if err := mkdir(dir, filepath.Dir(at)); err != nil {
			return err
		}
		if strings.HasSuffix(name, "/") {
			if err := mkdir(dir, at); err != nil {
				return err
			}
			if err := os.Chmod(at, t[name].mode); err != nil {
				return err
			}
			continue
		}
		if err := os.WriteFile(at, t[name].data, t[name].mode); err != nil {
			return err
		}
		if err := os.Chmod(at, t[name].mode); err != nil { // whatever the umask
			return err
		}
	}
	return nil
}

// mkdir makes the folders down to dir with the mode that they have on a device, whatever the umask.
func mkdir(top, dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if dir != top {
		if err := mkdir(top, filepath.Dir(dir)); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}
