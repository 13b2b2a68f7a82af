package replicas

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// server keeps Leases as kube-apiserver does.
type server struct {
	coordination.LeaseInterface

	mu      sync.Mutex
	leases  map[string]coordinationv1.Lease
	version int
	down    bool
	// deleting is the error of deletions. updating, which may be nil, is called before each update.
	deleting error
	updating func(ctx context.Context)
}

func newServer() *server { return &server{leases: map[string]coordinationv1.Lease{}} }

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
	return l.DeepCopy(), s.access(name)
}

func (s *server) put(l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	s.version++
	l = l.DeepCopy()
	l.ResourceVersion = strconv.Itoa(s.version)
	s.leases[l.Name] = *l
	return l.DeepCopy(), nil
}

func (s *server) Create(
	_ context.Context, l *coordinationv1.Lease, _ metav1.CreateOptions,
) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.access(""); err != nil {
		return nil, err
	}
	if _, ok := s.leases[l.Name]; ok {
		return nil, apierrors.NewAlreadyExists(resource, l.Name)
	}
	l = l.DeepCopy()
	l.UID = types.UID(fmt.Sprintf("uid-%d", s.version))
	return s.put(l)
}

func (s *server) Update(
	ctx context.Context, l *coordinationv1.Lease, _ metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	updating := s.updating
	s.mu.Unlock()
	if updating != nil {
		updating(ctx)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.access(l.Name); err != nil {
		return nil, err
	}
	if s.leases[l.Name].ResourceVersion != l.ResourceVersion {
		return nil, apierrors.NewConflict(resource, l.Name, errors.New("it has changed"))
	}
	return s.put(l)
}

func (s *server) Delete(_ context.Context, name string, o metav1.DeleteOptions) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.access(name); err != nil {
		return err
	}
	if s.deleting != nil {
		return s.deleting
	}
	only := o.Preconditions
	if l := s.leases[name]; *only.UID != l.UID || *only.ResourceVersion != l.ResourceVersion {
		return apierrors.NewConflict(resource, name, errors.New("it has changed"))
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

// holder returns the holder of the Lease of an address; "" means that it is released.
func (s *server) holder(address string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.leases[nameOf(address)]
	return holderOf(&l)
}

// remove removes the Lease of an address.
func (s *server) remove(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leases, nameOf(address))
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

// kill stops a replica without letting it release its Lease.
func (s *server) kill(stop func()) {
	s.setDown(true)
	stop()
	s.setDown(false)
}

// dead checks which of the addresses are dead.
func dead(t *testing.T, r *Replicas, when string, addresses []string, want ...string) {
	t.Helper()
	got, err := r.Dead(t.Context(), addresses)
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(got))); diff != "" || err != nil {
		t.Errorf("%s: Dead: %v (-want +got):\n%s", when, err, diff)
	}
}

// TestDead: an address is dead when its cloudcore has stopped, at once, and a minute after it was killed or was found
// to have no Lease; never while it renews its Lease, and never to a cloudcore that does not renew its own.
func TestDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		a, stopA := s.run("192.0.2.1")
		_, stopB := s.run("192.0.2.2")
		_, stopV6 := s.run("2001:db8::")
		all := []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "2001:db8::"}
		is := func(when string, want ...string) {
			t.Helper()
			dead(t, a, when, all, want...)
		}
		if diff := cmp.Diff([]string{"cloudcore-192-0-2-1", "cloudcore-192-0-2-2", "cloudcore-2001-db8"},
			s.names()); diff != "" {
			t.Errorf("leases (-want +got):\n%s", diff)
		}
		is("at first")
		if !a.Known("192.0.2.1") || !a.Known("192.0.2.2") || a.Known("192.0.2.3") {
			t.Error("Known is wrong, want true where there is a lease")
		}
		time.Sleep(expire)
		is("the third has had no lease for a minute")
		time.Sleep(time.Second)
		is("longer", "192.0.2.3")
		time.Sleep(time.Hour)
		is("after an hour", "192.0.2.3")

		stopB()
		is("one has stopped", "192.0.2.2", "192.0.2.3")
		if !a.Known("192.0.2.2") {
			t.Error("a cloudcore that has stopped is not known, want it known")
		}

		s.kill(stopV6)
		is("one was killed just now", "192.0.2.2", "192.0.2.3")
		time.Sleep(expire - Every)
		is("less than a minute ago", "192.0.2.2", "192.0.2.3")
		time.Sleep(2 * Every)
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
		is("it renews again, and has not looked for a minute", "192.0.2.2")
		time.Sleep(expire)
		is("it has", "192.0.2.2", "192.0.2.3", "2001:db8::")
		stopA()

		time.Sleep(leftoverAge)
		_, stop := s.run("192.0.2.4")
		if diff := cmp.Diff([]string{"cloudcore-192-0-2-4"}, s.names()); diff != "" {
			t.Errorf("leases a day later (-want +got):\n%s", diff)
		}
		stop()
	})
}

// TestMissing: a cloudcore whose Lease was deleted writes it again, and is not dead in the meantime. One that begins
// within a minute, at an address that had no Lease, is not dead at any time.
func TestMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		a, stopA := s.run("192.0.2.1")
		_, stopB := s.run("192.0.2.2")
		both := []string{"192.0.2.2", "192.0.2.3"}
		dead(t, a, "at first", both)
		s.remove("192.0.2.2")
		dead(t, a, "its lease was deleted", both)
		time.Sleep(expire)
		dead(t, a, "a minute later", both)
		_, stopC := s.run("192.0.2.3")
		time.Sleep(time.Second)
		dead(t, a, "the third has begun", both)
		time.Sleep(time.Hour)
		dead(t, a, "an hour later", both)
		stopC()
		stopB()
		stopA()
	})
}

// TestOutage: time in which kube-apiserver does not answer is no time in which a Lease was not renewed.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		a, stopA := s.run("192.0.2.1")
		_, stopB := s.run("192.0.2.2")
		both := []string{"192.0.2.2", "192.0.2.3"}
		s.kill(stopB)
		dead(t, a, "one was killed just now", both)
		time.Sleep(expire - Every)
		s.setDown(true)
		time.Sleep(forget + time.Second)
		s.setDown(false)
		time.Sleep(Every)
		dead(t, a, "after the outage", both)
		time.Sleep(expire - Every)
		dead(t, a, "not yet a minute after it", both)
		time.Sleep(2 * Every)
		dead(t, a, "a minute after it", both, both...)
		stopA()
	})
}

// TestSameAddress: of two processes with the same address, none releases the Lease on which the other one depends. One
// that has had the address to itself for a minute does.
func TestSameAddress(t *testing.T) {
	const address = "192.0.2.2"
	for name, stopped := range map[string]int{"the old one stops first": 0, "the next one stops first": 1} {
		for _, after := range []time.Duration{0, Every / 2, Every, time.Hour} {
			t.Run(fmt.Sprintf("%s, after %v", name, after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newServer()
					a, stopA := s.run("192.0.2.1")
					is := func(when string, want ...string) {
						t.Helper()
						dead(t, a, when, []string{address}, want...)
					}
					_, stopOld := s.run(address)
					time.Sleep(time.Hour + time.Second)
					_, stopNext := s.run(address)
					stop := []func(){stopOld, stopNext}
					time.Sleep(after)
					stop[stopped]()
					for range 10 {
						is("one has stopped")
						time.Sleep(Every)
					}
					stop[1-stopped]()
					is("the other one has stopped, a minute later", address)
					stopA()
				})
			})
		}
	}
}

// TestRestart: a cloudcore that was killed, and one that comes after it and stops soon, are not dead until a minute
// later.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		a, stopA := s.run("192.0.2.1")
		address := []string{"192.0.2.2"}
		_, stop := s.run("192.0.2.2")
		s.kill(stop)
		time.Sleep(Every)
		_, stop = s.run("192.0.2.2")
		stop()
		dead(t, a, "it has stopped", address)
		time.Sleep(expire + Every)
		dead(t, a, "a minute later", address, address...)
		stopA()
	})
}

// TestStopWhileRenewing: a cloudcore that stops while it renews its Lease releases it.
func TestStopWhileRenewing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		_, stop := s.run("192.0.2.1")
		s.mu.Lock()
		s.updating = func(ctx context.Context) {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
		s.mu.Unlock()
		time.Sleep(Every + time.Second/2)
		stop()
		if got := s.holder("192.0.2.1"); got != "" {
			t.Errorf("the holder is %q, want none", got)
		}
	})
}

// TestSweepFails: that an old Lease cannot be deleted is not logged as a failed renewal, and does not hinder renewals.
func TestSweepFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer klog.CaptureState().Restore()
		var log bytes.Buffer
		klog.LogToStderr(false)
		klog.SetOutput(&log)
		s := newServer()
		_, stop := s.run("192.0.2.1")
		stop()
		time.Sleep(leftoverAge + time.Second)
		s.deleting = apierrors.NewForbidden(resource, "cloudcore-192-0-2-1", nil)
		r, stop := s.run("192.0.2.2")
		time.Sleep(time.Hour)
		dead(t, r, "an hour later", []string{"192.0.2.1", "192.0.2.2"}, "192.0.2.1")
		stop()
		klog.Flush()
		if text := log.String(); strings.Contains(text, "not renewed") || strings.Count(text, "not deleted") != 1 {
			t.Errorf("the log is %q, want one line about the lease that was not deleted", text)
		}
	})
}
