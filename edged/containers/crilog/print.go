package crilog

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

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
	// Previous makes Print read the attempt before the newest.
	Previous bool
	// Limit is how many bytes are printed at most; 0 is no limit.
	Limit int64
	// Caught is called when everything written so far was printed: before the end, and before waiting for more. It may
	// be nil.
	Caught func() error
}

const (
	// maxLine is the longest line that is held in memory. Runtimes cut lines at 16 KB; what is longer was damaged, and
	// goes out in parts.
	maxLine = 256 << 10
	// stampForm is the time before a line, in the kubelet's form: always of the same width.
	stampForm = "2006-01-02T15:04:05.000000000Z07:00"
	newline   = "\n"
)

var (
	// ErrNoLog: there is no such log (yet).
	ErrNoLog = errors.New("no log")
	// errLimit: as much was printed as was asked for.
	errLimit = errors.New("limit reached")
)

func errNoLogIn(dir string) error { return fmt.Errorf("%w in %s", ErrNoLog, dir) }

// Print writes the log of the container whose attempts lie in dir, with the part that was rotated away last; a nil
// writer leaves its stream out. Without Follow it ends where the log ended when it was opened.
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
		return errNoLogIn(dir)
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
	begun, err := seekAll(ctx, f, older, opts.Tail)
	if err != nil || ctx.Err() != nil {
		return err
	}
	p := &printer{ctx: ctx, out: out, errOut: errOut, opts: opts, left: opts.Limit}
	if older != nil {
		err = p.copy(older, begun.older)
		if err == nil {
			err = p.torn(true)
		}
	}
	if err == nil && opts.Follow {
		err = p.follow(ctx, &f, c)
	} else if err == nil {
		err = p.copy(f, begun.log)
	}
	if err == nil && ctx.Err() == nil {
		err = p.torn(false)
	}
	if err == nil || errors.Is(err, errLimit) {
		err = p.caught()
	}
	return err
}

// rest are how many bytes of a log and of its older part are to be printed.
type rest struct{ log, older int64 }

// seekAll places the files of a log, of which older may be nil, before its last lines; below 0 these are all. It
// returns how much there is from there to their ends.
func seekAll(ctx context.Context, f, older *os.File, tail int64) (left rest, err error) {
	at := func(f *os.File, lines int64) (int64, int64, error) {
		info, err := f.Stat()
		if err != nil {
			return 0, 0, err
		}
		if tail < 0 {
			return info.Size(), 0, nil
		}
		found, err := seekTail(ctx, f, info.Size(), lines)
		if err != nil {
			return 0, 0, err
		}
		begin, err := f.Seek(0, io.SeekCurrent)
		return info.Size() - begin, found, err
	}
	var found int64
	if left.log, found, err = at(f, tail); err == nil && older != nil {
		left.older, _, err = at(older, tail-found)
	}
	return left, err
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

// copy prints so many bytes of a file, and the rest of the line in which they end; or all that there is, if it has
// less. The runtime may be writing to it.
func (p *printer) copy(f io.Reader, size int64) error {
	r := bufio.NewReader(f)
	for p.ctx.Err() == nil && (size > 0 || len(p.rest) > 0) {
		chunk, err := r.ReadSlice('\n')
		size -= int64(len(chunk))
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
		if err := p.line(bytes.TrimSuffix(p.rest, []byte(newline)), true); err != nil {
			return err
		}
		p.rest = p.rest[:0]
	}
	return nil
}

// torn prints what is left of a line whose end was never written: a power cut or a full disk has torn it. more: other
// lines come after it.
func (p *printer) torn(more bool) error {
	if len(p.rest) == 0 || headOnly(p.rest) {
		p.rest = p.rest[:0]
		return nil
	}
	err := p.line(p.rest, more)
	p.rest = p.rest[:0]
	return err
}

func (p *printer) caught() error {
	if p.opts.Caught == nil {
		return nil
	}
	return p.opts.Caught()
}

// line prints a line, with a newline unless the line goes on or was not ended.
func (p *printer) line(raw []byte, ended bool) error {
	line, ok := Parse(raw)
	if !ok {
		line, ok = parseDamaged(raw)
	}
	if !ok {
		line = Line{Text: raw} // shown as it is
	} else if !p.opts.Since.IsZero() && line.Time.Before(p.opts.Since) {
		p.inLine = line.Partial && len(line.Text) > 0 // as a kubelet takes it
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
	p.inLine = line.Partial && len(line.Text) > 0 // as a kubelet takes it
	if err := p.write(w, line.Text); err != nil || line.Partial || !ended {
		return err
	}
	return p.write(w, []byte(newline))
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
