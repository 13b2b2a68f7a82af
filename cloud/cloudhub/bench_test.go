package cloudhub

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// podsOfNode is what each node of the benchmark has: 30 pods, and a configmap for each.
const podsOfNode = 30

var podKey = resource.Key{Namespace: "default", Type: "pod", Name: "web"}

// thinEdge acks what it gets, and costs this process as little as it can: its memory is taken off.
type thinEdge struct {
	ws      *websocket.Conn
	writing sync.Mutex
	got     chan<- string
}

func (e *thinEdge) serve() {
	for {
		_, data, err := e.ws.ReadMessage()
		if err != nil {
			return
		}
		var m model.Message
		if json.Unmarshal(data, &m) != nil || m.IsResponse() {
			continue
		}
		e.writing.Lock()
		err = e.ws.WriteJSON(m.Respond(model.OK))
		e.writing.Unlock()
		if err != nil {
			return
		}
		if e.got != nil {
			e.got <- m.Header.ResourceVersion
		}
	}
}

func thinEdges(b *testing.B, c *cloud, n int, got chan<- string) []*thinEdge {
	b.Helper()
	edges := make([]*thinEdge, n)
	var wg sync.WaitGroup
	places := make(chan struct{}, 8)
	for i := range edges {
		node := fmt.Sprintf("edge-%d", i)
		cert := c.ca.Node(b, node, time.Now().Add(time.Hour))
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			dialer := websocket.Dialer{
				TLSClientConfig: &tls.Config{RootCAs: c.ca.Pool(), Certificates: []tls.Certificate{cert}},
				ReadBufferSize:  512, WriteBufferSize: 512,
			}
			header := nodeHeader(node)
			header.Set(wire.HeaderFeatures, wire.AllFeatures().String())
			ws, _, err := dialer.Dial("wss://"+c.addr+"/", header)
			if err != nil {
				b.Error(err)
				return
			}
			edges[i] = &thinEdge{ws: ws, got: got}
		})
	}
	wg.Wait()
	if b.Failed() {
		b.FailNow()
	}
	return edges
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// BenchmarkIdleSession: 1,000 nodes connect at once and resync with nothing changed; then what a session at rest costs,
// over TLS and with what its node holds.
func BenchmarkIdleSession(b *testing.B) {
	const nodes = 1000
	for b.Loop() {
		c := startCloud(b, func(o *Options) { o.NodeLimit = nodes + 1; o.KeepaliveInterval = 5 * time.Minute })
		c.fill(nodes)
		began := time.Now()
		edges := thinEdges(b, c, nodes, nil)
		connected := time.Now()
		c.resync(b, edges)
		b.ReportMetric(connected.Sub(began).Seconds(), "s-handshakes")
		b.ReportMetric(time.Since(connected).Seconds(), "s-resync")
		var bytes int64
		for _, s := range c.hub.allSessions() {
			stats := s.conn.Stats()
			bytes += stats.BytesReceived + stats.BytesSent
		}
		b.ReportMetric(float64(bytes)/nodes, "B/connect")
		with := heap()
		// Without the cloud's end of the sessions, the edges' ends still there.
		for _, s := range c.hub.allSessions() {
			s.closeLink(wire.CloseGoingAway, "measured")
		}
		wait.True(b, "all sessions to end", func() bool { return len(c.hub.Connected()) == 0 })
		without := heap()
		b.ReportMetric(float64(with-without)/nodes, "B/session")
		for _, e := range edges {
			_ = e.ws.Close()
		}
		c.stop()
	}
}

// fill gives each node its pods and configmaps.
func (c *cloud) fill(nodes int) {
	c.cluster.hub = nil
	for n := range nodes {
		node := fmt.Sprintf("edge-%d", n)
		for p := range podsOfNode {
			c.cluster.set(node, fmt.Sprintf("default/pod/pod-%d-%d", n, p),
				fmt.Sprintf("52a53aab-3e6d-4d2f-a10d-%06d%06d", n, p), "0123456789ab")
			c.cluster.set(node, fmt.Sprintf("default/configmap/conf-%d-%d", n, p),
				fmt.Sprintf("62a53aab-3e6d-4d2f-a10d-%06d%06d", n, p), "0123456789ab")
		}
	}
}

// resync has all edges tell that they hold everything, and waits until the cloud says that nothing is missing.
func (c *cloud) resync(b *testing.B, edges []*thinEdge) {
	b.Helper()
	for i, e := range edges {
		inventory, err := wire.NewInventory(c.inventoryOf(fmt.Sprintf("edge-%d", i)))
		if err != nil {
			b.Fatal(err)
		}
		if err := e.ws.WriteJSON(inventory); err != nil {
			b.Fatal(err)
		}
	}
	for _, e := range edges {
		var m model.Message
		if err := e.ws.ReadJSON(&m); err != nil || string(m.Content) != `{"synced":true}` {
			b.Fatalf("got %s, %v, want {\"synced\":true}", m.Content, err)
		}
	}
}

// inventoryOf is what a node tells when it has everything.
func (c *cloud) inventoryOf(node string) []wire.Held {
	c.cluster.mu.Lock()
	defer c.cluster.mu.Unlock()
	var held []wire.Held
	for key, o := range c.cluster.objects[node] {
		held = append(held, wire.Held{Key: key.String(), UID: string(o.UID), Version: o.Version})
	}
	return held
}

// BenchmarkPushToAck: 200 updates a second over 1,000 connected nodes; the time from the change until the ack is read.
func BenchmarkPushToAck(b *testing.B) {
	const nodes, rate = 1000, 200
	c := startCloud(b, func(o *Options) { o.NodeLimit = nodes; o.KeepaliveInterval = 5 * time.Minute })
	edges := thinEdges(b, c, nodes, nil)
	var wg sync.WaitGroup
	for _, e := range edges {
		inventory, err := wire.NewInventory(nil)
		if err != nil {
			b.Fatal(err)
		}
		if err := e.ws.WriteJSON(inventory); err != nil {
			b.Fatal(err)
		}
		wg.Go(e.serve)
	}
	var took []time.Duration
	tick := time.NewTicker(time.Second / rate)
	defer tick.Stop()
	type pushed struct {
		node string
		at   time.Time
		rv   string
	}
	waiting := map[string]pushed{}
	sweep := func() {
		for node, p := range waiting {
			s := c.hub.session(node)
			s.mu.Lock()
			held, ok := s.queue.Held(podKey)
			s.mu.Unlock()
			if ok && held.ResourceVersion == p.rv {
				took = append(took, time.Since(p.at))
				delete(waiting, node)
			}
		}
	}
	for i := 0; b.Loop(); i++ {
		<-tick.C
		node := fmt.Sprintf("edge-%d", i%nodes)
		o := c.cluster.set(node, podKey.String(), "u", fmt.Sprint("v", i))
		waiting[node] = pushed{node, time.Now(), o.ResourceVersion}
		sweep()
	}
	for deadline := time.Now().Add(wait.Max()); len(waiting) > 0; time.Sleep(time.Millisecond) { // the measure's step
		if sweep(); len(waiting) > 0 && time.Now().After(deadline) {
			b.Fatalf("%d updates have no ack, want 0", len(waiting))
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
	for _, e := range edges {
		_ = e.ws.Close()
	}
	wg.Wait()
}
