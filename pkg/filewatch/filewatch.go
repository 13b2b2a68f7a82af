// Package filewatch reports changes in folders.
//
// A Watcher owns one inotify instance and one goroutine, however many parts of a program watch folders with it: the
// kernel allows a user 128 instances, and each takes 100 KB of memory here.
package filewatch

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/fsnotify/fsnotify"

	"github.com/edgecore-io/edgecore/pkg/notify"
)

// Options make a Watcher.
type Options struct {
	// Report is called with the reason why folders are not watched, and with nil once all are; it may be nil. It must
	// not block, or call the watcher.
	Report func(error)
	// Open opens the inotify instance; nil: fsnotify.NewWatcher.
	Open func() (*fsnotify.Watcher, error)
}

// Watcher watches folders for several users. It may be used by several goroutines.
type Watcher struct {
	opts    Options
	reading sync.WaitGroup

	mu sync.Mutex
	// events is nil while the kernel has no inotify instance left.
	events *fsnotify.Watcher
	closed bool
	// users are those that watch each folder.
	users map[string]map[*Folders]struct{}
	// unwatched are the folders that each user would watch but for a limit of the kernel.
	unwatched map[*Folders]map[string]struct{}
	// reported says that the last report was an error.
	reported bool
}

// New makes a watcher, which the caller closes. Where the kernel has no inotify instance left, Watch returns an error
// that says so, and tries again when it is called again.
func New(o Options) *Watcher {
	if o.Report == nil {
		o.Report = func(error) {}
	}
	if o.Open == nil {
		o.Open = fsnotify.NewWatcher
	}
	w := &Watcher{
		opts: o, users: map[string]map[*Folders]struct{}{}, unwatched: map[*Folders]map[string]struct{}{},
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.open() // reported; each Watch returns it
	return w
}

// open opens the inotify instance unless it is open. The lock is held.
func (w *Watcher) open() error {
	if w.events != nil {
		return nil
	}
	if w.closed {
		return fsnotify.ErrClosed
	}
	events, err := w.opts.Open()
	if err != nil {
		err = NoInstance(err)
		w.report(err)
		return err
	}
	w.events = events
	w.reading.Go(func() { w.read(events) })
	w.clear()
	return nil
}

// report calls Report with an error. The lock is held.
func (w *Watcher) report(err error) {
	w.reported = true
	w.opts.Report(err)
}

// clear calls Report with nil after an error, unless a folder is still not watched. The lock is held.
func (w *Watcher) clear() {
	if w.reported && w.events != nil && len(w.unwatched) == 0 {
		w.reported = false
		w.opts.Report(nil)
	}
}

// NoInstance explains an error of opening an inotify instance.
func NoInstance(err error) error {
	return fmt.Errorf("no inotify instance is left: raise the sysctl fs.inotify.max_user_instances: %w", err)
}

// NoWatch explains the error ENOSPC of watching a folder or file.
func NoWatch(err error) error {
	return fmt.Errorf("no inotify watch is left: raise the sysctl fs.inotify.max_user_watches: %w", err)
}

// Close ends the watcher; nothing happens in any folder any more.
func (w *Watcher) Close() {
	w.mu.Lock()
	w.closed = true
	events := w.events
	w.mu.Unlock()
	if events != nil {
		_ = events.Close() // only closing the descriptor can fail
	}
	w.reading.Wait()
}

// read tells the users of each event until the watcher is closed.
func (w *Watcher) read(from *fsnotify.Watcher) {
	events, lost := from.Events, from.Errors
	for events != nil {
		select {
		case e, ok := <-events:
			if !ok {
				events = nil
				continue
			}
			w.happened(e)
		case _, ok := <-lost:
			if !ok {
				lost = nil
				continue
			}
			w.notifyAll()
		}
	}
}

// happened tells those that watch the event's folder.
func (w *Watcher) happened(e fsnotify.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	notifyUsers(w.users[filepath.Dir(e.Name)])
	notifyUsers(w.users[e.Name])
	if e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename) {
		delete(w.users, e.Name) // the kernel has ended the watch of a folder that is gone
	}
}

// notifyAll tells everybody: events were lost.
func (w *Watcher) notifyAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, users := range w.users {
		notifyUsers(users)
	}
}

func notifyUsers(users map[*Folders]struct{}) {
	for f := range users {
		f.changed.Notify()
	}
}

// Folders are those that one user watches.
type Folders struct {
	w       *Watcher
	changed notify.Signal
}

// Folders returns a user's set of folders, which is empty. The user closes it.
func (w *Watcher) Folders() *Folders { return &Folders{w: w, changed: notify.NewSignal()} }

// Changed receives after something has happened in one of the folders, or to it; what, and how often, is not told.
func (f *Folders) Changed() <-chan struct{} { return f.changed }

// Watch adds a folder. A folder that is watched already stays so; one that was removed or renamed must be added again.
func (f *Folders) Watch(dir string) error {
	real, err := filepath.EvalSymlinks(dir) // events have the name under which the kernel first knew the folder
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if err := f.w.open(); err != nil {
		return err
	}
	if err == nil {
		if err = f.w.events.Add(real); err != nil {
			err = fmt.Errorf("watch %s: %w", dir, err)
		}
	}
	if errors.Is(err, syscall.ENOSPC) {
		err = NoWatch(err)
		f.limited(dir)
		f.w.report(err)
		return err
	}
	f.unlimited(dir)
	if err != nil {
		return err
	}
	if f.w.users[real] == nil {
		f.w.users[real] = map[*Folders]struct{}{}
	}
	f.w.users[real][f] = struct{}{}
	return nil
}

// limited notes that a limit of the kernel keeps dir from being watched. The lock is held.
func (f *Folders) limited(dir string) {
	if f.w.unwatched[f] == nil {
		f.w.unwatched[f] = map[string]struct{}{}
	}
	f.w.unwatched[f][dir] = struct{}{}
}

// unlimited notes that no limit does. The lock is held.
func (f *Folders) unlimited(dir string) {
	if delete(f.w.unwatched[f], dir); len(f.w.unwatched[f]) == 0 {
		delete(f.w.unwatched, f)
	}
	f.w.clear()
}

// Close ends the watch of all folders that nobody else watches.
func (f *Folders) Close() {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	delete(f.w.unwatched, f)
	f.w.clear()
	for dir, users := range f.w.users {
		if _, mine := users[f]; !mine {
			continue
		}
		if delete(users, f); len(users) == 0 {
			delete(f.w.users, dir)
			_ = f.w.events.Remove(dir) // or the folder is gone, and its watch with it
		}
	}
}
