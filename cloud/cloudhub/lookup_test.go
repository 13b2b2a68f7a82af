package cloudhub

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestSlowLookups: while the API server does not say whether some objects are gone, a node gets its answers and all
// other objects.
func TestSlowLookups(t *testing.T) {
	t.Parallel()
	for name, ours := range map[string]bool{"ours": true, "upstream's": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				records := &memory{}
				c := startInMemory(t, func(o *Options) { o.Records = records })
				hang := make(chan struct{})
				c.cluster.lookup = func(key resource.Key) {
					if strings.HasPrefix(key.Name, "gone") {
						<-hang
					}
				}
				e := newEdge(t, "n1")
				for i := range 20 {
					name := fmt.Sprint("default/pod/gone", i)
					e.objects[name] = "u/a"
					key, _ := resource.Parse(name)
					records.put("n1", Ref{Key: key, UID: "u"}, "1")
				}
				c.cluster.set("n1", "default/pod/web", "u-web", "a")
				if ours {
					e.dialOurs(c)
				} else {
					e.dialUpstream(c)
				}
				wait.True(t, "an object beside those that nobody knows",
					func() bool { return e.holds()["default/pod/web"] == "u-web/a" })
				if e.ask(model.OpQuery, "default/pod/x", "null") == nil {
					t.Error("answer = nil, want one")
				}
				c.cluster.set("n1", "default/pod/gonesoon", "u", "a")
				c.cluster.set("n1", "default/pod/web", "u-web", "b")
				wait.True(t, "a change", func() bool { return e.holds()["default/pod/web"] == "u-web/b" })
				if e.ask(model.OpQuery, "default/pod/x", "null") == nil {
					t.Error("answer = nil, want one")
				}
				s := c.hub.session("n1")
				s.mu.Lock()
				looking, doubtful := s.lookups, s.doubtfulLookups
				s.mu.Unlock()
				if looking > lookupsMax || doubtful > doubtfulMax {
					t.Errorf("%d objects are looked up, %d of them doubtful; want at most %d and %d",
						looking, doubtful, lookupsMax, doubtfulMax)
				}
				close(hang)
				settled(t, c, e)
			})
		})
	}
}

// TestAfter: an object that must come after another waits for it if its lookup is slow or fails once, and does without
// it if it does not exist or cannot be looked up.
func TestAfter(t *testing.T) {
	t.Parallel()
	const model, device = "default/configmap/model", "default/pod/device"
	tests := map[string]struct {
		slow, missing bool
		failures      int
		want          []string
	}{
		"slow":            {slow: true, want: []string{"model", "device"}},
		"fails once":      {failures: 1, want: []string{"model", "device"}},
		"fails each time": {failures: 1000, want: []string{"device"}},
		"does not exist":  {missing: true, want: []string{"device"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := startInMemory(t, nil)
				e := newEdge(t, "n1").dialUpstream(c)
				settled(t, c, e)
				c.cluster.lookup = func(key resource.Key) {
					if key.Name != "model" {
						return
					}
					if test.slow {
						time.Sleep(20 * patience)
					}
					if test.failures--; test.failures < 0 {
						c.cluster.fail(model, nil)
					}
				}
				if test.failures > 0 {
					c.cluster.fail(model, errors.New("injected"))
				}
				if !test.missing {
					c.cluster.set("n1", model, "u-model", "a")
				}
				c.cluster.require(device, model)
				c.cluster.set("n1", device, "u-device", "a")
				wait.True(t, "the device", func() bool { return e.holds()[device] == "u-device/a" })
				e.mu.Lock()
				defer e.mu.Unlock()
				var got []string
				for _, m := range e.got {
					if key, ok := resource.Parse(m.Route.Resource); ok == nil {
						got = append(got, key.Name)
					}
				}
				if !slices.Equal(got, test.want) {
					t.Errorf("the node was sent %q, want %q", got, test.want)
				}
			})
		})
	}
}

// TestInventedObjects: of objects that only the node names so many are looked up as its rate allows, also over several
// sessions, and what the node is to have does not wait for that.
func TestInventedObjects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startInMemory(t, nil)
		var mu sync.Mutex
		var at []time.Time
		c.cluster.lookup = func(key resource.Key) {
			if strings.HasPrefix(key.Name, "invented") {
				mu.Lock()
				defer mu.Unlock()
				at = append(at, time.Now())
			}
		}
		c.cluster.set("n1", "default/pod/web", "u-web", "a")
		e := newEdge(t, "n1")
		const invented = doubtfulBurst + 50
		for i := range invented {
			e.objects[fmt.Sprint("default/pod/invented", i)] = "u/a"
		}
		began := time.Now()
		e.dialOurs(c)
		wait.True(t, "what it is to have", func() bool { return e.holds()["default/pod/web"] == "u-web/a" })
		e.bye()
		again := newEdge(t, "n1")
		again.objects = e.holds()
		for i := range 50 {
			again.objects[fmt.Sprint("default/pod/invented-more", i)] = "u/a"
		}
		e = again.dialOurs(c)
		settled(t, c, e)
		c.hub.Holds("n1", resource.Key{Namespace: "default", Type: "pod", Name: "invented-again"}, "u")
		c.hub.Holds("n1", resource.Key{Namespace: "default", Type: "pod", Name: strings.Repeat("x", heldKeyMax)}, "u")
		settled(t, c, e)
		mu.Lock()
		defer mu.Unlock()
		if len(at) < invented {
			t.Errorf("%d lookups of invented objects, want %d or more", len(at), invented)
		}
		slices.SortFunc(at, time.Time.Compare)
		for i, when := range at {
			if most := doubtfulBurst + 1 + int(when.Sub(began)*doubtfulRate/time.Second); i >= most {
				t.Fatalf("%d lookups of invented objects after %v, want at most %d", i+1, when.Sub(began), most)
			}
		}
	})
}
