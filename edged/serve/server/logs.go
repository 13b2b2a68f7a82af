package server

import (
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// SystemLogs is the route to the files of the node's log folder (/logs/). Pods may write there through a hostPath: what
// is served never leaves the folder by a link, and is a file or a folder, never a pipe that would wait for a writer.
func SystemLogs(dir string) Route {
	return Route{
		Pattern: "/logs/{path...}", Handler: http.StripPrefix("/logs/", http.FileServerFS(logDir(dir))),
		Resource: "log", Stream: true, Debugging: true,
	}
}

// logDir is a folder as a file system; it is opened again each time, since it may not be there yet, or be another by
// now.
type logDir string

// Open implements fs.FS.
func (d logDir) Open(name string) (fs.File, error) {
	root, err := os.OpenRoot(string(d))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.OpenFile(filepath.FromSlash(name), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, hidden(name, err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		err = fs.ErrNotExist
	}
	if err != nil {
		_ = f.Close()
		return nil, hidden(name, err)
	}
	if info.IsDir() {
		return &logFolder{f}, nil
	}
	return f, nil
}

// maxEntries bounds the listing of a log folder, which a pod may fill: net/http reads all of it at once.
const maxEntries = 10_000

// logFolder is an open folder of which the first entries are listed.
type logFolder struct{ *os.File }

// ReadDir implements fs.ReadDirFile. Of a folder with more than maxEntries entries it returns that many, and one whose
// name says so.
func (d *logFolder) ReadDir(n int) ([]fs.DirEntry, error) {
	if n > 0 {
		return d.File.ReadDir(min(n, maxEntries))
	}
	entries, err := d.File.ReadDir(maxEntries + 1)
	if err == io.EOF {
		err = nil // an empty folder
	}
	if len(entries) > maxEntries {
		entries[maxEntries] = leftOut{}
	}
	return entries, err
}

// leftOut stands for the entries of a folder that are not listed.
type leftOut struct{ fs.DirEntry }

func (leftOut) Name() string {
	return fmt.Sprintf("~ only %d entries of this folder are listed; ask for a file by its name", maxEntries)
}

func (leftOut) IsDir() bool { return false }

// hidden says of what may not be read no more than that it is not there; net/http has no words for other errors.
func hidden(name string, err error) error {
	if os.IsPermission(err) {
		return err
	}
	return &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}
