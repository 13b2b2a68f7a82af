package proxy

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// way is one direction of one connection.
type way struct {
	f    *Frames
	dir  Direction
	from *bufio.Reader
	to   net.Conn
	// cut ends the connection, without TLS's farewell.
	cut func()

	mu      sync.Mutex
	held    []held
	timer   *time.Timer
	partial []byte // the frames of a message that has not ended
}

// held is a message that goes out after some others.
type held struct {
	after int
	raw   []byte
}

// run passes messages until either end is gone.
func (w *way) run() {
	defer w.cut()
	for {
		raw, control, err := w.read()
		if err == nil && control {
			err = w.write(raw, false)
		} else if err == nil {
			err = w.message(raw)
		}
		if err != nil {
			break
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
}

// message does to a message what is to be done to it.
func (w *way) message(raw []byte) error {
	what, n := w.f.take(w.dir)
	switch what {
	case Drop:
		return nil
	case Duplicate:
		raw = append(slices.Clone(raw), raw...)
	case Delay:
		w.f.opts.Sleep(time.Duration(n) * time.Microsecond % w.f.opts.HeldTime)
	case Echo:
		err := w.write(raw, true)
		w.hold(raw, n)
		return err
	case Reorder:
		w.hold(raw, n)
		return nil
	case CutFrame:
		_ = w.write(raw[:n%len(raw)], false)
		return fmt.Errorf("cut after %d of %d bytes", n%len(raw), len(raw))
	}
	return w.write(raw, true)
}

func (w *way) hold(raw []byte, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = append(w.held, held{after: 1 + n%heldMessages, raw: raw})
	if w.timer == nil {
		w.timer = time.AfterFunc(w.f.opts.HeldTime, w.release)
	} else {
		w.timer.Reset(w.f.opts.HeldTime)
	}
}

// release lets go of all that is held.
func (w *way) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.held {
		_, _ = w.to.Write(h.raw) // run sees that it is closed
	}
	w.held = nil
}

// write passes bytes on, and after a message those that were held for it.
func (w *way) write(raw []byte, message bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.to.Write(raw); err != nil || !message {
		return err
	}
	keep := w.held[:0]
	for _, h := range w.held {
		if h.after--; h.after > 0 {
			keep = append(keep, h)
			continue
		}
		if _, err := w.to.Write(h.raw); err != nil {
			return err
		}
	}
	w.held = keep
	return nil
}

// maxFrame bounds what is read into memory.
const maxFrame = 32 << 20

// read reads the frames of one message, or a control frame, which may come in between (RFC 6455 section 5). A mask
// stays on: it travels with its frame.
func (w *way) read() (raw []byte, control bool, err error) {
	for {
		frame, err := readFrame(w.from)
		if err != nil {
			return nil, false, err
		}
		if frame[0]&0x08 != 0 {
			return frame, true, nil
		}
		w.partial = append(w.partial, frame...)
		if frame[0]&0x80 != 0 {
			raw, w.partial = w.partial, nil
			return raw, false, nil
		}
	}
}

func readFrame(from io.Reader) ([]byte, error) {
	frame := make([]byte, 2, 512)
	if _, err := io.ReadFull(from, frame); err != nil {
		return nil, err
	}
	size, more := uint64(frame[1]&0x7f), 0
	if frame[1]&0x80 != 0 {
		more = 4
	}
	extended := map[uint64]int{126: 2, 127: 8}[size]
	head := make([]byte, extended+more)
	if _, err := io.ReadFull(from, head); err != nil {
		return nil, err
	}
	switch extended {
	case 2:
		size = uint64(binary.BigEndian.Uint16(head))
	case 8:
		size = binary.BigEndian.Uint64(head)
	}
	if size > maxFrame {
		return nil, fmt.Errorf("a frame of %d bytes", size)
	}
	frame = append(frame, head...)
	start := len(frame)
	frame = append(frame, make([]byte, size)...)
	_, err := io.ReadFull(from, frame[start:])
	return frame, err
}
