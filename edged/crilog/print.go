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

	"github.com/edgecore-io/edgecore/edged/logdir"
	"github.com/edgecore-io/edgecore/pkg/filewatch"
)

// Options say what to print of a log.
type Options struct {
	// Follow goes on with what is written later, over rotations; Print goes on over restarts, too.
	Follow bool
	// Watcher tells of what is written; Follow needs it.
	Watcher *filewatch.Watcher
	// Tail is how many of the last lines to begin with; below 0 all of them.
	Tail int64
	// Since leaves out what is older; zero leaves out nothing.
	Since time.Time
	// Timestamps puts the time before each line.
	Timestamps bool
	// Previous has Print read the attempt before the newest.
	Previous bool
	// Limit is how many bytes are printed at most; 0 is no limit.
	Limit int64
	// Caught is called when everything written so far was printed: before the end, and before waiting for more. It may
	// be nil.
	Caught func() error
}

const (
	tailBlock = 32 << 10
	// maxLine is the longest line that is held in memory. Runtimes cut lines at 16 KB; what is longer was damaged, and
	// goes out in parts.
	maxLine = 256 << 10
	// stampForm is the time before a line, in the kubelet's form: always of the same width.
	stampForm = "2006-01-02T15:04:05.000000000Z07:00"
)

var (
	// ErrNoLog: there is no such log (yet).
	ErrNoLog = errors.New("no log")
	// errLimit: as much was printed as was asked for.
	errLimit = errors.New("limit reached")
)

// Print writes the log of the container whose attempts lie in dir, with the part that was rotated away last; a nil
// writer leaves its stream out.
func Print(ctx context.Context, dir string, out, errOut io.Writer, opts Options) error {
	attempts, err := Attempts(dir)
	if err != nil {
		return err
	}
	if opts.Previous {
		if len(attempts) < 2 {
			return fmt.Errorf("previous container: %w in %s", ErrNoLog, dir)
		}
		attempts, opts.Follow = attempts[:len(attempts)-1], false
	}
	if len(attempts) == 0 {
		return fmt.Errorf("%w in %s", ErrNoLog, dir)
	}
	return printLog(ctx, attempts[len(attempts)-1], out, errOut, opts, course{
		newest: func() (string, error) { return newestOf(dir) },
		alive:  func() bool { return true },
	})
}

// PrintAttempt writes the log of one attempt, which lies at path. It follows it while alive returns true.
func PrintAttempt(ctx context.Context, path string, out, errOut io.Writer, opts Options, alive func() bool) error {
	return printLog(ctx, path, out, errOut, opts, course{
		newest: func() (string, error) { return path, nil },
		alive:  alive,
	})
}

// course says how a followed log goes on.
type course struct {
	// newest is the file that is written now, "" while there is none.
	newest func() (string, error)
	// alive reports whether more may be written.
	alive func() bool
}

func printLog(ctx context.Context, path string, out, errOut io.Writer, opts Options, c course) error {
	f, older, err := open(path, opts.Since)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w at %s", ErrNoLog, path)
	}
	if err != nil {
		return err
	}
	defer func() { f.Close() }()
	if older != nil {
		defer older.Close()
	}
	if opts.Tail >= 0 {
		found, err := seekTail(ctx, f, opts.Tail)
		if err == nil && older != nil {
			_, err = seekTail(ctx, older, opts.Tail-found)
		}
		if err != nil || ctx.Err() != nil {
			return err
		}
	}
	p := &printer{ctx: ctx, out: out, errOut: errOut, opts: opts, left: opts.Limit}
	if older != nil {
		err = p.copy(older)
		p.rest = p.rest[:0]
	}
	if err == nil && opts.Follow {
		err = p.follow(ctx, &f, c)
	} else if err == nil {
		err = p.copy(f)
	}
	if errors.Is(err, errLimit) {
		err = p.caught()
	}
	return err
}

// open opens the log at path, and the part of it that was rotated away last: nil if there is none to be read.
func open(path string, since time.Time) (current, older *os.File, err error) {
	root, err := logdir.Open(filepath.Dir(path))
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	if current, err = logdir.OpenFile(root, filepath.Base(path)); err != nil {
		return nil, nil, err
	}
	return current, rotated(root, filepath.Base(path), current, since), nil
}

// Attempts returns the logs of a container in the order of its attempts, rotated parts left out.
func Attempts(dir string) ([]string, error) {
	root, err := logdir.Open(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s", ErrNoLog, dir)
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	entries, err := logdir.ReadDir(root)
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

func newestOf(dir string) (string, error) {
	attempts, err := Attempts(dir)
	if err != nil || len(attempts) == 0 {
		return "", err
	}
	return attempts[len(attempts)-1], nil
}

// seekTail places a file before its last n lines, and returns how many these are: it may have less. It stops when ctx
// ends: a sparse file can have a size that takes years to read.
func seekTail(ctx context.Context, f *os.File, n int64) (int64, error) {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil || n == 0 || end == 0 {
		return 0, err
	}
	block := make([]byte, tailBlock)
	lines := int64(0)
	for at := end; at > 0 && ctx.Err() == nil; {
		size := min(at, tailBlock)
		at -= size
		if _, err := f.ReadAt(block[:size], at); err != nil {
			return 0, err
		}
		for i := size - 1; i >= 0; i-- {
			// The newline at the very end ends the last line and begins none.
			if block[i] != '\n' || at+i == end-1 {
				continue
			}
			if lines++; lines == n {
				_, err := f.Seek(at+i+1, io.SeekStart)
				return n, err
			}
		}
	}
	_, err = f.Seek(0, io.SeekStart)
	return lines + 1, err
}

type printer struct {
	ctx         context.Context
	out, errOut io.Writer
	opts        Options
	// rest is the beginning of a line that is still being written.
	rest []byte
	// inLine: the last thing printed was a part of a line.
	inLine bool
	// left is how much may still be printed, where there is a limit.
	left int64
}

// copy prints a file to its end.
func (p *printer) copy(f io.Reader) error {
	r := bufio.NewReader(f)
	for p.ctx.Err() == nil {
		chunk, err := r.ReadSlice('\n')
		p.rest = append(p.rest, chunk...)
		if errors.Is(err, io.EOF) {
			return p.caught()
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			if len(p.rest) < maxLine {
				continue
			}
			err = nil
		}
		if err != nil {
			return err
		}
		if err := p.line(bytes.TrimSuffix(p.rest, []byte("\n"))); err != nil {
			return err
		}
		p.rest = p.rest[:0]
	}
	return nil
}

func (p *printer) caught() error {
	if p.opts.Caught == nil {
		return nil
	}
	return p.opts.Caught()
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
	if w == nil {
		return nil
	}
	if p.opts.Timestamps && !p.inLine && ok {
		if err := p.write(w, line.Time.AppendFormat(nil, stampForm+" ")); err != nil {
			return err
		}
	}
	p.inLine = line.Partial
	if err := p.write(w, line.Text); err != nil || line.Partial {
		return err
	}
	return p.write(w, []byte("\n"))
}

// write prints as much as the limit leaves.
func (p *printer) write(w io.Writer, data []byte) error {
	if p.opts.Limit > 0 && int64(len(data)) >= p.left {
		if _, err := w.Write(data[:p.left]); err != nil {
			return err
		}
		p.left = 0
		return errLimit
	}
	p.left -= int64(len(data))
	_, err := w.Write(data)
	return err
}
