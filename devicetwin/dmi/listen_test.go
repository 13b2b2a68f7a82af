package dmi

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/listening"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestSockets: there is a socket in both folders, also if one of them cannot be. Mappers of the group can make their
// own sockets, and nothing beside dmi.sock.
func TestSockets(t *testing.T) {
	const group = 65530
	root := t.TempDir()
	dir, other, file := filepath.Join(root, "run", "dmi"), filepath.Join(root, "etc"), filepath.Join(root, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, otherDir := range []string{other, "", filepath.Join(file, "etc")} {
		s := New(Options{Dir: dir, OtherDir: otherDir, Group: func() (int, error) { return group, nil },
			Load: func(context.Context) (map[string][]byte, error) { return nil, nil }})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Errorf("Run = %v, want no error", err)
			}
		})
		dirs := []string{dir}
		if otherDir == other {
			dirs = append(dirs, other)
		}
		for _, d := range dirs {
			path := filepath.Join(d, SocketName)
			wait.Until(t, path+" to be served", func() error {
				conn, err := net.Dial("unix", path)
				if err == nil {
					err = conn.Close()
				}
				return err
			})
			check(t, path, os.ModeSocket|0o660, group)
			check(t, d, os.ModeDir|0o755, 0)
		}
		check(t, filepath.Join(dir, MappersDir), os.ModeDir|os.ModeSticky|0o770, group)
		if _, err := os.Lstat(filepath.Join(other, MappersDir)); err == nil {
			t.Error("KubeEdge's folder has a folder for mappers, want none")
		}
		cancel()
		running.Wait()
	}
}

// check checks the mode and the group of a file, which belongs to root.
func check(t *testing.T, path string, mode os.FileMode, group uint32) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if s := info.Sys().(*syscall.Stat_t); info.Mode() != mode || s.Uid != 0 || s.Gid != group {
		t.Errorf("%s: mode %v, user %d, group %d; want %v, 0 and %d", path, info.Mode(), s.Uid, s.Gid, mode, group)
	}
}

// TestListening: a socket that cannot be opened is reported with its error, and once it is open.
func TestListening(t *testing.T) {
	listening.Reported(t, func(dir string, report func(string, error)) (func(context.Context) error, string) {
		s := New(Options{
			Dir:       dir,
			Load:      func(context.Context) (map[string][]byte, error) { return nil, nil },
			Listening: report,
		})
		return s.Run, filepath.Join(dir, SocketName)
	})
}
