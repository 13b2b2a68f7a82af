package cloudhub

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// device is an edge with a store that outlives its links, behind a bad network.
type device struct {
	edge  *edge
	proxy *wiretest.Proxy
	ours  bool
}

// live connects again and again, until it is told to stop.
func (d *device) live(t *testing.T, c *cloud, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		if !d.once(t, c, stop) {
			time.Sleep(time.Millisecond)
		}
	}
}

// once serves one link; it says no when there was none.
func (d *device) once(t *testing.T, c *cloud, stop <-chan struct{}) bool {
	opts := c.options(d.edge.node, c.ca.Node(t, d.edge.node, time.Now().Add(time.Hour)))
	opts.URL = "wss://" + d.proxy.Addr() + "/"
	if !d.ours {
		opts.Features = wire.Features{}
	}
	conn, err := wire.DialWebSocket(t.Context(), opts)
	if err != nil {
		return false
	}
	defer conn.Close(wire.CloseNormal, "")
	d.edge.mu.Lock()
	d.edge.send = conn.Write
	d.edge.mu.Unlock()
	if d.ours {
		var held []wire.Held
		for key, o := range d.edge.holds() {
			uid, version, _ := strings.Cut(o, "/")
			held = append(held, wire.Held{Key: key, UID: uid, Version: version})
		}
		m, err := wire.NewInventory(held)
		if err != nil || conn.Write(m) != nil {
			return false
		}
	}
	ended := make(chan struct{})
	defer func() { <-ended }()
	go func() {
		defer close(ended)
		for {
			m, err := conn.Read()
			if err != nil {
				return
			}
			d.edge.receive(m, "")
		}
	}()
	select {
	case <-ended:
	case <-stop:
		_ = conn.Close(wire.CloseNormal, "")
	}
	return true
}

// pushes are those of the device, but for its node, which upstream's devices get at each connect.
func (d *device) pushes() []string {
	return slices.DeleteFunc(d.edge.lines(), func(line string) bool {
		return strings.HasSuffix(line, " null/node/"+d.edge.node)
	})
}

// TestFaults: links are cut and resumed at any byte while everything changes; afterwards each device has what it is to
// have, and nothing is sent any more.
func TestFaults(t *testing.T) {
	t.Parallel()
	const seed = 42
	faults := 100
	if *long {
		faults = 5000
	}
	rnd := rand.New(rand.NewPCG(seed, 1))
	records := &memory{}
	c := startCloud(t, func(o *Options) { o.Records = records }) // upstream's devices here send nothing at rest
	stop := make(chan struct{})
	var wg sync.WaitGroup
	devices := make([]*device, 4)
	for i := range devices {
		node := fmt.Sprint("n", i)
		c.cluster.set(node, "null/node/"+node, "u-"+node, "a")
		d := &device{edge: newEdge(t, node), proxy: wiretest.NewProxy(t, c.addr), ours: i%2 == 0}
		devices[i] = d
		wg.Go(func() { d.live(t, c, stop) })
	}
	uid := 0
	few := func(d *device) bool { return d.proxy.Dials() < 5 } // it had no time for more
	for round := 0; round < faults || round < 20*faults && slices.ContainsFunc(devices, few); round++ {
		d := devices[rnd.IntN(len(devices))]
		for range rnd.IntN(6) {
			name := fmt.Sprintf("default/%s/o%d", []string{"pod", "secret", "configmap"}[rnd.IntN(3)], rnd.IntN(8))
			now := c.cluster.want(d.edge.node)[name]
			switch old, _, ok := strings.Cut(now, "/"); {
			case !ok || rnd.IntN(6) == 0:
				uid++
				c.cluster.set(d.edge.node, name, fmt.Sprint("u", uid), fmt.Sprint("v", uid))
			case rnd.IntN(4) == 0:
				c.cluster.remove(d.edge.node, name)
			default:
				c.cluster.set(d.edge.node, name, old, fmt.Sprint("v", rnd.IntN(1000)))
			}
		}
		switch rnd.IntN(4) {
		case 0:
			d.proxy.Cut()
		case 1:
			d.proxy.CutAfter(int64(rnd.IntN(6000)))
		}
		time.Sleep(time.Duration(rnd.IntN(8)) * time.Millisecond) // the pace of the faults
	}
	for _, d := range devices {
		d.proxy.CutAfter(-1)
		settled(t, c, d.edge)
	}
	before := make([]int, len(devices))
	for i, d := range devices {
		before[i] = len(d.pushes())
		for name := range c.cluster.want(d.edge.node) {
			_, spec, _ := strings.Cut(c.cluster.want(d.edge.node)[name], "/")
			uid, _, _ := strings.Cut(c.cluster.want(d.edge.node)[name], "/")
			c.cluster.set(d.edge.node, name, uid, spec)
		}
		settled(t, c, d.edge)
	}
	for i, d := range devices {
		if after := len(d.pushes()); after != before[i] {
			t.Errorf("%s: %d messages although nothing changed, want none", d.edge.node, after-before[i])
		}
		if dials := d.proxy.Dials(); dials < 5 {
			t.Errorf("%s: %d connections, want 5 or more", d.edge.node, dials)
		}
		if d.ours {
			continue
		}
		want := c.cluster.want(d.edge.node)
		wait.True(t, "all that "+d.edge.node+" holds to be recorded", func() bool {
			held, err := records.Held(t.Context(), d.edge.node)
			if err != nil {
				t.Fatal(err)
			}
			recorded := map[string]string{}
			for key, state := range held {
				_, spec, _ := strings.Cut(want[key.String()], "/")
				recorded[key.String()] = string(state.UID) + "/" + spec
			}
			return maps.Equal(recorded, want)
		})
	}
	close(stop)
	wg.Wait()
	begun, ended := 0, 0
	wait.True(t, "as many ends as beginnings", func() bool {
		begun, ended = 0, 0
		for _, line := range c.api.noted() {
			switch {
			case strings.HasPrefix(line, "connected"):
				begun++
			case strings.HasPrefix(line, "disconnected"):
				ended++
			}
		}
		return begun == ended
	})
}
