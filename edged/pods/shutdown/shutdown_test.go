package shutdown

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/pods/shutdown/logindtest"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// record is what a watcher did.
type record struct {
	mu    sync.Mutex
	lines []string
	err   error
	ready chan struct{}
	once  sync.Once
}

func (r *record) add(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprintf(format, args...))
}

func (r *record) all() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.lines, "\n")
}

func (r *record) failed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err = err; err == nil {
		r.once.Do(func() { close(r.ready) })
	}
}

func (r *record) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// watch runs a watcher until the test ends. change, if any, is applied to it before it runs.
func watch(t *testing.T, opts Options, change ...func(*Watcher)) *record {
	t.Helper()
	r := &record{ready: make(chan struct{})}
	opts.Began, opts.Failed = func(began bool) { r.add("began %v", began) }, r.failed
	if opts.Pods == nil {
		opts.Pods = func() []*v1.Pod {
			return []*v1.Pod{pod("critical", ptr.To[int32](systemCritical), 30), pod("web", nil, 30), pod("db", nil, 1)}
		}
	}
	if opts.End == nil {
		opts.End = func(_ context.Context, pod *v1.Pod, grace time.Duration) {
			r.add("end of %s within %v", pod.Name, grace)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	w := New(opts)
	w.retryMin, w.reloadWithin = 10*time.Millisecond, wait.Max()
	for _, c := range change {
		c(w)
	}
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return r
}

// wait waits until the watcher would notice a shutdown.
func (r *record) wait(t *testing.T) {
	t.Helper()
	wait.Closed(t, "the watcher to be ready", r.ready)
}

// released waits until nobody holds logind's lock.
func released(t *testing.T, l *logindtest.Logind) {
	t.Helper()
	wait.Until(t, "the lock to be released", func() error {
		if held := l.Locks(); held != 0 {
			return fmt.Errorf("%d locks are held, want none", held)
		}
		return nil
	})
}

// TestShutdown: over a real bus logind waits while the pods end, the critical ones last, and goes on when they have; a
// shutdown that is called off is waited for again.
func TestShutdown(t *testing.T) {
	l := logindtest.Start(t, 5*time.Second)
	conf := filepath.Join(t.TempDir(), "logind.conf.d")
	r := watch(t, Options{Groups: []Group{{0, seconds(20)}, {systemCritical, seconds(10)}}, Address: l.Address,
		ConfDir: conf})
	r.wait(t)
	if l.Locks() != 1 {
		t.Errorf("%d locks are held, want 1", l.Locks())
	}
	// Logind's own limit was 5 s.
	text, err := os.ReadFile(filepath.Join(conf, confName))
	if err != nil || !strings.Contains(string(text), "\nInhibitDelayMaxSec=30\n") || l.Reloads() != 1 {
		t.Errorf("the file says %q, %v after %d reloads, want InhibitDelayMaxSec=30 after 1", text, err, l.Reloads())
	}
	l.Prepare(t, true)
	released(t, l)
	got := strings.Split(r.all(), "\n")
	if len(got) != 4 || got[0] != "began true" || got[3] != "end of critical within 10s" {
		t.Fatalf("the watcher did %q, want [began true, end of a pod, end of a pod, end of critical within 10s]", got)
	}
	if middle := got[1] + got[2]; !strings.Contains(middle, "end of web within 20s") ||
		!strings.Contains(middle, "end of db within 1s") {
		t.Errorf("the watcher did %q, want web to have 20s and db 1s", got)
	}
	l.Prepare(t, false)
	wait.Until(t, "a lock to be taken again", func() error {
		if held, all := l.Locks(), r.all(); held != 1 || !strings.HasSuffix(all, "began false") {
			return fmt.Errorf("%d locks after %q, want 1 after \"began false\"", held, all)
		}
		return nil
	})
	l.Prepare(t, true)
	released(t, l) // the second shutdown is noticed
}

// TestSlowPods: a pod that does not end holds up its group for the group's time, and no longer.
func TestSlowPods(t *testing.T) {
	l := logindtest.Start(t, time.Hour)
	r, db := &record{}, make(chan struct{})
	w := watch(t, Options{
		Groups:  []Group{{0, 300 * time.Millisecond}, {systemCritical, seconds(10)}},
		Address: l.Address,
		ConfDir: t.TempDir(),
		End: func(ctx context.Context, pod *v1.Pod, _ time.Duration) {
			if pod.Name == "web" {
				<-ctx.Done()
				<-db
				r.add("%s: %v", pod.Name, errors.Is(ctx.Err(), context.DeadlineExceeded))
				return
			}
			r.add("%s", pod.Name)
			if pod.Name == "db" {
				close(db)
			}
		},
	})
	w.wait(t)
	if n := l.Reloads(); n != 0 {
		t.Errorf("%d reloads with a limit that is long enough, want 0", n)
	}
	l.Prepare(t, true)
	released(t, l)
	if got, want := r.all(), "db\nweb: true\ncritical"; got != want {
		t.Errorf("the watcher did %q, want %q", got, want)
	}
}

// TestLimitStays: where logind keeps its limit, the groups share it.
func TestLimitStays(t *testing.T) {
	l := logindtest.Start(t, 3*time.Second)
	l.Stubborn()
	r := watch(t, Options{Groups: []Group{{0, seconds(20)}, {systemCritical, seconds(10)}}, Address: l.Address,
		ConfDir: t.TempDir()},
		func(w *Watcher) { w.reloadWithin = 300 * time.Millisecond })
	r.wait(t)
	l.Prepare(t, true)
	released(t, l)
	if got := r.all(); !strings.Contains(got, "end of web within 2s") ||
		!strings.Contains(got, "end of critical within 1s") {
		t.Errorf("the watcher did %q, want web to have 2s and the critical pod 1s", got)
	}
}

// TestBusGoes: the loss of the bus is reported, and its return is noticed.
func TestBusGoes(t *testing.T) {
	l := logindtest.Start(t, time.Hour)
	r := watch(t, Options{Groups: []Group{{0, seconds(20)}}, Address: l.Address, ConfDir: t.TempDir()})
	r.wait(t)
	l.Stop()
	wait.True(t, "the loss of the bus to be reported", func() bool { return r.failure() != nil })
	l.Restart(t)
	wait.Until(t, "the return of the bus to be noticed", func() error {
		if err, held := r.failure(), l.Locks(); err != nil || held != 1 {
			return fmt.Errorf("error %v, %d locks; want none, 1", err, held)
		}
		return nil
	})
}

// TestCalledOffMeanwhile: a shutdown that is called off while the bus is away lets the pods start again.
func TestCalledOffMeanwhile(t *testing.T) {
	l := logindtest.Start(t, time.Hour)
	r := watch(t, Options{Groups: []Group{{0, seconds(20)}}, Address: l.Address, ConfDir: t.TempDir()})
	r.wait(t)
	l.Prepare(t, true)
	released(t, l)
	l.Stop()
	wait.True(t, "the loss of the bus to be reported", func() bool { return r.failure() != nil })
	l.Restart(t)
	wait.Until(t, "the pods to be let start again", func() error {
		if all := r.all(); !strings.HasSuffix(all, "began false") {
			return fmt.Errorf("the watcher did %q, want \"began false\" at the end", all)
		}
		return nil
	})
}

// TestNoGroups: nobody waits for a shutdown unless the configuration says so.
func TestNoGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := watch(t, Options{Address: "unix:path=/nonexistent"})
		time.Sleep(2 * retryMax)
		synctest.Wait()
		if err := r.failure(); err != nil {
			t.Errorf("a watcher without groups reports %v, want nothing", err)
		}
	})
}

func TestNoBus(t *testing.T) {
	r := watch(t, Options{
		Groups: []Group{{0, seconds(20)}}, Address: "unix:path=" + filepath.Join(t.TempDir(), "none"),
	})
	wait.Until(t, "the missing bus to be reported", func() error {
		if err := r.failure(); err == nil || !strings.Contains(err.Error(), "D-Bus") {
			return fmt.Errorf("error %v, want one of the D-Bus", err)
		}
		return nil
	})
}
