package wire

import (
	"bytes"
	"compress/flate"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// writtenFrames returns the frames of a message.
func writtenFrames(t testing.TB, o outgoing, size int, client bool) (all [][]byte) {
	t.Helper()
	err := o.frames(size, client, func(f []byte) error {
		all = append(all, bytes.Clone(f))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// checkFrames: what a client writes is what the cloud's reader understands, and with at most size bytes a frame.
func checkFrames(t testing.TB, payload []byte, size int, deflate bool) {
	t.Helper()
	form := plain
	if deflate {
		form = compressed
	}
	frames := writtenFrames(t, form(bytes.Clone(payload)), size, true)
	for _, f := range frames {
		if len(f) > size+maxHead {
			t.Errorf("a frame has %d bytes, want at most %d and its head", len(f), size)
		}
	}
	r := frameReader{limit: int64(len(payload) + 1024), deflate: true}
	got, rest, err := r.feed(bytes.Join(frames, nil))
	if err != nil || got == nil || len(rest) > 0 {
		t.Fatalf("reading %d bytes in %d frames = %v, %d bytes left, %v",
			len(payload), len(frames), got, len(rest), err)
	}
	read := got.payload
	if deflate {
		in := io.MultiReader(bytes.NewReader(read), strings.NewReader(tail))
		if read, err = io.ReadAll(flate.NewReader(in)); err != nil {
			t.Fatal(err)
		}
	}
	if got.opcode != opText || got.deflated != deflate || !bytes.Equal(read, payload) {
		t.Errorf("a message of %d bytes came as opcode %d, deflated %v, with %d bytes, want the same text, deflated %v",
			len(payload), got.opcode, got.deflated, len(read), deflate)
	}
}

// TestFrames: messages of any length, at the borders of all forms of a frame's head.
func TestFrames(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 125, 126, 4095, 4096, 4097, 8192, 65535, 65536, 200_000} {
		for _, size := range []int{1 << 12, 1 << 20} {
			for _, deflate := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d bytes in frames of %d, deflated %v", n, size, deflate), func(t *testing.T) {
					noise := make([]byte, n)
					for i := range noise {
						noise[i] = byte(random.Uint32())
					}
					checkFrames(t, noise, size, deflate)
					checkFrames(t, bytes.Repeat([]byte("pod "), n/4), size, deflate)
				})
			}
		}
	}
}

// TestServerFrames: the cloud does not mask, and sends short messages in one frame.
func TestServerFrames(t *testing.T) {
	got := writtenFrames(t, plain([]byte("hello")), 3, false)
	want := [][]byte{[]byte("\x01\x03hel"), []byte("\x80\x02lo")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("frames (-want +got):\n%s", diff)
	}
	got = writtenFrames(t, compressed(bytes.Repeat([]byte{'a'}, 100)), 1<<10, false)
	if len(got) != 1 || got[0][0] != bitFinal|bitDeflated|opText || bytes.HasSuffix(got[0], []byte(flushed)) {
		t.Errorf("frames of a compressed message = %x, want one that is final and has no flush at its end", got)
	}
}

// FuzzWriteFrames does the same with any payload.
func FuzzWriteFrames(f *testing.F) {
	f.Add([]byte(`{"kind":"Pod"}`), uint16(100), true)
	f.Add([]byte{}, uint16(0), false)
	f.Fuzz(func(t *testing.T, payload []byte, size uint16, deflate bool) {
		checkFrames(t, payload, int(size)+1, deflate)
	})
}

func BenchmarkWriteFrames(b *testing.B) {
	payload, err := EncodeJSON(message(2000))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := compressed(payload).frames(writeStep, true, func([]byte) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
