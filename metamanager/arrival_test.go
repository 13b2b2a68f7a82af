package metamanager

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/beehive/model"
)

// TestMessageTwice: a message of the cloud that comes again, after others have changed what it said, is acknowledged
// and changes nothing. One that failed is carried out when it comes again.
func TestMessageTwice(t *testing.T) {
	e := newEdge(t, nil)
	msg := func(operation, res, content string) *model.Message {
		return model.New("edgecontroller", model.GroupResource, operation, res, json.RawMessage(content))
	}
	insert := msg("insert", "default/pod/one", object("default", "one", "u1", "1"))
	e.ok(e.send(insert))
	e.ok(e.send(msg("delete", "default/pod/one", object("default", "one", "u1", "1"))))
	e.ok(e.send(insert))
	if rows := e.rows("pod"); len(rows) != 0 {
		t.Errorf("pods after a deleted one was sent again = %v, want none", rows)
	}
	if diff := cmp.Diff([]string{"insert default/pod/one", "delete default/pod/one"}, e.forwarded()); diff != "" {
		t.Errorf("forwarded (-want +got):\n%s", diff)
	}
	// A configmap that a pod named, named no more, and names again, is the same object: it comes with another id.
	for range 2 {
		e.ok(e.send(msg("update", "default/configmap/c", object("default", "c", "u2", "5"))))
		if rows := e.rows("configmap"); len(rows) != 1 {
			t.Errorf("configmaps = %v, want one", rows)
		}
		e.ok(e.send(msg("delete", "default/configmap/c", object("default", "c", "u2", "5"))))
	}

	failing := []error{errors.New("disk is full"), nil}
	e = newEdge(t, func(inner Store) Store {
		return &gated{Store: inner, fail: func() (err error) { err, failing = failing[0], failing[1:]; return err }}
	})
	if a := e.send(insert); a.Route.Operation != model.OpError {
		t.Fatalf("answer = %s %s, want an error: the disk is full", a.Route.Operation, a.Content)
	}
	e.ok(e.send(insert))
	if rows := e.rows("pod"); len(rows) != 1 {
		t.Errorf("pods after the second try = %v, want one", rows)
	}
}

// linkedWith is an edge with a hub, whose module a test may change before it runs.
func linkedWith(t *testing.T, change func(*Module)) (*edge, *hub) {
	t.Helper()
	e := &edge{t: t, bus: beehive.New(), store: openStore(t)}
	h := &hub{bus: e.bus}
	m := New(e.bus, e.store, Options{})
	change(m)
	if err := errors.Join(e.bus.Add(m), e.bus.Add(h)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = e.bus.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return e, h
}

const upWithOurs = `{"connected":true,"features":{"inventory":true}}`
