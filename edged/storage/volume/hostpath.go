package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
)

// checkHostPath checks that a path of the node matches its type, and creates it if the type says so.
func checkHostPath(src *v1.HostPathVolumeSource) error {
	if !filepath.IsAbs(src.Path) || hasDotDot(src.Path) {
		return fmt.Errorf("hostPath %q must be absolute and must not contain '..'", src.Path)
	}
	kind := v1.HostPathUnset
	if src.Type != nil {
		kind = *src.Type
	}
	if kind == v1.HostPathUnset {
		return nil // the runtime makes a folder of one that is missing
	}
	info, err := os.Stat(src.Path)
	missing := errors.Is(err, os.ErrNotExist)
	if err != nil && !missing {
		return fmt.Errorf("hostPath type check failed: %w", err)
	}
	is := func(mode, mask os.FileMode, what string) error {
		if missing || info.Mode()&mask != mode {
			return fmt.Errorf("hostPath type check failed: %s is not %s", src.Path, what)
		}
		return nil
	}
	switch kind {
	case v1.HostPathDirectoryOrCreate:
		if missing {
			return os.MkdirAll(src.Path, 0o755)
		}
		return is(os.ModeDir, os.ModeDir, "a directory")
	case v1.HostPathDirectory:
		return is(os.ModeDir, os.ModeDir, "a directory")
	case v1.HostPathFileOrCreate:
		if missing {
			return makeHostFile(src.Path)
		}
		return is(0, os.ModeType, "a file")
	case v1.HostPathFile:
		return is(0, os.ModeType, "a file")
	case v1.HostPathSocket:
		return is(os.ModeSocket, os.ModeType, "a socket file")
	case v1.HostPathCharDev:
		return is(os.ModeDevice|os.ModeCharDevice, os.ModeType, "a character device")
	case v1.HostPathBlockDev:
		return is(os.ModeDevice, os.ModeType, "a block device")
	}
	return fmt.Errorf("%s is an invalid volume type; want \"\", DirectoryOrCreate, Directory, FileOrCreate, File, "+
		"Socket, CharDevice or BlockDevice", kind)
}

// makeHostFile makes an empty file; the folder above it has to be there.
func makeHostFile(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}
