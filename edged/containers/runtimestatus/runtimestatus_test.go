package runtimestatus

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/runtime"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// TestNetworkFor: only pods that get an address of their own need a network, and only while they have no sandbox.
func TestNetworkFor(t *testing.T) {
	r := New(Options{})
	pod, host := &v1.Pod{}, &v1.Pod{Spec: v1.PodSpec{HostNetwork: true}}
	box := func(ready bool) *observed.Pod { return &observed.Pod{Sandboxes: []*observed.Sandbox{{Ready: ready}}} }
	if err := r.NetworkFor(pod, &observed.Pod{}); err != nil {
		t.Errorf("NetworkFor with a network: %v, want nil", err)
	}
	r.network = "reason:NetworkPluginNotReady message:cni plugin not initialized"
	for name, c := range map[string]struct {
		pod  *v1.Pod
		obs  *observed.Pod
		want bool
	}{
		"new": {pod, &observed.Pod{}, true}, "unknown": {pod, nil, true}, "its sandbox died": {pod, box(false), true},
		"it runs":               {pod, box(true), false},
		"on the node's network": {host, &observed.Pod{}, false},
	} {
		err := r.NetworkFor(c.pod, c.obs)
		if (err != nil) != c.want {
			t.Errorf("%s: NetworkFor = %v, want an error: %v", name, err, c.want)
		}
		const text = "network is not ready: container runtime network not ready: NetworkReady=false " +
			"reason:NetworkPluginNotReady message:cni plugin not initialized"
		if err != nil && err.Error() != text {
			t.Errorf("%s: NetworkFor = %q, want %q", name, err, text)
		}
	}
}

// TestUnready: the message of Ready names every cause, in the kubelet's form.
func TestUnready(t *testing.T) {
	const notAsked = "container runtime status check may not have completed yet"
	for name, c := range map[string]struct {
		pleg             error
		asked            bool
		runtime, network string
		shut             bool
		want             string
	}{
		"ready":         {nil, true, "", "", false, ""},
		"not asked yet": {nil, false, "", "", false, notAsked},
		"no network":    {nil, true, "", "x", false, "container runtime network not ready: NetworkReady=false x"},
		"neither": {
			nil, true, "y", "x", false,
			"[container runtime not ready: RuntimeReady=false y, container runtime network not ready: " +
				"NetworkReady=false x]",
		},
		"no runtime": {
			errors.New("no answer"), true, "", "x", false,
			"[container runtime is down, PLEG is not healthy: no answer]",
		},
		"shutting down":                   {nil, true, "", "", true, "node is shutting down"},
		"shutting down without a runtime": {nil, false, "", "", true, "[" + notAsked + ", node is shutting down]"},
	} {
		got := ""
		if err := unready(c.pleg, c.asked, c.runtime, c.network, c.shut); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// fakeRuntime is a runtime whose conditions are set.
type fakeRuntime struct {
	mu      sync.Mutex
	network string
	learned int
	asked   int
}

func (f *fakeRuntime) status() *runtimeapi.RuntimeStatus {
	return &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true},
		{Type: runtimeapi.NetworkReady, Status: f.network == "", Reason: f.network},
	}}
}

func (f *fakeRuntime) set(network string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.network = network
}

func (f *fakeRuntime) Learn(context.Context) (runtime.Features, *runtimeapi.RuntimeStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.learned++; f.learned == 1 {
		return runtime.Features{}, nil, errors.New("it starts")
	}
	return runtime.Features{Name: "containerd", Version: "2.1.0"}, f.status(), nil
}

func (f *fakeRuntime) Status(context.Context) (*runtimeapi.RuntimeStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	return f.status(), nil
}

// TestRun: a runtime that is not ready is asked more often, each change is noticed once, and a call that failed is
// repeated.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, registry, version := &fakeRuntime{network: "NoCNI"}, &health.Registry{}, &Version{}
		var learned, changed, recovered int
		r := New(Options{
			Runtime:   f,
			Answers:   func() error { return nil },
			Health:    registry,
			Version:   version,
			Learned:   func() { learned++ },
			Changed:   func() { changed++ },
			Recovered: func() { recovered++ },
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = r.Run(ctx) }() // it returns nil
		r.Learn(ctx)
		if err := r.Unready(false); err == nil {
			t.Error("Unready() before the runtime has answered = nil, want an error")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		name, _ := version.Get()
		if learned != 1 || changed != 1 || recovered != 0 || name != "containerd" || len(registry.Snapshot()) != 1 {
			t.Errorf("without a network: learned %d, changed %d, recovered %d, name %q, conditions %v; want 1, 1, 0, "+
				"containerd, 1",
				learned, changed, recovered, name, registry.Snapshot())
		}
		if f.asked < 8 {
			t.Errorf("a runtime without a network was asked %d times in a minute, want at least 8", f.asked)
		}
		f.set("")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if err := r.Unready(false); err != nil || changed != 2 || recovered != 1 || len(registry.Snapshot()) != 0 {
			t.Errorf("with a network: %v, changed %d, recovered %d, conditions %v; want nil, 2, 1, none",
				err, changed, recovered, registry.Snapshot())
		}
		f.mu.Lock()
		f.asked = 0
		f.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if f.asked > 5 {
			t.Errorf("a runtime that is ready was asked %d times in a minute, want at most 5", f.asked)
		}
		cancel()
		<-done
	})
}
