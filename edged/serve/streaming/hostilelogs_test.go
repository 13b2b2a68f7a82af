package streaming

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHostileLogs: what a pod puts in the place of its log is refused, is told why, and holds no place of a log.
func TestHostileLogs(t *testing.T) {
	d := newDevice(t)
	s, base := serve(t, t.Context(), d, Options{MaxLogs: 1})
	dir := filepath.Join(d.logs, "c")
	path := filepath.Join(dir, "0.log")
	secret := filepath.Join(t.TempDir(), "0.log")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(secret, []byte("secret\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what, want string
		put        func() error
	}{
		{"link", "it is a symbolic link", func() error { return os.Symlink(secret, path) }},
		{"pipe", "it is a named pipe", func() error { return unix.Mkfifo(path, 0o666) }},
	} {
		if err := errors.Join(os.RemoveAll(path), c.put()); err != nil {
			t.Fatal(err)
		}
		for _, query := range []string{"", "?follow=true", "?tailLines=1"} {
			code, body := get(t, http.MethodGet, base+"/containerLogs/ns/p/c"+query)
			if code != http.StatusForbidden || !strings.Contains(body, c.want) {
				t.Errorf("%s%s: %d %q, want 403 and %q", c.what, query, code, body, c.want)
			}
		}
	}
	d.mu.Lock()
	d.obs.Containers[0].LogPath = secret
	d.mu.Unlock()
	want := "which is not in " + dir
	if code, body := get(t, http.MethodGet, base+"/containerLogs/ns/p/c"); code != http.StatusForbidden ||
		!strings.Contains(body, want) {
		t.Errorf("a log elsewhere: %d %q, want 403 and %q", code, body, want)
	}
	s.Wait()
}
