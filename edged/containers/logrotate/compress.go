package logrotate

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers/logdir"
)

// untidyAt queues a log whose rotated parts are to be compressed or removed.
func (r *Rotator) untidyAt(log string) {
	r.mu.Lock()
	r.untidy[log] = true
	r.mu.Unlock()
	r.tidier.Notify()
}

// nextUntidy takes a log from the queue of untidyAt; "" if it is empty.
func (r *Rotator) nextUntidy() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for log := range r.untidy {
		delete(r.untidy, log)
		return log
	}
	return ""
}

// tidyUp compresses parts until ctx ends, one at a time: it is the one thing here that takes time.
func (r *Rotator) tidyUp(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.tidier:
		}
		for log := r.nextUntidy(); log != "" && ctx.Err() == nil; log = r.nextUntidy() {
			if err := r.tidy(ctx, log); err != nil && ctx.Err() == nil && !errors.Is(err, fs.ErrNotExist) {
				klog.ErrorS(err, "Rotated logs not compressed; they are removed at their limits as usual", "log", log)
			}
		}
	}
}

// tidy compresses the parts of a log but the newest, in which people still look, and removes those that are too many.
// A newest part that alone is larger than all may be is compressed, too. The part that the runtime may still write is
// left alone.
func (r *Rotator) tidy(ctx context.Context, log string) error {
	root, err := logdir.Open(filepath.Dir(log))
	if err != nil {
		return err
	}
	defer root.Close()
	removeTemporary(root, filepath.Base(log))
	all, again := r.budget(), 0
	for {
		parts, err := partsIn(root, filepath.Base(log))
		if err != nil {
			return err
		}
		closed, err := closedParts(root, filepath.Base(log), parts)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(closed, func(p part) bool {
			return !p.gz && (p.path != parts[len(parts)-1].path || p.size > all)
		})
		if i < 0 {
			// Of these and no others: a log that is rotated now becomes a part that is to be compressed first.
			removeParts(root, surplus(closed, r.limits.Load().files-1, all))
			return nil
		}
		err = r.compress(ctx, closed[i].path)
		if errors.Is(err, errWritten) && again < writtenTries {
			again++
			continue
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
}

// removeTemporary removes half-written files of an agent that was killed. Only the tidier creates such files.
func removeTemporary(root *os.Root, log string) {
	entries, err := logdir.ReadDir(root)
	if err != nil {
		return
	}
	for _, e := range entries {
		name, isTmp := strings.CutSuffix(e.Name(), tmpSuffix)
		if _, ok := parsePart(log, name); isTmp && ok {
			removeParts(root, []part{{path: e.Name()}})
		}
	}
}

// errWritten: a part was written while it was compressed. The runtime opens a new log a moment before it has written
// all to the old one.
var errWritten = errors.New("it is still written")

// writtenTries is how often such parts are compressed again; then they wait for the next rotation of their log.
const writtenTries = 5

// compress makes a part a .gz, which takes its place.
func (r *Rotator) compress(ctx context.Context, path string) (err error) {
	root, err := logdir.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer root.Close()
	name := filepath.Base(path)
	in, err := logdir.OpenFile(root, name)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	tmp := name + gzSuffix + tmpSuffix
	out, err := root.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = root.Remove(tmp) // or the next one to tidy up does
		}
	}()
	if err := errors.Join(pack(ctx, out, in), out.Close()); err != nil {
		return fmt.Errorf("compress %s: %w", path, err)
	}
	return r.takePlace(root, tmp, name, info.Size())
}

// takePlace replaces a part by the .gz that was made of it. A part that a flood has had removed meanwhile does not come
// back by that: its neighbours may be gone, too.
func (r *Rotator) takePlace(root *os.Root, tmp, name string, size int64) error {
	r.removing.Lock()
	defer r.removing.Unlock()
	now, err := root.Lstat(name)
	if err != nil {
		return err
	}
	if now.Size() != size {
		return fmt.Errorf("%s: %w", filepath.Join(root.Name(), name), errWritten)
	}
	if err := root.Rename(tmp, name+gzSuffix); err != nil {
		return err
	}
	return root.Remove(name)
}

// pack writes a file compressed.
func pack(ctx context.Context, out io.Writer, in io.Reader) error {
	gz, err := gzip.NewWriterLevel(out, gzip.BestSpeed) // the devices have more disk than processor
	if err != nil {
		return err
	}
	if _, err := io.Copy(gz, &endable{ctx, in}); err != nil {
		return err
	}
	return gz.Close()
}

// endable is a reader that ends with a context.
type endable struct {
	ctx context.Context
	io.Reader
}

func (e *endable) Read(p []byte) (int, error) {
	if err := e.ctx.Err(); err != nil {
		return 0, err
	}
	return e.Reader.Read(p)
}
