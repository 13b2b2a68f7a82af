// Package channels is the client of a stream that a container runtime has opened: the streams of a command as numbered
// channels of one WebSocket, "v4.channel.k8s.io". The command line uses it on the device, where it can reach the
// runtime directly.
//
// This form cannot tell the command that its input has ended: a command that reads to the end waits for more.
package channels

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const protocol = "v4.channel.k8s.io"

// The channels.
const (
	stdin = iota
	stdout
	stderr
	outcome
	resize
)

const (
	// maxMessage is the largest that is taken: runtimes send what they read at once, at most 32 KB.
	maxMessage   = 1 << 20
	writeTimeout = 30 * time.Second
	dialTimeout  = 10 * time.Second
)

// Size is that of a terminal, in characters.
type Size struct{ Width, Height uint16 }

// Streams are those of the command here; nil leaves one out.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	// Sizes are those of the terminal, where there is one.
	Sizes <-chan Size
}

// Run joins streams to the command at a http URL of the runtime, and returns its exit code. It returns when the command
// has ended or ctx has; a Read of In that is under way then is left to itself.
func Run(ctx context.Context, url string, s Streams) (int, error) {
	dialer := websocket.Dialer{Subprotocols: []string{protocol}, HandshakeTimeout: dialTimeout}
	conn, resp, err := dialer.DialContext(ctx, "ws"+strings.TrimPrefix(url, "http"), nil)
	if err != nil {
		if resp != nil {
			text, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
			err = fmt.Errorf("%w: %s: %s", err, resp.Status, text)
		}
		return 0, fmt.Errorf("stream of the container runtime: %w", err)
	}
	defer conn.Close()
	conn.SetReadLimit(maxMessage)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	out := &writer{conn: conn}
	if s.In != nil {
		go out.copy(s.In) // ends with its input or the connection
	}
	if s.Sizes != nil {
		go out.sizes(ctx, s.Sizes)
	}
	return receive(conn, s)
}

// receive hands out what comes until the outcome does.
func receive(conn *websocket.Conn, s Streams) (int, error) {
	for {
		_, data, err := conn.ReadMessage()
		if err != nil {
			return 0, fmt.Errorf("stream of the container runtime ended before the command did: %w", err)
		}
		if len(data) == 0 {
			continue
		}
		switch to := map[byte]io.Writer{stdout: s.Out, stderr: s.Err}[data[0]]; {
		case data[0] == outcome && len(data) > 1:
			return decode(data[1:])
		case to != nil:
			if _, err := to.Write(data[1:]); err != nil {
				return 0, err
			}
		}
	}
}

// decode reads the outcome of a command.
func decode(data []byte) (int, error) {
	var st metav1.Status
	if err := json.Unmarshal(data, &st); err != nil {
		return 0, fmt.Errorf("outcome of the command %.200q: %w", data, err)
	}
	if st.Status == metav1.StatusSuccess {
		return 0, nil
	}
	if st.Reason == "NonZeroExitCode" && st.Details != nil {
		for _, c := range st.Details.Causes {
			if c.Type != "ExitCode" {
				continue
			}
			if code, err := strconv.ParseUint(c.Message, 10, 8); err == nil && code > 0 {
				return int(code), nil
			}
		}
	}
	return 0, errors.New(st.Message)
}

// writer is the way to the command.
type writer struct {
	mu   sync.Mutex
	conn *websocket.Conn
}

func (w *writer) send(channel byte, data []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	return w.conn.WriteMessage(websocket.BinaryMessage, append([]byte{channel}, data...))
}

func (w *writer) copy(in io.Reader) {
	buf := make([]byte, 8<<10)
	for {
		n, err := in.Read(buf)
		if n > 0 && w.send(stdin, buf[:n]) != nil || err != nil {
			return
		}
	}
}

func (w *writer) sizes(ctx context.Context, sizes <-chan Size) {
	for {
		select {
		case <-ctx.Done():
			return
		case size := <-sizes:
			data, err := json.Marshal(size)
			if err != nil || w.send(resize, data) != nil {
				return
			}
		}
	}
}
