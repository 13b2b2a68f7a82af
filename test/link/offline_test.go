package link

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/proxy"
)

// local waits for the pods as the device itself has them.
func (s *site) local(what string, check func(map[string]*v1.Pod) error) {
	s.t.Helper()
	s.until(what, func() error {
		pods, err := s.edge.Pods(s.t.Context())
		if err != nil {
			return err
		}
		return check(pods)
	})
}

// runsHere checks that pods are Ready on the device.
func runsHere(names ...string) func(map[string]*v1.Pod) error {
	return func(pods map[string]*v1.Pod) error {
		for _, name := range names {
			if p := pods[name]; p == nil || !ready(p) {
				return fmt.Errorf("pod %s is not ready here", name)
			}
		}
		return nil
	}
}

// full is a pod with a configmap, a secret and a token, which it needs at each start.
func full(name string) string {
	return podOn(name, "test -s /var/run/secrets/kubernetes.io/serviceaccount/token && test -s /conf/a && test -s /key/k || exit 1; "+forever, `
  volumes:
  - {name: conf, configMap: {name: conf}}
  - {name: key, secret: {secretName: key}}
`) + `    volumeMounts: [{name: conf, mountPath: /conf}, {name: key, mountPath: /key}]
`
}

const confAndKey = `apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {a: one}
---
apiVersion: v1
kind: Secret
metadata: {name: key}
stringData: {k: hush}
`

// TestOffline: the link is pulled, the agent killed, every container removed, and all pods are back with what they
// need. When the link returns nothing restarts, and what happened meanwhile is told both ways.
func TestOffline(t *testing.T) {
	for name, state := range map[string]proxy.State{"cut": proxy.Cut, "silent": proxy.Silent} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, siteOptions{})
			s.apply(confAndKey)
			names := []string{"one", "two", "three", "four"}
			for _, n := range names {
				s.apply(full(n))
			}
			s.until("all run", s.running(names...))
			s.cable.Set(state)
			s.must(s.edge.Kill9(t.Context()))
			testenv.RemoveSandboxes(s.t, s.cri)
			s.must(s.edge.Start(t.Context()))
			s.local("all are back without a cloud", func(pods map[string]*v1.Pod) error {
				if n := len(s.lives()); n != len(names) { // at first the agent shows what it knew
					return fmt.Errorf("%d containers run", n)
				}
				return runsHere(names...)(pods)
			})
			before := s.lives()
			s.changeMeanwhile(t)
			if out, err := s.edge.Run(t.Context(), "status"); !strings.Contains(out, "CloudUnreachable") && name == "cut" {
				t.Logf("status (shown after 10 s): %v\n%s", err, out)
			}
			s.cable.Set(proxy.Passing)
			s.checkReconnected(t, names, before)
		})
	}
}

// changeMeanwhile changes things in the cluster, and on the device, that the other side cannot know of.
func (s *site) changeMeanwhile(t *testing.T) {
	s.apply(strings.Replace(confAndKey, "a: one", "a: two", 1))
	s.must(s.api.CoreV1().Pods("default").Delete(t.Context(), "four", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)}))
	s.must(s.api.CoreV1().Pods("default").Delete(t.Context(), "three", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
	s.apply(full("five"))
	if out, err := s.exec("two", "cat", "/conf/a"); err != nil || out != "one" {
		t.Errorf("the configmap without a link: %q, %v", out, err)
	}
}

func (s *site) checkReconnected(t *testing.T, names []string, before map[string]int64) {
	linked := time.Now()
	s.until("there is a link", func() error {
		if s.cable.Conns() == 0 {
			return fmt.Errorf("there is none")
		}
		linked = time.Now()
		return nil
	})
	s.until("the status is current", func() error {
		for _, name := range names[:2] {
			p, err := s.pod(name)
			if err != nil {
				return err
			}
			if id := strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://"); before[id] == 0 {
				return fmt.Errorf("pod %s still has container %s", name, id)
			}
		}
		return nil
	})
	took := time.Since(linked)
	t.Logf("status is current %v after the link", took)
	// Mostly it is less than 2 s. But a dial that the silence broke counts as a link here, while the agent pauses after it.
	if took > 20*time.Second {
		t.Errorf("the status was current after %v, want 20 s", took)
	}
	s.until("what was made meanwhile runs", s.running("five"))
	s.until("what was deleted meanwhile is gone", s.gone("three", "four"))
	s.until("the configmap has arrived", func() error {
		out, err := s.exec("two", "cat", "/conf/a")
		if err == nil && out != "two" {
			err = fmt.Errorf("it is %q", out)
		}
		return err
	})
	s.until("their containers are gone", func() error {
		for _, name := range []string{"three", "four"} {
			if _, err := s.exec(name, "true"); err == nil {
				return fmt.Errorf("%s still runs", name)
			}
		}
		return nil
	})
	after := s.lives()
	for _, name := range names[:2] {
		p, err := s.pod(name)
		s.must(err)
		id := strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://")
		if after[id] == 0 || after[id] != before[id] {
			t.Errorf("reconnecting restarted %s", name)
		}
	}
}

// TestReconnectsRestartNothing: 5 cuts, a killed cloudcore, a restarted API server; no container notices.
func TestReconnectsRestartNothing(t *testing.T) {
	s := newSite(t, siteOptions{})
	s.apply(confAndKey)
	s.apply(full("one"))
	s.apply(full("two"))
	s.until("both run", s.running("one", "two"))
	before := s.lives()
	s.until("all is acknowledged", s.settled)
	pushes := s.pushes()
	for range 5 {
		s.until("it is cut", func() error {
			n := s.cable.Conns()
			if n == 0 {
				return nil
			}
			s.cable.CutAfter(0)
			return fmt.Errorf("%d connections", n)
		})
		s.until("all is acknowledged over a new link", s.settled)
	}
	if again := s.pushes(); again != pushes {
		t.Errorf("%v objects were sent again over new links, though nothing had changed", again-pushes)
	}
	s.must(s.cloud.Kill9(t.Context()))
	s.must(s.cloud.Start(t.Context()))
	s.must(s.kube.APIServer.Restart(t.Context()))
	s.until("a new pod runs", func() error {
		return s.kube.Apply(t.Context(), full("three"))
	})
	s.until("and it is Ready", s.running("three"))
	after := s.lives()
	for id, at := range before {
		if after[id] != at {
			t.Error("a container was restarted")
		}
	}
	if ids := slices.Collect(maps.Keys(after)); len(ids) != 3 {
		t.Errorf("%d containers run, want 3", len(ids))
	}
}

// metric is the value of one of cloudcore's metrics.
func (s *site) metric(name string) float64 {
	s.t.Helper()
	var text string
	s.until("cloudcore tells its metrics", func() (err error) {
		text, err = s.cloud.Get(s.t.Context(), "/metrics")
		return err
	})
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			value, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			s.must(err)
			return value
		}
	}
	s.t.Fatalf("there is no metric %s in\n%s", name, text)
	return 0
}

// pushes is how many objects edges have acknowledged so far.
func (s *site) pushes() float64 { return s.metric("cloudcore_cloudhub_ack_seconds_count") }

// settled checks that the edge is connected and nothing is on its way to it.
func (s *site) settled() error {
	if n := s.metric("cloudcore_cloudhub_connected_nodes"); n != 1 {
		return fmt.Errorf("%v nodes are connected", n)
	}
	if n := s.metric("cloudcore_cloudhub_queued_objects") + s.metric("cloudcore_cloudhub_unacked_messages"); n > 0 {
		return fmt.Errorf("%v objects are on their way", n)
	}
	return nil
}

// TestLongOutage: Kubernetes takes the pods of an edge that is away for not ready; they stay, run on, and are Ready
// again when it returns. (Evictions, and pods that want them: test/cloud.)
func TestLongOutage(t *testing.T) {
	s := newSite(t, siteOptions{kube: kube.Options{NodeMonitorGracePeriod: 20 * time.Second, NodeMonitorPeriod: time.Second}})
	s.apply(podOn("stays", forever, ""))
	s.until("it runs", s.running("stays"))
	s.until("its tolerations have no limit", func() error {
		p, err := s.pod("stays")
		if err != nil {
			return err
		}
		for _, key := range []string{v1.TaintNodeNotReady, v1.TaintNodeUnreachable} {
			if !slices.ContainsFunc(p.Spec.Tolerations, func(tol v1.Toleration) bool {
				return tol.Key == key && tol.Effect == v1.TaintEffectNoExecute && tol.TolerationSeconds == nil
			}) {
				return fmt.Errorf("it has %v", p.Spec.Tolerations)
			}
		}
		return nil
	})
	before := s.lives()
	p, err := s.pod("stays")
	s.must(err)
	uid := p.UID
	s.cable.Set(proxy.Cut)
	s.until("Kubernetes takes the pod for not ready", func() error {
		if s.running("stays")() == nil {
			return fmt.Errorf("it is ready")
		}
		return nil
	})
	if p, err := s.pod("stays"); err != nil || p.UID != uid || p.DeletionTimestamp != nil {
		t.Errorf("the pod of an edge that is away was evicted: %v, %v", p, err)
	}
	s.cable.Set(proxy.Passing)
	s.until("the node is Ready again", s.nodeReady)
	s.until("and so is its pod", s.running("stays"))
	testenv.Poll(t, patience, func() error {
		for id, at := range before {
			if s.lives()[id] != at {
				return fmt.Errorf("a container was restarted")
			}
		}
		return nil
	})
}
