package pleg

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// exitWatch waits in one goroutine for the end of many processes: a pidfd becomes readable when its
// process ends. It costs no time while nothing ends.
type exitWatch struct {
	epoll int
	// stop wakes the goroutine for its end.
	stop int

	mu  sync.Mutex
	fds map[int]watched // by pidfd
	ids map[string]int  // container or sandbox -> pidfd
	// ended are the containers and sandboxes whose exit was reported, until the runtime knows of it. An exited process
	// may stay as a zombie, whose pidfd would stay readable.
	ended map[string]types.UID
}

type watched struct {
	id  string
	uid types.UID
}

func newExitWatch() (*exitWatch, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(err, unix.Close(epoll))
	}
	w := &exitWatch{
		epoll: epoll,
		stop:  stop,
		fds:   map[int]watched{},
		ids:   map[string]int{},
		ended: map[string]types.UID{},
	}
	if err := w.register(stop); err != nil {
		return nil, errors.Join(err, unix.Close(stop), unix.Close(epoll))
	}
	return w, nil
}

func (w *exitWatch) register(fd int) error {
	return unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

// add watches a process, once. os.ErrProcessDone says that it has ended already, or that its pid is another's.
func (w *exitWatch) add(pid int, id string, uid types.UID) error {
	w.mu.Lock()
	_, twice := w.ids[id]
	_, ended := w.ended[id]
	w.mu.Unlock()
	switch {
	case ended:
		return os.ErrProcessDone
	case twice:
		return nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	if err != nil {
		return fmt.Errorf("pidfd of process %d: %w", pid, err)
	}
	if !inCgroupOf(pid, id) {
		return errors.Join(os.ErrProcessDone, unix.Close(fd))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, twice := w.ids[id]; twice || w.epoll < 0 {
		return unix.Close(fd)
	}
	if err := w.register(fd); err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	w.fds[fd], w.ids[id] = watched{id, uid}, fd
	return nil
}

func (w *exitWatch) watches(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.ids[id]
	return ok
}

// run reports exits until ctx ends.
func (w *exitWatch) run(ctx context.Context, ended func(types.UID)) {
	defer w.close()
	unhook := context.AfterFunc(ctx, func() {
		if _, err := unix.Write(w.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
			klog.ErrorS(err, "Exit watch not woken")
		}
	})
	defer unhook()
	events := make([]unix.EpollEvent, 16)
	for {
		n, err := unix.EpollWait(w.epoll, events, -1)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			klog.ErrorS(err, "Exit watch stopped; exits are noticed by relist")
			return
		}
		for _, e := range events[:n] {
			if uid, ok := w.stopWatching(int(e.Fd)); ok {
				ended(uid)
			}
		}
	}
}

// stopWatching ends the watch of a process, and returns the pod that the process belonged to.
func (w *exitWatch) stopWatching(fd int) (types.UID, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	what, ok := w.fds[fd]
	if !ok {
		return "", false
	}
	delete(w.fds, fd)
	delete(w.ids, what.id)
	w.ended[what.id] = what.uid
	w.closeFD(fd) // which takes it out of the epoll set, too
	return what.uid, true
}

// forget drops the ends of a pod's processes that the runtime knows of: those it does not call running.
func (w *exitWatch) forget(uid types.UID, running map[string]int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.ended, func(id string, of types.UID) bool {
		_, runs := running[id]
		return of == uid && !runs
	})
}

func (w *exitWatch) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for fd := range w.fds {
		w.closeFD(fd)
	}
	clear(w.fds)
	clear(w.ids)
	clear(w.ended)
	w.closeFD(w.stop)
	w.closeFD(w.epoll)
	w.epoll = -1
}

func (w *exitWatch) closeFD(fd int) {
	if err := unix.Close(fd); err != nil {
		klog.V(2).InfoS("File descriptor not closed", "fd", fd, "err", err)
	}
}
