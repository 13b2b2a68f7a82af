package pleg

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// fake is a runtime that holds what a test puts into it.
type fake struct {
	mu          sync.Mutex
	pods        map[types.UID]runtimeapi.ContainerState
	down        error
	lists, gets int
}

func (f *fake) set(uid types.UID, state runtimeapi.ContainerState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pods == nil {
		f.pods = map[types.UID]runtimeapi.ContainerState{}
	}
	f.pods[uid] = state
}

func (f *fake) pod(uid types.UID) *observed.Pod {
	p := &observed.Pod{UID: uid, At: time.Now()}
	if state, ok := f.pods[uid]; ok {
		p.Sandboxes = []*observed.Sandbox{{ID: "s" + string(uid), Ready: true}}
		p.Containers = []*observed.Container{{ID: "c" + string(uid), Name: "c", State: state}}
	}
	return p
}

func (f *fake) ListPods(context.Context) ([]*observed.Pod, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists++
	var list []*observed.Pod
	for uid := range f.pods {
		list = append(list, f.pod(uid))
	}
	return list, f.down
}

func (f *fake) GetPod(_ context.Context, uid types.UID, _ *observed.Pod) (*observed.Pod, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gets++
	p := f.pod(uid)
	p.Detailed = true
	return p, f.down
}

func (f *fake) counts() (lists, gets int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lists, f.gets
}

// start runs a PLEG in a bubble, and gives the changes that it told.
func start(t *testing.T, f *fake, body func(p *PLEG, told func() []types.UID)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var changes []types.UID
		p := New(f, nil, Options{OnChange: func(uid types.UID) {
			mu.Lock()
			defer mu.Unlock()
			changes = append(changes, uid)
		}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		body(p, func() []types.UID {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			out := slices.Clone(changes)
			slices.Sort(out)
			changes = nil
			return out
		})
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestRelistTellsWhatChanged(t *testing.T) {
	f := &fake{}
	f.set("1", runtimeapi.ContainerState_CONTAINER_RUNNING)
	f.set("2", runtimeapi.ContainerState_CONTAINER_RUNNING)
	start(t, f, func(p *PLEG, told func() []types.UID) {
		if diff := cmp.Diff([]types.UID{"1", "2"}, told()); diff != "" {
			t.Errorf("what is reported at first, mismatch (-want +got):\n%s", diff)
		}
		if got := p.Get("1"); got == nil || !got.Detailed || p.Healthy() != nil {
			t.Errorf("pod %+v, health %v; want details, no error", got, p.Healthy())
		}
		f.set("2", runtimeapi.ContainerState_CONTAINER_EXITED)
		time.Sleep(30 * time.Second)
		if diff := cmp.Diff([]types.UID{"2"}, told()); diff != "" {
			t.Errorf("what is reported after an exit, mismatch (-want +got):\n%s", diff)
		}
		f.mu.Lock()
		delete(f.pods, "1")
		f.mu.Unlock()
		time.Sleep(30 * time.Second)
		if diff := cmp.Diff([]types.UID{"1"}, told()); diff != "" || p.Get("1") != nil || len(p.All()) != 1 {
			t.Errorf("after a removal: Get(1) = %v, %d pods, want nil, 1; notifications (-want +got):\n%s",
				p.Get("1"), len(p.All()), diff)
		}
	})
}

// TestIdleCostsLittle: nothing changes, so lists become rare, and no pod is read.
func TestIdleCostsLittle(t *testing.T) {
	f := &fake{}
	for _, uid := range []types.UID{"1", "2", "3"} {
		f.set(uid, runtimeapi.ContainerState_CONTAINER_RUNNING)
	}
	start(t, f, func(_ *PLEG, told func() []types.UID) {
		time.Sleep(2 * time.Minute)
		told()
		lists, gets := f.counts()
		time.Sleep(10 * time.Minute)
		told()
		l, g := f.counts()
		if l-lists > 30 || g != gets {
			t.Errorf("%d lists and %d reads in 10 idle minutes, want at most 30, %v", l-lists, g-gets, gets)
		}
	})
}

// TestRefreshIsTheCallersOwn: it returns the newest state, and tells nobody else.
func TestRefreshIsTheCallersOwn(t *testing.T) {
	f := &fake{}
	start(t, f, func(p *PLEG, told func() []types.UID) {
		told()
		f.set("1", runtimeapi.ContainerState_CONTAINER_RUNNING)
		got, err := p.Refresh(t.Context(), "1")
		if err != nil || len(got.Containers) != 1 || p.Get("1") != got {
			t.Errorf("Refresh() = %+v, %v; want one container, and what Get returns", got, err)
		}
		time.Sleep(time.Minute)
		if list := told(); len(list) != 0 {
			t.Errorf("told %v, want none", list)
		}
	})
}

// TestStored: snapshots that differ are reported, whatever requested them.
func TestStored(t *testing.T) {
	f, stored := &fake{}, 0
	f.set("1", runtimeapi.ContainerState_CONTAINER_RUNNING)
	p := New(f, nil, Options{Stored: func() { stored++ }})
	for _, step := range []struct {
		does string
		do   func() error
		want int
	}{
		{"a first Refresh", func() error { _, err := p.Refresh(t.Context(), "1"); return err }, 1},
		{"a Refresh without a change", func() error { _, err := p.Refresh(t.Context(), "1"); return err }, 1},
		{"a Relist without a change", func() error { _, err := p.Relist(t.Context()); return err }, 1},
		{"a Relist after an exit", func() error {
			f.set("1", runtimeapi.ContainerState_CONTAINER_EXITED)
			_, err := p.Relist(t.Context())
			return err
		}, 2},
	} {
		if err := step.do(); err != nil || stored != step.want {
			t.Errorf("after %s: %d calls of Stored, %v; want %d, no error", step.does, stored, err, step.want)
		}
	}
}

func TestNewerSnapshotIsKept(t *testing.T) {
	p := New(&fake{}, nil, Options{})
	now := time.Now()
	newer := &observed.Pod{UID: "1", At: now, Sandboxes: []*observed.Sandbox{{ID: "new"}}}
	p.store(newer)
	p.store(&observed.Pod{UID: "1", At: now.Add(-time.Second), Sandboxes: []*observed.Sandbox{{ID: "old"}}})
	if got := p.Get("1"); got != newer {
		t.Errorf("Get(1) after an older snapshot = %+v, want the newer one %+v", got, newer)
	}
}

func TestHealth(t *testing.T) {
	f := &fake{down: errors.New("no runtime")}
	start(t, f, func(p *PLEG, told func() []types.UID) {
		told()
		if err := p.Healthy(); err == nil ||
			!strings.Contains(err.Error(), "pleg has yet to be successful: no runtime") {
			t.Errorf("health %v, want an error with \"pleg has yet to be successful: no runtime\"", err)
		}
		f.mu.Lock()
		f.down = nil
		f.mu.Unlock()
		time.Sleep(2 * downRetry)
		told()
		if err := p.Healthy(); err != nil {
			t.Error(err)
		}
		f.mu.Lock()
		f.down = errors.New("gone again")
		f.mu.Unlock()
		time.Sleep(time.Minute)
		told()
		if err := p.Healthy(); err == nil || !strings.Contains(err.Error(), "pleg was last seen active") {
			t.Errorf("health %v, want an error with \"pleg was last seen active\"", err)
		}
	})
}

// TestBusyPodsAreLeftOut: anyone who works on a pod refreshes it.
func TestBusyPodsAreLeftOut(t *testing.T) {
	f := &fake{}
	f.set("1", runtimeapi.ContainerState_CONTAINER_RUNNING)
	p := New(f, nil, Options{Busy: func(types.UID) bool { return true }})
	changed, err := p.Relist(t.Context())
	if _, gets := f.counts(); err != nil || !changed || gets != 0 {
		t.Errorf("changed %v, %d reads, %v; want true, 0, no error", changed, gets, err)
	}
}

// TestExitWatch waits for real processes.
func TestExitWatch(t *testing.T) {
	w, err := newExitWatch()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ends := make(chan types.UID, 4)
	var wg sync.WaitGroup
	wg.Go(func() { w.run(ctx, func(uid types.UID) { ends <- uid }) })
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// Every process is in a cgroup whose line has this in it.
	if err := w.add(cmd.Process.Pid, ":/", "pod"); err != nil {
		t.Fatal(err)
	}
	if !w.watches(":/") {
		t.Error("watches(:/) after add = false, want true")
	}
	if err := w.add(cmd.Process.Pid, "an id that is in no cgroup", "other"); err == nil {
		t.Error("add(a process of another cgroup) = nil, want an error")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if uid := wait.Receive(t, "the end of the process", ends); uid != "pod" {
		t.Errorf("the end of %q was noticed, want %q", uid, "pod")
	}
	if err := cmd.Wait(); err == nil {
		t.Error("Wait of the killed process = nil, want an error")
	}
	if err := w.add(cmd.Process.Pid, ":/", "pod"); err == nil || w.watches(":/") {
		t.Errorf("add(a process that has ended) = %v, watches = %t, want an error, false", err, w.watches(":/"))
	}
	cancel()
	wg.Wait()
}
