package edge

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/bench/process"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
)

// readyOf is a pod's condition Ready.
func readyOf(p *v1.Pod) v1.PodCondition {
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodReady {
			return c
		}
	}
	return v1.PodCondition{}
}

// TestProbesSurviveRestarts: what probes have found is known after a restart of the agent; nothing flaps, nothing is restarted,
// and what changes then is noticed.
func TestProbesSurviveRestarts(t *testing.T) {
	n := newNode(t, testenv.Options{}, agent.Options{})
	var ill atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/never" || ill.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "http://"), ":")
	probe := func(path string) string {
		return fmt.Sprintf("{httpGet: {host: 127.0.0.1, port: %s, path: %s}, timeoutSeconds: 10, periodSeconds: 1, failureThreshold: 5}", port, path)
	}
	manifest := func(name, path string) {
		n.manifest(name+".yaml", fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {terminationGracePeriodSeconds: 1, containers: [{name: main, image: "edgecore.local/demo:1",
command: [sh, -c, %q], startupProbe: %s, readinessProbe: %s}]}}`, name, forever, probe("/"), probe(path)))
	}
	manifest("well", "/")
	manifest("never", "/never")
	n.until("one is ready, one is not", func(pods map[string]*v1.Pod) error {
		well, never := pods["well"], pods["never"]
		if well == nil || never == nil || readyOf(well).Status != v1.ConditionTrue || never.Status.Phase != v1.PodRunning || !*never.Status.ContainerStatuses[0].Started || readyOf(never).Status != v1.ConditionFalse {
			return fmt.Errorf("%d pods", len(pods))
		}
		return nil
	})
	all, err := n.Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	since := readyOf(all["well"]).LastTransitionTime
	for _, name := range []string{"well", "never"} {
		n.keptAs(name, "$.status.containerStatuses[0].started", "1")
	}
	n.keptAs("well", "$.status.containerStatuses[0].ready", "1")
	for round, end := range []func(context.Context) error{n.Stop, n.Kill9, n.Kill9} {
		if err := end(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := n.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			all, err := n.Pods(t.Context())
			if err != nil {
				continue // it does not listen yet
			}
			for name, p := range all {
				ready, want := readyOf(p), v1.ConditionFalse
				if name == "well" {
					want = v1.ConditionTrue
				}
				if len(p.Status.ContainerStatuses) == 0 {
					continue // the store is not read yet
				}
				c := p.Status.ContainerStatuses[0]
				if ready.Status != want || c.RestartCount != 0 || c.Started == nil || !*c.Started || want == v1.ConditionTrue && !ready.LastTransitionTime.Equal(&since) {
					t.Fatalf("round %d: %s: Ready %+v since %v, %+v", round, name, ready, since, c)
				}
			}
		}
	}
	ill.Store(true)
	n.until("it is no longer ready", func(pods map[string]*v1.Pod) error {
		if ready := readyOf(pods["well"]); ready.Status != v1.ConditionFalse {
			return fmt.Errorf("%+v", ready)
		}
		return nil
	})
}

// TestHundredProbes: a hundred HTTP probes a second cost the agent at most 3 % of a core.
func TestHundredProbes(t *testing.T) {
	n := newNode(t, testenv.Options{}, agent.Options{})
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer server.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "http://"), ":")
	probe := "{httpGet: {host: 127.0.0.1, port: " + port + ", path: /}, periodSeconds: 1}"
	// Each container has two probes: fifty of them in five pods ask as often as a hundred pods with one.
	var list []string
	for i := range 5 {
		name := fmt.Sprint("p", i)
		list = append(list, name)
		text := "{apiVersion: v1, kind: Pod, metadata: {name: " + name + "}, spec: {terminationGracePeriodSeconds: 1, containers: ["
		for c := range 10 {
			text += fmt.Sprintf("{name: c%d, image: 'edgecore.local/nonroot:1', readinessProbe: %s, livenessProbe: %s},", c, probe, probe)
		}
		n.manifest(name+".yaml", text+"]}}")
	}
	n.until("all are ready", running(list...))
	time.Sleep(3 * time.Second) // what their start has cost is over then
	used := func() time.Duration {
		cpu, _, err := process.Usage(n.PID())
		if err != nil {
			t.Fatal(err)
		}
		return cpu
	}
	for range 12 { // one is enough: the machine may be busy with other things, and a probe that is late is not made up for
		before, began, asks := used(), time.Now(), asked.Load()
		time.Sleep(10 * time.Second)
		took := time.Since(began).Seconds()
		share := (used() - before).Seconds() / took * 100
		rate := float64(asked.Load()-asks) / took
		t.Logf("%.1f probes a second: %.2f %% of a core", rate, share)
		if rate >= 95 && rate <= 105 && share <= 3 {
			return
		}
	}
	t.Error("want 100 probes a second, and at most 3 % of a core")
}
