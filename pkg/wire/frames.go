package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf8"
)

// Opcodes of WebSocket's frames (RFC 6455 section 5.2).
const (
	opContinuation = 0
	opText         = 1
	opBinary       = 2
	opClose        = 8
	opPing         = 9
	opPong         = 10

	maxControl = 125
)

// frame is complete: a control frame, or a message of one or more frames.
type frame struct {
	opcode   byte
	deflated bool
	payload  []byte
}

// frameReader parses a client's bytes in any pieces (RFC 6455 section 5): unlike a reader of a stream it can stop
// anywhere, so that nothing has to wait in the middle of a frame. Between messages it holds nothing.
type frameReader struct {
	limit   int64 // of the payload of a message
	deflate bool  // messages may be compressed

	head [14]byte
	have int // of head

	inFrame bool
	opcode  byte
	fin     bool
	mask    [4]byte
	masked  int    // bytes of this frame that were unmasked
	left    int64  // bytes of this frame that are missing
	control []byte // the payload of a control frame, which may interrupt a message

	inMessage bool
	kind      byte
	deflated  bool
	message   []byte
}

// feed reads bytes until a frame or message is complete, and returns the rest.
func (f *frameReader) feed(data []byte) (done *frame, rest []byte, err error) {
	for {
		if !f.inFrame {
			if data, err = f.header(data); err != nil || !f.inFrame {
				return nil, nil, err
			}
		}
		n := int(min(f.left, int64(len(data))))
		f.unmask(data[:n])
		data = data[n:]
		if f.left > 0 {
			return nil, nil, nil
		}
		f.inFrame = false
		if done := f.complete(); done != nil {
			return done, data, nil
		}
	}
}

// header reads the head of a frame; inFrame is set when it is complete.
func (f *frameReader) header(data []byte) (rest []byte, err error) {
	for len(data) > 0 {
		f.head[f.have] = data[0]
		f.have++
		data = data[1:]
		if f.have == f.headSize() {
			err := f.checkHead()
			f.have = 0
			return data, err
		}
	}
	return nil, nil
}

// headSize returns the length of the head, as far as its bytes tell.
func (f *frameReader) headSize() int {
	if f.have < 2 {
		return 2
	}
	size := 2
	switch f.head[1] & 0x7f {
	case 126:
		size += 2
	case 127:
		size += 8
	}
	if f.head[1]&0x80 != 0 {
		size += 4
	}
	return size
}

// checkHead checks the head of a frame.
func (f *frameReader) checkHead() error {
	b0, b1 := f.head[0], f.head[1]
	f.fin, f.opcode = b0&0x80 != 0, b0&0x0f
	size := f.headSize()
	if b1&0x80 == 0 {
		return errors.New("websocket: a frame of a client is not masked")
	}
	f.mask, f.masked = [4]byte(f.head[size-4:size]), 0
	length := uint64(b1 & 0x7f)
	switch length {
	case 126:
		length = uint64(binary.BigEndian.Uint16(f.head[2:]))
	case 127:
		length = binary.BigEndian.Uint64(f.head[2:])
	}
	compressed := b0&0x40 != 0
	if b0&0x30 != 0 || compressed && (!f.deflate || f.opcode != opText && f.opcode != opBinary) {
		return errors.New("websocket: reserved bits are set")
	}
	if err := f.fits(length); err != nil {
		return err
	}
	if f.opcode == opText || f.opcode == opBinary {
		f.inMessage, f.kind, f.deflated = true, f.opcode, compressed
	}
	f.left, f.inFrame = int64(length), true
	return nil
}

// fits reports whether a frame of this length may come now.
func (f *frameReader) fits(length uint64) error {
	switch f.opcode {
	case opClose, opPing, opPong:
		if length > maxControl || !f.fin {
			return errors.New("websocket: a control frame is too long, or in pieces")
		}
		return nil
	case opText, opBinary:
		if f.inMessage {
			return errors.New("websocket: a message begins within another")
		}
	case opContinuation:
		if !f.inMessage {
			return errors.New("websocket: a continuation frame without a message")
		}
	default:
		return fmt.Errorf("websocket: opcode %d is unknown", f.opcode)
	}
	if length > uint64(f.limit-int64(len(f.message))) {
		return &TooLarge{Limit: f.limit}
	}
	return nil
}

// unmask unmasks part of the payload.
func (f *frameReader) unmask(part []byte) {
	to := &f.message
	if f.opcode >= opClose {
		to = &f.control
	}
	at := len(*to)
	*to = append(*to, part...)
	for i := range (*to)[at:] {
		(*to)[at+i] ^= f.mask[(f.masked+i)&3]
	}
	f.masked += len(part)
	f.left -= int64(len(part))
}

// complete handles the end of a frame. It returns the completed frame or message.
func (f *frameReader) complete() *frame {
	if f.opcode >= opClose {
		done := &frame{opcode: f.opcode, payload: f.control}
		f.control = nil
		return done
	}
	if !f.fin {
		return nil
	}
	done := &frame{opcode: f.kind, deflated: f.deflated, payload: f.message}
	f.message, f.inMessage = nil, false
	return done
}

// closing reads the payload of a close frame.
func closing(payload []byte) error {
	if len(payload) == 0 {
		return &Closed{Code: closeNoStatusCode}
	}
	if len(payload) == 1 {
		return errors.New("websocket: a close frame of one byte")
	}
	code, text := int(binary.BigEndian.Uint16(payload)), payload[2:]
	known := code >= 1000 && code <= 1014 && code != 1004 && code != closeNoStatusCode && code != closeAbnormalCode
	if !known && (code < 3000 || code > 4999) {
		return fmt.Errorf("websocket: close code %d is invalid", code)
	}
	if !utf8.Valid(text) {
		return errors.New("websocket: the reason of a close frame is not UTF-8")
	}
	return &Closed{Code: code, Reason: printable(string(text))}
}
