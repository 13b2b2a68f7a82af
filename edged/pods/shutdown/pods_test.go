package shutdown

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/pleg"
	"github.com/edgecore-io/edgecore/edged/pods/podstop"
	"github.com/edgecore-io/edgecore/edged/pods/podworker"
	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestStartsAgain(t *testing.T) {
	for _, c := range []struct {
		policy       v1.RestartPolicy
		static, want bool
	}{
		{v1.RestartPolicyAlways, false, true},
		{v1.RestartPolicyAlways, true, true},
		{v1.RestartPolicyOnFailure, false, false},
		{v1.RestartPolicyOnFailure, true, true},
		{v1.RestartPolicyNever, false, false},
		{v1.RestartPolicyNever, true, false},
	} {
		pod := &v1.Pod{Spec: v1.PodSpec{RestartPolicy: c.policy}}
		if got := startsAgain(pod, c.static); got != c.want {
			t.Errorf("startsAgain(%s, static %t) = %t, want %t", c.policy, c.static, got, c.want)
		}
	}
}

// node is a runtime, a worker and a stopper of one pod.
type node struct {
	podstop.Interface
	mu        sync.Mutex
	alive     bool
	failStops int // how often KillPod fails
	calls     []string
	stopped   *status.Stopped
	ended     chan struct{}
}

func (n *node) note(call string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, call)
}

// workers are a node's workers, snapshots its PLEG.
type (
	workers struct {
		podworker.Interface
		node *node
	}
	snapshots struct {
		pleg.Interface
		*node
	}
)

func (w workers) Busy(types.UID) bool { return false }
func (w workers) Enqueue(types.UID)   { w.node.note("enqueue") }

func (n snapshots) Get(uid types.UID) *observed.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	obs := &observed.Pod{UID: uid}
	if n.alive {
		obs.Containers = []*observed.Container{{Name: "c", State: runtimeapi.ContainerState_CONTAINER_RUNNING}}
	}
	return obs
}

func (n snapshots) Refresh(_ context.Context, uid types.UID) (*observed.Pod, error) {
	return n.Get(uid), nil
}
func (n *node) Ended(types.UID) <-chan struct{} { return n.ended }
func (n *node) Why(types.UID) *status.Stopped   { return n.stopped }

func (n *node) KillPod(_ context.Context, _ types.UID, _ *v1.Pod, _ *observed.Pod, grace *int64) error {
	n.note(fmt.Sprintf("kill %d", *grace))
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.failStops > 0 {
		n.failStops--
		return errors.New("not stopped")
	}
	n.alive = false
	return nil
}

func (n *node) RemovePod(context.Context, *observed.Pod) error {
	n.note("remove")
	return nil
}

func (n *node) Stop(_ *v1.Pod, why status.Stopped, _ map[string]string) {
	n.note(fmt.Sprintf("stop %s %d", why.Reason, *why.Grace))
	n.stopped = &why
	time.AfterFunc(time.Second, func() { close(n.ended) })
}

// pods are the Pods of a node, without a pod.
func (n *node) pods() *Pods {
	return &Pods{
		Desired:  desired.New(),
		PLEG:     snapshots{node: n},
		Workers:  workers{node: n},
		Statuses: status.NewManager(nil),
		Runtime:  n,
		Stopper:  n,
		Flush: func(context.Context, types.UID) error {
			n.note("flush")
			return nil
		},
		Report: func(*v1.Pod, *observed.Pod) { n.note("report") },
	}
}

// TestEnd: a pod that starts again is stopped without a final status; one that runs once fails, and its end is stored.
func TestEnd(t *testing.T) {
	for name, c := range map[string]struct {
		policy    v1.RestartPolicy
		static    bool
		failStops int
		want      []string
	}{
		"always":                {v1.RestartPolicyAlways, false, 0, []string{"enqueue", "kill 7", "report"}},
		"always, killed late":   {v1.RestartPolicyAlways, false, 1, []string{"enqueue", "kill 7", "kill 7", "report"}},
		"static, until it ends": {v1.RestartPolicyOnFailure, true, 0, []string{"enqueue", "kill 7", "remove"}},
		"once":                  {v1.RestartPolicyNever, false, 0, []string{"stop Terminated 7", "flush"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pod := &v1.Pod{
					ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "1"},
					Spec:       v1.PodSpec{RestartPolicy: c.policy},
				}
				n := &node{alive: true, failStops: c.failStops, ended: make(chan struct{})}
				p := n.pods()
				if c.static {
					p.Desired.SetStatic([]*v1.Pod{pod})
				} else {
					p.Desired.Put(pod, false)
				}
				if alive := p.Alive(); len(alive) != 1 || alive[0].UID != "1" {
					t.Errorf("Alive = %v, want the pod", alive)
				}
				p.End(t.Context(), pod, 7*time.Second)
				if diff := cmp.Diff(c.want, n.calls); diff != "" {
					t.Errorf("calls (-want +got)\n%s", diff)
				}
				p.End(t.Context(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "2"}}, time.Second)
				if len(n.calls) != len(c.want) {
					t.Errorf("calls for a pod that nobody wants = %v, want none", n.calls[len(c.want):])
				}
			})
		})
	}
}

// TestEndIsBounded: a pod that cannot be killed holds up a shutdown for as long as it may wait, and no longer.
func TestEndIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "1"}, Spec: v1.PodSpec{RestartPolicy: v1.RestartPolicyAlways}}
		n := &node{alive: true, failStops: 1e6}
		p := n.pods()
		p.Desired.Put(pod, false)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		began := time.Now()
		p.End(ctx, pod, 7*time.Second)
		if took := time.Since(began); took < 20*time.Second || took > 21*time.Second {
			t.Errorf("End took %v of the simulated clock, want 20s", took)
		}
	})
}
