package edge

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// probed is a server that probes ask.
type probed struct {
	port string

	mu    sync.Mutex
	asked map[string]int // how often, by path
	ill   bool           // paths but /never fail, too
}

func newProbed(t *testing.T) *probed {
	t.Helper()
	s := &probed{asked: map[string]int{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	_, s.port, _ = strings.Cut(strings.TrimPrefix(server.URL, "http://"), ":")
	return s
}

// ServeHTTP answers a probe.
func (s *probed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[r.URL.Path]++
	if r.URL.Path == "/never" || s.ill {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// sicken has every path fail.
func (s *probed) sicken() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ill = true
}

// more returns a check that each of some paths was asked so many more times than until now.
func (s *probed) more(times int, paths ...string) func() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	want := map[string]int{}
	for _, path := range paths {
		want[path] = s.asked[path] + times
	}
	return func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		for path, want := range want {
			if got := s.asked[path]; got < want {
				return fmt.Errorf("%s was asked %d times, want %d", path, got, want)
			}
		}
		return nil
	}
}

// probe is a probe each second of a path.
func (s *probed) probe(path string) string {
	return "{httpGet: {host: 127.0.0.1, port: " + s.port + ", path: " + path + "}, " +
		"timeoutSeconds: 60, periodSeconds: 1, failureThreshold: 2}"
}

// readyOf is a pod's condition Ready.
func readyOf(p *v1.Pod) v1.PodCondition {
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodReady {
			return c
		}
	}
	return v1.PodCondition{}
}

// TestProbesSurviveRestarts: what probes have found is known after a restart of the agent; nothing flaps, nothing is
// restarted, and what changes then is noticed.
func TestProbesSurviveRestarts(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{})
	server := newProbed(t)
	for name, path := range map[string]string{"well": "/well", "never": "/never"} {
		n.Manifest(name, env.Pod(name, env.Forever)+
			"    startupProbe: "+server.probe("/startup")+"\n    readinessProbe: "+server.probe(path)+"\n")
	}
	all := n.Until("one pod to be ready, and one started", func(pods map[string]*v1.Pod) error {
		if err := env.RunningPod(pods["well"]); err != nil {
			return fmt.Errorf("pod well: %w", err)
		}
		never := pods["never"]
		if never == nil || never.Status.Phase != v1.PodRunning || !*never.Status.ContainerStatuses[0].Started ||
			readyOf(never).Status != v1.ConditionFalse {
			return fmt.Errorf("pod never is %+v, want Running, started and not ready", never)
		}
		return nil
	})
	since := readyOf(all["well"]).LastTransitionTime
	for _, name := range []string{"well", "never"} {
		n.keptAs(name, "$.status.containerStatuses[0].started", "1")
	}
	n.keptAs("well", "$.status.containerStatuses[0].ready", "1")
	for round, end := range []func(context.Context) error{n.Stop, n.Kill9, n.Kill9} {
		env.Must(t, end(t.Context()))
		n.start()
		// Whatever the agent says until it has probed both pods again is what was known.
		probedAgain := server.more(2, "/well", "/never")
		wait.Until(t, "probes after the restart", func() error {
			all, err := n.Pods(t.Context())
			if err != nil {
				return err
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
				if ready.Status != want || c.RestartCount != 0 || c.Started == nil || !*c.Started ||
					want == v1.ConditionTrue && !ready.LastTransitionTime.Equal(&since) {
					t.Fatalf("restart %d: pod %s has Ready %+v and %+v, want Ready %s since %v, started, and no "+
						"restarts",
						round, name, ready, c, want, since)
				}
			}
			return probedAgain()
		})
	}
	server.sicken()
	n.Until("the pod not to be ready", func(pods map[string]*v1.Pod) error {
		if ready := readyOf(pods["well"]); ready.Status != v1.ConditionFalse {
			return fmt.Errorf("Ready is %+v, want False", ready)
		}
		return nil
	})
}

// TestHundredProbes: a hundred probes are asked again and again, each of them, and the pods stay ready. What they cost
// is measured in test/bench.
func TestHundredProbes(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{})
	server := newProbed(t)
	// Each container has two probes.
	const pods, containers = 5, 10
	var paths []string
	for _, name := range names(pods) {
		var list []string
		for c := range containers {
			path := fmt.Sprintf("/%s/c%d", name, c)
			paths = append(paths, path+"/ready", path+"/live")
			list = append(list, fmt.Sprintf("{name: c%d, image: %q, readinessProbe: %s, livenessProbe: %s}",
				c, images.NonRoot, server.probe(path+"/ready"), server.probe(path+"/live")))
		}
		n.Manifest(name,
			"{apiVersion: v1, kind: Pod, metadata: {name: "+name+"}, spec: {terminationGracePeriodSeconds: 1, "+
				"containers: ["+strings.Join(list, ", ")+"]}}")
	}
	n.Running(names(pods)...)
	before := n.RunningContainers()
	wait.Until(t, "three rounds of all probes", server.more(3, paths...))
	n.Running(names(pods)...)
	n.untouched(before)
	if got := len(before); got != pods*containers {
		t.Errorf("%d containers run, want %d", got, pods*containers)
	}
}
