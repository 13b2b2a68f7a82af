package broker

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/edgecore-io/edgecore/eventbus/topic"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

type message struct{ topic, payload string }

// collect returns a handler that appends to what its second result returns.
func collect() (func(topic.Message), <-chan message) {
	out := make(chan message, 10_000)
	return func(m topic.Message) { out <- message{m.Topic, string(m.Payload)} }, out
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s (hack/setup installs it)", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestMosquittoClients: Debian's clients publish and subscribe, in both versions of MQTT.
func TestMosquittoClients(t *testing.T) {
	b, address := start(t, Options{})
	host, port, _ := strings.Cut(address, ":")
	handler, got := collect()
	cancel, err := b.Subscribe("+/state", handler)
	if err != nil {
		t.Fatal(err)
	}
	defer cancel()
	for _, version := range []string{"mqttv311", "mqttv5"} {
		at := []string{"-h", host, "-p", port, "-V", version}
		run(t, "mosquitto_pub", append(at, "-t", "lamp/state", "-m", "on", "-q", "2")...)
		if m := wait.Receive(t, "the message", got); m != (message{"lamp/state", "on"}) {
			t.Errorf("%s: message = %v, want lamp/state on", version, m)
		}
		if err := b.Publish("kept/"+version, []byte("value"), true); err != nil {
			t.Fatal(err)
		}
		out := run(t, "mosquitto_sub", append(at, "-t", "kept/"+version, "-C", "1", "-q", "1")...)
		if out != "value\n" {
			t.Errorf("%s: retained message = %q, want value", version, out)
		}
	}
}

// TestInline: wildcards of the agent match as clients' do, and retained messages come first.
func TestInline(t *testing.T) {
	b, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	publish := func(name, payload string, retain bool) {
		t.Helper()
		if err := b.Publish(name, []byte(payload), retain); err != nil {
			t.Fatal(err)
		}
	}
	publish("a", "kept", true)
	handler, got := collect()
	cancel, err := b.Subscribe("a/#", handler)
	if err != nil {
		t.Fatal(err)
	}
	everything, all := collect()
	cancelAll, err := b.Subscribe("#", everything)
	if err != nil {
		t.Fatal(err)
	}
	defer cancelAll()
	publish("a/b", "1", false)
	publish("a", "2", false)
	publish("$hw/x", "3", false)
	cancel()
	publish("a/b", "4", false)
	take := func(c <-chan message, n int) (out []message) {
		for range n {
			out = append(out, wait.Receive(t, "a message", c))
		}
		return out
	}
	if m := take(got, 3); !slices.Equal(m, []message{{"a", "kept"}, {"a/b", "1"}, {"a", "2"}}) || len(got) > 0 {
		t.Errorf("messages of a/# = %v and %d more, want the retained one, 1 and 2", m, len(got))
	}
	if m := take(all, 4); !slices.Equal(m, []message{{"a", "kept"}, {"a/b", "1"}, {"a", "2"}, {"a/b", "4"}}) ||
		len(all) > 0 {
		t.Errorf("messages of # = %v and %d more, want all but that with $", m, len(all))
	}
	for _, bad := range []string{"", "a/+", strings.Repeat("x", 2000)} {
		if err := b.Publish(bad, nil, false); err == nil {
			t.Errorf("Publish(%.20q) = nil, want an error", bad)
		}
	}
	if _, err := b.Subscribe("a#", handler); err == nil {
		t.Error("Subscribe(a#) = nil, want an error")
	}
	if err := b.Publish("a", bytes.Repeat([]byte("x"), maxOwnPayload+1), false); err == nil {
		t.Error("Publish of 1 MiB and a byte = nil, want an error")
	}
}

// TestDelivery: a message that is published with the retain flag is an event for those that are subscribed, and a copy
// for those that subscribe later.
func TestDelivery(t *testing.T) {
	b, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	subscribe := func() <-chan topic.Delivery {
		t.Helper()
		out := make(chan topic.Delivery, 10)
		cancel, err := b.Subscribe("a/+", func(m topic.Message) { out <- m.Delivery })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cancel)
		return out
	}
	before := subscribe()
	if err := b.Publish("a/b", []byte("1"), true); err != nil {
		t.Fatal(err)
	}
	after := subscribe()
	if got := wait.Receive(t, "the event", before); got != topic.Direct {
		t.Errorf("delivery to the subscriber before = %v, want Direct", got)
	}
	if got := wait.Receive(t, "the copy", after); got != topic.Retained {
		t.Errorf("delivery to the subscriber after = %v, want Retained", got)
	}
}

// TestSession: what a client with a session missed, it finds when it is back; another limit is its own receive maximum.
func TestSession(t *testing.T) {
	b, address := start(t, Options{})
	keep := func(pk *packets.Packet) { pk.Connect.Clean = false }
	r := dial(t, address)
	r.connect("meter", keep)
	r.subscribe("order")
	_ = r.Close()
	wait.True(t, "the client to be gone", func() bool { return b.Clients() == 0 })
	for _, text := range []string{"1", "2", "3"} {
		if err := b.Publish("order", []byte(text), false); err != nil {
			t.Fatal(err)
		}
	}
	r = dial(t, address)
	r.connect("meter", keep)
	got := map[string]bool{}
	for range 3 {
		pk := r.read()
		got[string(pk.Payload)] = true
		r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Puback}, PacketID: pk.PacketID})
	}
	if len(got) != 3 {
		t.Errorf("messages after the return = %v, want 1, 2 and 3", got)
	}
	r.ping()
	if used := b.inflight.used.Load(); used != 0 {
		t.Errorf("bytes not confirmed = %d, want 0", used)
	}
}

// TestReceiveMaximum: a client of MQTT 5 gets no more at once than it said that it accepts.
func TestReceiveMaximum(t *testing.T) {
	b, address := start(t, Options{})
	r := dial(t, address)
	r.version = 5
	r.connect("small", func(pk *packets.Packet) { pk.Properties.ReceiveMaximum = 3 })
	r.subscribe("a")
	for i := range 5 {
		if err := b.Publish("a", []byte{byte(i)}, false); err != nil {
			t.Fatal(err)
		}
	}
	r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
	var ids []uint16
	for {
		pk := r.read()
		if pk.FixedHeader.Type == packets.Pingresp && len(ids) >= 3 {
			break
		}
		if pk.FixedHeader.Type == packets.Publish {
			ids = append(ids, pk.PacketID)
			if len(ids) == 3 { // the answer to the ping may have overtaken them
				r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
			}
		}
	}
	if n := b.Dropped()["unconfirmed"]; len(ids) != 3 || n != 2 {
		t.Errorf("messages = %d, dropped = %d; want 3 and 2", len(ids), n)
	}
}

// TestPacketIDs: the packet ids of a client have nothing to do with those of the messages to it.
func TestPacketIDs(t *testing.T) {
	b, address := start(t, Options{})
	stay := func(pk *packets.Packet) { pk.Connect.Clean = false }
	r := dial(t, address)
	if code := r.connect("one", stay); code != 0 {
		t.Fatalf("answer to connect = %d, want 0", code)
	}
	answer := func(kind byte) packets.Packet {
		t.Helper()
		pk := r.read()
		if pk.FixedHeader.Type != kind || pk.PacketID != 1 {
			t.Errorf("answer = %s with id %d, want %s with id 1", packets.PacketNames[pk.FixedHeader.Type], pk.PacketID,
				packets.PacketNames[kind])
		}
		return pk
	}
	r.subscribe("a")
	if err := b.Publish("a", []byte("first"), false); err != nil {
		t.Fatal(err)
	}
	answer(packets.Publish) // and the client does not confirm it
	filters := packets.Subscriptions{{Filter: "b", Qos: 1}}
	r.send(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Subscribe, Qos: 1}, PacketID: 1, Filters: filters,
	})
	if pk := answer(packets.Suback); !bytes.Equal(pk.ReasonCodes, []byte{1}) {
		t.Errorf("codes of the subscription = %v, want 1", pk.ReasonCodes)
	}
	r.send(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Unsubscribe, Qos: 1}, PacketID: 1, Filters: filters,
	})
	answer(packets.Unsuback)
	r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: 1}, PacketID: 1, TopicName: "c"})
	answer(packets.Puback)
	if err := b.Publish("b", []byte("to nobody"), false); err != nil {
		t.Fatal(err)
	}
	_ = r.Close()

	r = dial(t, address)
	r.connect("one", stay)
	if pk := answer(packets.Publish); string(pk.Payload) != "first" {
		t.Errorf("message = %q, want the one that was not confirmed", pk.Payload)
	}
	r.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Puback}, PacketID: 1})
	r.ping()
	if n := unconfirmed(b, "one"); n != 0 {
		t.Errorf("unconfirmed messages = %d, want 0", n)
	}
}

// TestStress: clients that publish, confirm, take each other's sessions over and vanish, all at once. Nothing may
// deadlock, and all counts return to 0.
func TestStress(t *testing.T) {
	b, address := start(t, Options{Limits: Limits{MessagesPerSecond: 1e6, Burst: 1e6, Inflight: 10}})
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for round := range 20 {
				r := &raw{TB: t, version: 4 + byte(round%2)}
				var err error
				if r.Conn, err = net.Dial("tcp", address); err != nil {
					t.Error(err)
					return
				}
				r.r = bufio.NewReader(r.Conn)
				var out bytes.Buffer
				connect := packets.Packet{
					FixedHeader: packets.FixedHeader{Type: packets.Connect}, ProtocolVersion: r.version,
				}
				connect.Connect.ProtocolName, connect.Connect.Clean = []byte("MQTT"), round%3 == 0
				connect.Connect.ClientIdentifier = fmt.Sprint("stress", worker/2) // two share a session
				out.Write(encode(t, connect))
				out.Write(encode(t, packets.Packet{
					FixedHeader: packets.FixedHeader{Type: packets.Subscribe, Qos: 1}, ProtocolVersion: r.version,
					PacketID: 1, Filters: packets.Subscriptions{{Filter: "s/#", Qos: 1}},
				}))
				for i := range 50 {
					out.Write(encode(t, packets.Packet{
						FixedHeader:     packets.FixedHeader{Type: packets.Publish, Qos: 1},
						ProtocolVersion: r.version,
						PacketID:        uint16(100 + i),
						TopicName:       "s/x",
						Payload:         []byte("x"),
					}))
				}
				_, _ = out.WriteTo(r.Conn)
				for range 30 {
					pk, err := r.next()
					if err != nil {
						break // taken over
					}
					if pk.FixedHeader.Type == packets.Publish && pk.PacketID > 0 {
						_, _ = r.Write(encode(t, packets.Packet{
							FixedHeader: packets.FixedHeader{Type: packets.Puback}, ProtocolVersion: r.version,
							PacketID: pk.PacketID,
						}))
					}
				}
				_ = r.Close()
			}
		})
	}
	for range 500 {
		if err := b.Publish("s/agent", []byte("x"), false); err != nil {
			t.Error(err)
		}
	}
	all.Wait()
	wait.True(t, "all clients to be gone", func() bool { return b.Clients() == 0 })
	for i := range 4 { // clean sessions replace those that are left
		r := dial(t, address)
		r.connect(fmt.Sprint("stress", i), nil)
		_ = r.Close()
	}
	wait.True(t, "all sessions to be gone", func() bool { return b.Clients() == 0 && b.server.Clients.Len() == 1 })
	wait.True(t, "the counts to be 0", func() bool { return b.inflight.used.Load() == 0 })
	b.hook.mu.Lock()
	defer b.hook.mu.Unlock()
	if n := len(b.hook.clients); n != 0 {
		t.Errorf("clients that the hook knows = %d, want 0", n)
	}
}

// TestWill: a will is sent at once, and a retained one counts.
func TestWill(t *testing.T) {
	b, address := start(t, Options{})
	handler, got := collect()
	cancel, err := b.Subscribe("gone", handler)
	if err != nil {
		t.Fatal(err)
	}
	defer cancel()
	r := dial(t, address)
	r.version = 5
	r.connect("mortal", func(pk *packets.Packet) {
		pk.Connect.WillFlag, pk.Connect.WillRetain, pk.Connect.WillTopic = true, true, "gone"
		pk.Connect.WillPayload = []byte("farewell")
		pk.Connect.WillProperties.WillDelayInterval = 3600
	})
	_ = r.Close()
	if m := wait.Receive(t, "the will", got); m != (message{"gone", "farewell"}) {
		t.Errorf("will = %v, want gone farewell", m)
	}
	if n, size := b.hook.retainedNow(); n != 1 || size != len("gonefarewell") {
		t.Errorf("retained = %d messages of %d bytes, want the will", n, size)
	}
}

// TestAccess: who may connect, with a password file of mosquitto's own.
func TestAccess(t *testing.T) {
	file := filepath.Join(t.TempDir(), "passwords")
	run(t, "mosquitto_passwd", "-b", "-c", file, "sensor", "correct horse")
	users, err := ReadUsers(file)
	if err != nil {
		t.Fatal(err)
	}
	users.Add(NewUsers(map[string]string{"agent": "secret"}))
	b, address := start(t, Options{Users: users})
	for _, c := range []struct {
		user, password string
		accepted       bool
	}{
		{"sensor", "correct horse", true}, {"agent", "secret", true},
		{"sensor", "wrong", false}, {"agent", "x", false}, {"nobody", "secret", false}, {"", "", false},
	} {
		code := dial(t, address).connect("x"+c.user, func(pk *packets.Packet) {
			if c.user != "" {
				pk.Connect.UsernameFlag, pk.Connect.Username = true, []byte(c.user)
				pk.Connect.PasswordFlag, pk.Connect.Password = true, []byte(c.password)
			}
		})
		if (code == 0) != c.accepted {
			t.Errorf("connect as %q with %q = code %d, want accepted: %v", c.user, c.password, code, c.accepted)
		}
	}
	if n := b.Dropped()["unauthorized"]; n != 4 {
		t.Errorf("refused clients = %d, want 4", n)
	}
	if err := os.WriteFile(file, []byte("sensor:$6$old$format\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadUsers(file); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("an old password file: error = %v, want one that names line 1", err)
	}
	for address, ok := range map[string]bool{
		"0.0.0.0:1883": false, ":1883": false, "127.0.0.1:1883": true, "[::1]:1883": true, "x": false,
	} {
		if _, err := New(Options{Address: address}); (err == nil) != ok {
			t.Errorf("a broker without passwords at %s: error = %v, want nil: %v", address, err, ok)
		}
	}
}

// TestAddressInUse: the broker waits until the address is free.
func TestAddressInUse(t *testing.T) {
	_, address := start(t, Options{})
	second, err := New(Options{Address: address})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := second.Run(ctx); err != nil || second.Listening() {
		t.Errorf("a broker on a used address: %v, listening %v; want nil and false", err, second.Listening())
	}
}

// TestAddressIsReported: an address that is in use is reported, and once the broker listens.
func TestAddressIsReported(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address, reports := l.Addr().String(), make(chan error, 10)
	b, err := New(Options{Address: address, Listening: func(of string, err error) {
		if of != address {
			t.Errorf("report of %s, want of %s", of, address)
		}
		reports <- err
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	if err := wait.Receive(t, "a report", reports); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("report = %v, want that the address is in use", err)
	}
	_ = l.Close()
	for wait.Receive(t, "a report without an error", reports) != nil {
		continue
	}
}

func TestMetrics(t *testing.T) {
	b, address := start(t, Options{})
	session(t, address, "one").publish("a", []byte("b"), true)
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(b); err != nil {
		t.Fatal(err)
	}
	wait.True(t, "the metrics to show the message", func() bool {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		values := map[string]float64{}
		for _, f := range families {
			m := f.GetMetric()[0]
			values[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
		return values["edgecore_mqtt_broker_clients"] == 1 &&
			values["edgecore_mqtt_broker_messages_received_total"] == 1 &&
			values["edgecore_mqtt_broker_retained_messages"] == 1
	})
}
