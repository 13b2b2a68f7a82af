package objectsync

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// cluster is what a node is to have, by name.
type cluster struct {
	mu      sync.Mutex
	objects map[resource.Key]cloudhub.Object
}

func (c *cluster) set(name, kind, uid, rv, version string) {
	r := ref(name, kind, uid, rv)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.objects[r.Key] = cloudhub.Object{Ref: r, Version: version, JSON: json.RawMessage(`{}`)}
}

// Desired has the last name first: what a test waits for is after what it does not see.
func (c *cluster) Desired(string) []cloudhub.Ref {
	c.mu.Lock()
	defer c.mu.Unlock()
	var refs []cloudhub.Ref
	for _, o := range c.objects {
		refs = append(refs, o.Ref)
	}
	slices.SortFunc(refs, func(a, b cloudhub.Ref) int { return strings.Compare(b.Key.Name, a.Key.Name) })
	return refs
}

func (c *cluster) Object(_ string, key resource.Key) (*cloudhub.Object, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, ok := c.objects[key]
	if !ok {
		return nil, nil
	}
	return &o, nil
}

// nobody is an Upstream that does nothing.
type nobody struct{}

func (nobody) Connected(context.Context, string, string)                              {}
func (nobody) Disconnected(string, string)                                            {}
func (nobody) Heartbeat(context.Context, string) error                                { return nil }
func (nobody) Inventoried(context.Context, string, []wire.Held) (report []string)     { return nil }
func (nobody) Handle(context.Context, string, *model.Message) (answer *model.Message) { return nil }

// upstreamEdge is a link to an edge that acks everything, without a network.
type upstreamEdge struct {
	acks chan *model.Message
	end  chan struct{}
	once sync.Once

	mu   sync.Mutex
	seen map[string]bool // a message that is sent again counts once
	got  []string
}

func newUpstreamEdge() *upstreamEdge {
	return &upstreamEdge{acks: make(chan *model.Message, 100), end: make(chan struct{}), seen: map[string]bool{}}
}

func (e *upstreamEdge) Read() (*model.Message, error) {
	select {
	case m := <-e.acks:
		return m, nil
	case <-e.end:
		return nil, net.ErrClosed
	}
}

func (e *upstreamEdge) Write(m *model.Message) error {
	e.mu.Lock()
	if !e.seen[m.Header.ID] {
		e.got = append(e.got, fmt.Sprint(m.Route.Operation, " ", m.Route.Resource, " ", m.Header.ResourceVersion))
	}
	e.seen[m.Header.ID] = true
	e.mu.Unlock()
	e.acks <- m.Respond(model.OK)
	return nil
}

func (e *upstreamEdge) Close(int, string) error { e.once.Do(func() { close(e.end) }); return nil }
func (*upstreamEdge) Ping() error               { return nil }
func (*upstreamEdge) Features() wire.Features   { return wire.Features{} }
func (*upstreamEdge) Protocol() string          { return wire.ProtocolWebSocket }
func (*upstreamEdge) Streams() *wire.Streams    { return nil }
func (*upstreamEdge) RemoteAddr() net.Addr      { return &net.TCPAddr{} }
func (*upstreamEdge) Stats() wire.Stats         { return wire.Stats{} }

func (e *upstreamEdge) sent() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	sent := slices.Clone(e.got)
	slices.Sort(sent)
	return sent
}

// connect runs a hub with an edge until it was sent this, and the API has that.
func (b *bench) connect(c *cluster, sent []string, api ...string) {
	b.t.Helper()
	hub, err := cloudhub.New(cloudhub.Options{Downstream: c, Upstream: nobody{}, Records: b.store})
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	edge := newUpstreamEdge()
	wg.Go(func() { _ = hub.Run(ctx) })
	wg.Go(func() { hub.Serve(ctx, "n1", time.Time{}, edge) })
	b.want(api...)
	if diff := cmp.Diff(sent, edge.sent()); diff != "" {
		b.t.Errorf("sent mismatch (-want +got):\n%s", diff)
	}
}

// TestHubOverRestarts: what an upstream edge acked is known to the next cloudcore, whichever it is. What changed
// meanwhile is sent, and a pod of which only the status changed is not.
func TestHubOverRestarts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{objects: map[resource.Key]cloudhub.Object{}}
		c.set("null/node/n1", "Node", "u-n", "1", "n")
		c.set("default/pod/web", "Pod", "u-w", "2", "w1")
		c.set("default/pod/api", "Pod", "u-a", "3", "a1")
		c.set("default/configmap/conf", "ConfigMap", "u-c", "4", "c1")
		b := start(t)
		b.connect(c, []string{"insert default/configmap/conf 4", "insert default/pod/api 3", "insert default/pod/web 2",
			"update null/node/n1 1"},
			"ClusterObjectSync /n1.u-n v1 Node n1 1 n", "ObjectSync default/n1.u-a v1 Pod api 3 a1",
			"ObjectSync default/n1.u-c v1 ConfigMap conf 4 c1", "ObjectSync default/n1.u-w v1 Pod web 2 w1")

		b.stop()
		c.set("default/pod/web", "Pod", "u-w", "12", "w1") // its status
		c.set("default/pod/api", "Pod", "u-a", "13", "a2")
		c.mu.Lock()
		maps.DeleteFunc(c.objects, func(k resource.Key, _ cloudhub.Object) bool { return k.Type == "configmap" })
		c.mu.Unlock()
		b.run()
		// The new resource version of the pod that was not sent is written later, at the latest at the end.
		b.connect(c, []string{"delete default/configmap/conf 4", "update default/pod/api 13", "update null/node/n1 1"},
			"ClusterObjectSync /n1.u-n v1 Node n1 1 n", "ObjectSync default/n1.u-a v1 Pod api 13 a2",
			"ObjectSync default/n1.u-w v1 Pod web 2 w1")
		b.stop()
		b.want("ClusterObjectSync /n1.u-n v1 Node n1 1 n", "ObjectSync default/n1.u-a v1 Pod api 13 a2",
			"ObjectSync default/n1.u-w v1 Pod web 12 w1")
	})
}

// TestKubeEdgeBefore: what KubeEdge's cloudcore sent is not sent again, but for the node's own object.
func TestKubeEdgeBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{objects: map[resource.Key]cloudhub.Object{}}
		c.set("null/node/n1", "Node", "u-n", "1", "n")
		for i := range 30 {
			c.set(fmt.Sprintf("default/pod/p%d", i), "Pod", fmt.Sprintf("u-%d", i), fmt.Sprint(100+i), "v")
		}
		b := start(t)
		var api []string
		for i := range 30 {
			o := syncObject("default", fmt.Sprintf("n1.u-%d", i), "Pod", fmt.Sprintf("p%d", i), fmt.Sprint(100+i))
			if _, err := b.store.clientFor(id{"default", ""}).Create(t.Context(), o, noOptions); err != nil {
				t.Fatal(err)
			}
			api = append(api, fmt.Sprintf("ObjectSync default/n1.u-%d v1 Pod p%d %d", i, i, 100+i))
		}
		b.stop()
		b.run()
		api = append(api, "ClusterObjectSync /n1.u-n v1 Node n1 1 n")
		slices.Sort(api)
		b.connect(c, []string{"update null/node/n1 1"}, api...)
	})
}
