package crilog

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Options say what to print of a log.
type Options struct {
	// Follow goes on with what is written later, over rotations and restarts.
	Follow bool
	// Tail is how many of the last lines to begin with; below 0 all of them.
	Tail int
	// Since leaves out what is older; zero leaves out nothing.
	Since time.Time
	// Timestamps puts the time before each line.
	Timestamps bool
	// Previous reads the attempt before the newest.
	Previous bool
}

const (
	tailBlock = 32 << 10
	// followCheck is how often a followed folder is looked at where no file events come.
	followCheck = time.Second
)

// ErrNoLog: there is no such log (yet).
var ErrNoLog = errors.New("no log")

// Print writes the log of the container whose attempts lie in dir.
func Print(ctx context.Context, dir string, out, errOut io.Writer, opts Options) error {
	attempts, err := Attempts(dir)
	if err != nil {
		return err
	}
	if opts.Previous {
		if len(attempts) < 2 {
			return fmt.Errorf("previous container: %w in %s", ErrNoLog, dir)
		}
		attempts = attempts[:len(attempts)-1]
	}
	if len(attempts) == 0 {
		return fmt.Errorf("%w in %s", ErrNoLog, dir)
	}
	p := &printer{out: out, errOut: errOut, opts: opts}
	f, err := os.Open(attempts[len(attempts)-1])
	if err != nil {
		return err
	}
	defer func() { f.Close() }()
	if opts.Tail >= 0 {
		if err := seekTail(f, opts.Tail); err != nil {
			return err
		}
	}
	if err := p.copy(f); err != nil || !opts.Follow || opts.Previous {
		return err
	}
	return p.follow(ctx, dir, &f)
}

// Attempts returns the logs of a container in the order of its attempts, rotated parts left out.
func Attempts(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s", ErrNoLog, dir)
	}
	if err != nil {
		return nil, err
	}
	type attempt struct {
		n    int
		path string
	}
	var found []attempt
	for _, e := range entries {
		name, isLog := strings.CutSuffix(e.Name(), ".log")
		if n, err := strconv.Atoi(name); isLog && err == nil {
			found = append(found, attempt{n, filepath.Join(dir, e.Name())})
		}
	}
	slices.SortFunc(found, func(a, b attempt) int { return a.n - b.n })
	paths := make([]string, len(found))
	for i, a := range found {
		paths[i] = a.path
	}
	return paths, nil
}

// seekTail places a file before its last n lines.
func seekTail(f *os.File, n int) error {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil || n == 0 {
		return err
	}
	block := make([]byte, tailBlock)
	lines := 0
	for at := end; at > 0; {
		size := min(at, tailBlock)
		at -= size
		if _, err := f.ReadAt(block[:size], at); err != nil {
			return err
		}
		for i := size - 1; i >= 0; i-- {
			// The newline at the very end ends the last line and begins none.
			if block[i] != '\n' || at+i == end-1 {
				continue
			}
			if lines++; lines == n {
				_, err := f.Seek(at+i+1, io.SeekStart)
				return err
			}
		}
	}
	_, err = f.Seek(0, io.SeekStart)
	return err
}

type printer struct {
	out, errOut io.Writer
	opts        Options
	// rest is the beginning of a line that is still being written.
	rest []byte
	// inLine: the last thing printed was a part of a line.
	inLine bool
}

// copy prints what there is to the end of a file.
func (p *printer) copy(f io.Reader) error {
	r := bufio.NewReader(f)
	for {
		chunk, err := r.ReadBytes('\n')
		p.rest = append(p.rest, chunk...)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := p.line(bytes.TrimSuffix(p.rest, []byte("\n"))); err != nil {
			return err
		}
		p.rest = p.rest[:0]
	}
}

func (p *printer) line(raw []byte) error {
	line, ok := Parse(raw)
	if !ok {
		line = Line{Text: raw} // damaged by a power cut: shown as it is
	} else if !p.opts.Since.IsZero() && line.Time.Before(p.opts.Since) {
		return nil
	}
	w := p.out
	if line.Stderr {
		w = p.errOut
	}
	if p.opts.Timestamps && !p.inLine && ok {
		if _, err := io.WriteString(w, line.Time.Format(time.RFC3339Nano)+" "); err != nil {
			return err
		}
	}
	p.inLine = line.Partial
	if _, err := w.Write(line.Text); err != nil || line.Partial {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

// follow prints what is written later: to this file, to the one that takes its place, to the next attempt.
func (p *printer) follow(ctx context.Context, dir string, f **os.File) error {
	watch, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watch.Close()
	if err := watch.Add(dir); err != nil {
		return err
	}
	check := time.NewTicker(followCheck)
	defer check.Stop()
	for {
		if err := p.copy(*f); err != nil {
			return err
		}
		next, err := successor(dir, *f)
		if errors.Is(err, ErrNoLog) {
			return nil // the pod and its logs were removed
		}
		if err != nil {
			return err
		}
		if next != nil {
			if err := p.copy(*f); err != nil { // what came since
				return err
			}
			(*f).Close()
			*f = next
			p.rest = p.rest[:0]
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-watch.Events:
		case <-watch.Errors:
		case <-check.C:
		}
	}
}

// successor opens the file that comes after the open one, nil when that is the newest.
func successor(dir string, f *os.File) (*os.File, error) {
	attempts, err := Attempts(dir)
	if err != nil {
		return nil, err
	}
	if len(attempts) == 0 {
		return nil, nil
	}
	newest := attempts[len(attempts)-1]
	now, err := os.Stat(newest)
	if err != nil {
		return nil, nil // between two attempts
	}
	have, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if os.SameFile(now, have) {
		return nil, nil
	}
	return os.Open(newest)
}
