package mapper

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	mqttbroker "github.com/edgecore-io/edgecore/eventbus/broker"
	"github.com/edgecore-io/edgecore/eventbus/topic"
	dmi "github.com/edgecore-io/edgecore/pkg/dmi/v1beta1"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestBrokers: a namespace that names many brokers, none of which answers, has a bounded number of them in use, and
// delays no value of another namespace.
func TestBrokers(t *testing.T) {
	b, err := mqttbroker.New(mqttbroker.Options{Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	running.Go(func() {
		if err := b.Run(ctx); err != nil {
			t.Errorf("the broker: %v, want no error", err)
		}
	})
	pushed := make(chan string, 10)
	stop, err := b.Subscribe("#", func(m topic.Message) { pushed <- m.Topic })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // it answers nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	var networks Networks
	if err := networks.Set("127.0.0.0/8"); err != nil {
		t.Fatal(err)
	}
	p := newPusher(ctx, Options{Brokers: networks, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	running.Go(p.run)
	for i := range 100 {
		address := fmt.Sprintf("tcp://127.0.1.%d:%d", i, silent.Addr().(*net.TCPAddr).Port)
		p.push("evil", "one", "temp", "5", time.Now(), &dmi.PushMethodMQTT{Address: address, Topic: "t"})
	}
	address := fmt.Sprintf("tcp://%s", b.Address(t.Context()))
	p.push("shop", "one", "temp", "5", time.Now(), &dmi.PushMethodMQTT{Address: address, Topic: "$hw/events/device/x"})
	p.push("shop", "one", "temp", "5", time.Now(), &dmi.PushMethodMQTT{Address: address, Topic: "hall/temp"})
	if got := wait.Receive(t, "a value", pushed); got != "hall/temp" {
		t.Errorf("topic %s, want hall/temp alone", got)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if got := len(p.brokers); got != maxOwnBrokers+1 {
		t.Errorf("brokers = %d, want %d of one namespace, and the other's", got, maxOwnBrokers)
	}
}

// TestIdleBroker: a connection that has had no value for a while is closed, and its place is free.
func TestIdleBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := newPusher(ctx, Options{Log: slog.New(slog.DiscardHandler)})
		p.push("shop", "one", "temp", "5", time.Now(), &dmi.PushMethodMQTT{Address: "tcp://169.254.1.1:1", Topic: "t"})
		count := func() int {
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.brokers)
		}
		if got := count(); got != 1 {
			t.Errorf("brokers = %d, want 1", got)
		}
		time.Sleep(idleBroker + time.Minute)
		synctest.Wait()
		if got := count(); got != 0 {
			t.Errorf("brokers = %d after %v without a value, want 0", got, idleBroker)
		}
		cancel()
		p.run()
	})
}

// pipe is a connection from which a text is read.
type pipe struct {
	net.Conn
	io.Reader
}

func (p pipe) Read(b []byte) (int, error) { return p.Reader.Read(b) }

// TestAnswers: a broker may send acknowledgements, and nothing that takes memory.
func TestAnswers(t *testing.T) {
	good := "\x20\x02\x00\x00\x40\x02\x00\x01\xd0\x00\x50\x02\x00\x01\x70\x02\x00\x01"
	for _, size := range []int{1, 3, 100} {
		for text, ok := range map[string]bool{
			good: true, good + "\x30\xff\xff\xff\x7f": false, "\x20\x03\x00\x00\x00": false,
			good + "\x90\x02\x00\x01": false, "\x40\xff\x7f": false,
		} {
			a := &answers{Conn: pipe{Reader: bytes.NewReader([]byte(text))}}
			var err error
			buffer := make([]byte, size)
			for err == nil {
				_, err = a.Read(buffer)
			}
			if (err == io.EOF) != ok {
				t.Errorf("%x, %d bytes at a time: %v, want it accepted: %v", text, size, err, ok)
			}
		}
	}
}

// TestNetworks: the addresses to which a mapper connects.
func TestNetworks(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("192.168.7.2"), netip.MustParseAddr("2001:db8::2")}
	for _, test := range []struct {
		networks, address string
		ok                bool
	}{
		{"", "192.168.7.3", true}, {"", "2001:db8::3", true}, {"", "8.8.8.8", true},
		{"", "192.168.7.2", false}, {"", "2001:db8::2", false}, {"", "127.0.0.1", false}, {"", "127.9.9.9", false},
		{"", "::1", false}, {"", "::ffff:127.0.0.1", false}, {"", "::ffff:192.168.7.2", false}, {"", "0.0.0.0", false},
		{"", "::", false}, {"", "169.254.169.254", false}, {"", "fe80::1%eth0", false}, {"", "224.0.0.1", false},
		{"", "255.255.255.255", false}, {"", "ff02::1", false},
		{"10.0.0.0/8, 192.0.2.7", "10.9.9.9", true}, {"10.0.0.0/8,192.0.2.7", "192.0.2.7", true},
		{"10.0.0.0/8,192.0.2.7", "192.0.2.8", false}, {"10.0.0.0/8", "::ffff:10.1.1.1", true},
		{"127.0.0.1", "127.0.0.1", true}, {"127.0.0.1", "127.0.0.2", false}, {"fe80::/10", "fe80::1%eth0", true},
	} {
		var n Networks
		if err := n.Set(test.networks); err != nil {
			t.Fatal(err)
		}
		if err := n.check(netip.MustParseAddr(test.address), own); (err == nil) != test.ok {
			t.Errorf("networks %q, %s: %v, want it allowed: %v", test.networks, test.address, err, test.ok)
		}
	}
	var n Networks
	for _, bad := range []string{"plc", "10.0.0.0/33", "10.0.0.0/8;10.1.0.0/16"} {
		if err := n.Set(bad); err == nil || !strings.Contains(err.Error(), "want networks") {
			t.Errorf("%s: %v, want an error", bad, err)
		}
	}
	if err := n.Set("10.1.2.3/8,::1"); err != nil || n.String() != "10.0.0.0/8,::1/128" {
		t.Errorf("networks %s, %v; want 10.0.0.0/8,::1/128", &n, err)
	}
}
