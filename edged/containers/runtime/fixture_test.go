package runtime

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/containers/runtime/fakecri"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// fixture is a Runtime on a runtime in memory.
type fixture struct {
	*Runtime
	t      *testing.T
	fake   *fakecri.Runtime
	client *cri.Client
	inputs *stubInputs
	events *eventLog
}

func newRig(t *testing.T) *fixture {
	t.Helper()
	fake, client := fakecri.Start(t)
	return rigOn(t, fake, client)
}

// newDirectRig makes a fixture for a bubble of testing/synctest: it has no socket.
func newDirectRig(t *testing.T) *fixture {
	t.Helper()
	fake, client := fakecri.Direct()
	return rigOn(t, fake, client)
}

func rigOn(t *testing.T, fake *fakecri.Runtime, client *cri.Client) *fixture {
	t.Helper()
	dir := t.TempDir()
	g := &fixture{t: t, fake: fake, client: client, inputs: &stubInputs{}, events: &eventLog{}}
	g.Runtime = New(Options{
		Client:   client,
		Images:   presentImages{},
		Inputs:   g.inputs,
		Recorder: g.events,
		Resources: func(*v1.Pod, *v1.Container) *runtimeapi.LinuxContainerResources {
			return &runtimeapi.LinuxContainerResources{CpuShares: 2}
		},
		RootDir:          filepath.Join(dir, "root"),
		PodLogsDir:       filepath.Join(dir, "logs"),
		ContainerLogsDir: filepath.Join(dir, "links"),
	})
	return g
}

type presentImages struct{}

func (presentImages) EnsureImage(
	_ context.Context, _ *v1.Pod, c *v1.Container, _ []v1.Secret, _ *runtimeapi.PodSandboxConfig,
) (string, *observed.Reason, time.Time) {
	return c.Image, nil, time.Time{}
}

type stubInputs struct {
	err    error
	userns *runtimeapi.UserNamespace
	// annotations are those of a device plugin.
	annotations map[string]string
}

func (s *stubInputs) Sandbox(_ context.Context, pod *v1.Pod) (SandboxInputs, error) {
	return SandboxInputs{
		Hostname:      pod.Name,
		DNS:           &runtimeapi.DNSConfig{},
		CgroupParent:  "/pods/" + string(pod.UID),
		UserNamespace: s.userns,
	}, nil
}

func (s *stubInputs) Container(_ context.Context, _ *v1.Pod, c *v1.Container, ips []string) (ContainerInputs, error) {
	return ContainerInputs{
		Command:     c.Command,
		Args:        c.Args,
		Envs:        []*runtimeapi.KeyValue{{Key: "IPS", Value: []byte(strings.Join(ips, ","))}},
		Annotations: s.annotations,
	}, s.err
}

// eventLog keeps "Reason message" of each event.
type eventLog struct {
	events.Interface
	mu   sync.Mutex
	list []string
}

func (e *eventLog) Eventf(_ *v1.Pod, _, reason, format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, reason+" "+fmt.Sprintf(format, args...))
}

func (e *eventLog) ContainerEventf(p *v1.Pod, _ *v1.Container, eventType, reason, format string, args ...any) {
	e.Eventf(p, eventType, reason, format, args...)
}

func (e *eventLog) has(reason string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.list, func(s string) bool { return strings.HasPrefix(s, reason+" ") })
}

// observe reads the pod as edged does before each sync.
func (g *fixture) observe(pod *v1.Pod) *observed.Pod {
	g.t.Helper()
	obs, err := g.GetPod(g.t.Context(), pod.UID, nil)
	if err != nil {
		g.t.Fatal(err)
	}
	return obs
}

func (g *fixture) sync(pod *v1.Pod) SyncResult {
	g.t.Helper()
	return g.SyncPod(g.t.Context(), SyncInput{Pod: pod, Observed: g.observe(pod)})
}

// syncUntilSteady syncs until nothing is left to do.
func (g *fixture) syncUntilSteady(pod *v1.Pod) *observed.Pod {
	g.t.Helper()
	var res SyncResult
	for range 20 {
		res = g.sync(pod)
		if res.Err != nil {
			g.t.Fatalf("sync: %v, want no error", res.Err)
		}
		if !res.Changed {
			return g.observe(pod)
		}
	}
	g.t.Fatalf("the last of 20 syncs = %+v, want no change", res)
	return nil
}

func methods(calls []fakecri.Call) []string {
	var out []string
	for _, c := range calls {
		out = append(out, c.Method)
	}
	return out
}

// create makes a container with the pod's labels, in a new sandbox when none is given.
func (g *fixture) create(pod *v1.Pod, name, sandbox string, attempt uint32) string {
	g.t.Helper()
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID)},
		Labels:   podLabels(pod),
	}
	if sandbox == "" {
		resp, err := g.client.RunPodSandbox(g.t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
		if err != nil {
			g.t.Fatal(err)
		}
		sandbox = resp.PodSandboxId
	}
	c := &v1.Container{Name: name, Image: "img"}
	if _, err := g.client.CreateContainer(g.t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox,
		Config: &runtimeapi.ContainerConfig{
			Metadata:    &runtimeapi.ContainerMetadata{Name: name, Attempt: attempt},
			Image:       &runtimeapi.ImageSpec{Image: "img"},
			Labels:      containerLabels(pod, c),
			Annotations: containerAnnotations(pod, c, int32(attempt)),
		}}); err != nil {
		g.t.Fatal(err)
	}
	return sandbox
}
