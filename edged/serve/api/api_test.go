package api

import (
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"google.golang.org/grpc"

	"github.com/edgecore-io/edgecore/edged/node/stats"
	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/metaclient"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/edged/serve/server"
	"github.com/edgecore-io/edgecore/pkg/auth"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// TestOpenedForSomebody: no port where nobody could be let in.
func TestOpenedForSomebody(t *testing.T) {
	const listen = "127.0.0.1:0"
	cloud := metaclient.New(nil)
	for name, tc := range map[string]struct {
		opts Options
		want bool
	}{
		"no cloud, no CA": {Options{Settings: Settings{Listen: listen}}, false},
		"a cloud":         {Options{Settings: Settings{Listen: listen}, Cloud: cloud}, true},
		"a CA":            {Options{Settings: Settings{Listen: listen, ClientCA: "/ca.crt"}}, true},
		"anonymous": {Options{Settings: Settings{Listen: listen, Auth: auth.Options{Anonymous: true}}},
			true},
		"a cloud, switched off": {Options{Cloud: cloud}, false},
	} {
		tc.opts.RootDir, tc.opts.NodeName, tc.opts.Port = t.TempDir(), "n1", 10250
		tc.opts.Health, tc.opts.IPs = &health.Registry{}, func() []string { return nil }
		a := New(tc.opts)
		if got := a != nil; got != tc.want {
			t.Errorf("%s: there is a port: %v, want %v", name, got, tc.want)
		}
		if port := a.Endpoints().KubeletEndpoint.Port; (port == 10250) != tc.want {
			t.Errorf("%s: port %d, want 10250: %v", name, port, tc.want)
		}
		a.Linked() // which nobody minds, with a port or without
		a.Linked()
		if a == nil {
			if err := a.Run(t.Context()); err != nil {
				t.Errorf("%s: Run without a port = %v, want nil", name, err)
			}
			continue
		}
		if cert, err := a.certificate.Get(&tls.ClientHelloInfo{}); err != nil ||
			cert.Leaf.Subject.CommonName != "n1@edgecore" {
			t.Errorf("%s: certificate of %v, %v; want n1@edgecore", name, cert, err)
		}
	}
}

// TestRoutesBySwitch: what is switched off is not there.
func TestRoutesBySwitch(t *testing.T) {
	has := func(s Settings, pattern string) bool {
		return slices.ContainsFunc(Routes(&s, &Containers{}), func(r server.Route) bool { return r.Pattern == pattern })
	}
	for pattern, s := range map[string]Settings{
		"/configz":        {Config: func() any { return nil }},
		"/logs/{path...}": {SystemLogs: true},
		"/debug/pprof/":   {Profiling: true},
		"/debug/flags/v":  {Flags: true},
	} {
		if has(Settings{}, pattern) || !has(s, pattern) {
			t.Errorf("%s: %v without, %v with; want false, true", pattern, has(Settings{}, pattern), has(s, pattern))
		}
	}
}

// checkpoints is a runtime that notes what is to be written where.
type checkpoints struct {
	runtimeapi.RuntimeServiceClient
	asked *runtimeapi.CheckpointContainerRequest
}

func (c *checkpoints) CheckpointContainer(
	_ context.Context, req *runtimeapi.CheckpointContainerRequest, _ ...grpc.CallOption,
) (*runtimeapi.CheckpointContainerResponse, error) {
	c.asked = req
	return nil, nil
}

func TestContainers(t *testing.T) {
	container := func(id, name string, state runtimeapi.ContainerState) *observed.Container {
		return &observed.Container{ID: id, Name: name, State: state, Image: "demo:1"}
	}
	const running, exited = runtimeapi.ContainerState_CONTAINER_RUNNING, runtimeapi.ContainerState_CONTAINER_EXITED
	runtime := &checkpoints{}
	c := Containers{
		Runtime: runtime, CheckpointDir: t.TempDir() + "/checkpoints", All: func() []*observed.Pod {
			return []*observed.Pod{
				{
					Namespace: "shop", Name: "a", Containers: []*observed.Container{container("2", "main", running),
						container("1", "init", exited)},
				},
				{Namespace: "shop", Name: "ended", Containers: []*observed.Container{container("3", "main", exited)}},
			}
		},
	}
	pods := c.RunningPods()
	if len(pods) != 1 || pods[0].Name != "a" || len(pods[0].Spec.Containers) != 1 ||
		pods[0].Spec.Containers[0].Name != "main" {
		t.Errorf("running pods = %v, want a with its container main", pods)
	}
	path, err := c.Checkpoint(t.Context(), "shop", "a", "main", 7)
	if err != nil || runtime.asked.GetContainerId() != "2" || runtime.asked.GetLocation() != path ||
		runtime.asked.GetTimeout() != 7 {
		t.Errorf("Checkpoint = %q, %v, the runtime was asked %v; want container 2, this path, 7 s", path, err,
			runtime.asked)
	}
	for _, pod := range []string{"ended", "none"} {
		if _, err := c.Checkpoint(t.Context(), "shop", pod, "main", 7); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Checkpoint of pod %s = %v, want that it does not run", pod, err)
		}
	}
}

// TestNodePods: pods have their newest status and an order; one on its way out says so.
func TestNodePods(t *testing.T) {
	pods := desired.New()
	for _, name := range []string{"b", "a", "goes"} {
		pods.Put(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", UID: types.UID(name)}}, false)
	}
	pods.Remove("goes")
	statuses := status.NewManager(nil)
	statuses.Restore(map[types.UID]v1.PodStatus{"a": {Phase: v1.PodRunning}})
	n := &Node{Desired: pods, Statuses: statuses}
	got := n.Pods()
	if len(got) != 3 || got[0].Name != "a" || got[1].Name != "b" || got[2].Name != "goes" {
		t.Fatalf("pods = %v, want a, b, goes", got)
	}
	if got[0].Status.Phase != v1.PodRunning || got[1].Status.Phase != v1.PodPending {
		t.Errorf("phases = %s, %s; want Running, Pending", got[0].Status.Phase, got[1].Status.Phase)
	}
	if got[0].DeletionTimestamp != nil || got[2].DeletionTimestamp == nil || got[0].Kind != "Pod" {
		t.Errorf("a is %+v, goes is %+v; want only the second one on its way out, both of kind Pod", got[0].ObjectMeta,
			got[2].ObjectMeta)
	}
}

// TestNodeInfo: what changes is added to what does not; without a cloud there is no link.
func TestNodeInfo(t *testing.T) {
	n := &Node{
		Health:  &health.Registry{},
		Runtime: func() (string, string) { return "containerd", "1.6.20" },
		Static:  server.Info{NodeName: "edge-1"},
	}
	if got := n.Info(t.Context()); got.NodeName != "edge-1" || got.Runtime != "containerd" ||
		got.RuntimeVersion != "1.6.20" || got.Link != nil {
		t.Errorf("Info = %+v, want edge-1, containerd 1.6.20 and no link", got)
	}
	n.Link = func() server.Link { return server.Link{Connected: true} }
	if got := n.Info(t.Context()); got.Link == nil || !got.Link.Connected {
		t.Errorf("link = %+v, want one that is connected", got.Link)
	}
}

// TestNodeGauges: figures that cannot be measured are left out.
func TestNodeGauges(t *testing.T) {
	n := &Node{Usage: func(context.Context) (stats.NodeUsage, error) {
		return stats.NodeUsage{}, errors.New("no figures")
	}}
	if got := n.Gauges(t.Context()); len(got) != 1 || got[0].Total != 0 {
		t.Errorf("gauges = %v, want only memory, without a figure", got)
	}
}
