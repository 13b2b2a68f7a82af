package wire

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"

	"github.com/klauspost/compress/flate"
)

const (
	// maxHead is the longest head of a frame: two bytes, eight of the length, four of the mask.
	maxHead = 14
	// flushed ends a compressed message, and is left out (RFC 7692 section 7.2.1).
	flushed = "\x00\x00\xff\xff"

	bitFinal, bitDeflated, bitMasked = 0x80, 0x40, 0x80
)

// outgoing is the payload of a text message behind maxHead bytes of room: each frame's head is put before its payload,
// over what has been sent already.
type outgoing struct {
	data     []byte
	deflated bool
}

// plain is a message as it is.
func plain(payload []byte) outgoing {
	return outgoing{data: append(make([]byte, maxHead, maxHead+len(payload)), payload...)}
}

// compressed is a message in the form of permessage-deflate. Nothing is kept between messages: the writers of
// compress/flate, which gorilla uses, have 1.2 MB each, and make a new one after each garbage collection. The goroutine
// is for the stack: this takes 16 KB of it, more than the stacks of thousands of links should keep.
func compressed(payload []byte) outgoing {
	out := bytes.NewBuffer(append(make([]byte, 0, maxHead+len(payload)/2), make([]byte, maxHead)...))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = flate.StatelessDeflate(out, payload, false, nil) // fails only if the buffer does
	}()
	<-done
	return outgoing{data: bytes.TrimSuffix(out.Bytes(), []byte(flushed)), deflated: true}
}

// frames calls write with each frame of the message, which has at most size bytes of payload. Those of a client are
// masked. It may be called once.
func (o outgoing) frames(size int, client bool, write func(frame []byte) error) error {
	left := len(o.data) - maxHead
	first := byte(opText)
	if o.deflated {
		first |= bitDeflated
	}
	for at := maxHead; ; {
		n := min(left, size)
		if left -= n; left == 0 {
			first |= bitFinal
		}
		head := make([]byte, 0, maxHead)
		if head = appendHead(head, first, n, client); client {
			applyMask(head[len(head)-4:], o.data[at:at+n])
		}
		copy(o.data[at-len(head):], head)
		if err := write(o.data[at-len(head) : at+n]); err != nil || left == 0 {
			return err
		}
		at += n
		first = opContinuation
	}
}

// appendHead appends the head of a frame with n bytes of payload. The mask of a client is its last four bytes.
func appendHead(head []byte, first byte, n int, client bool) []byte {
	masked := byte(0)
	if client {
		masked = bitMasked
	}
	switch {
	case n <= maxControl:
		head = append(head, first, masked|byte(n))
	case n < 1<<16:
		head = binary.BigEndian.AppendUint16(append(head, first, masked|126), uint16(n))
	default:
		head = binary.BigEndian.AppendUint64(append(head, first, masked|127), uint64(n))
	}
	if client {
		head = head[:len(head)+4]
		_, _ = rand.Read(head[len(head)-4:]) // never fails
	}
	return head
}

// controlFrame is a close, ping or pong frame.
func controlFrame(op byte, data []byte, client bool) []byte {
	frame := appendHead(make([]byte, 0, maxHead+len(data)), bitFinal|op, len(data), client)
	at := len(frame)
	frame = append(frame, data...)
	if client {
		applyMask(frame[at-4:at], frame[at:])
	}
	return frame
}

func applyMask(mask, data []byte) {
	for i := range data {
		data[i] ^= mask[i&3]
	}
}
