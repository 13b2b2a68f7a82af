package broker

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// lively checks that the broker still serves a well-behaved client.
func lively(t testing.TB, b *Broker, address string) {
	t.Helper()
	r := session(t, address, "lively")
	r.subscribe("alive/+")
	if err := b.Publish("alive/x", []byte("yes"), false); err != nil {
		t.Fatal(err)
	}
	for {
		if pk := r.read(); pk.FixedHeader.Type == packets.Publish && string(pk.Payload) == "yes" {
			break
		}
	}
	_ = r.Close()
}

// TestMillionTopics: topics without subscribers cost nothing that stays.
func TestMillionTopics(t *testing.T) {
	b, address := start(t, Options{Limits: Limits{MessagesPerSecond: 1e9, Burst: 1e9}})
	r := session(t, address, "flood")
	var out bytes.Buffer
	for i := range 1_000_000 {
		retain := i%2 == 0
		name := fmt.Sprintf("t/%d/%d", i%1000, i/1000)
		out.Write(encode(t, packets.Packet{
			FixedHeader:     packets.FixedHeader{Type: packets.Publish, Retain: retain},
			ProtocolVersion: 4, TopicName: name, Payload: []byte("x"),
		}))
		if out.Len() > 1<<20 {
			if _, err := out.WriteTo(r); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := out.WriteTo(r); err != nil {
		t.Fatal(err)
	}
	r.ping()
	number, size := b.hook.retainedNow()
	kept := b.server.Topics.Retained.Len()
	if number != DefaultRetained || kept != number || size > DefaultRetainedBytes {
		t.Errorf("retained messages = %d (the server has %d) of %d bytes, want %d", number, kept, size, DefaultRetained)
	}
	if n := b.Dropped()["too_many_retained"]; n != 500_000-DefaultRetained {
		t.Errorf("refused = %d, want %d", n, 500_000-DefaultRetained)
	}
	lively(t, b, address)
}

// TestRetainedFlood: bytes are bounded, too, removed messages make room, and the agent's own are always kept.
func TestRetainedFlood(t *testing.T) {
	b, address := start(t, Options{Limits: Limits{MessagesPerSecond: 1e9, Burst: 1e9}})
	r := session(t, address, "flood")
	payload := bytes.Repeat([]byte("x"), DefaultPayloadBytes)
	for i := range 200 {
		r.publish(fmt.Sprint("big/", i), payload, true)
	}
	r.ping()
	if number, size := b.hook.retainedNow(); size > DefaultRetainedBytes || number < 60 {
		t.Errorf("retained = %d messages of %d bytes, want at most %d bytes", number, size, DefaultRetainedBytes)
	}
	if err := b.Publish("own", payload, true); err != nil {
		t.Fatal(err)
	}
	if len(b.server.Topics.Messages("own")) != 1 {
		t.Error("the agent's message is not retained, want it to be")
	}
	for i := range 200 {
		r.publish(fmt.Sprint("big/", i), nil, true)
	}
	r.ping()
	if number, size := b.hook.retainedNow(); number != 1 || size != len("own")+len(payload) {
		t.Errorf("after the removal: %d messages of %d bytes, want the agent's own", number, size)
	}
}

// TestRetainedExpiry: messages that expire leave no nodes in the tree of topics.
func TestRetainedExpiry(t *testing.T) {
	b, address := start(t, Options{})
	r := dial(t, address)
	r.version = 5
	r.connect("short", nil)
	for i := range 100 {
		r.send(packets.Packet{
			FixedHeader: packets.FixedHeader{Type: packets.Publish, Retain: true},
			TopicName:   fmt.Sprint("short/", i),
			Payload:     []byte("x"),
			Properties:  packets.Properties{MessageExpiryInterval: 1},
		})
	}
	r.ping()
	wait.True(t, "the messages to expire", func() bool { n, _ := b.hook.retainedNow(); return n == 0 })
	if n := b.server.Topics.Retained.Len(); n != 0 {
		t.Errorf("retained messages of the server = %d, want 0", n)
	}
}

func TestSubscriptionLimits(t *testing.T) {
	b, address := start(t, Options{Limits: Limits{
		Subscriptions: 5, Wildcards: 2, AllSubscriptions: 7, MessagesPerSecond: 1e6, Burst: 1e6,
	}})
	const ok, refused = 1, 0x80
	expect := func(what string, got []byte, want ...byte) {
		t.Helper()
		if !bytes.Equal(got, want) {
			t.Errorf("%s: codes = %v, want %v", what, got, want)
		}
	}
	first := session(t, address, "first")
	expect("wildcards", first.subscribe("a/+", "b/#", "#", "a/+"), ok, ok, refused, ok)
	expect("own limit", first.subscribe("1", "2", "3", "4"), ok, ok, ok, refused)
	expect("invalid", first.subscribe("a/#/b", strings.Repeat("x/", 40), strings.Repeat("x", 2000)),
		refused, refused, refused)
	second := session(t, address, "second")
	expect("all clients' limit", second.subscribe("1", "2", "3"), ok, ok, refused)
	_ = first.Close()
	wait.True(t, "the first client to be gone", func() bool { return b.Clients() == 1 })
	wait.True(t, "room", func() bool { return second.subscribe("3")[0] == ok })
}

// TestManyFilters: a packet with thousands of filters costs one client's rate, not the broker.
func TestManyFilters(t *testing.T) {
	b, address := start(t, Options{})
	r := session(t, address, "many")
	var filters []string
	for range 10_000 {
		filters = append(filters, "#")
	}
	granted := 0
	for _, code := range r.subscribe(filters...) {
		if code < 3 {
			granted++
		}
	}
	if most := 2 * DefaultBurst / wildcardCost; granted > most {
		t.Errorf("granted of 10,000 times # in a packet = %d, want at most %d", granted, most)
	}
	lively(t, b, address)
}

// TestSlowReader: a subscriber that does not read costs a bounded queue, and others nothing.
func TestSlowReader(t *testing.T) {
	b, address := start(t, Options{Limits: Limits{WriteTimeout: time.Hour}})
	slow := session(t, address, "slow")
	slow.subscribe("data")
	fast := session(t, address, "fast")
	fast.subscribe("data")
	payload := bytes.Repeat([]byte("x"), 32<<10)
	// 64 MB, more than the buffers of two sockets. The fast client may have less than DefaultQueueBytes unconfirmed, so
	// it gets the next messages when the broker has read its confirmations.
	for range 125 {
		for range 16 {
			if err := b.Publish("data", payload, false); err != nil {
				t.Fatal(err)
			}
		}
		for range 16 {
			pk := fast.read()
			if !bytes.Equal(pk.Payload, payload) {
				t.Fatalf("payload of %d bytes, want %d", len(pk.Payload), len(payload))
			}
			fast.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Puback}, PacketID: pk.PacketID})
		}
		if q, i := b.queue.used.Load(), b.inflight.used.Load(); q > 2*DefaultQueueBytes || i > 3*DefaultQueueBytes {
			t.Fatalf("queued %d and not confirmed %d bytes, want about %d a client", q, i, DefaultQueueBytes)
		}
		wait.True(t, "the broker to read the confirmations", func() bool { return unconfirmed(b, "fast") == 0 })
	}
	if n := b.Dropped(); n["unconfirmed"]+n["queue_full"]+n["slow_client"] == 0 {
		t.Errorf("dropped = %v, want messages of the slow client", n)
	}
}

// unconfirmed is how many messages a client has not confirmed.
func unconfirmed(b *Broker, id string) int {
	b.hook.mu.Lock()
	defer b.hook.mu.Unlock()
	for cl, c := range b.hook.clients {
		if cl.ID == id {
			return len(c.inflight)
		}
	}
	return 0
}

// TestOversized: such packets end the connection, and cost no more than their header.
func TestOversized(t *testing.T) {
	b, address := start(t, Options{})
	r := session(t, address, "big")
	r.publish("a", bytes.Repeat([]byte("x"), DefaultPayloadBytes+1), false) // within the packet's limit
	r.closed()
	if n := b.Dropped()["payload_too_large"]; n != 1 {
		t.Errorf("too large payloads = %d, want 1", n)
	}
	five := dial(t, address)
	five.version = 5
	five.connect("big5", nil)
	five.publish("a", bytes.Repeat([]byte("x"), DefaultPayloadBytes+1), false)
	if code := five.closed(); code != packets.ErrPacketTooLarge.Code {
		t.Errorf("code of the disconnect = %#x, want %#x", code, packets.ErrPacketTooLarge.Code)
	}
	for _, header := range [][]byte{{0x10, 0xff, 0xff, 0xff, 0x7f}, {0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}} {
		r := dial(t, address)
		_, _ = r.Write(header)
		r.closed()
	}
	lively(t, b, address)
}

// TestClientLimits: connections, sessions and client ids.
func TestClientLimits(t *testing.T) {
	b, address := start(t, Options{Limits: Limits{Clients: 4, Sessions: 6, ConnectTimeout: 50 * time.Millisecond}})
	for i := range 20 { // sessions that stay when their clients have gone
		r := dial(t, address)
		r.connect(fmt.Sprint("gone", i), func(pk *packets.Packet) { pk.Connect.Clean = false })
		r.subscribe("a", "b/#")
		_ = r.Close()
		wait.True(t, "the client to be gone", func() bool { return b.Clients() == 0 })
	}
	if n := b.server.Clients.Len(); n > 7 { // with the agent
		t.Errorf("sessions = %d, want at most 6", n-1)
	}
	if n := b.hook.subscriptions(); n > 12 {
		t.Errorf("subscriptions = %d, want those of 6 sessions", n)
	}
	for _, id := range []string{"inline", strings.Repeat("x", 300)} {
		r := dial(t, address)
		r.send(packets.Packet{
			FixedHeader: packets.FixedHeader{Type: packets.Connect}, ProtocolVersion: 4,
			Connect: packets.ConnectParams{ProtocolName: []byte("MQTT"), ClientIdentifier: id, Clean: true},
		})
		r.closed()
	}
	for i := range 4 {
		session(t, address, fmt.Sprint("here", i))
	}
	if code := dial(t, address).connect("fifth", nil); code != 3 {
		t.Errorf("answer to the fifth client = %d, want 3: unavailable", code)
	}
	dial(t, address).closed() // says nothing, and is disconnected
}

// TestMalformed sends each kind of nonsense to a broker on a socket.
func TestMalformed(t *testing.T) {
	b, address := start(t, Options{})
	for _, before := range []bool{false, true} {
		for i := range 300 {
			r := dial(t, address)
			if before {
				r.connect("nonsense", nil)
			}
			junk := make([]byte, 1+i)
			_, _ = rand.Read(junk)
			junk[0] = byte(i) // each type of packet with all flags
			_, _ = r.Write(junk)
			_ = r.Close()
		}
	}
	wait.True(t, "all to be gone", func() bool { return b.Clients() == 0 })
	lively(t, b, address)
	b.hook.mu.Lock()
	defer b.hook.mu.Unlock()
	if n := len(b.hook.clients); n > 1 {
		t.Errorf("clients that the hook knows = %d, want none of those that have gone", n)
	}
}

// truncated is a SUBSCRIBE of MQTT 5 that ends before its options, on which the server's decoder panics.
func truncated() []byte { return []byte("\x82\x08\x00\x01\x00\x00\x03a/b") }

// TestPanic: a packet on which the server's decoder panics ends only the connection and the session of its sender.
func TestPanic(t *testing.T) {
	b, address := start(t, Options{})
	r := dial(t, address)
	r.version = 5
	r.connect("attacker", nil)
	_, _ = r.Write(truncated())
	r.closed()
	wait.True(t, "the attacker to be forgotten", func() bool { return b.server.Clients.Len() == 1 })
	if n := b.Dropped()["failed"]; n != 1 {
		t.Errorf("failures = %d, want 1", n)
	}
	lively(t, b, address)
}

// FuzzPackets sends bytes after a valid CONNECT. The broker may close the connection, but not fail.
func FuzzPackets(f *testing.F) {
	for _, version := range []byte{4, 5} {
		for _, pk := range []packets.Packet{
			{
				FixedHeader: packets.FixedHeader{Type: packets.Publish, Retain: true},
				TopicName:   "a/b",
				Payload:     []byte("x"),
			},
			{
				FixedHeader: packets.FixedHeader{Type: packets.Subscribe, Qos: 1},
				PacketID:    1,
				Filters:     packets.Subscriptions{{Filter: "a/+", Qos: 2}},
			},
			{FixedHeader: packets.FixedHeader{Type: packets.Puback}, PacketID: 1},
			{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}},
		} {
			pk.ProtocolVersion = version
			f.Add(version == 5, encode(f, pk))
		}
	}
	f.Add(true, truncated())
	f.Add(true, []byte{0x82, 0x0a, 0, 1, 0, 0, 4, '$', 's', 'h', '/', 1})
	b, err := New(Options{Limits: Limits{MessagesPerSecond: 1e9, Burst: 1e9}})
	if err != nil {
		f.Fatal(err)
	}
	l := newListener(nil, b)
	f.Fuzz(func(t *testing.T, five bool, data []byte) {
		here, there := net.Pipe()
		served := make(chan struct{})
		go func() {
			defer close(served)
			l.serve(there, b.server.EstablishConnection)
		}()
		version := byte(4)
		if five {
			version = 5
		}
		pk := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Connect}, ProtocolVersion: version}
		pk.Connect.ProtocolName, pk.Connect.ClientIdentifier, pk.Connect.Clean = []byte("MQTT"), "fuzz", true
		read := make(chan struct{})
		go func() {
			defer close(read)
			_, _ = io.Copy(io.Discard, here)
		}()
		if _, err := here.Write(encode(t, pk)); err != nil {
			t.Fatal(err)
		}
		_, _ = here.Write(data)
		_ = here.Close()
		<-served
		<-read
		if n := b.server.Clients.Len(); n != 1 {
			t.Fatalf("sessions = %d, want only the agent's", n)
		}
		if err := b.Publish("after", []byte("x"), false); err != nil {
			t.Fatal(err)
		}
	})
}
