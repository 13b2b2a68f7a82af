package pleg

import (
	"context"
	"encoding/json"
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

	"github.com/edgecore-io/edgecore/edged/cri"
	"github.com/edgecore-io/edgecore/edged/observed"
)

// Client is what the sources need of a CRI client.
type Client interface {
	GetContainerEvents(ctx context.Context, in *runtimeapi.GetEventsRequest, opts ...grpc.CallOption) (grpc.ServerStreamingClient[runtimeapi.ContainerEventResponse], error)
	ContainerStatus(ctx context.Context, in *runtimeapi.ContainerStatusRequest, opts ...grpc.CallOption) (*runtimeapi.ContainerStatusResponse, error)
	PodSandboxStatus(ctx context.Context, in *runtimeapi.PodSandboxStatusRequest, opts ...grpc.CallOption) (*runtimeapi.PodSandboxStatusResponse, error)
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
	// ask holds pods whose processes are to be watched.
	ask chan *observed.Pod
}

func newSources(client Client, notice func(context.Context, types.UID), relist func()) *sources {
	return &sources{client: client, notice: notice, relist: relist, ask: make(chan *observed.Pod, 256)}
}

// start begins to listen; all goroutines end with ctx.
func (s *sources) start(ctx context.Context, wg *sync.WaitGroup) error {
	exits, err := newExitWatch()
	if err != nil {
		return fmt.Errorf("watch for exits: %w", err)
	}
	s.exits = exits
	wg.Go(func() { s.exits.run(ctx, func(uid types.UID) { s.notice(ctx, uid) }) })
	wg.Go(func() { s.follow(ctx) })
	wg.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case pod := <-s.ask:
				s.watchPod(ctx, pod)
			}
		}
	})
	return nil
}

// follow reads the runtime's stream, again after each end, unless the runtime has none.
func (s *sources) follow(ctx context.Context) {
	for delay := streamRetryMin; ; delay = min(2*delay, streamRetryMax) {
		err := s.stream(ctx)
		s.streaming.Store(false)
		if ctx.Err() != nil {
			return
		}
		s.relist() // what happened between two streams is in no stream
		if cri.IsUnimplemented(err) {
			klog.V(2).InfoS("The runtime has no event stream; watching processes instead")
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
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

// watch asks for the running processes of a pod to be watched. It does not block; what is dropped the
// relist makes good.
func (s *sources) watch(pod *observed.Pod) {
	if s.streaming.Load() || !pod.Alive() || s.exits == nil || s.exits.watchesAll(pod) {
		return
	}
	select {
	case s.ask <- pod:
	default:
	}
}

func (s *sources) watchPod(ctx context.Context, pod *observed.Pod) {
	for _, c := range pod.Containers {
		if !c.Running() || s.exits.watches(c.ID) {
			continue
		}
		resp, err := s.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.ID, Verbose: true})
		if err == nil {
			s.add(ctx, pod.UID, c.ID, resp.Info)
		}
	}
	for _, box := range pod.Sandboxes {
		if !box.Ready || s.exits.watches(box.ID) {
			continue
		}
		resp, err := s.client.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: box.ID, Verbose: true})
		if err == nil {
			s.add(ctx, pod.UID, box.ID, resp.Info)
		}
	}
}

// add watches the process that the runtime's verbose answer names.
func (s *sources) add(ctx context.Context, uid types.UID, id string, info map[string]string) {
	pid := pidOf(info)
	if pid == 0 {
		return
	}
	if err := s.exits.add(pid, id, uid); err != nil {
		if errors.Is(err, os.ErrProcessDone) {
			s.notice(ctx, uid) // it ended before it could be watched
			return
		}
		klog.V(2).InfoS("Process not watched; its end is noticed by relist", "podUID", uid, "id", id, "pid", pid, "err", err)
	}
}

// pidOf reads the pid from the verbose part of a status, which containerd and CRI-O write as JSON.
func pidOf(info map[string]string) int {
	var doc struct {
		Pid int `json:"pid"`
	}
	if err := json.Unmarshal([]byte(info["info"]), &doc); err == nil && doc.Pid > 0 {
		return doc.Pid
	}
	return 0
}

// inCgroupOf tells whether a process belongs to a container: its id is in the process's cgroup. A
// pid may have been given to another process since the runtime named it.
func inCgroupOf(pid int, id string) bool {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	return err == nil && strings.Contains(string(data), id)
}
