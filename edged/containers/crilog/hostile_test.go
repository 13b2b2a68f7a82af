package crilog

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/edgecore-io/edgecore/edged/containers/logdir"
	"github.com/edgecore-io/edgecore/pkg/filewatch/filewatchtest"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

const secret = "what a pod must not read\n"

// hostileDir makes the log folder of a container, beside a folder with a secret, and returns both.
func hostileDir(t *testing.T) (dir, secretFile string) {
	t.Helper()
	base := t.TempDir()
	dir = filepath.Join(base, "pods", "ns_p_1", "c")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	secretFile = filepath.Join(base, "db", "0.log")
	if err := os.Mkdir(filepath.Dir(secretFile), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, secretFile, secret)
	return dir, secretFile
}

// replace puts something else in the place of a path.
func replace(t *testing.T, path string, put func() error) {
	t.Helper()
	if err := errors.Join(os.RemoveAll(path), put()); err != nil {
		t.Fatal(err)
	}
}

// TestHostileFiles: nothing but a regular file in the container's own folder is read, and no open waits.
func TestHostileFiles(t *testing.T) {
	for name, plant := range map[string]func(t *testing.T, dir, secretFile string){
		"link to a file": func(t *testing.T, dir, secretFile string) {
			replace(t, filepath.Join(dir, "0.log"), func() error {
				return os.Symlink(secretFile, filepath.Join(dir, "0.log"))
			})
		},
		"link to a file beside it": func(t *testing.T, dir, _ string) {
			write(t, filepath.Join(dir, "other"), secret)
			replace(t, filepath.Join(dir, "0.log"), func() error {
				return os.Symlink("other", filepath.Join(dir, "0.log"))
			})
		},
		"pipe": func(t *testing.T, dir, _ string) {
			replace(t, filepath.Join(dir, "0.log"), func() error {
				return unix.Mkfifo(filepath.Join(dir, "0.log"), 0o666)
			})
		},
		"folder": func(t *testing.T, dir, _ string) {
			replace(t, filepath.Join(dir, "0.log"), func() error {
				return os.Mkdir(filepath.Join(dir, "0.log"), 0o755)
			})
		},
		"link in place of the container's folder": func(t *testing.T, dir, secretFile string) {
			replace(t, dir, func() error { return os.Symlink(filepath.Dir(secretFile), dir) })
		},
		"link to another container's folder": func(t *testing.T, dir, _ string) {
			other := filepath.Join(filepath.Dir(dir), "other")
			if err := os.Mkdir(other, 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(other, "0.log"), secret)
			replace(t, dir, func() error { return os.Symlink("other", dir) })
		},
		"link in place of the pod's folder": func(t *testing.T, dir, secretFile string) {
			if err := os.Rename(filepath.Dir(secretFile), filepath.Join(filepath.Dir(filepath.Dir(secretFile)),
				"c")); err != nil {
				t.Fatal(err)
			}
			replace(t, filepath.Dir(dir), func() error {
				return os.Symlink(filepath.Dir(filepath.Dir(secretFile)), filepath.Dir(dir))
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, secretFile := hostileDir(t)
			write(t, filepath.Join(dir, "0.log"), "of the container\n")
			plant(t, dir, secretFile)
			watcher := filewatchtest.New(t)
			for _, follow := range []bool{false, true} {
				opts := Options{Tail: -1, Follow: follow, Watcher: watcher}
				ctx, cancel := context.WithCancel(t.Context())
				opts.Caught = func() error { cancel(); return nil }
				var out bytes.Buffer
				errPrint := Print(ctx, dir, &out, &out, opts)
				errAttempt := PrintAttempt(ctx, filepath.Join(dir, "0.log"), &out, &out, opts, func() bool {
					return true
				})
				if !errors.Is(errPrint, logdir.ErrRefused) || !errors.Is(errAttempt, logdir.ErrRefused) ||
					out.Len() > 0 {
					t.Errorf("follow %v: printed %q, %v and %v; want nothing, ErrRefused", follow, out.String(),
						errPrint, errAttempt)
				}
				cancel()
			}
		})
	}
}

// TestHostileRotated: a rotated part that is a link or a pipe is left out.
func TestHostileRotated(t *testing.T) {
	dir, secretFile := hostileDir(t)
	write(t, filepath.Join(dir, "0.log"), entry(1, "stdout F one"))
	part := filepath.Join(dir, "0.log.20260101-000000")
	for name, put := range map[string]func() error{
		"link": func() error { return os.Symlink(secretFile, part) },
		"pipe": func() error { return unix.Mkfifo(part, 0o666) },
	} {
		replace(t, part, put)
		var out bytes.Buffer
		if err := Print(t.Context(), dir, &out, &out, Options{Tail: -1}); err != nil || out.String() != "one\n" {
			t.Errorf("%s: printed %q, %v; want the log without its part", name, out.String(), err)
		}
	}
}

// TestHostileSuccessor: what takes the place of a followed log is not followed unless it is a log.
func TestHostileSuccessor(t *testing.T) {
	for name, put := range map[string]func(path, secretFile string) error{
		"link": func(path, secretFile string) error { return os.Symlink(secretFile, path) },
		"pipe": func(path, _ string) error { return unix.Mkfifo(path, 0o666) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, secretFile := hostileDir(t)
			path := filepath.Join(dir, "0.log")
			write(t, path, entry(1, "stdout F one"))
			caught, ended := make(chan struct{}, 100), make(chan error, 1)
			var out safeBuffer
			opts := Options{
				Tail: -1, Follow: true, Watcher: filewatchtest.New(t),
				Caught: func() error { caught <- struct{}{}; return nil },
			}
			go func() { ended <- PrintAttempt(t.Context(), path, &out, &out, opts, func() bool { return true }) }()
			wait.Receive(t, "the log to be printed", caught)
			tmp := filepath.Join(dir, "tmp")
			if err := errors.Join(put(tmp, secretFile), os.Rename(tmp, path)); err != nil {
				t.Fatal(err)
			}
			if err := wait.Receive(t, "the end", ended); !errors.Is(err, logdir.ErrRefused) || out.String() != "one\n" {
				t.Errorf("printed %q, %v; want \"one\\n\", ErrRefused", out.String(), err)
			}
		})
	}
}

// TestHostileSize: a sparse file of a terabyte, in one line, keeps neither the memory nor one who has left.
func TestHostileSize(t *testing.T) {
	dir, _ := hostileDir(t)
	path := filepath.Join(dir, "0.log")
	write(t, path, entry(1, "stdout F one"))
	if err := os.Truncate(path, 1<<40); err != nil {
		t.Skipf("this file system has no such files: %v", err)
	}
	for name, opts := range map[string]Options{
		"from the beginning": {Tail: -1, Since: time.Time{}}, "from the end": {Tail: 10},
		"followed": {Tail: 10, Follow: true, Watcher: filewatchtest.New(t)},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		out := writerFunc(func(p []byte) (int, error) {
			if len(p) > maxLine+tailBlock {
				t.Errorf("%s: a write of %d bytes, want %d at most", name, len(p), maxLine+tailBlock)
			}
			cancel() // the client goes away
			return len(p), nil
		})
		if opts.Tail >= 0 {
			cancel()
		}
		if err := Print(ctx, dir, out, out, opts); err != nil {
			t.Errorf("%s: %v, want no error", name, err)
		}
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestManyEntries: a folder with more entries than a container can have is refused, instead of read into memory.
func TestManyEntries(t *testing.T) {
	dir, _ := hostileDir(t)
	write(t, filepath.Join(dir, "0.log"), "one\n")
	for i := range 10_001 {
		if err := os.Link(filepath.Join(dir, "0.log"),
			filepath.Join(dir, strings.Repeat("x", 1+i/1000)+string(rune('a'+i%1000)))); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := Attempts(dir); !errors.Is(err, logdir.ErrRefused) {
		t.Errorf("Attempts = %d of them, %v; want ErrRefused", len(got), err)
	}
}
