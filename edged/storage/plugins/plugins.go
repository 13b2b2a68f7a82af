// Package plugins finds the plugins of the node: programs that put a socket into the folder of plugin
// registrations, <root>/plugins_registry, and answer on it in the kubelet's registration protocol
// (k8s.io/kubelet/pkg/apis/pluginregistration/v1). What a plugin of some type then does is up to the Handler of
// that type.
//
// Each socket is looked after on its own: a plugin that hangs, crashes, lies about its type or comes back under the
// same name holds up no other. A socket that is replaced is registered again, one that refuses is tried again with
// growing delays, and every plugin receives the result of its registration. Of two sockets with one type and name the
// newer wins; when the older vanishes, the name stays. Nothing is kept on disk: after a restart of the agent the
// sockets that lie there are registered again.
package plugins

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/filewatch"
)

// The types of plugins, as they name themselves.
const (
	TypeCSI    = "CSIPlugin"
	TypeDevice = "DevicePlugin"
)

// Handler takes the plugins of one type. Its methods may be called for different plugins at once, never for
// one socket at once, and Deregister not while a Register of that name is under way.
type Handler interface {
	// Validate reports whether a plugin may register; the error is sent to the plugin.
	Validate(name, endpoint string, versions []string) error
	// Register takes a plugin, or takes it again: under another endpoint, or after its restart.
	Register(ctx context.Context, name, endpoint string, versions []string) error
	// Deregister forgets a plugin whose socket is gone. It waits for nothing.
	Deregister(name, endpoint string)
}

const (
	// rescan is the safety net for events that did not come; it costs a readdir.
	rescan = 30 * time.Second
	// depth is how many folders below the registry are looked into.
	depth = 2
)

// Watcher watches the folder of registrations.
type Watcher struct {
	dir      string
	watcher  *filewatch.Watcher
	handlers map[string]Handler

	sockets map[string]*socket // by path; of Run's goroutine only

	mu sync.Mutex
	// holders are the sockets that hold each plugin, the newest last.
	holders map[plugin][]holder
	// coming is how many sockets are registering each plugin. A plugin without holders stays in left until these are
	// done.
	coming map[plugin]int
	left   map[plugin]holder
}

// plugin is what is registered.
type plugin struct{ kind, name string }

// holder is a socket that has registered a plugin.
type holder struct{ path, endpoint string }

// socket is a socket that was seen.
type socket struct {
	stamp stamp
	end   context.CancelFunc
	done  chan struct{}
}

// stamp tells one socket from another of the same path.
type stamp struct {
	inode   uint64
	changed syscall.Timespec
}

// New makes a watcher of dir, which is made when it is missing. handlers are by type.
func New(dir string, watcher *filewatch.Watcher, handlers map[string]Handler) *Watcher {
	return &Watcher{
		dir: dir, watcher: watcher, handlers: handlers, sockets: map[string]*socket{},
		holders: map[plugin][]holder{}, coming: map[plugin]int{}, left: map[plugin]holder{},
	}
}

// Run looks after the plugins until the context ends.
func (w *Watcher) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		for _, s := range w.sockets {
			<-s.done
		}
	}()
	folders := w.watcher.Folders()
	defer folders.Close()
	tick := time.NewTicker(rescan)
	defer tick.Stop()
	for {
		w.scan(ctx, folders)
		select {
		case <-ctx.Done():
			return nil
		case <-folders.Changed():
		case <-tick.C:
		}
	}
}

// scan compares the sockets that are there with those that were.
func (w *Watcher) scan(ctx context.Context, folders *filewatch.Folders) {
	if err := os.MkdirAll(w.dir, 0o750); err != nil {
		klog.ErrorS(err, "Folder of plugins not made", "folder", w.dir)
		return
	}
	found, err := w.find(folders)
	if err != nil {
		klog.ErrorS(err, "Folder of plugins not read", "folder", w.dir)
		return
	}
	for path, s := range w.sockets {
		if now, ok := found[path]; !ok || now != s.stamp {
			s.end()
			if !ok {
				delete(w.sockets, path)
				<-s.done
				w.forget(path)
			}
		}
	}
	for path, now := range found {
		before := w.sockets[path]
		if before != nil && before.stamp == now {
			continue
		}
		own, end := context.WithCancel(ctx)
		s := &socket{stamp: now, end: end, done: make(chan struct{})}
		w.sockets[path] = s
		go func() {
			defer close(s.done)
			defer end()
			if before != nil {
				<-before.done
			}
			w.registerUntilDone(own, path)
		}()
	}
}

// find returns the sockets below the folder, and watches the folders that it finds.
func (w *Watcher) find(folders *filewatch.Folders) (map[string]stamp, error) {
	found := map[string]stamp{}
	err := filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // gone meanwhile
		case err != nil:
			return err
		case path != w.dir && strings.HasPrefix(d.Name(), "."):
			return skip(d)
		case d.IsDir():
			if strings.Count(strings.TrimPrefix(path, w.dir), "/") > depth {
				return fs.SkipDir
			}
			if err := folders.Watch(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				klog.V(2).InfoS("Folder of plugins not watched; it is read periodically", "every", rescan, "err", err)
			}
			return nil
		case d.Type()&fs.ModeSocket == 0:
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return nil // gone meanwhile
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			found[path] = stamp{inode: st.Ino, changed: syscall.Timespec(st.Ctim)}
		}
		return nil
	})
	return found, err
}

// skip passes a hidden file or folder over.
func skip(d fs.DirEntry) error {
	if d.IsDir() {
		return fs.SkipDir
	}
	return nil
}

// comes notes that a socket is about to register a plugin: until that is done, the plugin is not deregistered.
func (w *Watcher) comes(p plugin) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.coming[p]++
}

// recordOutcome notes how that went. A socket that has registered a plugin is not any more what it was before.
func (w *Watcher) recordOutcome(p plugin, h holder, registered bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if registered {
		w.drop(h.path)
		w.holders[p] = append(w.holders[p], h)
		delete(w.left, p)
	}
	if w.coming[p]--; w.coming[p] > 0 {
		return
	}
	delete(w.coming, p)
	if last, ok := w.left[p]; ok {
		delete(w.left, p)
		w.deregister(p, last)
	}
}

// forget forgets all that a socket has registered.
func (w *Watcher) forget(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop(path)
}

// drop removes a path from the holders, and deregisters plugins that have no holder and are not being registered. The
// lock is held.
func (w *Watcher) drop(path string) {
	for p, list := range w.holders {
		i := slices.IndexFunc(list, func(h holder) bool { return h.path == path })
		if i < 0 {
			continue
		}
		last := list[i]
		if w.holders[p] = slices.Delete(list, i, i+1); len(w.holders[p]) > 0 {
			continue
		}
		delete(w.holders, p)
		if w.coming[p] > 0 {
			w.left[p] = last
		} else {
			w.deregister(p, last)
		}
	}
}

func (w *Watcher) deregister(p plugin, h holder) {
	klog.InfoS("Plugin gone", "type", p.kind, "name", p.name, "socket", h.path)
	w.handlers[p.kind].Deregister(p.name, h.endpoint)
}
