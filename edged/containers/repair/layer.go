package repair

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// The layers of an image are tar archives, and the runtime unpacks each into a folder of its own, in the form that
// overlayfs wants: a file that a layer removes is a character device 0/0 there. Paths of an archive are the image's,
// and so not trusted: they are resolved below the layer's folder, and what leads out of it is left alone.

const (
	whiteout       = ".wh."
	whiteoutOpaque = ".wh..wh..opq"
	// tooMany is the number of damaged files from which on the whole layer is unpacked again.
	tooMany = 4096
	modes   = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky
)

// layer is one unpacked layer.
type layer struct {
	// root is the folder that holds the layer's own, base; nothing of what is beside that is seen in containers.
	root *os.Root
	base string
	// bottom: it is the lowest layer, so nothing below it can be removed.
	bottom bool
}

func openLayer(dir string, bottom bool) (*layer, error) {
	root, err := os.OpenRoot(filepath.Dir(dir))
	if err != nil {
		return nil, err
	}
	return &layer{root: root, base: filepath.Base(dir), bottom: bottom}, nil
}

func (l *layer) close() { l.root.Close() }

// damage is what is wrong with a layer, by path in the image.
type damage struct {
	files map[string]string
	// all: there is too much to tell apart.
	all bool
}

func (d *damage) none() bool { return len(d.files) == 0 && !d.all }

func (d *damage) setFile(name, what string) {
	switch {
	case what == "":
		delete(d.files, name) // of a file that is twice in an archive the last one counts
	case len(d.files) >= tooMany:
		d.all = true
	default:
		if d.files == nil {
			d.files = map[string]string{}
		}
		d.files[name] = what
	}
}

// entry is a file of an archive, with its place in the image.
type entry struct {
	*tar.Header
	name string
}

// entries calls f with each file of an archive that has a place in the layer.
func entries(ctx context.Context, archive io.Reader, f func(e entry, content io.Reader) error) error {
	r := tar.NewReader(archive)
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if len(header.Name) >= unix.PathMax || len(header.Linkname) >= unix.PathMax {
			continue // no file can have such a path, of which an archive may have a megabyte
		}
		name := path.Clean(strings.TrimLeft(header.Name, "/"))
		if name == "." || !filepath.IsLocal(name) {
			continue
		}
		if err := f(entry{header, name}, r); err != nil {
			return err
		}
	}
}

// compare returns what of an archive is not in the layer as it should be.
func (l *layer) compare(ctx context.Context, archive io.Reader) (damage, error) {
	var found damage
	buffer := make([]byte, 2*compareChunk)
	err := entries(ctx, archive, func(e entry, content io.Reader) error {
		what, err := l.differs(e, content, buffer)
		if err != nil {
			return err
		}
		found.setFile(e.name, what)
		if e.Typeflag == tar.TypeLink && what == "" {
			l.modeOfLink(e, &found)
		}
		return nil
	})
	return found, err
}

const compareChunk = 64 << 10

// differs says what is wrong with one file; "" is nothing, or nothing that could be seen. An error is one of the
// archive.
func (l *layer) differs(e entry, content io.Reader, buffer []byte) (string, error) {
	base := path.Base(e.name)
	if base == whiteoutOpaque {
		return "", nil
	}
	at := path.Join(l.base, e.name)
	if name, ok := strings.CutPrefix(base, whiteout); ok {
		if l.bottom {
			return "", nil
		}
		if _, err := l.root.Lstat(path.Join(l.base, path.Dir(e.name), name)); errors.Is(err, fs.ErrNotExist) {
			return "the mark of its removal is missing", nil
		}
		return "", nil
	}
	info, err := l.root.Lstat(at)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return "is missing", nil
	case err != nil:
		if isDiskError(err) {
			return "cannot be read: " + reason(err), nil
		}
		return "", nil // its path leads out of the layer
	}
	switch e.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		return l.fileDiffers(at, info, e, content, buffer)
	case tar.TypeDir:
		if !info.IsDir() && info.Mode()&fs.ModeSymlink == 0 {
			return "is not a folder", nil
		}
	case tar.TypeSymlink:
		if to, err := l.root.Readlink(at); err != nil || to != e.Linkname {
			return "does not lead to " + e.Linkname, nil
		}
	case tar.TypeLink:
		if target, err := l.root.Lstat(path.Join(l.base, path.Clean(strings.TrimLeft(e.Linkname, "/")))); err == nil &&
			!os.SameFile(info, target) {
			return "is not the same file as " + e.Linkname, nil
		}
	}
	return "", nil
}

// fileDiffers compares a regular file.
func (l *layer) fileDiffers(at string, info fs.FileInfo, e entry, content io.Reader, buffer []byte) (string, error) {
	switch {
	case !info.Mode().IsRegular():
		return "is not a file", nil
	case info.Size() == 0 && e.Size > 0:
		return fmt.Sprintf("is empty, and should have %d bytes", e.Size), nil
	case info.Size() != e.Size:
		return fmt.Sprintf("has %d bytes, and should have %d", info.Size(), e.Size), nil
	case info.Mode()&modes != e.FileInfo().Mode()&modes:
		return fmt.Sprintf(wrongMode+"%v, and should have %v", info.Mode(), e.FileInfo().Mode()), nil
	}
	f, err := l.root.Open(at)
	if err != nil {
		return "cannot be opened: " + reason(err), nil
	}
	defer f.Close()
	want, have := buffer[:compareChunk], buffer[compareChunk:]
	for {
		n, err := io.ReadFull(content, want)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return "", err
		}
		if _, readErr := io.ReadFull(f, have[:n]); readErr != nil {
			return "cannot be read: " + reason(readErr), nil
		}
		if !bytes.Equal(want[:n], have[:n]) {
			return "does not have the expected content", nil
		}
		if err != nil {
			return "", nil
		}
	}
}

const wrongMode = "has the mode "

// modeOfLink takes it back that a file has the wrong mode, where it has that of another of its names: the last one
// counts.
func (l *layer) modeOfLink(e entry, found *damage) {
	target := path.Clean(strings.TrimLeft(e.Linkname, "/"))
	if !strings.HasPrefix(found.files[target], wrongMode) {
		return
	}
	if info, err := l.root.Lstat(path.Join(l.base, e.name)); err == nil &&
		info.Mode()&modes == e.FileInfo().Mode()&modes {
		found.setFile(target, "")
	}
}

// isDiskError tells an error of the disk from one of the path.
func isDiskError(err error) bool {
	for _, disk := range []error{unix.EIO, unix.EUCLEAN, unix.EBADMSG, unix.ESTALE} {
		if errors.Is(err, disk) {
			return true
		}
	}
	return false
}

// reason is an error without the path, which has been said.
func reason(err error) string {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return at.Err.Error()
	}
	return err.Error()
}
