// Package filewatch tells when something happens in folders.
//
// A Watcher owns one inotify instance and one goroutine, however many parts of a program watch folders with it: the
// kernel allows a user 128 instances, and each takes 100 KB of memory here.
package filewatch

import (
	"fmt"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/notify"
)

// Watcher watches folders for several users. It may be used by several goroutines.
type Watcher struct {
	events *fsnotify.Watcher
	// err is why there are no events.
	err     error
	reading sync.WaitGroup

	mu sync.Mutex
	// users are those that watch each folder.
	users map[string]map[*Folders]struct{}
}

// New makes a watcher, which the caller closes. Where the kernel has no inotify instance left, New logs the error, and
// Watch returns it.
func New() *Watcher {
	w := &Watcher{users: map[string]map[*Folders]struct{}{}}
	if w.events, w.err = fsnotify.NewWatcher(); w.err != nil {
		w.err = fmt.Errorf("no inotify instance is left: raise the sysctl fs.inotify.max_user_instances: %w", w.err)
		klog.ErrorS(w.err, "Changes of files are noticed late: folders are only read periodically")
		return w
	}
	w.reading.Go(w.read)
	return w
}

// Close ends the watcher; nothing happens in any folder any more.
func (w *Watcher) Close() {
	if w.err != nil {
		return
	}
	_ = w.events.Close() // only closing the descriptor can fail
	w.reading.Wait()
}

// read tells the users of each event until the watcher is closed.
func (w *Watcher) read() {
	events, lost := w.events.Events, w.events.Errors
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
			w.lost()
		}
	}
}

// happened tells those that watch the event's folder.
func (w *Watcher) happened(e fsnotify.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	tell(w.users[filepath.Dir(e.Name)])
	tell(w.users[e.Name])
	if e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename) {
		delete(w.users, e.Name) // the kernel has ended the watch of a folder that is gone
	}
}

// lost tells everybody: events were lost.
func (w *Watcher) lost() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, users := range w.users {
		tell(users)
	}
}

func tell(users map[*Folders]struct{}) {
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
	if f.w.err != nil {
		return f.w.err
	}
	real, err := filepath.EvalSymlinks(dir) // events have the name under which the kernel first knew the folder
	if err != nil {
		return err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if err := f.w.events.Add(real); err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	if f.w.users[real] == nil {
		f.w.users[real] = map[*Folders]struct{}{}
	}
	f.w.users[real][f] = struct{}{}
	return nil
}

// Close ends the watch of all folders that nobody else watches.
func (f *Folders) Close() {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
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
