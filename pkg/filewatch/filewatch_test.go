package filewatch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// late is when nothing comes any more.
const late = 10 * time.Second

func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, file string) {
	t.Helper()
	if err := os.WriteFile(file, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func watch(t *testing.T, f *Folders, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		if err := f.Watch(dir); err != nil {
			t.Fatal(err)
		}
	}
}

// told waits for a change.
func told(t *testing.T, f *Folders, what string) {
	t.Helper()
	select {
	case <-f.Changed():
	case <-time.After(late):
		t.Fatalf("%s was not told", what)
	}
}

// open makes a watcher for one test.
func open(t *testing.T) *Watcher {
	w := New(Options{})
	t.Cleanup(w.Close)
	return w
}

// two makes two folders.
func two(t *testing.T) (a, b string) {
	t.Helper()
	dir := t.TempDir()
	a, b = filepath.Join(dir, "a"), filepath.Join(dir, "b")
	mkdir(t, a)
	mkdir(t, b)
	return a, b
}

// inotify returns how many inotify instances this process has.
func inotify(t *testing.T) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.Contains(to, "inotify") {
			n++
		}
	}
	return n
}

// TestUsers: each user is told of its own folders, and all share one inotify instance.
func TestUsers(t *testing.T) {
	a, b := two(t)
	before := inotify(t)
	w := open(t)
	first, second, both := w.Folders(), w.Folders(), w.Folders()
	watch(t, first, a)
	watch(t, second, b)
	watch(t, both, a, b)
	if got := inotify(t) - before; got != 1 {
		t.Errorf("%d inotify instances for three users, want 1", got)
	}
	write(t, filepath.Join(a, "file"))
	told(t, first, "the user of a, of a file in a,")
	told(t, both, "the user of both, of a file in a,")
	write(t, filepath.Join(b, "file"))
	told(t, second, "the user of b, of a file in b,")
	told(t, both, "the user of both, of a file in b,")
	first.Close()
	second.Close()
	write(t, filepath.Join(a, "another"))
	told(t, both, "the user of both, after another one of a has gone,")
	both.Close()
	if len(w.users) != 0 || len(w.events.WatchList()) != 0 {
		t.Errorf("folders %v and watches %v are kept after the last user, want none", w.users, w.events.WatchList())
	}
}

// TestOthers: a user is not told of folders that only others watch.
func TestOthers(t *testing.T) {
	a, b := two(t)
	w := open(t)
	mine, theirs := w.Folders(), w.Folders()
	watch(t, mine, a)
	watch(t, theirs, b)
	for i := range 3 {
		write(t, filepath.Join(b, fmt.Sprint(i)))
		told(t, theirs, "the user of b")
	}
	select {
	case <-mine.Changed():
		t.Error("the user of a was told of files in b")
	default:
	}
}

// TestReplaced: a folder that is replaced, or gone for a while, is told of, and can be watched again.
func TestReplaced(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "folder")
	mkdir(t, dir)
	w := open(t)
	f := w.Folders()
	for range 3 {
		watch(t, f, dir)
		write(t, filepath.Join(dir, "file"))
		told(t, f, "a file")
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		for len(w.events.WatchList()) > 0 { // events of the file may come first
			told(t, f, "the end of the folder")
		}
		if err := f.Watch(dir); !os.IsNotExist(err) {
			t.Errorf("watching a folder that is gone: %v, want that it does not exist", err)
		}
		mkdir(t, dir)
	}
	watch(t, f, dir)
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	mkdir(t, dir)
	told(t, f, "the end of the old folder")
	watch(t, f, dir)
	write(t, filepath.Join(dir, "file"))
	told(t, f, "a file in the new folder")
}

// TestLink: users that know a folder by different names are all told.
func TestLink(t *testing.T) {
	dir := t.TempDir()
	real, link := filepath.Join(dir, "real"), filepath.Join(dir, "link")
	mkdir(t, real)
	if err := os.Symlink("real", link); err != nil {
		t.Fatal(err)
	}
	w := open(t)
	one, two := w.Folders(), w.Folders()
	watch(t, one, link)
	watch(t, two, real)
	write(t, filepath.Join(link, "file"))
	told(t, one, "the user of the link")
	told(t, two, "the user of the folder")
}

// TestNoInstance: a watcher without an inotify instance reports why, watches once there is one, and reports that too.
func TestNoInstance(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	var reports []error
	w := New(Options{Report: func(err error) { reports = append(reports, err) }})
	f := w.Folders()
	err := f.Watch("/")
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer f.Close()
	if !errors.Is(err, unix.EMFILE) || !strings.Contains(err.Error(), "max_user_instances") {
		t.Errorf("Watch = %v, want too many open files, and what to raise", err)
	}
	if len(reports) == 0 || !errors.Is(reports[len(reports)-1], unix.EMFILE) {
		t.Errorf("reports = %v, want why folders are not watched", reports)
	}
	dir := t.TempDir()
	watch(t, f, dir)
	if last := reports[len(reports)-1]; last != nil {
		t.Errorf("last report = %v, want nil since there is an instance", last)
	}
	write(t, filepath.Join(dir, "file"))
	told(t, f, "a file")
}

// TestClosedWithoutInstance: a watcher that never had an instance can be closed, and opens none later.
func TestClosedWithoutInstance(t *testing.T) {
	w := New(Options{Open: func() (*fsnotify.Watcher, error) { return nil, unix.EMFILE }})
	f := w.Folders()
	w.opts.Open = func() (*fsnotify.Watcher, error) {
		t.Error("an instance was opened after Close")
		return fsnotify.NewWatcher()
	}
	w.Close()
	if err := f.Watch(t.TempDir()); !errors.Is(err, fsnotify.ErrClosed) {
		t.Errorf("Watch = %v, want %v", err, fsnotify.ErrClosed)
	}
	f.Close()
}

// TestUnwatched: the report of a folder that a limit keeps from being watched is over when none is left.
func TestUnwatched(t *testing.T) {
	a, b := two(t)
	var last error
	w := New(Options{Report: func(err error) { last = err }})
	defer w.Close()
	one, other := w.Folders(), w.Folders()
	defer other.Close()
	full := errors.New("no inotify watch is left")
	w.mu.Lock() // the kernel's limit is too high to reach
	one.limited(a)
	other.limited(a)
	other.limited(b)
	w.report(full)
	w.mu.Unlock()
	one.Close()
	watch(t, other, a)
	if last != full {
		t.Errorf("report = %v, want %v while a folder is not watched", last, full)
	}
	if err := os.Remove(b); err != nil {
		t.Fatal(err)
	}
	if err := other.Watch(b); !os.IsNotExist(err) {
		t.Errorf("Watch of a folder that is gone = %v", err)
	}
	if last != nil {
		t.Errorf("report = %v, want nil once no folder needs a watch", last)
	}
}

// TestOverflow: when the kernel drops events, all users are told.
func TestOverflow(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Fatal(err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	a, b := two(t)
	w := open(t)
	busy, quiet := w.Folders(), w.Folders()
	watch(t, busy, a)
	watch(t, quiet, b)
	w.mu.Lock()                   // nothing is read meanwhile
	for i := range limit + 4096 { // one buffer of events was read already
		if err := os.Symlink("x", filepath.Join(a, fmt.Sprint(i))); err != nil {
			w.mu.Unlock()
			t.Fatal(err)
		}
	}
	w.mu.Unlock()
	told(t, quiet, "the user of a folder in which nothing was seen")
	told(t, busy, "the user of the busy folder")
}
