// Package logrotate bounds how much of the disk the logs of running containers take. A log that has reached its size is
// renamed, the runtime opens a new one (CRI ReopenContainerLog), and what was renamed is compressed and, oldest first,
// removed.
//
// It promises:
//
//   - A container that writes nothing costs nothing: the kernel watches its log, and the agent does not look at it.
//   - A log that grows is looked at the sooner the nearer it is to its size at the pace of its last growth: within 2 s
//     at the most, and within a quarter of a second while it floods.
//   - A log has no more than maxFiles files, and the rotated ones together no more than maxFiles times maxSize bytes
//     but for a moment. Rotation and removal wait for no compression: where a flood is faster than that, the oldest
//     parts go uncompressed.
//   - A line is lost only with the oldest part. A runtime that does not open a new log goes on with the old one, which
//     gets its name back.
//   - A log whose file is gone is opened again: if anyone removed it, and if the agent was killed after it had renamed
//     it. Until then the runtime may still write to the newest part, which is left alone.
//   - Names of parts rise, <log>.<date>-<time>, also when the clock is set back.
//   - Only regular files in a container's own log folder are touched; see package logdir.
package logrotate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers/logdir"
	"github.com/edgecore-io/edgecore/pkg/filewatch"
	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// Log is the log of a container that runs.
type Log struct {
	// ID is the runtime's id of the container.
	ID string
	// Path is the log's file.
	Path string
	// Name says whose it is: <namespace>/<pod>/<container>.
	Name string
}

// Options configure a Rotator.
type Options struct {
	// MaxSize is the size, in bytes, at which a log is rotated; 0 or less rotates none.
	MaxSize int64
	// MaxFiles is how many files a log may have, the one that is written among them.
	MaxFiles int
	// Workers is how many logs are rotated at once.
	Workers int
	// Interval is how often logs are looked at that the kernel does not watch, and the most between two looks.
	Interval time.Duration
	// Logs lists the logs of the containers that run.
	Logs func() []Log
	// Reopen makes the runtime open a container's log again.
	Reopen func(ctx context.Context, id string) error
	// Unwatched is called with the reason why the kernel does not watch logs, which are then only checked every
	// Interval, and with nil once it does; it may be nil. It must not block.
	Unwatched func(error)
}

// Rotator rotates logs. Changed may be called from any goroutine.
type Rotator struct {
	opts   Options
	limits atomic.Pointer[limits]
	// changed wakes the loop: containers came or went.
	changed notify.Signal
	// tidier wakes the one who compresses.
	tidier notify.Signal
	slots  chan struct{}
	ended  chan rotation

	// logs are those that are kept an eye on, by container; the loop's own.
	logs  map[string]*watched
	watch *watch
	// open opens watch. noWatch is why it could not, and reported what Unwatched was called with last.
	open              func() (*watch, error)
	noWatch, reported error

	// removing is held while parts are removed to make room, and while one takes another's place.
	removing sync.Mutex

	mu sync.Mutex
	// untidy are the logs that may have parts to compress.
	untidy map[string]bool
}

// watched is what is known of a log.
type watched struct {
	Log
	last sighting
	// due is when it is looked at next; zero while the kernel watches it.
	due time.Time
	// busy: it is being rotated, or opened again.
	busy bool
	// gone is since when the file has been missing; zero while it exists.
	gone time.Time
	// reopened is when the runtime was last asked to open it again, and pause how long it is not asked after that.
	reopened time.Time
	pause    time.Duration
	// limit is the kernel's limit that keeps it from being watched; nil if none does.
	limit error
}

// rotation is how the rotation of a log went, or that it was opened again.
type rotation struct {
	id     string
	reopen bool
	err    error
}

// New makes a rotator; Run starts it.
func New(opts Options) *Rotator {
	opts.MaxFiles, opts.Workers = max(opts.MaxFiles, 2), max(opts.Workers, 1)
	if opts.Interval <= 0 {
		opts.Interval = defaultInterval
	}
	r := &Rotator{
		opts: opts, changed: notify.NewSignal(), tidier: notify.NewSignal(), slots: make(chan struct{}, opts.Workers),
		ended: make(chan rotation), logs: map[string]*watched{}, untidy: map[string]bool{}, open: newWatch,
	}
	if r.opts.Unwatched == nil {
		r.opts.Unwatched = func(error) {}
	}
	r.SetLimits(opts.MaxSize, opts.MaxFiles)
	return r
}

// Changed says that containers came or went. A nil rotator has nothing to learn from it.
func (r *Rotator) Changed() {
	if r != nil {
		r.changed.Notify()
	}
}

// Run rotates logs until ctx ends.
func (r *Rotator) Run(ctx context.Context) error {
	if !r.awaitLimits(ctx) {
		return nil
	}
	r.Changed() // what came and went before there was a limit is not known
	var wg sync.WaitGroup
	defer func() {
		r.watch.close()
		wg.Wait()
		r.watch = nil
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { r.tidyUp(ctx) })
	watching := func(w *watch) { wg.Go(func() { w.run(ctx) }) }
	watching(r.watch)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.changed:
			r.refresh(time.Now())
		case id := <-r.watch.written():
			if f := r.logs[id]; f != nil && !f.busy {
				f.due = time.Now().Add(soonest)
			}
		case out := <-r.ended:
			r.rotated(out, time.Now())
		case <-timer.C:
			if r.watch == nil { // a log has to be watched
				r.openWatch()
				watching(r.watch)
			}
			r.checkLogs(ctx, &wg, time.Now())
		}
		r.reportUnwatched()
		if wait, any := r.untilDue(time.Now()); any {
			timer.Reset(wait)
		} else {
			timer.Stop()
		}
	}
}

// openWatch opens the watch if the kernel has an inotify instance left.
func (r *Rotator) openWatch() {
	w, err := r.open()
	if err != nil {
		r.noWatch = filewatch.NoInstance(err)
		return
	}
	r.watch, r.noWatch = w, nil
}

// reportUnwatched calls Unwatched if logs are not watched any more, or all are again.
func (r *Rotator) reportUnwatched() {
	var why error
	for _, f := range r.logs {
		if why = cmp.Or(r.noWatch, f.limit); why != nil {
			break
		}
	}
	if (why == nil) != (r.reported == nil) {
		r.reported = why
		r.opts.Unwatched(why)
	}
}

// refresh lists the logs, and adds new ones and drops those that are gone.
func (r *Rotator) refresh(now time.Time) {
	there := map[string]bool{}
	for _, l := range r.opts.Logs() {
		there[l.ID] = true
		if r.logs[l.ID] == nil {
			r.logs[l.ID] = &watched{Log: l, due: now}
			r.untidyAt(l.Path) // what an earlier agent left
		}
	}
	for id, f := range r.logs {
		if !there[id] {
			r.watch.forget(id)
			if !f.busy {
				delete(r.logs, id)
			}
		}
	}
}

// untilDue is how long until a log is to be looked at; any is false while none is.
func (r *Rotator) untilDue(now time.Time) (wait time.Duration, any bool) {
	for _, f := range r.logs {
		if f.busy || f.due.IsZero() {
			continue
		}
		if d := max(f.due.Sub(now), 0); !any || d < wait {
			wait, any = d, true
		}
	}
	return wait, any
}

// checkLogs checks the logs that are due, and those that will be due soon, so that it wakes less often.
func (r *Rotator) checkLogs(ctx context.Context, wg *sync.WaitGroup, now time.Time) {
	var needy []*watched
	for _, f := range r.logs {
		if f.busy || f.due.IsZero() || f.due.Sub(now) > together {
			continue
		}
		if r.checkLog(f, now) {
			needy = append(needy, f)
		}
	}
	smallsort.SortFunc(needy, func(a, b *watched) int { return cmp.Compare(b.last.size, a.last.size) })
	for _, f := range needy {
		f.busy = true
		out := rotation{id: f.ID, reopen: !f.gone.IsZero()}
		wg.Go(func() {
			select {
			case r.slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			if out.reopen {
				out.err = r.reopen(ctx, f.Log)
			} else {
				out.err = r.rotate(ctx, f.Log)
			}
			<-r.slots
			select {
			case r.ended <- out:
			case <-ctx.Done():
			}
		})
	}
}

// checkLog looks at one log, and returns whether it is full, or gone and to be opened again.
func (r *Rotator) checkLog(f *watched, now time.Time) bool {
	size, err := sizeOf(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return r.missing(f, now)
	}
	f.gone, f.pause = time.Time{}, 0
	if err != nil {
		klog.V(4).InfoS("Log not checked", "log", f.Path, "err", err)
		f.last, f.due = sighting{at: now}, now.Add(r.opts.Interval)
		r.changed.Notify()
		return false
	}
	seen := sighting{size, now}
	step := plan(r.limits.Load().size, r.opts.Interval, f.last, seen)
	f.last = seen
	if step.rotate {
		return true
	}
	f.due = now.Add(step.wait)
	if !step.quiet {
		return false
	}
	err = r.watch.arm(f.ID, f.Path)
	if f.limit = nil; errors.Is(err, unix.ENOSPC) {
		f.limit = filewatch.NoWatch(err)
	}
	if err != nil {
		f.due = now.Add(r.opts.Interval)
		return false
	}
	f.due = time.Time{}
	if again, err := sizeOf(f.Path); err != nil || again != size {
		f.due = now.Add(soonest) // it was written before it was watched
	}
	return false
}

// rotated records the result of a rotation.
func (r *Rotator) rotated(out rotation, now time.Time) {
	f := r.logs[out.id]
	if f == nil {
		return
	}
	f.busy, f.due, f.last = false, now.Add(soonest), sighting{at: now}
	switch {
	case out.err != nil && out.reopen:
		f.pause = min(max(2*f.pause, r.opts.Interval), maxPause)
		klog.ErrorS(out.err, "Log not opened again; trying again", "container", f.Name, "log", f.Path, "in", f.pause)
		f.due = now.Add(f.pause)
	case out.err != nil:
		klog.ErrorS(out.err, "Log not rotated; trying again", "container", f.Name, "log", f.Path, "in", r.opts.Interval)
		f.due = now.Add(r.opts.Interval)
	}
	if out.reopen {
		f.reopened = now
	}
	r.changed.Notify() // the container may have gone meanwhile
}

// rotate renames a log, makes the runtime open a new one, and removes the parts that are too many.
func (r *Rotator) rotate(ctx context.Context, l Log) error {
	root, err := logdir.Open(filepath.Dir(l.Path))
	if err != nil {
		return err
	}
	defer root.Close()
	name := filepath.Base(l.Path)
	parts, err := r.makeRoom(root, name)
	if err != nil {
		return err
	}
	part := name + "." + nextStamp(parts, time.Now())
	if err := root.Rename(name, part); err != nil {
		return fmt.Errorf("rotate log of container %s: %w", l.Name, err)
	}
	if err := r.opts.Reopen(ctx, l.ID); err != nil {
		err = fmt.Errorf("rotate log of container %s: the runtime opens no new one: %w", l.Name, err)
		return errors.Join(err, nameBack(root, part, name))
	}
	klog.V(2).InfoS("Log rotated", "container", l.Name, "log", l.Path)
	r.untidyAt(l.Path)
	return nil
}

// makeRoom removes the parts of a log that one more makes too many, and returns all that there were. That comes before
// the new part: on a full disk a runtime could not open a new log.
func (r *Rotator) makeRoom(root *os.Root, log string) ([]part, error) {
	r.removing.Lock()
	defer r.removing.Unlock()
	parts, err := partsIn(root, log)
	if err != nil {
		return nil, err
	}
	closed, err := closedParts(root, log, parts)
	if err != nil {
		return nil, err
	}
	removeParts(root, surplus(closed, r.limits.Load().files-2, r.budget()))
	return parts, nil
}

// nameBack renames a part back to the log's name, unless a new file has it.
func nameBack(root *os.Root, part, name string) error {
	if _, err := root.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return root.Rename(part, name)
}

// sizeOf is the size of a regular file; a link is not followed.
func sizeOf(path string) (int64, error) {
	root, err := logdir.Open(filepath.Dir(path))
	if err != nil {
		return 0, err
	}
	defer root.Close()
	info, err := logdir.Lstat(root, filepath.Base(path))
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
