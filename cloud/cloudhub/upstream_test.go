package cloudhub

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub/queue"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// memory is Records in memory, which outlives a hub.
type memory struct {
	mu    sync.Mutex
	nodes map[string]map[resource.Key]queue.State
	calls []string
	// sending is called before an object is recorded; may be nil.
	sending func(ctx context.Context, ref Ref) error
}

func (r *memory) note(format string, args ...any) {
	r.calls = append(r.calls, fmt.Sprintf(format, args...))
}

func (r *memory) Held(_ context.Context, node string) (map[resource.Key]queue.State, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	held := map[resource.Key]queue.State{}
	for k, s := range r.nodes[node] {
		held[k] = queue.State{UID: s.UID, ResourceVersion: s.ResourceVersion} // as KubeEdge's CRD would
	}
	return held, nil
}

func (r *memory) put(node string, ref Ref, rv string) {
	if r.nodes == nil {
		r.nodes = map[string]map[resource.Key]queue.State{}
	}
	if r.nodes[node] == nil {
		r.nodes[node] = map[resource.Key]queue.State{}
	}
	r.nodes[node][ref.Key] = queue.State{UID: ref.UID, ResourceVersion: rv}
}

func (r *memory) Sending(ctx context.Context, node string, ref Ref) error {
	if r.sending != nil {
		if err := r.sending(ctx, ref); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put(node, ref, "0")
	r.note("sent %s %s %s %s", ref.Key, ref.UID, ref.APIVersion, ref.Kind)
	return nil
}

func (r *memory) Acked(node string, ref Ref, version string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put(node, ref, ref.ResourceVersion)
	r.note("acked %s %s %s %s", ref.Key, ref.UID, ref.ResourceVersion, version)
}

func (r *memory) Deleted(node string, ref Ref) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.nodes[node], ref.Key)
	r.note("deleted %s %s", ref.Key, ref.UID)
}

func (r *memory) Forget(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.nodes, node)
	r.note("forgot %s", node)
}

func (r *memory) Nodes() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for node := range r.nodes {
		all = append(all, node)
	}
	return all
}

func (r *memory) noted() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.calls...)
}

// TestUpstreamEdge follows one through its life: everything in its order, one message at a time, recorded as it is
// acked.
func TestUpstreamEdge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		records := &memory{}
		c := startInMemory(t, func(o *Options) { o.Records = records })
		c.cluster.set("n1", "default/pod/web", "u-web", "a")
		c.cluster.set("n1", "default/secret/s", "u-s", "a")
		e := newEdge(t, "n1")
		e.setMute(true)
		e.dialUpstream(c)
		wait.True(t, "the first push", func() bool { return len(e.lines()) == 1 })
		c.cluster.set("n1", "default/configmap/conf", "u-conf", "a")
		e.setMute(false)
		e.mu.Lock()
		first := e.got[0]
		e.objects[first.Route.Resource] = "u-s/a"
		e.mu.Unlock()
		if err := e.send(first.Respond(model.OK)); err != nil {
			t.Fatal(err)
		}
		settled(t, c, e)
		want := []string{"update default/secret/s", "insert default/pod/web", "insert default/configmap/conf"}
		if diff := cmp.Diff(want, e.lines()); diff != "" {
			t.Errorf("pushes mismatch (-want +got):\n%s", diff)
		}
		for _, raw := range e.raw {
			for _, never := range []string{"parent_msg_id", `"sync"`, `"destination"`, `"type"`} {
				if strings.Contains(raw, never) {
					t.Errorf("a push has %s, want it without: %s", never, raw)
				}
			}
			for _, always := range []string{`"source":"edgecontroller"`, `"group":"resource"`, `"resourceversion":"`,
				`"timestamp":`} {
				if !strings.Contains(raw, always) {
					t.Errorf("a push has no %s, want it: %s", always, raw)
				}
			}
		}
		c.cluster.set("n1", "default/pod/web", "u-web", "a") // its status changed
		c.cluster.remove("n1", "default/configmap/conf")
		settled(t, c, e)
		wait.True(t, "the records", func() bool { return len(records.noted()) == 8 })
		// Each object's in their order; one that is acked may be noted after the next one is sent.
		noted := records.noted()
		slices.SortStableFunc(noted, func(a, b string) int {
			return strings.Compare(strings.Fields(a)[1], strings.Fields(b)[1])
		})
		if diff := cmp.Diff([]string{
			"sent default/configmap/conf u-conf v1 ConfigMap", "acked default/configmap/conf u-conf 3 a",
			"deleted default/configmap/conf u-conf",
			"sent default/pod/web u-web v1 Pod", "acked default/pod/web u-web 1 a", "acked default/pod/web u-web 4 a",
			"sent default/secret/s u-s v1 Secret", "acked default/secret/s u-s 2 a",
		}, noted); diff != "" {
			t.Errorf("records mismatch (-want +got):\n%s", diff)
		}
		c.cluster.set("n1", "null/node/n1", "u-n", "a")
		settled(t, c, e)
		c.cluster.remove("n1", "null/node/n1")
		c.hub.Disconnect("n1", "the node was deleted")
		if err := e.waitEnd(); err == nil || !strings.Contains(err.Error(), "the node was deleted") {
			t.Errorf("ended with %v, want that the node was deleted", err)
		}
		wait.True(t, "the records to go", func() bool { return len(records.Nodes()) == 0 })
		for _, line := range e.lines() {
			if line == "delete null/node/n1" {
				t.Errorf("the node was sent %q, want no message about its own deletion", line)
			}
		}
	})
}

// TestRecordsOfGoneNodes: they are dropped, but not those of a node that is connected before it is registered.
func TestRecordsOfGoneNodes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		records := &memory{}
		c := startInMemory(t, func(o *Options) { o.Records = records })
		c.cluster.set("n1", "default/pod/web", "u", "a")
		settled(t, c, newEdge(t, "n1").dialUpstream(c))
		if err := records.Sending(t.Context(), "n2", newCluster().set("n2", "default/pod/web", "u", "a").
			Ref); err != nil {
			t.Fatal(err)
		}
		c.hub.forgetGoneNow(t.Context())
		if diff := cmp.Diff([]string{"n1"}, records.Nodes()); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}
	})
}

// TestVersionsOfUpstream: the names that each version uses for its node come back as they were asked with; requests
// about a node are one queue whatever they are called.
func TestVersionsOfUpstream(t *testing.T) {
	for _, version := range []struct{ name, namespace string }{
		{"v1.12", "default"}, {"v1.22", "default"}, {"v1.23", "null"},
	} {
		t.Run(version.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { versionOfUpstream(t, version.namespace) })
		})
	}
}

func versionOfUpstream(t *testing.T, namespace string) {
	c := startInMemory(t, func(o *Options) { o.KeepaliveInterval = 10 * time.Second })
	c.api.handle = func(_ context.Context, node string, m *model.Message) *model.Message {
		c.api.note("%s %s", m.Route.Operation, m.Route.Resource)
		if m.Route.Operation == model.OpInsert {
			c.cluster.set(node, "null/node/"+node, "u-n", "registered")
		}
		r := m.Respond(json.RawMessage(`{"Object":null,"Err":null}`))
		r.Route.Source, r.Route.Group = sourceEdgeController, model.GroupResource
		return r
	}
	e := newEdge(t, "n1").dialUpstream(c)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // more often than the interval, as upstream's edges do
		defer close(done)
		tick := time.NewTicker(300 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				e.keepalive()
			case <-stop:
				return
			}
		}
	}()
	defer func() { close(stop); <-done }()
	node := namespace + "/node/n1"
	reply := e.ask(model.OpInsert, node, `{"kind":"Node"}`)
	if reply.Route.Resource != node || reply.Route.Group != "resource" || reply.Route.Operation != "response" {
		t.Errorf("the answer about %s is %+v, want a response about it in group resource", node, reply.Route)
	}
	// Upstream's edges ack answers, too.
	if err := e.send(reply.Respond(model.OK)); err != nil {
		t.Fatal(err)
	}
	patch := namespace + "/nodepatch/n1"
	if reply := e.ask(model.OpPatch, patch, `"{}"`); reply.Route.Resource != patch {
		t.Errorf("the answer names %s, want %s", reply.Route.Resource, patch)
	}
	settled(t, c, e)
	if diff := cmp.Diff([]string{"update null/node/n1"}, e.lines()); diff != "" {
		t.Errorf("pushes mismatch (-want +got):\n%s", diff)
	}
	ca := e.ask(model.OpQuery, "k8s/ca.crt", "null")
	if ca.Route.Source != "cloudhub" || ca.Route.Group != "resource" || string(ca.ContentData()) != "-----CA-----\n" {
		t.Errorf("the CA came as %+v %s, want the one of the options from cloudhub", ca.Route, ca.Content)
	}
	time.Sleep(time.Minute) // many intervals
	synctest.Wait()
	select {
	case <-e.gone:
		t.Errorf("disconnected with %v, want its keepalives to keep it connected", e.waitEnd())
	default:
	}
}

// TestRestart: a new cloudcore sends an upstream edge what changed while there was none, and its node.
func TestRestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		records := &memory{}
		withRecords := func(o *Options) { o.Records = records }
		c := startInMemory(t, withRecords)
		for i := range 20 {
			c.cluster.set("n1", fmt.Sprintf("default/pod/p%d", i), fmt.Sprint("u", i), "a")
		}
		c.cluster.set("n1", "null/node/n1", "u-n", "a")
		e := newEdge(t, "n1").dialUpstream(c)
		settled(t, c, e)
		wait.True(t, "the records", func() bool {
			held, _ := records.Held(t.Context(), "n1")
			return held[nodeKey("n1")].ResourceVersion == "21"
		})
		c.stop()
		if err := e.waitEnd(); err == nil || !strings.Contains(err.Error(), "cloudcore stops") {
			t.Errorf("ended with %v, want that cloudcore stops", err)
		}
		c.cluster.mu.Lock()
		c.cluster.hub = nil
		c.cluster.mu.Unlock()
		c.cluster.set("n1", "default/pod/p3", "u3", "b")
		c.cluster.set("n1", "default/pod/p4", "u4-new", "a")
		c.cluster.mu.Lock()
		delete(c.cluster.objects["n1"], resource.Key{Namespace: "default", Type: "pod", Name: "p5"})
		c.cluster.mu.Unlock()
		c.start(withRecords)
		again := newEdge(t, "n1")
		again.objects = e.holds()
		again.dialUpstream(c)
		settled(t, c, again)
		want := []string{
			"delete default/pod/p5", "update null/node/n1", "update default/pod/p3", "delete default/pod/p4",
			"insert default/pod/p4",
		}
		if diff := cmp.Diff(want, again.lines()); diff != "" {
			t.Errorf("pushes mismatch (-want +got):\n%s", diff)
		}
	})
}

// TestRefusedObject: what an edge cannot store holds up no other, and comes again.
func TestRefusedObject(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startInMemory(t, nil)
		e := newEdge(t, "n1")
		e.refuse["default/pod/bad"] = true
		e.dialOurs(c)
		c.cluster.set("n1", "default/pod/bad", "u-b", "a")
		for i := range 30 {
			c.cluster.set("n1", fmt.Sprintf("default/pod/p%d", i), fmt.Sprint("u", i), "a")
		}
		wait.True(t, "the other pods", func() bool { return len(e.holds()) == 30 })
		e.mu.Lock()
		e.refuse["default/pod/bad"] = false
		e.mu.Unlock()
		settled(t, c, e)
		n := 0
		for _, line := range e.lines() {
			if strings.HasSuffix(line, "/bad") {
				n++
			}
		}
		if n < 2 {
			t.Errorf("the refused pod was sent %d times, want 2 or more", n)
		}
	})
}
