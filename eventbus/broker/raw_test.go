package broker

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/limit"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// start runs a broker on a free port until the test ends, and returns it with its address.
func start(t testing.TB, o Options) (*Broker, string) {
	t.Helper()
	if o.Address == "" {
		o.Address = "127.0.0.1:0"
	}
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("end of the broker: %v", err)
		}
		if used := b.queue.used.Load(); used != 0 {
			t.Errorf("bytes in queues at the end = %d, want 0", used)
		}
	})
	return b, b.Address(ctx).String()
}

// raw is a client that sends whatever a test wants.
type raw struct {
	testing.TB
	net.Conn
	r       *bufio.Reader
	version byte
}

func dial(t testing.TB, address string) *raw {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &raw{t, c, bufio.NewReader(c), 4}
}

// connect opens a session and returns the code of the answer.
func (r *raw) connect(id string, change func(*packets.Packet)) byte {
	r.Helper()
	pk := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Connect}, ProtocolVersion: r.version}
	pk.Connect.ProtocolName, pk.Connect.ClientIdentifier, pk.Connect.Clean = []byte("MQTT"), id, true
	if change != nil {
		change(&pk)
	}
	r.send(pk)
	return r.read().ReasonCode
}

// session is connect that must succeed.
func session(t testing.TB, address, id string) *raw {
	t.Helper()
	r := dial(t, address)
	if code := r.connect(id, nil); code != 0 {
		t.Fatalf("answer to connect = %d, want 0", code)
	}
	return r
}

func encode(t testing.TB, pk packets.Packet) []byte {
	t.Helper()
	var b bytes.Buffer
	var err error
	switch pk.FixedHeader.Type {
	case packets.Connect:
		err = pk.ConnectEncode(&b)
	case packets.Publish:
		err = pk.PublishEncode(&b)
	case packets.Subscribe:
		err = pk.SubscribeEncode(&b)
	case packets.Unsubscribe:
		err = pk.UnsubscribeEncode(&b)
	case packets.Puback:
		err = pk.PubackEncode(&b)
	case packets.Pingreq:
		err = pk.PingreqEncode(&b)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func (r *raw) send(pk packets.Packet) {
	r.Helper()
	pk.ProtocolVersion = r.version
	if _, err := r.Write(encode(r, pk)); err != nil {
		r.Fatal(err)
	}
}

func (r *raw) publish(topic string, payload []byte, retain bool) {
	r.Helper()
	r.send(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Publish, Retain: retain},
		TopicName:   topic,
		Payload:     payload,
	})
}

// subscribe returns the codes of the answer.
func (r *raw) subscribe(filters ...string) []byte {
	r.Helper()
	pk := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Subscribe, Qos: 1}, PacketID: 1}
	for _, f := range filters {
		pk.Filters = append(pk.Filters, packets.Subscription{Filter: f, Qos: 1})
	}
	r.send(pk)
	for {
		if pk := r.read(); pk.FixedHeader.Type == packets.Suback {
			return pk.ReasonCodes
		}
	}
}

// ping returns when the broker has dealt with everything before.
func (r *raw) ping() {
	r.Helper()
	r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
	for r.read().FixedHeader.Type != packets.Pingresp {
	}
}

func (r *raw) read() packets.Packet {
	r.Helper()
	pk, err := r.next()
	if err != nil {
		r.Fatalf("read a packet: %v", err)
	}
	return pk
}

func (r *raw) next() (pk packets.Packet, err error) {
	_ = r.SetReadDeadline(time.Now().Add(limit.Wait))
	b, err := r.r.ReadByte()
	if err != nil {
		return pk, err
	}
	if err := pk.FixedHeader.Decode(b); err != nil {
		return pk, err
	}
	n, _, err := packets.DecodeLength(r.r)
	if err != nil {
		return pk, err
	}
	pk.FixedHeader.Remaining, pk.ProtocolVersion = n, r.version
	body := make([]byte, n)
	if _, err := io.ReadFull(r.r, body); err != nil {
		return pk, err
	}
	switch pk.FixedHeader.Type {
	case packets.Connack:
		err = pk.ConnackDecode(body)
	case packets.Publish:
		err = pk.PublishDecode(body)
	case packets.Puback:
		err = pk.PubackDecode(body)
	case packets.Suback:
		err = pk.SubackDecode(body)
	case packets.Unsuback:
		err = pk.UnsubackDecode(body)
	case packets.Disconnect:
		err = pk.DisconnectDecode(body)
	}
	return pk, err
}

// closed reads until the broker has closed the connection, and returns the code of its last word, or 0.
func (r *raw) closed() byte {
	r.Helper()
	var code byte
	for {
		pk, err := r.next()
		var n net.Error
		if errors.As(err, &n) && n.Timeout() {
			r.Fatalf("the connection is still open, want closed")
		}
		if err != nil {
			return code
		}
		if pk.FixedHeader.Type == packets.Disconnect {
			code = pk.ReasonCode
		}
	}
}
