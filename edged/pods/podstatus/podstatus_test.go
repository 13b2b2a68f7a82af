package podstatus

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/pleg"
	"github.com/edgecore-io/edgecore/edged/containers/runtime"
	"github.com/edgecore-io/edgecore/edged/pods/podstop"
	"github.com/edgecore-io/edgecore/edged/pods/prober"
	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// node is what a Maker asks about pods, and what it has called.
type node struct {
	observed map[types.UID]*observed.Pod
	stopped  *status.Stopped
	// views are those that the prober was given.
	views []prober.View
}

func (n *node) Health(types.UID) map[string][]v1.ResourceStatus { return nil }
func (n *node) IP() string                                      { return "192.0.2.1" }
func (n *node) IPs() []string                                   { return []string{n.IP()} }
func (n *node) IPv6First() bool                                 { return false }
func (n *node) Allocated(pod *v1.Pod) *v1.Pod                   { return pod }
func (n *node) PodStatus(*v1.Pod, v1.PodStatus)                 {}
func (n *node) Status(*v1.Pod, *observed.Pod) (map[string]v1.ResourceRequirements, []v1.PodCondition) {
	return nil, nil
}

func (n *node) Sync(_ *v1.Pod, _ *observed.Pod, view prober.View) observed.Probes {
	n.views = append(n.views, view)
	return observed.Probes{}
}

// snapshots are a node's PLEG, stopper is its Stopper.
type (
	snapshots struct {
		pleg.Interface
		*node
	}
	stopper struct {
		podstop.Interface
		*node
	}
)

func (s snapshots) Get(uid types.UID) *observed.Pod { return s.observed[uid] }
func (s stopper) Why(types.UID) *status.Stopped     { return s.stopped }

// newMaker returns a Maker of a node without pods, and its statuses.
func newMaker(n *node, results *Results) (*Maker, Options) {
	o := Options{
		Desired:           desired.New(),
		Statuses:          status.NewManager(n),
		Results:           results,
		PLEG:              snapshots{node: n},
		Prober:            n,
		Allocations:       n,
		Stopper:           stopper{node: n},
		Devices:           n,
		Addresses:         n,
		RuntimeName:       func() string { return "" },
		RecursiveReadOnly: func(*v1.Pod) bool { return true },
	}
	return New(o), o
}

func newPod() *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "1"}}
	pod.Spec.Containers = []v1.Container{{Name: "main", Image: "i"}}
	pod.Spec.RestartPolicy = v1.RestartPolicyNever
	return pod
}

// running is what the runtime has of newPod when its container has a state.
func running(state runtimeapi.ContainerState) *observed.Pod {
	return &observed.Pod{
		UID:        "1",
		Detailed:   true,
		Sandboxes:  []*observed.Sandbox{{ID: "s", Ready: true, IPs: []string{"10.0.0.5"}}},
		Containers: []*observed.Container{{ID: "c", Name: "main", SandboxID: "s", State: state}},
	}
}

// TestReasonsSurvive: a pod waits for the reason of its newest sync until its status is concluded, also when no
// sync has a result, and in a Maker of a later run.
func TestReasonsSurvive(t *testing.T) {
	results, pod := &Results{}, newPod()
	reason := func(o Options) string {
		st, _ := o.Statuses.Get(pod.UID)
		if len(st.ContainerStatuses) != 1 || st.ContainerStatuses[0].State.Waiting == nil {
			t.Fatalf("containers = %+v, want one that waits", st.ContainerStatuses)
		}
		return st.ContainerStatuses[0].State.Waiting.Reason
	}
	m, o := newMaker(&node{}, results)
	m.Update(pod, nil, &runtime.SyncResult{Reasons: map[string]observed.Reason{"main": {Reason: "ErrImagePull"}}})
	if got := reason(o); got != "ErrImagePull" {
		t.Errorf("reason after the sync = %q, want ErrImagePull", got)
	}
	later, o := newMaker(&node{}, results)
	later.Update(pod, nil, nil)
	if got := reason(o); got != "ErrImagePull" {
		t.Errorf("reason in a later run = %q, want ErrImagePull", got)
	}
	later.Conclude(pod)
	if got := results.get(pod.UID).Reasons; got != nil {
		t.Errorf("reasons after Conclude = %v, want none", got)
	}
}

// TestUpdateAndTerminated: a phase is final only when nothing of the pod runs any more. Until then its containers are
// probed.
func TestUpdateAndTerminated(t *testing.T) {
	n, pod := &node{}, newPod()
	m, o := newMaker(n, &Results{})
	if finished := m.Update(pod, running(runtimeapi.ContainerState_CONTAINER_RUNNING), nil); finished {
		t.Error("finished while its container runs, want false")
	}
	exited := running(runtimeapi.ContainerState_CONTAINER_EXITED)
	if finished := m.Update(pod, exited, nil); !finished {
		t.Error("not finished after its container has ended, want true")
	}
	if got := o.Statuses.Phase(pod.UID); status.Terminal(got) {
		t.Errorf("phase before Terminated = %s, want one that is not final", got)
	}
	if len(n.views) != 2 {
		t.Errorf("probed %d times, want 2", len(n.views))
	}
	m.Terminated(pod, exited)
	if got := o.Statuses.Phase(pod.UID); got != v1.PodSucceeded {
		t.Errorf("phase after Terminated = %s, want %s", got, v1.PodSucceeded)
	}
	if len(n.views) != 2 {
		t.Errorf("after Terminated: probed %d times, want 2", len(n.views))
	}
}

// TestReject: a pod that is rejected fails for the reason given.
func TestReject(t *testing.T) {
	m, o := newMaker(&node{}, &Results{})
	m.Reject(newPod(), observed.Reason{Reason: "OutOfcpu", Message: "no"})
	if got, _ := o.Statuses.Get("1"); got.Phase != v1.PodFailed || got.Reason != "OutOfcpu" {
		t.Errorf("status = %s %s, want Failed OutOfcpu", got.Phase, got.Reason)
	}
}

// TestProbed: a probe's result changes the status of a desired pod whose containers run, and of no other.
func TestProbed(t *testing.T) {
	for name, c := range map[string]struct {
		desired bool
		state   runtimeapi.ContainerState
		want    bool
	}{
		"runs":        {true, runtimeapi.ContainerState_CONTAINER_RUNNING, true},
		"has ended":   {true, runtimeapi.ContainerState_CONTAINER_EXITED, false},
		"not desired": {false, runtimeapi.ContainerState_CONTAINER_RUNNING, false},
	} {
		m, o := newMaker(&node{observed: map[types.UID]*observed.Pod{"1": running(c.state)}}, &Results{})
		if c.desired {
			o.Desired.Put(newPod(), false)
		}
		m.Probed("1")
		if _, got := o.Statuses.Get("1"); got != c.want {
			t.Errorf("%s: a status was made: %t, want %t", name, got, c.want)
		}
	}
}

// TestProbeAddress: a pod is probed at its own address, or at the node's if it uses the node's network.
func TestProbeAddress(t *testing.T) {
	host := newPod()
	host.Spec.HostNetwork = true
	for name, c := range map[string]struct {
		pod  *v1.Pod
		obs  *observed.Pod
		want string
	}{
		"own address":  {newPod(), running(runtimeapi.ContainerState_CONTAINER_RUNNING), "10.0.0.5"},
		"host network": {host, running(runtimeapi.ContainerState_CONTAINER_RUNNING), "192.0.2.1"},
		"no sandbox":   {newPod(), &observed.Pod{UID: "1"}, ""},
	} {
		n := &node{}
		m, o := newMaker(n, &Results{})
		before := v1.PodStatus{Phase: v1.PodRunning}
		o.Statuses.Set(c.pod, before)
		m.Probe(c.pod, c.obs)
		if diff := cmp.Diff([]prober.View{{Address: c.want, Before: before}}, n.views); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", name, diff)
		}
	}
}

// TestPrevious: a status continues the one of this run, of an earlier run, or of the API server, whose final phase
// stays.
func TestPrevious(t *testing.T) {
	fromAPI := func(phase v1.PodPhase) *v1.Pod {
		pod := newPod()
		pod.Status = v1.PodStatus{Phase: phase, Reason: "API"}
		return pod
	}
	run := v1.PodStatus{Phase: v1.PodRunning}
	for name, c := range map[string]struct {
		pod          *v1.Pod
		set, restore bool
		want         v1.PodStatus
		wantRestored bool
	}{
		"of this run":       {fromAPI(v1.PodPending), true, false, run, false},
		"of an earlier run": {fromAPI(v1.PodPending), false, true, run, true},
		"of the cloud": {fromAPI(v1.PodRunning), false, false, v1.PodStatus{Phase: v1.PodRunning, Reason: "API"},
			true},
		"final in the cloud": {fromAPI(v1.PodFailed), true, false, v1.PodStatus{Phase: v1.PodFailed, Reason: "API"},
			false},
	} {
		m, o := newMaker(&node{}, &Results{})
		if c.set {
			o.Statuses.Set(c.pod, run)
		}
		if c.restore {
			o.Statuses.Restore(map[types.UID]v1.PodStatus{"1": run})
		}
		got, restored := m.previous(c.pod)
		if diff := cmp.Diff(c.want, got); diff != "" || restored != c.wantRestored {
			t.Errorf("%s: restored %t, want %t; (-want +got):\n%s", name, restored, c.wantRestored, diff)
		}
	}
}

// TestWantsRecursiveReadOnly: the runtime is asked only if a mount depends on the answer.
func TestWantsRecursiveReadOnly(t *testing.T) {
	enabled, disabled := v1.RecursiveReadOnlyIfPossible, v1.RecursiveReadOnlyDisabled
	for name, c := range map[string]struct {
		mode *v1.RecursiveReadOnlyMode
		want bool
	}{"no mode": {nil, false}, "disabled": {&disabled, false}, "if possible": {&enabled, true}} {
		pod := newPod()
		pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", RecursiveReadOnly: c.mode}}
		asked := false
		m, o := newMaker(&node{}, &Results{})
		o.RecursiveReadOnly = func(*v1.Pod) bool { asked = true; return true }
		m.opts = o
		if got := m.inputs(pod, nil).RecursiveReadOnly; got != c.want || asked != c.want {
			t.Errorf("%s: RecursiveReadOnly %t, the runtime was asked %t; want %t", name, got, asked, c.want)
		}
	}
}
