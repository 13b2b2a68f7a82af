package logrotate

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// errNoWatch: the kernel watches nothing for us.
var errNoWatch = errors.New("no inotify")

// watch makes the kernel report the next write to a file, or that it was removed or renamed, once, so that a busy log
// causes no wakeups beyond the regular checks. A nil watch watches nothing.
type watch struct {
	file    *os.File
	fd      int
	changes chan string

	mu     sync.Mutex
	closed bool
	// ids are the containers by watch descriptor, and descriptors the reverse.
	ids         map[int32]string
	descriptors map[string]int32
}

func newWatch() (*watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	return &watch{
		file:        os.NewFile(uintptr(fd), "inotify"),
		fd:          fd,
		changes:     make(chan string),
		ids:         map[int32]string{},
		descriptors: map[string]int32{},
	}, nil
}

func (w *watch) close() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.closed = true
		_ = w.file.Close() // its reader ends by it
	}
}

// written receives the containers whose logs were written, removed or renamed.
func (w *watch) written() <-chan string {
	if w == nil {
		return nil
	}
	return w.changes
}

// arm watches for the next change of a container's log.
func (w *watch) arm(id, path string) error {
	if w == nil {
		return errNoWatch
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return errNoWatch
	}
	// A file that is removed while the runtime has it open is not deleted yet; its number of links changes (IN_ATTRIB).
	const events = unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVE_SELF | unix.IN_DELETE_SELF
	wd, err := unix.InotifyAddWatch(w.fd, path, events|unix.IN_ONESHOT|unix.IN_DONT_FOLLOW)
	if err != nil {
		return os.NewSyscallError("inotify_add_watch", err)
	}
	w.ids[int32(wd)], w.descriptors[id] = id, int32(wd)
	return nil
}

// forget drops what is known of a container.
func (w *watch) forget(id string) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if wd, ok := w.descriptors[id]; ok && !w.closed {
		// It may be gone already, with the file or with its one event.
		_, _ = unix.InotifyRmWatch(w.fd, uint32(wd))
		delete(w.ids, wd)
		delete(w.descriptors, id)
	}
}

// run reports writes until the watch is closed.
func (w *watch) run(ctx context.Context) {
	if w == nil {
		return
	}
	stop := context.AfterFunc(ctx, w.close)
	defer stop()
	buffer := make([]byte, 64*(unix.SizeofInotifyEvent+unix.NAME_MAX+1))
	for {
		n, err := w.file.Read(buffer)
		if err != nil {
			return
		}
		for _, wd := range descriptorsIn(buffer[:n]) {
			id := w.removeWatch(wd)
			if id == "" {
				continue
			}
			select {
			case w.changes <- id:
			case <-ctx.Done():
				return
			}
		}
	}
}

// removeWatch removes the watch that has reported a change, and returns the ID of its container.
func (w *watch) removeWatch(wd int32) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := w.ids[wd]
	delete(w.ids, wd)
	if w.descriptors[id] == wd {
		delete(w.descriptors, id)
	}
	return id
}

// descriptorsIn returns the watch descriptors in a buffer of events.
func descriptorsIn(buffer []byte) []int32 {
	var list []int32
	for len(buffer) >= unix.SizeofInotifyEvent {
		list = append(list, int32(binary.NativeEndian.Uint32(buffer)))
		name := int(binary.NativeEndian.Uint32(buffer[12:]))
		if len(buffer) < unix.SizeofInotifyEvent+name {
			break
		}
		buffer = buffer[unix.SizeofInotifyEvent+name:]
	}
	return list
}
