package pleg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// Client is what the sources need of a CRI client.
type Client interface {
	GetContainerEvents(ctx context.Context, in *runtimeapi.GetEventsRequest,
		opts ...grpc.CallOption) (grpc.ServerStreamingClient[runtimeapi.ContainerEventResponse], error)
}

const (
	streamRetryMin = time.Second
	streamRetryMax = 30 * time.Second
)

// sources are where changes are learned of without asking: the runtime's stream, or else the kernel.
type sources struct {
	client Client
	notice func(context.Context, types.UID)
	relist func()
	exits  *exitWatch
	// streaming is true while the runtime's stream is open: then no process has to be watched.
	streaming atomic.Bool
}

func newSources(client Client, notice func(context.Context, types.UID), relist func()) (*sources, error) {
	exits, err := newExitWatch()
	if err != nil {
		return nil, fmt.Errorf("watch for exits: %w", err)
	}
	return &sources{client: client, notice: notice, relist: relist, exits: exits}, nil
}

// start begins to listen; all goroutines end with ctx.
func (s *sources) start(ctx context.Context, wg *sync.WaitGroup) {
	wg.Go(func() { s.exits.run(ctx, func(uid types.UID) { s.notice(ctx, uid) }) })
	wg.Go(func() { s.followStream(ctx) })
}

// followStream reads the runtime's stream, again after each end, unless the runtime has none.
func (s *sources) followStream(ctx context.Context) {
	for backoff := retry.NewBackoff(streamRetryMin, streamRetryMax); ; {
		err := s.stream(ctx)
		if s.streaming.Swap(false) {
			backoff.Reset() // it was a good one
		}
		if ctx.Err() != nil {
			return
		}
		s.relist() // what happened between two streams is in no stream
		if cri.IsUnimplemented(err) {
			klog.V(2).InfoS("The runtime has no event stream; watching processes instead")
			return
		}
		if !backoff.Wait(ctx) {
			return
		}
	}
}

// stream follows one stream to its end.
func (s *sources) stream(ctx context.Context) error {
	stream, err := s.client.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return err
	}
	for {
		event, err := stream.Recv()
		if err != nil {
			return err
		}
		s.streaming.Store(true)
		if uid := event.GetPodSandboxStatus().GetMetadata().GetUid(); uid != "" {
			s.notice(ctx, types.UID(uid))
		} else {
			s.relist()
		}
	}
}

// watch watches the running processes of a pod. Those whose pid the runtime does not tell are left to the
// relist. It reports whether one of them has ended, which the runtime does not know yet.
func (s *sources) watch(pod *observed.Pod) (behind bool) {
	if s.streaming.Load() {
		return false
	}
	running := map[string]int{}
	for _, c := range pod.Containers {
		if c.Running() && c.PID != 0 {
			running[c.ID] = c.PID
		}
	}
	for _, box := range pod.Sandboxes {
		if box.Ready && box.PID != 0 {
			running[box.ID] = box.PID
		}
	}
	s.exits.forget(pod.UID, running)
	for id, pid := range running {
		err := s.exits.add(pid, id, pod.UID)
		switch {
		case errors.Is(err, os.ErrProcessDone):
			behind = true
		case err != nil:
			klog.V(2).InfoS("Process not watched; its exit is noticed by relist", "podUID", pod.UID, "id", id,
				"pid", pid, "err", err)
		}
	}
	return behind
}

// inCgroupOf reports whether a process belongs to a container: its id is in the process's cgroup. A
// pid may have been given to another process since the runtime named it.
func inCgroupOf(pid int, id string) bool {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	return err == nil && strings.Contains(string(data), id)
}
