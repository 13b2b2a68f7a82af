package cloudhub

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestRequestTooLate: a request that waits for longer than its node waits for the answer is not carried out, and one
// that is carried out has the time that is left.
func TestRequestTooLate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		upstream        bool
		operation, kind string
		want            time.Duration // zero: it has as long as it takes
	}{
		"a status":           {false, model.OpPatch, "podpatch", reportWait},
		"the end of a pod":   {false, model.OpDelete, "pod", reportWait},
		"an event":           {false, model.OpInsert, "event", reportWait},
		"a question":         {false, model.OpQuery, "configmap", requestWait},
		"KubeEdge's status":  {true, model.OpPatch, "podpatch", requestWait},
		"an event, KubeEdge": {true, model.OpInsert, "event", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				registry := prometheus.NewRegistry()
				c := startInMemory(t, func(o *Options) { o.Registry = registry })
				var mu sync.Mutex
				var handled []string
				hold, began := make(chan struct{}), make(chan time.Duration, 2*executorParallel)
				c.api.handle = func(ctx context.Context, _ string, m *model.Message) *model.Message {
					mu.Lock()
					handled = append(handled, string(m.Content))
					mu.Unlock()
					left := time.Duration(0)
					if deadline, ok := ctx.Deadline(); ok {
						left = time.Until(deadline)
					}
					began <- left
					<-hold
					return m.Respond(model.OK)
				}
				e := newEdge(t, "n1")
				if tc.upstream {
					e.dialUpstream(c)
				} else {
					e.dialOurs(c)
				}
				send := func(object, content string) *model.Message {
					resource := "default/" + tc.kind + "/" + object
					m := model.New("edged", model.GroupMeta, tc.operation, resource, []byte(content))
					if err := e.send(m); err != nil {
						t.Fatal(err)
					}
					return m
				}
				var want []string
				for i := range executorParallel { // which are all workers
					send(fmt.Sprint("busy", i), "1")
					want = append(want, "1")
					if got := wait.Receive(t, "a request", began); got != tc.want {
						t.Errorf("a request that began at once has %v, want %v", got, tc.want)
					}
				}
				late := send("x", "2")
				passed := tc.want
				if passed == 0 {
					passed = 2 * requestWait
				}
				time.Sleep(passed)
				send("x", "3")
				synctest.Wait()
				close(hold)
				expired := 1.0
				if tc.want == 0 {
					want, expired = append(want, "2"), 0
				}
				want = append(want, "3")
				wait.True(t, "all requests", func() bool {
					mu.Lock()
					defer mu.Unlock()
					return len(handled) >= len(want)
				})
				mu.Lock()
				defer mu.Unlock()
				if diff := cmp.Diff(want, handled); diff != "" {
					t.Errorf("requests that were carried out mismatch (-want +got):\n%s", diff)
				}
				if got := gather(t, registry)["expired_requests_total"]; got != expired {
					t.Errorf("%v requests expired, want %v", got, expired)
				}
				if expired == 0 {
					return
				}
				answer := e.answer(late.Header.ID)
				if answer == nil || answer.Route.Operation != model.OpError ||
					!strings.Contains(string(answer.Content), "in time") {
					t.Errorf("the late request was answered with %+v, want an error that says so", answer)
				}
			})
		})
	}
}

// TestRequestOfEndedSession: what waits when a session ends is not begun.
func TestRequestOfEndedSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startInMemory(t, nil)
		hold, began := make(chan struct{}), make(chan string, 10)
		c.api.handle = func(_ context.Context, _ string, m *model.Message) *model.Message {
			began <- string(m.Content)
			<-hold
			return m.Respond(model.OK)
		}
		e := newEdge(t, "n1").dialOurs(c)
		for _, content := range []string{"1", "2"} {
			m := model.New("edged", model.GroupMeta, model.OpPatch, "default/podpatch/x", []byte(content))
			if err := e.send(m); err != nil {
				t.Fatal(err)
			}
		}
		if got := wait.Receive(t, "the first request", began); got != "1" {
			t.Errorf("the first request = %s, want 1", got)
		}
		e.bye()
		close(hold)
		wait.True(t, "the session to end", func() bool { return len(c.hub.Connected()) == 0 })
		synctest.Wait()
		if n := len(began); n != 0 {
			t.Errorf("%d more requests were begun, want none", n)
		}
	})
}
