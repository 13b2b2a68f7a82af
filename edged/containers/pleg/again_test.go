package pleg

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestLookAgain(t *testing.T) {
	var l lookAgain
	now := time.Unix(0, 0)
	var waits []string
	for {
		l.add("1", now)
		wait, ok := l.next(now)
		if !ok {
			break
		}
		l.add("1", now) // one look is enough
		waits = append(waits, wait.String())
		if early := l.due(now.Add(wait - 1)); len(early) > 0 {
			t.Fatalf("due too early: %v, want none", early)
		}
		now = now.Add(wait)
		if due := l.due(now); !slices.Equal(due, []types.UID{"1"}) {
			t.Fatalf("due: %v, want [1]", due)
		}
	}
	if got := strings.Join(waits, " "); got != "5ms 10ms 20ms 40ms 80ms 160ms 320ms 640ms 1.28s 2.56s 5s" {
		t.Errorf("waits %q, want them to double from 5ms to 5s", got)
	}
	l.add("1", now)
	l.remove("1")
	if at, ok := l.next(now); ok {
		t.Errorf("next() after done(1) = %v, true, want false", at)
	}
	l.add("1", now)
	if wait, _ := l.next(now); wait != againFirst {
		t.Errorf("later trouble begins with %v, want %v", wait, againFirst)
	}
}

// slow is a runtime that knows of a death only at the n-th question after it.
type slow struct {
	mu       sync.Mutex
	pid      int
	lateness int
	asked    int
	died     bool
}

func (s *slow) ListPods(context.Context) ([]*observed.Pod, error) { return nil, nil }

func (s *slow) GetPod(context.Context, types.UID, *observed.Pod) (*observed.Pod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.died {
		s.asked++
	}
	// Every process is in a cgroup whose line has ":/" in it.
	c := &observed.Container{ID: ":/", Name: "c", State: runtimeapi.ContainerState_CONTAINER_RUNNING, PID: s.pid}
	if s.asked > s.lateness {
		c.State, c.PID = runtimeapi.ContainerState_CONTAINER_EXITED, 0
	}
	return &observed.Pod{UID: "1", At: time.Now(), Containers: []*observed.Container{c}}, nil
}

func (*slow) GetContainerEvents(
	context.Context, *runtimeapi.GetEventsRequest, ...grpc.CallOption,
) (grpc.ServerStreamingClient[runtimeapi.ContainerEventResponse], error) {
	return nil, status.Error(codes.Unimplemented, "none")
}

// TestRuntimeBehindTheKernel: a death is reported though the runtime does not know of it at first. The process
// is left a zombie, which must not make questions without a pause.
func TestRuntimeBehindTheKernel(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &slow{pid: cmd.Process.Pid, lateness: 4}
	told := make(chan types.UID, 10)
	p := New(s, s, Options{OnChange: func(uid types.UID) { told <- uid }, RelistMin: time.Hour, RelistMax: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	for p.source.Load() == nil {
		if _, err := p.Refresh(ctx, "1"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Refresh(ctx, "1"); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.died = true
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	s.mu.Unlock()
	for !p.Get("1").Containers[0].Exited() {
		wait.Receive(t, "news of the death", told)
	}
	cancel()
	wg.Wait()
	if s.asked < s.lateness+1 || s.asked > 2*(s.lateness+1) { // a look of the beginning may still ask
		t.Errorf("asked %d times, want about %d", s.asked, s.lateness+1)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("Wait of the killed process = nil, want an error")
	}
}

// TestStuckRelist: a relist that has no end is reported in the kubelet's words.
func TestStuckRelist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(&fake{}, nil, Options{})
		if _, err := p.Relist(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(maxSilence)
		if err := p.Healthy(); err != nil {
			t.Errorf("Healthy() after %v = %v, want nil", maxSilence, err)
		}
		time.Sleep(time.Second)
		const want = "pleg was last seen active 3m1s ago; threshold is 3m0s"
		if got := fmt.Sprint(p.Healthy()); got != want {
			t.Errorf("Healthy() = %q, want %q", got, want)
		}
	})
}
