package repair

import (
	"archive/tar"
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

// mendName is a file on its way, beside the layer's folder.
const mendName = ".edgecore-mend"

// paxXattr begins the names of extended attributes in an archive.
const paxXattr = "SCHILY.xattr."

// repairFiles puts the files of a layer right that are not as they should be, from its archive. Each takes the place of
// the damaged one in one step and is on the disk before; a repair that is cut off is started again.
func (l *layer) repairFiles(ctx context.Context, archive io.Reader, found damage) error {
	if err := l.root.MkdirAll(l.base, 0o755); err != nil {
		return err
	}
	made := map[string]bool{} // folders that were missing
	err := entries(ctx, archive, func(e entry, content io.Reader) error {
		_, bad := found.files[e.name]
		if e.Typeflag == tar.TypeLink && !bad { // the file that it shares may have been replaced
			what, err := l.differs(e, nil, nil)
			if err != nil {
				return err
			}
			bad = what != ""
		}
		opaque := path.Base(e.name) == whiteoutOpaque && made[path.Dir(e.name)]
		if !bad && !found.all && !opaque {
			return nil
		}
		if err := l.restore(e, content, made); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		return nil
	})
	return errors.Join(err, l.sync())
}

// restore puts one entry of an archive where it belongs.
func (l *layer) restore(e entry, content io.Reader, made map[string]bool) error {
	at, base := path.Join(l.base, e.name), path.Base(e.name)
	parent := path.Dir(at)
	if err := l.root.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	switch {
	case strings.HasPrefix(base, whiteout) && l.bottom:
		return nil
	case base == whiteoutOpaque:
		return l.inFolder(parent, func(fd int) error {
			return unix.Fsetxattr(fd, "trusted.overlay.opaque", []byte("y"), 0)
		})
	case strings.HasPrefix(base, whiteout):
		name := strings.TrimPrefix(base, whiteout)
		if err := l.root.RemoveAll(path.Join(parent, name)); err != nil {
			return err
		}
		return l.inFolder(parent, func(fd int) error { return unix.Mknodat(fd, name, unix.S_IFCHR, 0) })
	}
	if e.Typeflag == tar.TypeDir {
		return l.placeFolder(at, e, made)
	}
	info, err := l.root.Lstat(at)
	if err == nil && info.IsDir() {
		err = l.root.RemoveAll(at)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !isDiskError(err) {
		return err
	}
	if err := l.root.RemoveAll(mendName); err != nil {
		return err
	}
	if err := l.makeEntry(e, content); err != nil {
		return err
	}
	return l.root.Rename(mendName, at)
}

// makeEntry makes an entry beside the layer, with all that belongs to it.
func (l *layer) makeEntry(e entry, content io.Reader) error {
	mode := e.FileInfo().Mode() & modes
	switch e.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		return l.makeFile(e, content, mode)
	case tar.TypeSymlink:
		if err := l.root.Symlink(e.Linkname, mendName); err != nil {
			return err
		}
		return l.root.Lchown(mendName, e.Uid, e.Gid)
	case tar.TypeLink:
		return l.root.Link(path.Join(l.base, path.Clean(strings.TrimLeft(e.Linkname, "/"))), mendName)
	}
	kind := map[byte]uint32{
		tar.TypeChar: unix.S_IFCHR, tar.TypeBlock: unix.S_IFBLK, tar.TypeFifo: unix.S_IFIFO,
	}[e.Typeflag]
	if kind == 0 {
		return fmt.Errorf("an entry of the kind %q is not known", e.Typeflag)
	}
	device := int(unix.Mkdev(uint32(e.Devmajor), uint32(e.Devminor)))
	if err := l.inFolder(".", func(fd int) error {
		return unix.Mknodat(fd, mendName, kind|0o600, device)
	}); err != nil {
		return err
	}
	return errors.Join(l.root.Lchown(mendName, e.Uid, e.Gid), l.root.Chmod(mendName, mode))
}

func (l *layer) makeFile(e entry, content io.Reader, mode fs.FileMode) (err error) {
	f, err := l.root.OpenFile(mendName, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := io.Copy(f, content); err != nil {
		return err
	}
	if err := f.Chown(e.Uid, e.Gid); err != nil {
		return err
	}
	if err := setXattrs(int(f.Fd()), e); err != nil { // after the owner, with whom file capabilities go
		return err
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if err := l.root.Chtimes(mendName, e.ModTime, e.ModTime); err != nil {
		return err
	}
	return f.Sync()
}

// placeFolder makes a folder that is missing, or gives one its owner and mode.
func (l *layer) placeFolder(at string, e entry, made map[string]bool) error {
	info, err := l.root.Lstat(at)
	if err == nil && !info.IsDir() {
		if err = l.root.RemoveAll(at); err == nil {
			err = fs.ErrNotExist
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		made[e.name] = true
		err = l.root.Mkdir(at, 0o700)
	}
	if err != nil {
		return err
	}
	err = errors.Join(l.root.Lchown(at, e.Uid, e.Gid), l.root.Chmod(at, e.FileInfo().Mode()&modes))
	return errors.Join(err, l.inFolder(at, func(fd int) error { return setXattrs(fd, e) }),
		l.root.Chtimes(at, e.ModTime, e.ModTime))
}

func setXattrs(fd int, e entry) error {
	for key, value := range e.PAXRecords {
		name, ok := strings.CutPrefix(key, paxXattr)
		if !ok {
			continue
		}
		if err := unix.Fsetxattr(fd, name, []byte(value), 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
			return fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	return nil
}

// inFolder calls f with a folder that is open.
func (l *layer) inFolder(dir string, f func(fd int) error) error {
	folder, err := l.root.Open(dir)
	if err != nil {
		return err
	}
	defer folder.Close()
	return f(int(folder.Fd()))
}

// sync returns when the layer is on the disk.
func (l *layer) sync() error {
	return l.inFolder(".", func(fd int) error {
		if err := unix.Syncfs(fd); err != nil {
			return fmt.Errorf("sync %s: %w", filepath.Join(l.root.Name(), l.base), err)
		}
		return nil
	})
}
