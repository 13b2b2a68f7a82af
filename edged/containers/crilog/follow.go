package crilog

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers/logdir"
)

const (
	// followCheck is how often a followed log is looked at where no file events come.
	followCheck = time.Second
	// lastWords is how long a runtime may take to write what a container said before it ended, or before its log was
	// rotated: it opens the new log first.
	lastWords = 100 * time.Millisecond
)

// follow prints what is there and what is written later: to this file, to the one that takes its place, to the next
// attempt.
func (p *printer) follow(ctx context.Context, f **os.File, c course) error {
	folders := p.opts.Watcher.Folders()
	defer folders.Close()
	if err := folders.Watch(filepath.Dir((*f).Name())); err != nil {
		klog.V(2).InfoS("Log not watched; it is read periodically", "every", followCheck, "err", err)
	}
	return p.followEvents(ctx, f, c, folders.Changed())
}

// followEvents prints what is there, and again after each change and every followCheck.
func (p *printer) followEvents(ctx context.Context, f **os.File, c course, changed <-chan struct{}) error {
	check := time.NewTicker(followCheck)
	defer check.Stop()
	ending := false
	for {
		if err := p.copy(*f, math.MaxInt64); err != nil || ctx.Err() != nil {
			return err
		}
		next, err := p.successor(*f, c)
		if errors.Is(err, ErrNoLog) {
			return nil // the pod and its logs were removed
		}
		if err != nil {
			return err
		}
		if next != nil {
			err := p.finish(ctx, *f)
			(*f).Close()
			*f = next
			if err != nil || ctx.Err() != nil {
				return err
			}
			continue
		}
		if ending {
			return nil
		}
		var last <-chan time.Time
		if !c.alive() {
			ending, last = true, time.After(lastWords)
		}
		select { // nothing shortens the wait for the last words
		case <-ctx.Done():
			return nil
		case <-last:
		case <-pick(last == nil, changed):
		case <-pick(last == nil, check.C):
		}
	}
}

// finish prints what the runtime still writes to a log after it has opened the next one.
func (p *printer) finish(ctx context.Context, f *os.File) error {
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(lastWords):
	}
	if err := p.copy(f, math.MaxInt64); err != nil {
		return err
	}
	return p.torn(true)
}

// pick returns a channel, or none.
func pick[T any](wanted bool, ch <-chan T) <-chan T {
	if wanted {
		return ch
	}
	return nil
}

// successor opens the file that comes after the open one, nil when that is the newest. A log may have been rotated more
// than once since the last look.
func (p *printer) successor(f *os.File, c course) (*os.File, error) {
	newest, err := c.newest()
	if err != nil || newest == "" {
		return nil, err
	}
	root, err := logdir.Open(filepath.Dir(newest))
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrNoLog
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	now, err := logdir.Lstat(root, filepath.Base(newest))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // between two attempts, or within a rotation
	}
	if err != nil {
		return nil, err
	}
	have, err := f.Stat()
	if err != nil || os.SameFile(now, have) {
		return nil, err
	}
	if part := partAfter(root, filepath.Base(newest), f); part != nil {
		return part, nil
	}
	next, err := logdir.OpenFile(root, filepath.Base(newest))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // rotated meanwhile
	}
	return next, err
}
