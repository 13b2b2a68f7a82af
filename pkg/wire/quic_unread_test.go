package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"testing"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/qlog"
	"github.com/quic-go/quic-go/qlogwriter"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/shares"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// packet is a packet that has come, with frames of a stream one after the other.
func packet(id quic.StreamID, offset int64, lengths ...int64) qlog.PacketReceived {
	var p qlog.PacketReceived
	for _, n := range lengths {
		p.Frames = append(p.Frames, qlog.Frame{Frame: &qlog.StreamFrame{StreamID: id, Offset: offset, Length: n}})
		offset += n
	}
	return p
}

// repeat returns n times the same length.
func repeat(n int, length int64) []int64 {
	lengths := make([]int64, n)
	for i := range lengths {
		lengths[i] = length
	}
	return lengths
}

// TestUnreadCounts: a frame counts from when it has come until its data was read, or its stream has ended.
func TestUnreadCounts(t *testing.T) {
	const id = quic.StreamID(1)
	small, large := costOfFrame(1), costOfFrame(1200)
	m := shares.NewMemoryOf(1<<30, 1<<30)
	u := newUnread(m)
	u.welcomed()
	u.open(id, nil, func() { t.Error("the stream was cut") })
	for _, step := range []struct {
		what string
		do   func()
		want int64
	}{
		{"frames of one byte", func() { u.RecordEvent(packet(id, 0, repeat(100, 1)...)) }, 100 * small},
		{"an empty frame", func() { u.RecordEvent(packet(id, 100, 0)) }, 100 * small},
		{"some are read", func() { u.read(id, 50) }, 100 * small},
		{"all are read", func() { u.read(id, 50) }, 0},
		{"they come again", func() { u.RecordEvent(packet(id, 0, repeat(100, 1)...)) }, 0},
		{"a gap, then large ones", func() { u.RecordEvent(packet(id, 2000, repeat(10, 1200)...)) }, 10 * large},
		{"the gap is filled", func() { u.RecordEvent(packet(id, 100, 1200, 700)) }, 12 * large},
		// The frames that end in the first 12 KiB: the two of the gap, and 8 of the large ones.
		{"the first 12 KiB are read", func() { u.read(id, 12<<10-100) }, 2 * large},
		{"data is read before it is counted", func() { u.read(id, 14000-12<<10+500) }, 0},
		{"it is counted", func() { u.RecordEvent(packet(id, 14000, 500)) }, 0},
		{"more comes", func() { u.RecordEvent(packet(id, 14500, 1)) }, small},
		{"it is beyond all windows", func() { u.RecordEvent(packet(id, 1<<40, 1)) }, small},
		{"a stream that nobody has opened", func() { u.RecordEvent(packet(5, 0, 1)) }, small},
		{"messages", func() { u.RecordEvent(packet(messagesStream, 0, 1, 1)) }, 3 * small},
		{"other frames", func() { u.RecordEvent(qlog.PacketSent{}) }, 3 * small},
		{"the stream has ended", func() { u.free(id); u.free(id) }, 2 * small},
		{"it is late", func() { u.RecordEvent(packet(id, 14501, 1)) }, 2 * small},
		{"the connection has ended", func() { _ = u.Close() }, 0},
		{"it is later still", func() { u.RecordEvent(packet(messagesStream, 2, 1)) }, 0},
	} {
		step.do()
		if got := m.Taken(); got != step.want {
			t.Errorf("%s: %d bytes are counted, want %d", step.what, got, step.want)
		}
	}
	if u.ctx.Err() != nil {
		t.Error("the link was ended, want it left alone")
	}
}

// TestUnreadHostile: of a node that fills its streams with frames of one byte, and ends none that the cloud cuts, the
// link ends when it has its share.
func TestUnreadHostile(t *testing.T) {
	m := shares.NewMemoryOf(128<<20, 16<<20)
	u := newUnread(m)
	u.welcomed()
	cut := map[quic.StreamID]bool{}
	var most int64
	for i := 0; u.ctx.Err() == nil; i++ {
		if i == StreamsMax {
			t.Fatalf("%d streams are full, and the link goes on; %d bytes are counted", i, m.Taken())
		}
		id := quic.StreamID(4*i + 1)
		u.open(id, nil, func() { cut[id] = true })
		for offset := int64(1); offset < streamWindow && !cut[id]; offset += 1024 {
			u.RecordEvent(packet(id, offset, repeat(1024, 1)...))
			most = max(most, m.Taken())
		}
	}
	if len(cut) == 0 || most < 12<<20 || most > 16<<20 {
		t.Errorf("%d streams were cut, at most %d bytes were counted; want some, and 12 to 16 MiB", len(cut), most)
	}
	if m.Taken() != 0 {
		t.Errorf("%d bytes are counted after the end, want none", m.Taken())
	}
}

// TestUnreadOfMessages: frames of the link's own streams, which are not cut, end it.
func TestUnreadOfMessages(t *testing.T) {
	m := shares.NewMemoryOf(128<<20, 16<<20)
	u := newUnread(m)
	u.welcomed()
	for offset := int64(1); offset < windowHigh && u.ctx.Err() == nil; offset += 1024 {
		u.RecordEvent(packet(messagesStream, offset, repeat(1024, 1)...))
	}
	if u.ctx.Err() == nil || m.Taken() != 0 {
		t.Errorf("the link has ended: %v, %d bytes are counted; want its end, and none", u.ctx.Err(), m.Taken())
	}
}

// TestUnreadEvicted: where there is no memory left, the link that takes most ends, not the one that asks.
func TestUnreadEvicted(t *testing.T) {
	m := shares.NewMemoryOf(1<<20, 1<<20)
	large, little := newUnread(m), newUnread(m)
	large.welcomed()
	little.welcomed()
	large.RecordEvent(packet(messagesStream, 1, repeat(4000, 1)...))
	little.RecordEvent(packet(messagesStream, 1, repeat(2000, 1)...))
	if large.ctx.Err() == nil || little.ctx.Err() != nil || m.Taken() != 2000*costOfFrame(1) {
		t.Errorf("ended: %v and %v, %d bytes are counted; want the first ended, and those of the second",
			large.ctx.Err(), little.ctx.Err(), m.Taken())
	}
}

// TestUnreadOfStrangers: a connection whose header message was not accepted yet has little memory, and CRYPTO frames
// after the handshake end a connection at any time.
func TestUnreadOfStrangers(t *testing.T) {
	m := shares.NewMemoryOf(128<<20, 16<<20)
	u := newUnread(m)
	for offset := int64(1); offset < 2*strangerMax/costOfFrame(1) && u.ctx.Err() == nil; offset += 100 {
		u.RecordEvent(packet(messagesStream, offset, repeat(100, 1)...))
		if taken := m.Taken(); taken > strangerMax {
			t.Fatalf("%d bytes are counted, want at most %d", taken, strangerMax)
		}
	}
	if u.ctx.Err() == nil || m.Taken() != 0 {
		t.Errorf("the connection has ended: %v, %d bytes are counted; want its end, and none", u.ctx.Err(), m.Taken())
	}
	for kind, want := range map[qlog.PacketType]bool{qlog.PacketTypeInitial: false, qlog.PacketType1RTT: true} {
		u := newUnread(m)
		u.welcomed()
		u.RecordEvent(qlog.PacketReceived{
			Header: qlog.PacketHeader{PacketType: kind},
			Frames: []qlog.Frame{{Frame: &qlog.CryptoFrame{Offset: 1, Length: 1}}},
		})
		if (u.ctx.Err() != nil) != want {
			t.Errorf("a CRYPTO frame in a packet of type %s: ended %v, want %v", kind, u.ctx.Err(), want)
		}
	}
}

// TestUnreadResets: the reset of a stream is acknowledged with the last packet that carried it, unless that was given
// up as lost. A node that acknowledges an earlier one is found out when the reset is sent once more, and its link ends.
func TestUnreadResets(t *testing.T) {
	const id = quic.StreamID(1)
	sent := func(number qlog.PacketNumber) qlog.PacketSent {
		return qlog.PacketSent{
			Header: qlog.PacketHeader{PacketType: qlog.PacketType1RTT, PacketNumber: number},
			Frames: []qlog.Frame{{Frame: &qlog.ResetStreamFrame{StreamID: id}}},
		}
	}
	lost := func(number qlog.PacketNumber) qlog.PacketLost {
		return qlog.PacketLost{Header: qlog.PacketHeader{PacketType: qlog.PacketType1RTT, PacketNumber: number}}
	}
	ack := func(kind qlog.PacketType, from, to qlog.PacketNumber) qlog.PacketReceived {
		return qlog.PacketReceived{Header: qlog.PacketHeader{PacketType: kind}, Frames: []qlog.Frame{
			{Frame: &qlog.AckFrame{AckRanges: []qlog.AckRange{{Smallest: from, Largest: to}}}},
		}}
	}
	for name, tc := range map[string]struct {
		events []qlogwriter.Event
		acked  bool
	}{
		"sent":              {[]qlogwriter.Event{sent(5)}, false},
		"acknowledged":      {[]qlogwriter.Event{sent(5), ack(qlog.PacketType1RTT, 3, 7)}, true},
		"another packet":    {[]qlogwriter.Event{sent(5), ack(qlog.PacketType1RTT, 6, 7)}, false},
		"another space":     {[]qlogwriter.Event{sent(5), ack(qlog.PacketTypeHandshake, 3, 7)}, false},
		"lost":              {[]qlogwriter.Event{sent(5), lost(5), ack(qlog.PacketType1RTT, 5, 5)}, false},
		"another is lost":   {[]qlogwriter.Event{sent(5), lost(4), ack(qlog.PacketType1RTT, 5, 5)}, true},
		"sent again":        {[]qlogwriter.Event{sent(5), sent(9), ack(qlog.PacketType1RTT, 5, 5)}, false},
		"the second":        {[]qlogwriter.Event{sent(5), sent(9), ack(qlog.PacketType1RTT, 9, 9)}, true},
		"acknowledged, but": {[]qlogwriter.Event{sent(5), ack(qlog.PacketType1RTT, 5, 5), sent(9)}, false},
	} {
		u := newUnread(shares.NewMemoryOf(1<<20, 1<<20))
		u.welcomed()
		acked := false
		u.open(id, func(is bool) { acked = is }, func() {})
		for _, e := range tc.events {
			u.RecordEvent(e)
		}
		if acked != tc.acked || u.ctx.Err() != nil {
			t.Errorf("%s: acknowledged: %t, the link has ended: %v; want %t, and that it goes on", name, acked,
				u.ctx.Err(), tc.acked)
		}
	}
	for unread, want := range map[int64]bool{0: false, 100: true} {
		u := newUnread(shares.NewMemoryOf(1<<20, 1<<20))
		u.welcomed()
		u.open(id, nil, func() {})
		u.RecordEvent(packet(id, 1, unread))
		u.free(id)
		u.RecordEvent(sent(9))
		if (u.ctx.Err() != nil) != want {
			t.Errorf("a reset that is sent after %d bytes were returned: the link has ended: %v, want %t", unread,
				u.ctx.Err(), want)
		}
	}
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // what is in a sync.Pool survives one
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

// TestQUICUnreadFrames: a node that fills the streams that nobody reads with frames of one byte takes no more memory
// than its share. The streams with most end, and their callers learn why. The link and a stream that is read go on.
func TestQUICUnreadFrames(t *testing.T) {
	const share = 4 << 20
	m := shares.NewMemoryOf(8*share, share)
	cloud := newQUICCloudOf(t, m, letAll(AcceptOptions{Limits: patient, Features: Features{Tunnel: true}}))
	edge, far := cloud.pair(cloud.options(cloud.addr, Features{Tunnel: true}))
	good, goodNode := openStream(t, edge, far)
	type pair struct {
		cloud net.Conn
		lost  func() error
		node  *Stream
	}
	before := heapInUse()
	var pairs []pair
	for range StreamsMax - 1 {
		c, lost, err := far.Streams().Open(t.Context(), reachedAt)
		if err != nil {
			t.Fatal(err)
		}
		node, err := edge.Streams().Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := node.Opener(); err != nil {
			t.Fatal(err)
		}
		pairs = append(pairs, pair{c, func() error { return context.Cause(lost) }, node})
	}
	cut := func() (n int) {
		for _, p := range pairs {
			if errors.Is(p.lost(), shares.ErrUnread) {
				n++
			}
		}
		return n
	}
	var most, counted int64
	for round := 0; cut() == 0; round++ {
		if round == 2000 {
			t.Fatalf("no stream was cut; %d bytes are counted", m.Taken())
		}
		for _, p := range pairs {
			_, _ = p.node.Write([]byte{1}) // fails once it was cut
		}
		// When it has come, what was written before has left the node.
		if _, err := goodNode.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(good, make([]byte, 5)); err != nil {
			t.Fatalf("the stream that is read: %v", err)
		}
		if round%100 == 99 {
			most, counted = max(most, heapInUse()-before), max(counted, m.Taken())
		}
	}
	if counted == 0 || most > counted+counted/4+1<<20 || counted > share {
		t.Errorf("unread frames take %d KiB, and %d are counted; want about as much, and at most %d", most>>10,
			counted>>10, share>>10)
	}
	t.Logf("%d KiB, counted %d KiB, %d streams cut", most>>10, counted>>10, cut())
	for _, p := range pairs {
		if errors.Is(p.lost(), shares.ErrUnread) {
			wait.True(t, "the caller of a cut stream to get an error", func() bool {
				_, err := p.cloud.Read(make([]byte, 1024))
				return err != nil
			})
		}
		_, _ = p.cloud.Close(), p.node.Close()
	}
	wait.True(t, "the memory of closed streams to be returned", func() bool { return m.Taken() == 0 })
	up, _ := reading(far)
	if err := edge.Write(model.New("", "", "after", "insert", nil)); err != nil {
		t.Fatal(err)
	}
	if m := wait.Receive(t, "a message", up); m.Route.Resource != "after" && m.Route.Operation != "after" {
		t.Errorf("the message is %+v, want the one that was sent", m.Route)
	}
}
