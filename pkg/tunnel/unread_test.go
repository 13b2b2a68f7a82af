package tunnel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgecore-io/edgecore/pkg/shares"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// dataFrame is a data frame of a stream with n bytes.
func dataFrame(stream uint32, n int) []byte {
	b := make([]byte, headerSize, headerSize+n)
	binary.BigEndian.PutUint32(b[headerStream:], stream)
	binary.BigEndian.PutUint32(b[headerLength:], uint32(n))
	return append(b, make([]byte, n)...)
}

// TestParseFrames: data frames are found, in whatever pieces they arrive.
func TestParseFrames(t *testing.T) {
	window := dataFrame(1, 0)
	window[headerType] = 1 // a window update, whose length is no length
	binary.BigEndian.PutUint32(window[headerLength:], 1<<20)
	data := slices.Concat(dataFrame(1, 1), window, dataFrame(3, 300), dataFrame(5, 0), dataFrame(3, 22))
	want := [][2]uint32{{1, 1}, {3, 300}, {3, 22}}
	for _, piece := range []int{1, 5, 12, 13, 1 << 20} {
		var p frameParser
		var got [][2]uint32
		for part := range slices.Chunk(data, piece) {
			if err := p.parse(part, func(f frame) error {
				if f.data() {
					got = append(got, [2]uint32{f.stream, f.length})
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("in pieces of %d bytes: frames %v, want %v", piece, got, want)
		}
	}
	var p frameParser
	refused := errors.New("refused")
	if err := p.parse(data, func(frame) error { return refused }); err != refused {
		t.Errorf("parse = %v, want the error of its caller", err)
	}
}

// liveHeap is how many bytes of the heap are in use after a collection.
func liveHeap() int64 {
	runtime.GC()
	runtime.GC() // what is in a sync.Pool survives one
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

// TestUnreadFrames: a node that fills all streams of a tunnel, which nobody reads, takes no more memory than its share,
// whatever the size of its frames. Streams that are read go on.
func TestUnreadFrames(t *testing.T) {
	for name, sizes := range map[string][]int{
		"of 32 and 1 bytes": {32, 1}, "of 22 bytes": {22}, "of 16 KiB": {16 << 10},
		"just above a power of two": {16<<10 + 1},
	} {
		t.Run(name, func(t *testing.T) {
			const streams = 256
			m := shares.NewMemory()
			cloud, node := tcpPair(t)
			go func() { _, _ = io.Copy(io.Discard, node) }() // until the test ends
			o, err := NewOpener(cloud, m)
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- o.Run() }()
			before := liveHeap()
			// As after SYNs, the node acknowledges them, so that more can be opened.
			ack := func(id uint32) []byte {
				b := dataFrame(id, 0)
				b[headerType], b[3] = 1, 2
				return b
			}
			var cut int
			unread := map[uint32]func() bool{}
			for i := range streams {
				_, lost, err := o.Open()
				if err != nil {
					t.Fatal(err)
				}
				id := uint32(2*i + 1)
				unread[id] = func() bool { return lost.Err() == nil }
				if _, err := node.Write(ack(id)); err != nil {
					t.Fatal(err)
				}
			}
			good, lost, err := o.Open()
			if err != nil {
				t.Fatal(err)
			}
			most := int64(0)
			goodID := uint32(2*streams + 1)
			for id := uint32(1); id < goodID; id += 2 {
				var b bytes.Buffer
				sent := 0
				for next := 0; sent+sizes[next%len(sizes)] <= 100<<10; next++ {
					n := sizes[next%len(sizes)]
					b.Write(dataFrame(id, n))
					sent += n
				}
				if _, err := node.Write(b.Bytes()); err != nil {
					t.Fatal(err)
				}
				if _, err := node.Write(dataFrame(goodID, 5)); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(good, make([]byte, 5)); err != nil {
					t.Fatalf("the stream that is read: %v", err)
				}
				if id%64 == 1 || id+2 == goodID {
					b = bytes.Buffer{}
					most = max(most, liveHeap()-before)
				}
			}
			for _, open := range unread {
				if !open() {
					cut++
				}
			}
			if most > m.Share()+m.Share()/4 {
				t.Errorf("unread frames take %d KiB, want at most about the share of a node, %d", most>>10,
					m.Share()>>10)
			}
			if cut == 0 || cut == streams || lost.Err() != nil {
				t.Errorf("%d of %d unread streams are cut, and the one that is read: %v; want some, and it open", cut,
					streams, lost.Err())
			}
			t.Logf("%d KiB, %d of %d streams cut, counted %d KiB", most>>10, cut, streams, m.Taken()>>10)
			_ = o.Close()
			wait.Receive(t, "the end of the tunnel", ended)
			if m.Taken() != 0 {
				t.Errorf("%d bytes are counted after the end of the tunnel, want none", m.Taken())
			}
		})
	}
}

// TestCutUnblocksCaller: where a node's share is used up, the caller that does not read loses its connection although
// the copying of it waits for that caller.
func TestCutUnblocksCaller(t *testing.T) {
	cloud, node := tcpPair(t)
	m := shares.NewMemoryOf(1<<20, 512<<10)
	o, err := NewOpener(cloud, m)
	if err != nil {
		t.Fatal(err)
	}
	a, err := NewAcceptor(node)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- o.Run() }()
	defer func() {
		_ = o.Close()
		_ = a.Close()
		<-ended
	}()
	stream, lost, err := o.Open()
	if err != nil {
		t.Fatal(err)
	}
	far, err := a.Accept()
	if err != nil {
		t.Fatal(err)
	}
	caller, near := net.Pipe() // which nobody reads
	defer caller.Close()
	joined := make(chan struct{})
	go func() {
		defer close(joined)
		Join(near, stream, nil, nil)
	}()
	go func() { _, _ = io.Copy(far, zeros{}) }() // until it is cut
	wait.Closed(t, "the stream to be cut", lost.Done())
	_ = near.Close() // as cloudstream does then
	wait.Closed(t, "the end of copying", joined)
	if m.Taken() != 0 {
		t.Errorf("%d bytes are counted after the stream was cut, want none", m.Taken())
	}
}

// TestCutWhileSendingFails: a tunnel ends although one of its streams is cut while nothing can be sent to the node. The
// node stops reading, so that the cut waits behind what is queued until sending fails.
func TestCutWhileSendingFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const queued = 64 // frames that yamux queues
		cloud, node := net.Pipe()
		defer node.Close()
		m := shares.NewMemoryOf(1<<20, 128<<10)
		o, err := NewOpener(cloud, m)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- o.Run() }()
		if _, err := io.ReadFull(node, make([]byte, headerSize)); err != nil { // the first ping
			t.Fatal(err)
		}
		time.Sleep(answerTimeout / 4)
		for range queued {
			if _, _, err := o.Open(); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(answerTimeout / 4) // a frame that arrives delays the keepalive beyond the end of sending
		for id := uint32(1); id < 10; id += 2 {
			if _, err := node.Write(dataFrame(id, 60<<10)); err != nil {
				break // the tunnel has ended
			}
		}
		select {
		case err := <-ended:
			if err == nil {
				t.Error("Run = nil, want why the tunnel ended")
			}
		case <-time.After(answerTimeout):
			panic("the tunnel has not ended after sending has failed, want it to end")
		}
		if m.Taken() != 0 {
			t.Errorf("%d bytes are counted after the end of the tunnel, want none", m.Taken())
		}
	})
}
