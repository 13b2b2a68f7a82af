package client

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/edgecore-io/edgecore/eventbus/spool"
	"github.com/edgecore-io/edgecore/eventbus/topic"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/mosquitto"
	"github.com/edgecore-io/edgecore/test/testenv/proxy"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// helperEnv makes the test's program a client that publishes to a broker until it is killed.
const helperEnv = "EDGECORE_TEST_MQTT"

func TestMain(m *testing.M) {
	if server, path, ok := strings.Cut(os.Getenv(helperEnv), " "); ok {
		publishForever(server, path)
	}
	leak.VerifyTestMain(m)
}

// publishForever prints the number of each message after Publish returned.
func publishForever(server, path string) {
	c, err := New(Options{Server: server, SpoolPath: path})
	if err == nil {
		go func() { _ = c.Run(context.Background()) }()
	}
	for i := 0; err == nil; i++ {
		if err = c.Publish(context.Background(), "count", []byte(strconv.Itoa(i)), false); err == nil {
			fmt.Println(i)
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// run starts a client until the test or the returned function ends it.
func run(t testing.TB, o Options) (*Client, func()) {
	t.Helper()
	if o.SpoolPath == "" {
		o.SpoolPath = filepath.Join(t.TempDir(), "queue")
	}
	if o.FirstRetry == 0 {
		o.FirstRetry, o.LastRetry = 5*time.Millisecond, 50*time.Millisecond
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	}
	t.Cleanup(stop)
	return c, stop
}

// gather subscribes and returns a channel of payloads.
func gather(t testing.TB, c *Client, filter string) <-chan string {
	t.Helper()
	out := make(chan string, 100_000)
	if _, err := c.Subscribe(filter, func(m topic.Message) { out <- string(m.Payload) }); err != nil {
		t.Fatal(err)
	}
	return out
}

func publish(t testing.TB, c *Client, topic, payload string) {
	t.Helper()
	if err := c.Publish(t.Context(), topic, []byte(payload), false); err != nil {
		t.Fatal(err)
	}
}

func connected(t testing.TB, c *Client) {
	t.Helper()
	wait.Until(t, "the connection", func() error {
		if c.Connected() {
			return nil
		}
		return fmt.Errorf("not connected: %v", c.Err())
	})
}

// expect receives numbers in order; each may come again.
func expect(t testing.TB, got <-chan string, from, to int) {
	t.Helper()
	for next := from; next < to; {
		n, err := strconv.Atoi(wait.Receive(t, fmt.Sprint("message ", next), got))
		if err != nil {
			t.Fatal(err)
		}
		if n > next {
			t.Fatalf("message %d, want %d or one that came before", n, next)
		}
		if n == next {
			next++
		}
	}
}

// TestConnected: with the broker there, messages arrive, handlers may publish, and nothing is written to disk.
func TestConnected(t *testing.T) {
	broker := mosquitto.Start(t)
	path := filepath.Join(t.TempDir(), "queue")
	c, _ := run(t, Options{Server: broker.Server(), SpoolPath: path})
	answers := gather(t, c, "answer/#")
	if _, err := c.Subscribe("question/+", func(m topic.Message) {
		publish(t, c, "answer/x", string(m.Payload)+"!")
	}); err != nil {
		t.Fatal(err)
	}
	connected(t, c)
	for i := range 100 {
		publish(t, c, "question/x", strconv.Itoa(i))
		if got := wait.Receive(t, "the answer", answers); got != strconv.Itoa(i)+"!" {
			t.Fatalf("answer = %q, want %d!", got, i)
		}
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the queue's file: %v, want that there is none", err)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	if n, err := registry.Gather(); err != nil || len(n) != 7 {
		t.Errorf("metrics = %d, %v; want 7 without an error", len(n), err)
	}
}

// TestNothingIsWrittenOnceConnected: from the moment in which the client says that the broker can be reached, what is
// published goes there, and not to the disk.
func TestNothingIsWrittenOnceConnected(t *testing.T) {
	broker := mosquitto.Start(t)
	path := filepath.Join(t.TempDir(), "queue")
	var c *Client
	begin, published := make(chan struct{}), make(chan error, 1)
	c, _ = run(t, Options{Server: broker.Server(), SpoolPath: path, Reachable: func(_ string, err error) {
		if <-begin; err == nil {
			published <- c.Publish(t.Context(), "at/once", []byte("1"), false)
		}
	}})
	close(begin)
	if err := wait.Receive(t, "the message to be published", published); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the queue's file: %v, want that there is none", err)
	}
}

// TestBrokerRestarts: what is published while mosquitto is dead arrives in order; subscriptions are restored.
// Mosquitto keeps nothing over its death here, so the client itself is the subscriber: it restores its subscriptions
// before it sends its queue.
func TestBrokerRestarts(t *testing.T) {
	broker := mosquitto.Start(t)
	var mu sync.Mutex
	var reported error
	c, _ := run(t, Options{Server: broker.Server(), ClientID: "agent", Reachable: func(_ string, err error) {
		mu.Lock()
		defer mu.Unlock()
		reported = err
	}})
	unreachable := func(want bool) {
		t.Helper()
		wait.True(t, fmt.Sprintf("a report that the broker is unreachable to be %v", want), func() bool {
			mu.Lock()
			defer mu.Unlock()
			return (reported != nil) == want
		})
	}
	got := gather(t, c, "count")
	n := 0
	for range 4 {
		connected(t, c)
		for range 20 {
			publish(t, c, "count", strconv.Itoa(n))
			n++
		}
		expect(t, got, n-20, n)
		// A message can arrive before the broker's confirmation of it does.
		wait.True(t, "the queue to be empty", func() bool { waiting, _ := c.Queued(); return waiting == 0 })
		broker.Kill()
		wait.True(t, "the loss to be noticed", func() bool { return !c.Connected() && c.Err() != nil })
		unreachable(true)
		if err := c.Err(); !strings.Contains(err.Error(), broker.Port) {
			t.Errorf("error = %v, want one that names the broker's address", err)
		}
		for range 50 {
			publish(t, c, "count", strconv.Itoa(n))
			n++
		}
		if waiting, _ := c.Queued(); waiting != 50 {
			t.Errorf("queued = %d, want 50", waiting)
		}
		broker.Restart()
		expect(t, got, n-50, n)
		unreachable(false)
	}
}

// TestQueueIsSent: the queue of a client that was away arrives at a subscriber that was there before, in order.
func TestQueueIsSent(t *testing.T) {
	broker := mosquitto.Start(t)
	other, _ := run(t, Options{Server: broker.Server()})
	got := gather(t, other, "count")
	connected(t, other)
	path := filepath.Join(t.TempDir(), "queue")
	c, err := New(Options{Server: broker.Server(), SpoolPath: path})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		publish(t, c, "count", strconv.Itoa(i))
	}
	_ = c.spool.Close()
	c, _ = run(t, Options{Server: broker.Server(), SpoolPath: path})
	expect(t, got, 0, 1000)
	wait.True(t, "the queue to be empty", func() bool { n, _ := c.Queued(); return n == 0 })
}

// TestSession: a broker keeps the messages of a client with an id while it is away.
func TestSession(t *testing.T) {
	broker := mosquitto.Start(t)
	other, _ := run(t, Options{Server: broker.Server()})
	o := Options{Server: broker.Server(), ClientID: "agent", SpoolPath: filepath.Join(t.TempDir(), "queue")}
	c, stop := run(t, o)
	gather(t, c, "orders")
	connected(t, c)
	connected(t, other)
	stop()
	for i := range 10 {
		publish(t, other, "orders", strconv.Itoa(i))
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	orders := gather(t, c, "orders")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	expect(t, orders, 0, 10)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestDelivery: all that waited in the session is Waiting, however much it is, and what comes later is not. What is
// retained is a copy at each connection.
func TestDelivery(t *testing.T) {
	broker := mosquitto.Start(t)
	o := Options{Server: broker.Server(), ClientID: "agent", SpoolPath: filepath.Join(t.TempDir(), "queue")}
	other, _ := run(t, Options{Server: broker.Server()})
	connected(t, other)
	type event struct {
		payload  string
		delivery topic.Delivery
	}
	start := func() (events chan event, caughtUp chan struct{}, stop func()) {
		t.Helper()
		c, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		events, caughtUp = make(chan event, 1000), make(chan struct{}, 10)
		behind := make(chan time.Time, 10)
		c.Watch(func(since time.Time) { behind <- since }, func() { caughtUp <- struct{}{} })
		if since := <-behind; !since.IsZero() {
			t.Errorf("behind since %v before the first connection, want the zero time", since)
		}
		_, err = c.Subscribe("x/+", func(m topic.Message) { events <- event{string(m.Payload), m.Delivery} })
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() {
			if err := c.Run(ctx); err != nil {
				t.Errorf("Run = %v, want nil", err)
			}
		})
		stop = sync.OnceFunc(func() {
			cancel()
			running.Wait()
		})
		t.Cleanup(stop)
		connected(t, c)
		return events, caughtUp, stop
	}
	next := func(events chan event, want event) {
		t.Helper()
		if got := wait.Receive(t, want.payload, events); got != want {
			t.Errorf("message = %+v, want %+v", got, want)
		}
	}
	events, caughtUp, stop := start()
	wait.Receive(t, "the end of being behind: the session is new", caughtUp)
	if err := other.Publish(t.Context(), "x/kept", []byte("kept"), true); err != nil {
		t.Fatal(err)
	}
	next(events, event{"kept", topic.InSession})
	stop()
	const waiting = 300 // more than mosquitto sends before it gets confirmations
	for i := range waiting {
		publish(t, other, "x/n", strconv.Itoa(i))
	}
	events, caughtUp, _ = start()
	wait.Receive(t, "the end of being behind", caughtUp)
	publish(t, other, "x/n", "live")
	// A client that falls behind, as on a busy machine, ends the connection. The broker sends the rest again, after
	// what was sent already, and the copy once more.
	kept, copies, seen := event{"kept", topic.Retained}, 0, map[string]bool{}
	for len(seen) < waiting || copies == 0 {
		got := wait.Receive(t, "what waited, and the copy", events)
		switch {
		case got == kept:
			copies++
		case got.delivery != topic.Waiting || got.payload == "live":
			t.Fatalf("message = %+v after %d of %d that waited, want it to be Waiting", got, len(seen), waiting)
		default:
			seen[got.payload] = true
		}
	}
	got := wait.Receive(t, "live", events)
	for got == kept {
		got = wait.Receive(t, "live", events)
	}
	if want := (event{"live", topic.InSession}); got != want {
		t.Errorf("message = %+v, want %+v", got, want)
	}
}

// TestDeliveredAgain: a message whose confirmation is lost with the connection is delivered again by the broker, and
// handled once.
func TestDeliveredAgain(t *testing.T) {
	broker := mosquitto.Start(t)
	cable, err := proxy.Start("127.0.0.1:" + broker.Port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cable.Close() })
	other, _ := run(t, Options{Server: broker.Server()})
	c, _ := run(t, Options{Server: "tcp://" + cable.Addr(), ClientID: "agent"})
	resume, handled := make(chan struct{}), make(chan string, 100)
	if _, err := c.Subscribe("count", func(m topic.Message) {
		handled <- string(m.Payload)
		<-resume
	}); err != nil {
		t.Fatal(err)
	}
	connected(t, other)
	connected(t, c)
	publish(t, other, "count", "0")
	publish(t, other, "count", "1")
	publish(t, other, "count", "0")
	if got := wait.Receive(t, "the first message", handled); got != "0" {
		t.Fatalf("message = %s, want 0", got)
	}
	wait.True(t, "the others to have arrived", func() bool {
		arrived, _ := c.arrivals.allHandled()
		return arrived == 3
	})
	cable.Set(proxy.Cut)
	wait.True(t, "the loss of the connection", func() bool { return !c.Connected() })
	cable.Set(proxy.Passing)
	connected(t, c)
	wait.True(t, "the broker to have delivered them again", func() bool {
		arrived, _ := c.arrivals.allHandled()
		return arrived == 6
	})
	close(resume)
	publish(t, other, "count", "2")
	for _, want := range []string{"1", "0", "2"} {
		if got := wait.Receive(t, want, handled); got != want {
			t.Errorf("message = %s, want %s: each is handled once", got, want)
		}
	}
}

// TestKill9: mosquitto is dead, and a process that publishes is killed. Each message that Publish has accepted arrives
// once the next process has a broker.
func TestKill9(t *testing.T) {
	broker := mosquitto.Start(t)
	path := filepath.Join(t.TempDir(), "queue")
	broker.Kill() // so that all go to the queue
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"="+broker.Server()+" "+path)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	printed := make([]byte, 3000)
	n, err := out.Read(printed)
	for n < 1000 && err == nil {
		var more int
		more, err = out.Read(printed[n:])
		n += more
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	text := string(printed[:n])
	accepted := strings.Count(text, "\n")
	broker.Restart()
	other, _ := run(t, Options{Server: broker.Server()})
	got := gather(t, other, "count")
	connected(t, other)
	run(t, Options{Server: broker.Server(), SpoolPath: path})
	expect(t, got, 0, accepted)
}

// TestSlowHandler: a handler that stops does not cost memory without bound, and in the end sees every message.
func TestSlowHandler(t *testing.T) {
	broker := mosquitto.Start(t, "allow_anonymous true", "max_inflight_messages 0")
	other, _ := run(t, Options{Server: broker.Server()})
	c, _ := run(t, Options{Server: broker.Server(), ClientID: "slow"})
	resume, seen := make(chan struct{}), make(chan string, 100_000)
	if _, err := c.Subscribe("count", func(m topic.Message) {
		<-resume
		seen <- string(m.Payload)
	}); err != nil {
		t.Fatal(err)
	}
	connected(t, c)
	connected(t, other)
	const messages = 2 * receiveQueue
	for i := range messages {
		publish(t, other, "count", strconv.Itoa(i))
	}
	wait.True(t, "the queue to be full", func() bool { return c.Dropped()["handler_behind"] > 0 })
	close(resume)
	got := map[string]bool{}
	for len(got) < messages {
		got[wait.Receive(t, "all messages", seen)] = true
	}
}

// TestPassword: a wrong one is reported with what to do, and the right one works.
func TestPassword(t *testing.T) {
	file := filepath.Join(t.TempDir(), "passwords")
	if out, err := exec.CommandContext(t.Context(), "mosquitto_passwd", "-b", "-c", file, "agent", "secret").
		CombinedOutput(); err != nil {
		t.Fatalf("mosquitto_passwd: %v: %s", err, out)
	}
	broker := mosquitto.Start(t, "allow_anonymous false", "password_file "+file)
	wrong, _ := run(t, Options{Server: broker.Server(), Username: "agent", Password: "wrong"})
	wait.True(t, "the refusal", func() bool { return wrong.Err() != nil })
	if text := wrong.Err().Error(); !strings.Contains(text, "mqttPassword") || strings.Contains(text, "wrong") {
		t.Errorf("error = %s, want one that says to check mqttPassword, without it", text)
	}
	right, _ := run(t, Options{Server: broker.Server(), Username: "agent", Password: "secret"})
	connected(t, right)
}

// TestTLS: the broker's certificate is checked, and the client shows its own.
func TestTLS(t *testing.T) {
	ca := wiretest.NewCA(t)
	files := ca.Write(t, t.TempDir(), ca.Server(t))
	broker := mosquitto.Start(t, "allow_anonymous true", "require_certificate true",
		"cafile "+files.CA, "certfile "+files.Cert, "keyfile "+files.Key)
	server := strings.Replace(broker.Server(), "tcp", "ssl", 1)
	pool, pair := ca.Pool(), ca.Node(t, "agent", time.Now().Add(time.Hour))
	stranger, _ := run(t, Options{Server: server, TLS: &tls.Config{Certificates: []tls.Certificate{pair}}})
	wait.True(t, "the refusal", func() bool { return stranger.Err() != nil })
	if text := stranger.Err().Error(); !strings.Contains(text, "tlsMqttCAFile") {
		t.Errorf("error with another authority = %s, want one that names tlsMqttCAFile", text)
	}
	nobody, _ := run(t, Options{Server: server, TLS: &tls.Config{RootCAs: pool}})
	wait.True(t, "the refusal", func() bool { return nobody.Err() != nil })
	c, _ := run(t, Options{Server: server, TLS: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}})
	got := gather(t, c, "x")
	connected(t, c)
	publish(t, c, "x", "1")
	expect(t, got, 1, 2)
}

// TestSilentBroker: a broker that accepts a connection and never answers does not hold up Publish for ever.
func TestSilentBroker(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, _ := run(t, Options{Server: "tcp://" + l.Addr().String(), Timeout: 50 * time.Millisecond})
	publish(t, c, "x", "1")
	wait.True(t, "the error", func() bool { return c.Err() != nil })
	if n, _ := c.Queued(); n != 1 {
		t.Errorf("queued = %d, want 1", n)
	}
}

// TestSubscribeWhileConnecting: a subscription that comes while the client connects is made before anything is
// published. The broker of this test waits with its first answer until the second subscription is there.
func TestSubscribeWhileConnecting(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	asked, answer := make(chan string), make(chan struct{})
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		for {
			packet, err := packets.ReadPacket(conn)
			if err != nil {
				return
			}
			switch packet := packet.(type) {
			case *packets.ConnectPacket:
				_ = packets.NewControlPacket(packets.Connack).Write(conn)
			case *packets.SubscribePacket:
				asked <- packet.Topics[0]
				<-answer
				suback := packets.NewControlPacket(packets.Suback).(*packets.SubackPacket)
				suback.MessageID, suback.ReturnCodes = packet.MessageID, []byte{1}
				_ = suback.Write(conn)
			}
		}
	})
	c, err := New(Options{Server: "tcp://" + l.Addr().String(), SpoolPath: filepath.Join(t.TempDir(), "queue")})
	if err != nil {
		t.Fatal(err)
	}
	gather(t, c, "first")
	ctx, cancel := context.WithCancel(t.Context())
	defer all.Wait()
	defer cancel()
	all.Go(func() { _ = c.Run(ctx) })
	for _, filter := range []string{"first", "second"} {
		if got := wait.Receive(t, "a subscription", asked); got != filter {
			t.Errorf("subscribed to %q, want %q", got, filter)
		}
		if filter == "first" {
			gather(t, c, "second")
		}
		if c.Connected() {
			t.Errorf("connected before the broker answered the subscription to %q", filter)
		}
		answer <- struct{}{}
	}
	connected(t, c)
}

// TestHostileBroker: a broker that sends nonsense after its CONNACK ends the connection, not the agent.
func TestHostileBroker(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	random := rand.New(rand.NewPCG(1, 2))
	const rounds = 512
	go func() {
		defer close(ended)
		for i := range rounds {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1024)) // CONNECT
			// A packet of each type, mostly of a size that its type has, and nonsense after it.
			size := random.IntN(6)
			answer := []byte{0x20, 2, 0, 0, byte(i), byte(size)}
			for range size + random.IntN(2)*random.IntN(40) {
				answer = append(answer, byte(random.IntN(256)>>random.IntN(8)))
			}
			_, _ = c.Write(answer)
			_ = c.Close()
		}
	}()
	c, stop := run(t, Options{
		Server: "tcp://" + l.Addr().String(), FirstRetry: time.Microsecond, LastRetry: time.Microsecond,
		Timeout: 10 * time.Millisecond,
	})
	gather(t, c, "#")
	wait.Closed(t, "the broker's rounds", ended)
	stop()
	_ = l.Close()
}

func TestQueueOverflows(t *testing.T) {
	c, err := New(Options{
		Server: "tcp://127.0.0.1:1", SpoolPath: filepath.Join(t.TempDir(), "q"), Spool: spool.Limits{Messages: 10},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 25 {
		publish(t, c, "x", strconv.Itoa(i))
	}
	if n := c.Dropped()["queue_full"]; n != 15 {
		t.Errorf("dropped = %d, want 15", n)
	}
	_ = c.spool.Close()
}

func TestParseServer(t *testing.T) {
	for server, want := range map[string]string{
		"tcp://10.0.0.1:1884": "10.0.0.1:1884", "mqtt://host": "host:1883", "ssl://host": "host:8883",
		"mqtts://[::1]:1": "[::1]:1", "host:1883": "", "ws://host": "", "tcp://": "", "tcp://u:p@host": "", "": "",
	} {
		e, err := parseServer(server)
		if diff := cmp.Diff(want, e.address); diff != "" || (err == nil) != (want != "") {
			t.Errorf("address of %q = %q, %v; want %q", server, e.address, err, want)
		}
	}
}

func TestCheckedConn(t *testing.T) {
	connack := []byte{0x20, 2, 0, 0}
	for name, c := range map[string]struct {
		sent []byte
		ok   bool
	}{
		"several":    {[]byte{0x30, 3, 1, 2, 3, 0xd0, 0, 0x90, 3, 1, 2, 3, 0x40, 2, 1, 2, 0x30, 0x80, 1}, true},
		"limit":      {append([]byte{0x30, 0x80, 0x08}, make([]byte, 1024)...), true},
		"large":      {[]byte{0x30, 0x81, 0x08}, false},
		"second":     {[]byte{0x30, 2, 0, 0, 0x30, 0xff, 0xff, 0xff, 0x7f}, false},
		"endless":    {[]byte{0x30, 0xff, 0xff, 0xff, 0xff}, false},
		"no bytes":   {nil, true},
		"no code":    {[]byte{0x90, 2, 0, 1}, false},
		"no topic":   {[]byte{0x30, 0}, false},
		"no id":      {[]byte{0x32, 2, 0, 0}, false},
		"QoS 2":      {[]byte{0x34, 5, 0, 1, 2, 3, 4}, false},
		"subscribe":  {[]byte{0x82, 2, 0, 1}, false},
		"connack":    {connack, false}, // a second one
		"short ack":  {[]byte{0x40, 1, 0}, false},
		"unfinished": {[]byte{0x90}, true},
	} {
		sent := append(append([]byte{}, connack...), c.sent...)
		for step := 1; step <= len(sent); step++ {
			b := &checkedConn{limit: 1024}
			var err error
			for rest := sent; len(rest) > 0 && err == nil; rest = rest[min(step, len(rest)):] {
				err = b.followPackets(rest[:min(step, len(rest))])
			}
			if (err == nil) != c.ok {
				t.Errorf("%s in steps of %d: error = %v, want nil: %v", name, step, err, c.ok)
			}
		}
	}
	if err := (&checkedConn{limit: 1024}).followPackets([]byte{0xd0, 0}); err == nil {
		t.Error("a PINGRESP before the CONNACK: nil, want an error")
	}
}
