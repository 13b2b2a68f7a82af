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

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/readdir"
)

// untidyAt has the parts of a log looked after.
func (r *Rotator) untidyAt(log string) {
	r.mu.Lock()
	r.untidy[log] = true
	r.mu.Unlock()
	poke(r.tidier)
}

// nextUntidy takes a log whose parts are to be looked after; "" when there is none.
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
				klog.ErrorS(err, "Parts of a log not compressed; they are removed in their turn", "log", log)
			}
		}
	}
}

// tidy compresses the parts of a log but the newest, in which people still look, and removes those that are too many.
// A newest part that alone is larger than all may be is compressed, too.
func (r *Rotator) tidy(ctx context.Context, log string) error {
	removeTemporary(log)
	all, again := r.budget(), 0
	for {
		parts, err := partsOf(log)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(parts, func(p part) bool { return !p.gz && (p.path != parts[len(parts)-1].path || p.size > all) })
		if i < 0 {
			// Of these and no others: a log that is rotated now becomes a part that is to be compressed first.
			removeParts(surplus(parts, r.limits.Load().files-1, all))
			return nil
		}
		err = r.compress(ctx, parts[i].path)
		if errors.Is(err, errWritten) && again < writtenTries {
			again++
			continue
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
}

// removeTemporary removes what an agent that was killed has left half done. Nobody but the tidier makes such files.
func removeTemporary(log string) {
	entries, err := readdir.Quiet(filepath.Dir(log))
	if err != nil {
		return
	}
	for _, e := range entries {
		name, isTmp := strings.CutSuffix(e.Name(), tmpSuffix)
		if _, ok := parsePart(filepath.Base(log), name); isTmp && ok {
			removeParts([]part{{path: filepath.Join(filepath.Dir(log), e.Name())}})
		}
	}
}

// errWritten: a part was written while it was compressed. The runtime opens a new log a moment before it has written all to
// the old one.
var errWritten = errors.New("it is still written")

// writtenTries is how often such parts are compressed anew; then they wait for the next rotation of their log.
const writtenTries = 5

// compress makes a part a .gz, which takes its place.
func (r *Rotator) compress(ctx context.Context, path string) (err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	in := os.NewFile(uintptr(fd), path)
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	tmp := path + gzSuffix + tmpSuffix
	out, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp) // or the next one to tidy up does
		}
	}()
	if err := errors.Join(pack(ctx, out, in), out.Close()); err != nil {
		return fmt.Errorf("compress %s: %w", path, err)
	}
	return r.takePlace(tmp, path, info.Size())
}

// takePlace gives a .gz the place of the part that it was made of. A part that a flood has had removed meanwhile does not
// come back by that: its neighbours may be gone, too.
func (r *Rotator) takePlace(tmp, path string, size int64) error {
	r.removing.Lock()
	defer r.removing.Unlock()
	now, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if now.Size() != size {
		return fmt.Errorf("%s: %w", path, errWritten)
	}
	if err := os.Rename(tmp, path+gzSuffix); err != nil {
		return err
	}
	return os.Remove(path)
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
