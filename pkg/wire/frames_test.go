package wire

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// readFrames feeds bytes in pieces of a size, and returns what is complete, and the error that ended it.
func readFrames(data []byte, size int, deflate bool) (all []frame, err error) {
	f := frameReader{limit: 4096, deflate: deflate}
	for len(data) > 0 {
		n := min(size, len(data))
		part := bytes.Clone(data[:n])
		data = data[n:]
		for len(part) > 0 {
			done, rest, err := f.feed(part)
			if err != nil {
				return all, err
			}
			if part = rest; done != nil {
				all = append(all, *done)
			}
		}
	}
	return all, nil
}

// clientFrame is a frame as clients send them.
func clientFrame(first byte, payload []byte) []byte {
	out := []byte{first}
	switch n := len(payload); {
	case n <= maxControl:
		out = append(out, 0x80|byte(n))
	case n < 1<<16:
		out = binary.BigEndian.AppendUint16(append(out, 0x80|126), uint16(n))
	default:
		out = binary.BigEndian.AppendUint64(append(out, 0x80|127), uint64(n))
	}
	mask := []byte{0x5a, 1, 0xff, 0}
	out = append(out, mask...)
	for i, c := range payload {
		out = append(out, c^mask[i%4])
	}
	return out
}

// TestFrameReader: what a client sends is understood in whatever pieces it comes, control frames between those of a
// message too.
func TestFrameReader(t *testing.T) {
	const last = 0x80
	long := bytes.Repeat([]byte("0123456789"), 300)
	data := slices.Concat(
		clientFrame(opText, long[:2000]), clientFrame(opContinuation, nil), clientFrame(last|opPing, []byte("now")),
		clientFrame(last|opContinuation, long[2000:]), clientFrame(last|opBinary, nil),
		clientFrame(last|opText, long[:200]),
		clientFrame(last|opPong, nil), clientFrame(last|opClose, []byte("\x03\xe9bye")))
	want := []frame{
		{opcode: opPing, payload: []byte("now")}, {opcode: opText, payload: long}, {opcode: opBinary},
		{opcode: opText, payload: long[:200]}, {opcode: opPong}, {opcode: opClose, payload: []byte("\x03\xe9bye")},
	}
	for _, size := range []int{1, 2, 3, 7, 1000, len(data)} {
		got, err := readFrames(data, size, false)
		if err != nil {
			t.Fatalf("in pieces of %d: %v", size, err)
		}
		for i := range got {
			if len(got[i].payload) == 0 {
				got[i].payload = nil
			}
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(frame{})); diff != "" {
			t.Errorf("in pieces of %d (-want +got):\n%s", size, diff)
		}
	}
}

func TestClosing(t *testing.T) {
	for payload, want := range map[string]string{
		"":                 "the other end closed the link (code 1005)",
		"\x03\xe8":         "the other end closed the link (code 1000)",
		"\x0f\xa1other":    "the other end closed the link: other (code 4001)",
		"\x03":             "websocket: a close frame of one byte",
		"\x03\xedno":       "websocket: close code 1005 is invalid",
		"\x00\x01":         "websocket: close code 1 is invalid",
		"\x03\xe8\xff\xfe": "websocket: the reason of a close frame is not UTF-8",
	} {
		if got := closing([]byte(payload)).Error(); got != want {
			t.Errorf("%q: %s, want %s", payload, got, want)
		}
	}
}

// FuzzFrameReader: the pieces in which bytes come change nothing, and no message is over the limit.
func FuzzFrameReader(f *testing.F) {
	f.Add([]byte{0x81, 0x85, 0, 0, 0, 0, 'h', 'e', 'l', 'l', 'o'}, uint8(1), false)
	f.Add([]byte{0x01, 0x81, 1, 2, 3, 4, 'h', 0x89, 0x80, 0, 0, 0, 0, 0x80, 0x81, 1, 2, 3, 4, 'i'}, uint8(3), false)
	f.Add([]byte{0xc1, 0x87, 0, 0, 0, 0, 0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00}, uint8(2), true)
	f.Add([]byte{0x81, 0xff, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0}, uint8(5), false)
	f.Add(bytes.Repeat(clientFrame(0x80|opPing, nil), 4_000), uint8(255), false)
	f.Add(append(clientFrame(opText, nil), bytes.Repeat(clientFrame(opContinuation, nil), 4_000)...), uint8(255), false)
	f.Add(bytes.Repeat(clientFrame(0x80|opText, make([]byte, 130)), 100), uint8(0), false)
	f.Fuzz(func(t *testing.T, data []byte, size uint8, deflate bool) {
		var whole, parts []frame
		var wholeErr, partsErr error
		// The smallest frame has 6 bytes and makes a frame of 32, in a list that doubles; readFrames copies each piece.
		limit := membound.Linear(len(data), 64)
		membound.Check(t, limit, func() { whole, wholeErr = readFrames(data, max(len(data), 1), deflate) })
		membound.Check(t, limit, func() { parts, partsErr = readFrames(data, int(size)+1, deflate) })
		if diff := cmp.Diff(whole, parts, cmp.AllowUnexported(frame{})); diff != "" ||
			(wholeErr == nil) != (partsErr == nil) {
			t.Errorf("read in parts: %v, want as a whole: %v (-want +got):\n%s", partsErr, wholeErr, diff)
		}
		for _, f := range whole {
			if len(f.payload) > 4096 {
				t.Errorf("a message of %d bytes, want at most 4096", len(f.payload))
			}
		}
	})
}
