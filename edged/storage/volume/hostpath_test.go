package volume

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

func TestHostPath(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t,
		os.Mkdir(at("dir"), 0o755), os.WriteFile(at("file"), nil, 0o644), os.Symlink("dir", at("link")),
		os.Symlink("nowhere", at("dangling")),
		unix.Mknod(at("char"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))),
		unix.Mknod(at("block"), unix.S_IFBLK|0o600, int(unix.Mkdev(7, 250))),
		unix.Mkfifo(at("fifo"), 0o600))
	l, err := net.Listen("unix", at("socket"))
	must(t, err)
	defer l.Close()

	const failed = "hostPath type check failed: "
	for _, tc := range []struct {
		kind v1.HostPathType
		name string
		want string // "" is no error
	}{
		{v1.HostPathUnset, "dir", ""},
		{v1.HostPathUnset, "file", ""},
		{v1.HostPathUnset, "missing", ""},
		{v1.HostPathUnset, "file/below", ""},
		{v1.HostPathDirectory, "dir", ""},
		{v1.HostPathDirectory, "link", ""},
		{v1.HostPathDirectory, "file", failed + at("file") + " is not a directory"},
		{v1.HostPathDirectory, "missing", failed + at("missing") + " is not a directory"},
		{v1.HostPathDirectory, "dangling", failed + at("dangling") + " is not a directory"},
		{v1.HostPathDirectory, "file/below", failed + "stat " + at("file/below") + ": not a directory"},
		{v1.HostPathDirectoryOrCreate, "dir", ""},
		{v1.HostPathDirectoryOrCreate, "new/deep", ""},
		{v1.HostPathDirectoryOrCreate, "file", failed + at("file") + " is not a directory"},
		{v1.HostPathFile, "file", ""},
		{v1.HostPathFile, "dir", failed + at("dir") + " is not a file"},
		{v1.HostPathFile, "fifo", failed + at("fifo") + " is not a file"},
		{v1.HostPathFile, "missing", failed + at("missing") + " is not a file"},
		{v1.HostPathFileOrCreate, "file", ""},
		{v1.HostPathFileOrCreate, "newfile", ""},
		{v1.HostPathFileOrCreate, "dir", failed + at("dir") + " is not a file"},
		{v1.HostPathFileOrCreate, "nodir/newfile", "open " + at("nodir/newfile") + ": no such file or directory"},
		{v1.HostPathSocket, "socket", ""},
		{v1.HostPathSocket, "file", failed + at("file") + " is not a socket file"},
		{v1.HostPathSocket, "missing", failed + at("missing") + " is not a socket file"},
		{v1.HostPathCharDev, "char", ""},
		{v1.HostPathCharDev, "block", failed + at("block") + " is not a character device"},
		{v1.HostPathBlockDev, "block", ""},
		{v1.HostPathBlockDev, "char", failed + at("char") + " is not a block device"},
		{
			"Door", "dir",
			`Door is an invalid volume type; want "", DirectoryOrCreate, Directory, FileOrCreate, File, Socket, CharDevice or BlockDevice`,
		},
	} {
		t.Run(string(tc.kind)+" "+tc.name, func(t *testing.T) {
			got := ""
			if err := checkHostPath(&v1.HostPathVolumeSource{Path: at(tc.name), Type: &tc.kind}); err != nil {
				got = err.Error()
			}
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
	for name, want := range map[string]os.FileMode{"new/deep": os.ModeDir | 0o755, "newfile": 0o644} {
		if info, err := os.Stat(at(name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want no error, %v", name, info, err, want)
		}
	}
	for _, path := range []string{"", "relative", "/a/../b"} {
		if err := checkHostPath(&v1.HostPathVolumeSource{Path: path}); err == nil {
			t.Errorf("checkHostPath(%q) = nil, want an error", path)
		}
	}
	if err := checkHostPath(&v1.HostPathVolumeSource{Path: "/no/such/path"}); err != nil {
		t.Errorf("no type: %v, want no error", err)
	}
}
