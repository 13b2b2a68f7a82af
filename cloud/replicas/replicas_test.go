package replicas

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// server keeps Leases as kube-apiserver does.
type server struct {
	coordination.LeaseInterface

	mu     sync.Mutex
	leases map[string]coordinationv1.Lease
	down   bool
	writes int
}

var resource = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// access returns an error if the server is down, or the Lease does not exist.
func (s *server) access(name string) error {
	if _, ok := s.leases[name]; s.down {
		return apierrors.NewServiceUnavailable("it is down")
	} else if !ok && name != "" {
		return apierrors.NewNotFound(resource, name)
	}
	return nil
}

func (s *server) Get(_ context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.leases[name]
	return &l, s.access(name)
}

func (s *server) put(l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	s.writes++
	s.leases[l.Name] = *l
	return l, nil
}

func (s *server) Create(
	_ context.Context, l *coordinationv1.Lease, _ metav1.CreateOptions,
) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.access(""); err != nil {
		return nil, err
	}
	return s.put(l)
}

func (s *server) Update(
	_ context.Context, l *coordinationv1.Lease, _ metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.access(l.Name); err != nil {
		return nil, err
	}
	return s.put(l)
}

func (s *server) Delete(_ context.Context, name string, _ metav1.DeleteOptions) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.access(name); err != nil {
		return err
	}
	delete(s.leases, name)
	return nil
}

func (s *server) List(context.Context, metav1.ListOptions) (*coordinationv1.LeaseList, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.access(""); err != nil {
		return nil, err
	}
	return &coordinationv1.LeaseList{Items: slices.Collect(maps.Values(s.leases))}, nil
}

func (s *server) setDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

func (s *server) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.leases))
}

// run runs a replica, and returns what stops it.
func (s *server) run(address string) (*Replicas, func()) {
	r := New(s, address)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	synctest.Wait()
	return r, func() { cancel(); running.Wait() }
}

// TestDead: an address is dead when its cloudcore has stopped, at once, and when it was killed, after a minute; never
// while it renews its Lease, and never to a cloudcore that does not renew its own.
func TestDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{leases: map[string]coordinationv1.Lease{}}
		a, stopA := s.run("192.0.2.1")
		_, stopB := s.run("192.0.2.2")
		_, stopV6 := s.run("2001:db8::")
		all := []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "2001:db8::"}
		is := func(when string, want ...string) {
			t.Helper()
			dead, err := a.Dead(t.Context(), all)
			if diff := cmp.Diff(want, slices.Sorted(maps.Keys(dead))); diff != "" || err != nil {
				t.Errorf("%s: Dead: %v (-want +got):\n%s", when, err, diff)
			}
		}
		if diff := cmp.Diff([]string{"cloudcore-192-0-2-1", "cloudcore-192-0-2-2", "cloudcore-2001-db8"},
			s.names()); diff != "" {
			t.Errorf("leases (-want +got):\n%s", diff)
		}
		is("at first", "192.0.2.3")
		time.Sleep(time.Hour)
		is("after an hour", "192.0.2.3")

		stopB()
		is("one has stopped", "192.0.2.2", "192.0.2.3")

		s.mu.Lock()
		killed := s.leases["cloudcore-2001-db8"]
		s.mu.Unlock()
		stopV6()
		s.mu.Lock()
		s.leases[killed.Name] = killed
		s.mu.Unlock()
		is("one was killed just now", "192.0.2.2", "192.0.2.3")
		time.Sleep(expire)
		is("a minute ago", "192.0.2.2", "192.0.2.3")
		time.Sleep(time.Second)
		is("longer ago", "192.0.2.2", "192.0.2.3", "2001:db8::")

		s.setDown(true)
		if dead, err := a.Dead(t.Context(), all); err == nil {
			t.Errorf("kube-apiserver is down: Dead = %v, want an error", dead)
		}
		time.Sleep(expire)
		s.setDown(false)
		if dead, err := a.Dead(t.Context(), all); err == nil {
			t.Errorf("its own lease is old: Dead = %v, want an error", dead)
		}
		time.Sleep(Every)
		is("it renews again", "192.0.2.2", "192.0.2.3", "2001:db8::")
		stopA()

		time.Sleep(leftoverAge)
		_, stop := s.run("192.0.2.4")
		if diff := cmp.Diff([]string{"cloudcore-192-0-2-4"}, s.names()); diff != "" {
			t.Errorf("leases a day later (-want +got):\n%s", diff)
		}
		stop()
	})
}
