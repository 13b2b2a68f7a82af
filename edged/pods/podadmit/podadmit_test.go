package podadmit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/pleg"
	"github.com/edgecore-io/edgecore/edged/pods/podworker"
	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/source"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/pkg/refused"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// testPod is a pod that asks for nothing.
func testPod(name string, uid types.UID) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: uid}}
}

// asking is a pod that asks for cpu.
func asking(name, cpu string) *v1.Pod {
	pod := testPod(name, types.UID(name))
	pod.Spec.Containers = []v1.Container{{
		Name:      "main",
		Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}},
	}}
	return pod
}

// fixture is a node of one cpu: its workers, runtime, devices and statuses.
type fixture struct {
	mu       sync.Mutex
	updated  []types.UID
	before   []types.UID // predecessors of updated
	removed  []types.UID
	rejected map[types.UID]observed.Reason
	seen     []*observed.Pod
	wants    bool
	allocate func(context.Context) error
	freed    []types.UID
	closed   bool
	pressure *observed.Reason
	*status.Manager
}

func (r *fixture) update(pod *v1.Pod, predecessor types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.updated, r.before = append(r.updated, pod.UID), append(r.before, predecessor)
}

// workers are those of a fixture.
type workers struct {
	podworker.Interface
	*fixture
}

func (w workers) Update(pod *v1.Pod, predecessor types.UID) { w.update(pod, predecessor) }
func (w workers) Remove(uid types.UID)                      { w.removed = append(w.removed, uid) }

// snapshots are what the runtime of a fixture has.
type snapshots struct {
	pleg.Interface
	*fixture
}

func (p snapshots) All() []*observed.Pod { return p.seen }

func (p snapshots) Get(uid types.UID) *observed.Pod {
	i := slices.IndexFunc(p.seen, func(o *observed.Pod) bool { return o.UID == uid })
	if i < 0 {
		return nil
	}
	return p.seen[i]
}

func (r *fixture) Capacity() (capacity, allocatable v1.ResourceList) {
	return v1.ResourceList{}, v1.ResourceList{}
}
func (r *fixture) Serves(v1.ResourceName) bool                   { return false }
func (r *fixture) Wants(*v1.Pod) bool                            { return r.wants }
func (r *fixture) Allocate(ctx context.Context, _ *v1.Pod) error { return r.allocate(ctx) }
func (r *fixture) Free(uid types.UID)                            { r.freed = append(r.freed, uid) }

func (r *fixture) started(uid types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.updated, uid)
}

func newFixture(ctx context.Context) (*fixture, *Controller, *desired.Pods) {
	r := &fixture{Manager: status.NewManager(noReports{}), rejected: map[types.UID]observed.Reason{}}
	r.allocate = func(context.Context) error { return nil }
	wanted := desired.New()
	return r, New(ctx, Options{
		NodeName:    "n",
		Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")},
		Desired:     wanted,
		Workers:     workers{fixture: r},
		PLEG:        snapshots{fixture: r},
		Statuses:    r.Manager,
		Devices:     r,
		Recorder:    events.New("n", nil),
		Closed:      func() bool { return r.closed },
		Allocations: asAsked{},
		Pressure:    func(*v1.Pod) *observed.Reason { return r.pressure },
		Rejected:    func(pod *v1.Pod, why observed.Reason) { r.rejected[pod.UID] = why },
	}), wanted
}

// asAsked gives each pod what it asks for.
type asAsked struct{}

func (asAsked) Allocated(pod *v1.Pod) *v1.Pod { return pod }
func (asAsked) Retry(*v1.Pod)                 {}

type noReports struct{}

func (noReports) PodStatus(*v1.Pod, v1.PodStatus) {}

// TestAdmit: a pod that fits starts, one that does not is rejected; one that runs already is not decided again, and
// while the device shuts down nothing is.
func TestAdmit(t *testing.T) {
	r, c, wanted := newFixture(t.Context())
	for _, pod := range []*v1.Pod{
		asking("first", "1"), asking("second", "1"), asking("running", "1"), asking("stored", "1"),
	} {
		wanted.Put(pod, pod.Name == "stored")
	}
	r.seen = []*observed.Pod{
		{
			UID: "running", Containers: []*observed.Container{
				{Name: "main", State: runtimeapi.ContainerState_CONTAINER_RUNNING},
			},
		},
	}
	r.closed = true
	c.Admit("first")
	if len(r.updated) != 0 {
		t.Errorf("pods started during a shutdown = %v, want none", r.updated)
	}
	r.closed = false
	for _, uid := range []types.UID{"first", "second", "running", "stored", "unknown"} {
		c.Admit(uid)
	}
	if want := []types.UID{"first", "running", "stored"}; !slices.Equal(r.updated, want) {
		t.Errorf("pods started = %v, want %v", r.updated, want)
	}
	if got := r.rejected["second"]; len(r.rejected) != 1 || got.Reason != "OutOfcpu" {
		t.Errorf("rejected = %v, want second for OutOfcpu", r.rejected)
	}
}

// TestDevices: a pod that wants devices starts once they are allocated, and is rejected if they cannot be. Of one that
// is deleted meanwhile they are freed. Another pod does not wait.
func TestDevices(t *testing.T) {
	for name, test := range map[string]struct {
		err                     error
		deleted                 bool
		starts, rejected, freed bool
	}{
		"allocated": {starts: true},
		"refused":   {err: errors.New("no more"), rejected: true},
		"deleted":   {deleted: true, freed: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, c, wanted := newFixture(t.Context())
				wanted.Put(testPod("p", "p"), false)
				wanted.Put(testPod("other", "other"), false)
				r.wants = true
				r.allocate = func(context.Context) error {
					time.Sleep(time.Minute)
					return test.err
				}
				c.Admit("p")
				c.Admit("p") // it changed
				r.wants = false
				c.Admit("other")
				if !r.started("other") || r.started("p") {
					t.Errorf("while devices are allocated to p: other starts %t, p %t; want true, false",
						r.started("other"), r.started("p"))
				}
				if test.deleted {
					wanted.Remove("p")
				}
				c.Wait()
				_, rejected := r.rejected["p"]
				freed := slices.Contains(r.freed, "p")
				if r.started("p") != test.starts || rejected != test.rejected || freed != test.freed {
					t.Errorf("p starts %t, rejected %t, freed %t; want %t, %t, %t",
						r.started("p"), rejected, freed, test.starts, test.rejected, test.freed)
				}
			})
		})
	}
}

// TestCloudsWord: a pod whose node selector names a label that this node does not know starts if the Node has the
// label, or if the cloud cannot be asked.
func TestCloudsWord(t *testing.T) {
	for name, test := range map[string]struct {
		labels map[string]string
		err    error
		starts bool
	}{
		"has it":      {map[string]string{"site": "a"}, nil, true},
		"has another": {map[string]string{"site": "b"}, nil, false},
		"offline":     {nil, errors.New("no link"), true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, c, wanted := newFixture(t.Context())
				c.opts.Node = func(context.Context) (*v1.Node, error) {
					return &v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: test.labels}}, test.err
				}
				pod := testPod("p", "p")
				pod.Spec.NodeSelector = map[string]string{"site": "a"}
				wanted.Put(pod, false)
				c.Admit("p")
				c.Wait()
				if why := r.rejected["p"]; r.started("p") != test.starts || (why.Reason == "") != test.starts {
					t.Errorf("p starts %t, rejected for %q; want it to start: %t", r.started("p"), why.Reason,
						test.starts)
				}
			})
		})
	}
}

// TestPredecessor: a static pod whose manifest changed waits for the pod that it replaces.
func TestPredecessor(t *testing.T) {
	r, c, wanted := newFixture(t.Context())
	pod := testPod("p", "new")
	pod.Annotations = map[string]string{source.AnnotationSource: "file"}
	wanted.SetStatic([]*v1.Pod{pod})
	r.seen = []*observed.Pod{
		{UID: "old", Name: "p", Namespace: "default"},
		{UID: "other", Name: "other", Namespace: "default"},
	}
	c.Admit("new")
	if want := []types.UID{"old"}; !slices.Equal(r.before, want) || !slices.Equal(r.removed, want) {
		t.Errorf("predecessors = %v, removed = %v, want %v of both", r.before, r.removed, want)
	}
}

// TestJudgeResize: a node admits a resize that fits beside its other pods, and none while it is under pressure.
func TestJudgeResize(t *testing.T) {
	r, c, _ := newFixture(t.Context())
	if why := c.AdmitResize(asking("p", "1")); why != nil {
		t.Errorf("AdmitResize(1 of 1 cpu) = %+v, want nil", why)
	}
	if why := c.AdmitResize(asking("p", "2")); why == nil || why.Reason != v1.PodReasonInfeasible {
		t.Errorf("AdmitResize(2 of 1 cpu) = %+v, want Infeasible", why)
	}
	r.pressure = &observed.Reason{Reason: "Evicted", Message: "The node had condition: [DiskPressure]. "}
	if why := c.AdmitResize(asking("p", "1")); why != r.pressure {
		t.Errorf("AdmitResize under pressure = %+v, want %+v", why, r.pressure)
	}
}

// TestTooLarge: the stub of a pod is rejected. After a restart it is rejected again, but not reported again.
// A pod that ended before it became a stub keeps its status; one that is being deleted is ended.
func TestTooLarge(t *testing.T) {
	r, c, wanted := newFixture(t.Context())
	stub := refused.Stub{Size: 1000, Message: "it takes 1000 bytes"}
	for _, name := range []string{"new", "reported", "restored", "ended", "deleted"} {
		pod := testPod(name, types.UID(name))
		if name == "deleted" {
			pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		}
		wanted.Put(stub.Pod(pod), name != "new" && name != "deleted")
	}
	r.Restore(map[types.UID]v1.PodStatus{
		"reported": {Phase: v1.PodFailed, Message: "Pod was rejected: it takes 1000 bytes"},
		"ended":    {Phase: v1.PodSucceeded},
	})
	for _, w := range wanted.All() {
		c.Admit(w.Pod.UID)
	}
	want := observed.Reason{Reason: "OutOfPodBytes", Message: "it takes 1000 bytes"}
	if len(r.rejected) != 2 || r.rejected["new"] != want || r.rejected["restored"] != want {
		t.Errorf("rejected = %v, want new and restored for %v", r.rejected, want)
	}
	if len(r.updated) != 2 || !r.started("ended") || !r.started("deleted") {
		t.Errorf("pods handed to their workers = %v, want ended and deleted", r.updated)
	}
}
