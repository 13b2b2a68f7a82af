package guestapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// connect serves one end of a connection and returns the other.
func connect(t *testing.T) *Client {
	t.Helper()
	host, guest := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- Serve(context.Background(), guest) }()
	c := NewClient(host)
	t.Cleanup(func() {
		_ = c.Close()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v, want no error", err)
		}
	})
	return c
}

func TestRun(t *testing.T) {
	c := connect(t)
	for _, tc := range []struct {
		name string
		req  Request
		code int
		out  string
	}{
		{"output", Request{Args: []string{"sh", "-c", "echo out; echo err >&2"}}, 0, "out\nerr\n"},
		{"code", Request{Args: []string{"sh", "-c", "exit 7"}}, 7, ""},
		{"signal", Request{Args: []string{"sh", "-c", "kill -9 $$"}}, 137, ""},
		{
			"input and environment", Request{
				Args: []string{"sh", "-c", "cat; echo $X"}, Data: []byte("in "), Env: []string{"X=y"},
			}, 0, "in y\n",
		},
		{"a daemon left behind", Request{Args: []string{"sh", "-c", "sleep 30 & echo started"}}, 0, "started\n"},
		{"much", Request{Args: []string{"sh", "-c", "head -c 300000 /dev/zero"}}, 0, strings.Repeat("\x00", 300000)},
	} {
		tc.req.Op = Run
		var out bytes.Buffer
		code, err := c.Do(t.Context(), tc.req, &out)
		if err != nil || code != tc.code || out.String() != tc.out {
			t.Errorf("%s: code %d, error %v, output %.80q; want code %d, output %.80q", tc.name, code, err,
				out.String(), tc.code, tc.out)
		}
	}
}

// What cannot be done is reported, and the connection goes on.
func TestGuestErrors(t *testing.T) {
	c := connect(t)
	for _, r := range []Request{
		{Op: Run}, {Op: Run, Args: []string{"/no/such/program"}}, {Op: Read, Path: "/no/such/file"},
		{Op: Write, Path: "/proc/x"}, {Op: "what"},
	} {
		_, err := c.Do(t.Context(), r, &bytes.Buffer{})
		if guest := GuestError(""); !errors.As(err, &guest) {
			t.Errorf("%+v: %v, want a GuestError", r, err)
		}
	}
}

func TestFiles(t *testing.T) {
	c := connect(t)
	path := filepath.Join(t.TempDir(), "new", "file")
	data := bytes.Repeat([]byte("0123456789\n"), 20000)
	if _, err := c.Do(t.Context(), Request{
		Op:   Write,
		Path: path,
		Data: data,
		Mode: 0o750,
	}, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o750 {
		t.Errorf("Stat: %v, %v, want mode %v", st, err, os.FileMode(0o750))
	}
	var got bytes.Buffer
	if _, err := c.Do(t.Context(), Request{Op: Read, Path: path}, &got); err != nil || !bytes.Equal(got.Bytes(), data) {
		t.Errorf("read %d bytes, %v; want the %d that were written", got.Len(), err, len(data))
	}
}

// writes tells a channel what a command has written.
type writes chan string

func (w writes) Write(p []byte) (int, error) {
	if len(p) > 0 {
		w <- string(p)
	}
	return len(p), nil
}

// A host that gives up ends the command, with its children.
func TestGivingUpEndsTheCommand(t *testing.T) {
	c := connect(t)
	ctx, cancel := context.WithCancel(t.Context())
	out := make(writes, 10)
	result := make(chan error, 1)
	go func() {
		_, err := c.Do(ctx, Request{Op: Run, Args: []string{"sh", "-c", "sleep 1000 & echo $!; wait"}}, out)
		result <- err
	}()
	var child int
	if _, err := fmt.Sscan(<-out, &child); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("Do = %v, want %v", err, context.Canceled)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
		if err != nil || strings.Contains(string(data), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			_ = syscall.Kill(child, syscall.SIGKILL)
			t.Fatalf("stat of the command's child = %s, want that it has ended", data)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
