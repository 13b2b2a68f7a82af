package crilog

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgecore-io/edgecore/edged/containers/logdir"
)

// rotatedForm is what a log's name gets when it is rotated, as the kubelet and this agent do it.
const rotatedForm = "20060102-150405"

// open opens the log at path, and the part of it that was rotated away last: nil if there is none to be read. While no
// file has the log's own name, because it is being rotated, its newest part is the log.
func open(path string, since time.Time) (current, older *os.File, err error) {
	root, err := logdir.Open(filepath.Dir(path))
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	current, err = logdir.OpenFile(root, filepath.Base(path))
	if errors.Is(err, os.ErrNotExist) {
		if part := newestPart(root, filepath.Base(path)); part != nil {
			return part, nil, nil
		}
	}
	if err != nil {
		return nil, nil, err
	}
	return current, rotated(root, filepath.Base(path), current, since), nil
}

// parts returns the names of the rotated parts of a log that can be read as they are, the oldest first. Those before
// them are compressed.
func parts(root *os.Root, log string) []string {
	entries, err := logdir.ReadDir(root) // in the order of their names, and so of their times
	if err != nil {
		return nil // the log that is open is there to be read
	}
	var names []string
	for _, e := range entries {
		if stamp, ok := strings.CutPrefix(e.Name(), log+"."); ok && isStamp(stamp) {
			names = append(names, e.Name())
		}
	}
	return names
}

func isStamp(text string) bool {
	_, err := time.Parse(rotatedForm, text)
	return err == nil
}

// newestPart opens the newest part of a log; nil if there is none.
func newestPart(root *os.Root, log string) *os.File {
	names := parts(root, log)
	if len(names) == 0 {
		return nil
	}
	f, err := logdir.OpenFile(root, names[len(names)-1])
	if err != nil {
		return nil // it was just compressed, or is not a log
	}
	return f
}

// rotated opens the part of an open log that was rotated away last, so that a log is not empty just because it was. It
// is nil when there is none, or none that can be read as it is: those before it are compressed.
func rotated(root *os.Root, log string, current *os.File, since time.Time) *os.File {
	have, err := current.Stat()
	if err != nil {
		return nil
	}
	for _, name := range slices.Backward(parts(root, log)) {
		f, err := logdir.OpenFile(root, name)
		if err != nil {
			return nil // it was just compressed, or is not a log
		}
		st, err := f.Stat()
		if err == nil && !os.SameFile(st, have) && !st.ModTime().Before(since) {
			return f
		}
		f.Close()
		if err != nil || st.ModTime().Before(since) {
			return nil
		}
	}
	return nil
}

// partAfter opens the part of a log that comes after an open file, which was the log before, and is nil when the log
// itself comes after it. A file that is no part any more was compressed or removed, and the parts that were written
// after it come after it.
func partAfter(root *os.Root, log string, f *os.File) *os.File {
	have, err := f.Stat()
	if err != nil {
		return nil
	}
	var after []string
	for _, name := range parts(root, log) {
		st, err := logdir.Lstat(root, name)
		switch {
		case err != nil:
		case os.SameFile(st, have):
			after = nil
		case !st.ModTime().Before(have.ModTime()):
			after = append(after, name)
		}
	}
	for _, name := range after {
		if part, err := logdir.OpenFile(root, name); err == nil {
			return part
		}
	}
	return nil
}

// Attempts returns the logs of a container in the order of its attempts. One that is being rotated has no file of its
// own, but a part.
func Attempts(dir string) ([]string, error) {
	root, err := logdir.Open(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errNoLogIn(dir)
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	entries, err := logdir.ReadDir(root)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errNoLogIn(dir)
	}
	if err != nil {
		return nil, err
	}
	var found []int
	for _, e := range entries {
		name, rest, isLog := strings.Cut(e.Name(), ".log")
		stamp, isPart := strings.CutPrefix(rest, ".")
		n, err := strconv.Atoi(name)
		if isLog && err == nil && strconv.Itoa(n) == name && (rest == "" || isPart && isStamp(stamp)) {
			found = append(found, n)
		}
	}
	slices.Sort(found)
	found = slices.Compact(found)
	paths := make([]string, len(found))
	for i, n := range found {
		paths[i] = filepath.Join(dir, strconv.Itoa(n)+".log")
	}
	return paths, nil
}

func newestOf(dir string) (string, error) {
	attempts, err := Attempts(dir)
	if err != nil || len(attempts) == 0 {
		return "", err
	}
	return attempts[len(attempts)-1], nil
}
