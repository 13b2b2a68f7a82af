package logrotate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers/logdir"
)

// settled is how long the log of a container that runs is missing before the runtime is asked to open it again. The
// container may have ended meanwhile, and its log may have been removed for that.
const settled = growing

// maxPause limits the growing pause between tries to reopen a log.
const maxPause = 5 * time.Minute

// missing records that the file of a log does not exist, and reports whether it is to be opened again. The runtime
// writes on: to a file without a name, which nothing measures, or to the newest part, if the agent was killed between
// renaming the log and the runtime's answer.
func (r *Rotator) missing(f *watched, now time.Time) bool {
	if f.gone.IsZero() {
		f.gone = now
	}
	f.last = sighting{at: now}
	wait := max(f.gone.Add(settled).Sub(now), f.reopened.Add(max(f.pause, r.opts.Interval)).Sub(now))
	if wait <= 0 {
		return true
	}
	f.due = now.Add(wait)
	r.changed.Notify() // the container may have ended
	return false
}

// reopen makes the runtime open a log again whose file is gone.
func (r *Rotator) reopen(ctx context.Context, l Log) error {
	if err := logdir.Make(filepath.Dir(l.Path)); err != nil {
		return fmt.Errorf("log of container %s is gone: %w", l.Name, err)
	}
	if err := r.opts.Reopen(ctx, l.ID); err != nil {
		return fmt.Errorf("log of container %s is gone, and the runtime opens no new one: %w", l.Name, err)
	}
	if _, err := os.Lstat(l.Path); err != nil {
		return fmt.Errorf("log of container %s is gone, and the runtime says that it has opened a new one: %w", l.Name,
			err)
	}
	klog.InfoS("Log was gone; the runtime has opened a new one", "container", l.Name, "log", l.Path)
	r.untidyAt(l.Path)
	return nil
}

// closedParts returns those of the parts of a log that the runtime does not write any more. parts are all that there
// were a moment ago. While no file has the log's own name, the newest part may be the one that is written.
func closedParts(root *os.Root, log string, parts []part) ([]part, error) {
	if len(parts) == 0 {
		return nil, nil
	}
	_, err := root.Lstat(log)
	if errors.Is(err, fs.ErrNotExist) {
		return parts[:len(parts)-1], nil
	}
	return parts, err
}
