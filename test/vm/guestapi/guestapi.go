// Package guestapi is what the machine that runs the tests and a virtual machine say to each other over
// a virtio-serial port, which works with no network: JSON objects one after the other. The host sends
// a Request and reads Replies until one is Done; then it may send the next. A connection that ends ends
// the command that runs on it, so a host that gives up leaves nothing behind.
package guestapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Port is the name of the virtio-serial port; the guest finds it in /dev/virtio-ports.
const Port = "edgecore.tests"

// Operations of a Request.
const (
	Run   = "run"   // run Args; output and exit code come back
	Read  = "read"  // the content of Path comes back as output
	Write = "write" // Path gets Data and Mode, whole or not at all
)

// maxChunk bounds the output in one Reply.
const maxChunk = 64 << 10

// Request is one thing to do.
type Request struct {
	ID   uint64
	Op   string
	Args []string `json:",omitempty"`
	Env  []string `json:",omitempty"` // added to the guest's own
	Path string   `json:",omitempty"`
	Data []byte   `json:",omitempty"` // what is written, or a command's standard input
	Mode os.FileMode
}

// Reply is a part of the answer to the request of that ID.
type Reply struct {
	ID     uint64
	Output []byte `json:",omitempty"` // standard output and error, mixed as they came
	Done   bool   `json:",omitempty"`
	Code   int    `json:",omitempty"` // a command's exit code, or 128 and its signal
	Error  string `json:",omitempty"` // why it could not be done at all
}

// Serve answers requests until the connection ends, which is no error.
func Serve(ctx context.Context, conn io.ReadWriter) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	requests := make(chan Request)
	var readErr error
	go func() {
		defer close(requests)
		defer cancel() // ends the command that runs
		decoder := json.NewDecoder(conn)
		for {
			var r Request
			if readErr = decoder.Decode(&r); readErr != nil {
				return
			}
			select {
			case requests <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	var writeErr error
	for r := range requests {
		if writeErr == nil {
			writeErr = answer(ctx, conn, &r)
		}
	}
	if errors.Is(readErr, io.EOF) || errors.Is(readErr, io.ErrUnexpectedEOF) {
		return nil
	}
	return errors.Join(readErr, writeErr)
}

func answer(ctx context.Context, conn io.Writer, r *Request) error {
	out := &replies{encoder: json.NewEncoder(conn), id: r.ID}
	last := Reply{ID: r.ID, Done: true}
	var err error
	switch r.Op {
	case Run:
		last.Code, err = run(ctx, r, out)
	case Read:
		err = read(r.Path, out)
	case Write:
		err = write(r)
	default:
		err = fmt.Errorf("no operation %q", r.Op)
	}
	if err != nil {
		last.Error = err.Error()
	}
	return out.encoder.Encode(last)
}

// replies is a Writer that sends what it gets as output.
type replies struct {
	encoder *json.Encoder
	id      uint64
}

func (w *replies) Write(p []byte) (int, error) {
	for start := 0; start < len(p); start += maxChunk {
		if err := w.encoder.Encode(Reply{ID: w.id, Output: p[start:min(start+maxChunk, len(p))]}); err != nil {
			return start, err
		}
	}
	return len(p), nil
}

func run(ctx context.Context, r *Request, out io.Writer) (code int, err error) {
	if len(r.Args) == 0 {
		return 0, errors.New("no command")
	}
	cmd := exec.CommandContext(ctx, r.Args[0], r.Args[1:]...)
	cmd.Env = append(os.Environ(), r.Env...)
	cmd.Stdout, cmd.Stderr = out, out
	if r.Data != nil {
		cmd.Stdin = bytes.NewReader(r.Data)
	}
	// A group of its own, so that a shell's children end with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	// A daemon that it leaves behind may hold its output open.
	cmd.WaitDelay = 5 * time.Second
	err = cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	if cmd.ProcessState == nil {
		return 0, err
	}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return 0, err
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return cmd.ProcessState.ExitCode(), nil
}

func read(path string, out io.Writer) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyBuffer(out, struct{ io.Reader }{f}, make([]byte, maxChunk))
	return err
}

func write(r *Request) error {
	if err := os.MkdirAll(filepath.Dir(r.Path), 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(r.Path), ".guest-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	_, err = tmp.Write(r.Data)
	if err := errors.Join(err, tmp.Chmod(r.Mode), tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), r.Path)
}
