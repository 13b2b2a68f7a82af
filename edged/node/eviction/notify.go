package eviction

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// SystemPressure is the PSI file for memory of the whole machine.
const SystemPressure = "/proc/pressure/memory"

const (
	// stallTime within stallWindow is so much waiting for memory that it is worth a look. Without CAP_SYS_RESOURCE the
	// kernel takes no window but multiples of wideWindow.
	stallTime   = 50 * time.Millisecond
	stallWindow = time.Second
	wideWindow  = 2 * time.Second
	// rearmShare is by how much of it a memcg threshold has to move before it is set again.
	rearmShare = 16
	// calm is the time between two looks that the kernel asks for.
	calm = time.Second
)

// NotifierOptions say what a Notifier watches.
type NotifierOptions struct {
	// Pressure are files of PSI: SystemPressure, or memory.pressure of a cgroup. One that is not there is left out.
	Pressure []string
	// Memcg are folders of cgroups in the memory hierarchy of cgroup v1, by the signal that their use is about.
	Memcg map[Signal]string
	// Notify is called when memory gets short.
	Notify func()
}

// Notifier waits for the kernel to report that memory gets short: something stalls for want of it (PSI), or a cgroup's
// use passes a threshold (cgroup v1). It runs one goroutine, which sleeps in the kernel.
type Notifier struct {
	opts NotifierOptions

	mu sync.Mutex
	// control wakes Run; -1 while it does not run.
	control int
	// want is the headroom by signal, from the last call of Headroom.
	want map[Signal]int64
}

// NewNotifier makes one; Run watches.
func NewNotifier(opts NotifierOptions) *Notifier {
	return &Notifier{opts: opts, control: -1, want: map[Signal]int64{}}
}

// Headroom sets how much more memory may be used before Notify is called. It is called after each measurement.
func (n *Notifier) Headroom(left map[Signal]int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.want = left
	n.wake()
}

// wake wakes Run. The caller has the lock.
func (n *Notifier) wake() {
	if n.control < 0 {
		return
	}
	one := binary.NativeEndian.AppendUint64(nil, 1)
	if _, err := unix.Write(n.control, one); err != nil && !errors.Is(err, unix.EAGAIN) {
		klog.ErrorS(err, "Watcher of memory not woken")
	}
}

// watch is one file that the kernel wakes us for.
type watch struct {
	fd     int
	events int16
	path   string // of a pressure file
	at     int64  // the threshold that is set, of a memcg
	more   []int  // fds to close with it
}

func (w *watch) close() {
	for _, fd := range append(w.more, w.fd) {
		_ = unix.Close(fd) // nothing was written that could be lost
	}
}

// Run watches until ctx ends. It returns nil where the kernel offers nothing to watch.
func (n *Notifier) Run(ctx context.Context) error {
	control, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	n.mu.Lock()
	n.control = control
	n.mu.Unlock()
	stop := context.AfterFunc(ctx, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.wake()
	})
	pressures, memcgs := map[string]*watch{}, map[Signal]*watch{}
	defer func() {
		stop()
		n.mu.Lock()
		n.control = -1
		n.mu.Unlock()
		for _, w := range pressures {
			w.close()
		}
		for _, w := range memcgs {
			w.close()
		}
		_ = unix.Close(control)
	}()
	for first := true; ctx.Err() == nil; first = false {
		n.open(pressures)
		n.arm(memcgs)
		if first && len(pressures)+len(n.opts.Memcg) == 0 {
			klog.InfoS("The kernel does not report low memory (it has neither PSI nor cgroup v1): memory is "+
				"measured periodically", "period", Period)
		}
		all := slices.Concat([]*watch{{fd: control, events: unix.POLLIN}}, slices.Collect(maps.Values(pressures)),
			slices.Collect(maps.Values(memcgs)))
		if err := n.wait(ctx, all, pressures); err != nil {
			return err
		}
	}
	return nil
}

// wait sleeps until the kernel has something to say, and passes it on.
func (n *Notifier) wait(ctx context.Context, all []*watch, pressures map[string]*watch) error {
	fds := make([]unix.PollFd, len(all))
	for i, w := range all {
		fds[i] = unix.PollFd{Fd: int32(w.fd), Events: w.events}
	}
	if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("poll: %w", err)
	}
	short := false
	for i, w := range all {
		got := fds[i].Revents
		if w.events == unix.POLLPRI && got&unix.POLLERR != 0 { // its cgroup has gone
			delete(pressures, w.path)
			w.close()
			continue
		}
		if got&w.events == 0 {
			continue
		}
		if w.events == unix.POLLIN {
			var counter [8]byte
			_, _ = unix.Read(w.fd, counter[:]) // empties it; that is all there is to it
		}
		short = short || i > 0
	}
	if !short || ctx.Err() != nil {
		return nil
	}
	n.opts.Notify()
	// While memory is short the kernel says so again and again.
	timer := time.NewTimer(calm)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	return nil
}

// open opens the files of PSI that are not open: a cgroup may come later.
func (n *Notifier) open(pressures map[string]*watch) {
	for _, path := range n.opts.Pressure {
		if pressures[path] != nil {
			continue
		}
		w, err := pressure(path)
		if err != nil {
			klog.V(4).InfoS("Memory pressure not watched here", "path", path, "err", err)
			continue
		}
		pressures[path] = w
	}
}

func pressure(path string) (*watch, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	for _, window := range []time.Duration{stallWindow, wideWindow} {
		trigger := fmt.Sprintf("some %d %d\x00", stallTime.Microseconds(), window.Microseconds())
		if _, err = unix.Write(fd, []byte(trigger)); !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(&os.PathError{Op: "write", Path: path, Err: err}, unix.Close(fd))
	}
	return &watch{fd: fd, events: unix.POLLPRI, path: path}, nil
}

// arm sets the thresholds of cgroups to the headroom.
func (n *Notifier) arm(memcgs map[Signal]*watch) {
	n.mu.Lock()
	want := n.want
	n.mu.Unlock()
	for signal, dir := range n.opts.Memcg {
		left, ok := want[signal]
		have := memcgs[signal]
		if !ok || left <= 0 {
			continue // it is met, or there is none: looks do not depend on it
		}
		used, err := readNumber(filepath.Join(dir, "memory.usage_in_bytes"))
		if err != nil {
			klog.V(4).InfoS("Memory cgroup not watched", "cgroup", dir, "err", err)
			continue
		}
		at := used + left
		if have != nil && max(at-have.at, have.at-at) < max(left/rearmShare, 1<<20) {
			continue
		}
		w, err := memcg(dir, at)
		if err != nil {
			klog.V(4).InfoS("Memory cgroup not watched", "cgroup", dir, "err", err)
			continue
		}
		if have != nil {
			have.close()
		}
		memcgs[signal] = w
	}
}

// memcg makes the kernel report when the use of a cgroup passes a number of bytes.
func memcg(dir string, at int64) (*watch, error) {
	usage := filepath.Join(dir, "memory.usage_in_bytes")
	source, err := unix.Open(usage, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: usage, Err: err}
	}
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("eventfd: %w", err), unix.Close(source))
	}
	w := &watch{fd: event, events: unix.POLLIN, at: at, more: []int{source}}
	control := filepath.Join(dir, "cgroup.event_control")
	if err := os.WriteFile(control, fmt.Appendf(nil, "%d %d %d", event, source, at), 0); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func readNumber(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}
