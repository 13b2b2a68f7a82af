package podresources

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/storage/devices"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/listening"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// held is what a container of the tests has.
type held map[string][]devices.Held

func (h held) Held(uid types.UID, container string) []devices.Held {
	return h[string(uid)+"/"+container]
}
func (h held) All() []devices.Held { return h["all"] }

// client serves the API in a folder that is not there yet, and dials it. change, if any, is applied to the server
// before.
func client(t *testing.T, opts Options, change ...func(*Server)) (api.PodResourcesListerClient, string) {
	t.Helper()
	opts.Dir = filepath.Join(t.TempDir(), "pod-resources")
	socket := filepath.Join(opts.Dir, "kubelet.sock")
	// Another agent has left its socket.
	if err := errors.Join(os.Mkdir(opts.Dir, 0o750), os.WriteFile(socket, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	s := New(opts)
	for _, c := range change {
		c(s)
	}
	go func() { ended <- s.Run(ctx) }()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return api.NewPodResourcesListerClient(conn), socket
}

func TestAPI(t *testing.T) {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "u"}, Spec: v1.PodSpec{
			InitContainers: []v1.Container{
				{Name: "init"}, {Name: "sidecar", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)},
			},
			Containers: []v1.Container{{Name: "main"}, {Name: "plain"}},
		},
	}
	one := devices.Held{Resource: "example.com/x", IDs: []string{"1", "2"}, NUMA: []int64{0, 1}}
	two := devices.Held{Resource: "example.com/y", IDs: []string{"3"}}
	c, socket := client(t, Options{
		Pods: func() []*v1.Pod {
			return []*v1.Pod{pod}
		}, Devices: held{"u/main": {one, two}, "u/sidecar": {two}, "u/init": {one}, "all": {one}},
	})
	ctx := wait.Context(t)
	first := &api.ContainerDevices{
		ResourceName: "example.com/x", DeviceIds: []string{"1", "2"},
		Topology: &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: 0}, {ID: 1}}},
	}
	second := &api.ContainerDevices{ResourceName: "example.com/y", DeviceIds: []string{"3"}}
	want := &api.PodResources{
		Name: "a", Namespace: "ns", Containers: []*api.ContainerResources{
			{Name: "sidecar", Devices: []*api.ContainerDevices{second}},
			{Name: "main", Devices: []*api.ContainerDevices{first, second}}, {Name: "plain"},
		},
	}
	list, err := c.List(ctx, &api.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&api.ListPodResourcesResponse{PodResources: []*api.PodResources{want}}, list,
		protocmp.Transform()); diff != "" {
		t.Errorf("List() mismatch (-want +got):\n%s", diff)
	}
	got, err := c.Get(ctx, &api.GetPodResourcesRequest{PodName: "a", PodNamespace: "ns"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.PodResources, protocmp.Transform()); diff != "" {
		t.Errorf("Get() mismatch (-want +got):\n%s", diff)
	}
	if _, err := c.Get(ctx, &api.GetPodResourcesRequest{
		PodName: "a", PodNamespace: "other",
	}); status.Code(err) != codes.NotFound {
		t.Errorf("Get of a pod that does not exist: %v, want code %v", err, codes.NotFound)
	}
	all, err := c.GetAllocatableResources(ctx, &api.AllocatableResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&api.AllocatableResourcesResponse{Devices: []*api.ContainerDevices{first}}, all,
		protocmp.Transform()); diff != "" {
		t.Errorf("GetAllocatableResources() mismatch (-want +got):\n%s", diff)
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: want a socket for its owner alone", info.Mode(), err)
	}
}

func TestRate(t *testing.T) {
	// The limit holds for calls over the socket.
	c, _ := client(t, Options{Pods: func() []*v1.Pod { return nil }, Devices: held{}}, func(s *Server) {
		s.limit = rate.NewLimiter(0, 2)
	})
	for i, want := range []codes.Code{codes.OK, codes.OK, codes.ResourceExhausted} {
		if _, err := c.List(wait.Context(t), &api.ListPodResourcesRequest{}); status.Code(err) != want {
			t.Errorf("call %d: %v, want %v", i, err, want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		passed := func() (n int) {
			for range 10 * burst {
				if _, err := s.limited(t.Context(), nil, nil, func(context.Context, any) (any, error) {
					return nil, nil
				}); err == nil {
					n++
				}
			}
			return n
		}
		if got := passed(); got != burst {
			t.Errorf("%d calls at once are answered, want %d", got, burst)
		}
		time.Sleep(time.Second / qps)
		if got := passed(); got != 1 {
			t.Errorf("%d calls are answered after 1/%d s, want 1", got, qps)
		}
	})
}

// TestListening: a socket that cannot be opened is reported with its error, and once it is open.
func TestListening(t *testing.T) {
	listening.Reported(t, func(dir string, report func(string, error)) (func(context.Context) error, string) {
		return New(Options{Dir: dir, Listening: report}).Run, filepath.Join(dir, "kubelet.sock")
	})
}
