package garbage

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/gc"
	"github.com/edgecore-io/edgecore/edged/containers/imagegc"
	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/readiness"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// node is everything that a Manager works with: a runtime, its disk, the pods and the store. It records what is
// removed.
type node struct {
	*Manager
	ready   *readiness.Tracker
	desired *desired.Pods
	health  *health.Registry
	events  *events.Recorder
	links   string

	observed []*observed.Pod
	down     error // why the runtime does not answer
	stored   []*v1.Pod
	storeErr error
	known    map[types.UID]bool // the pods that have workers
	left     []types.UID
	images   []imagegc.Image
	full     bool // the disk, whatever is removed
	removed  []string
	attempts int
	kept     []string
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{
		ready:   readiness.New(false),
		desired: desired.New(),
		health:  &health.Registry{},
		events:  events.New("n", nil),
		known:   map[types.UID]bool{},
		links:   t.TempDir(),
	}
	n.Manager = New(Options{
		Policy: Policy{
			Images:     imagegc.Policy{HighPercent: 85, LowPercent: 50},
			Containers: gc.Policy{PerContainer: 1, Total: -1},
		},
		Ready:     n.ready,
		Desired:   n.desired,
		Runtime:   n,
		Images:    disk{n},
		PLEG:      n,
		Workers:   n,
		Statuses:  status.NewManager(silentReporter{}),
		Store:     n,
		Repairs:   n,
		Leftovers: gc.Sources{"folder": func() ([]types.UID, error) { return n.left, nil }},
		Recorder:  n.events,
		Health:    n.health,
	})
	return n
}

func (n *node) RemoveContainer(_ context.Context, pod *observed.Pod, c *observed.Container) error {
	n.removed = append(n.removed, "container "+c.ID)
	pod.Containers = slices.DeleteFunc(pod.Containers, func(have *observed.Container) bool { return have.ID == c.ID })
	return nil
}

func (n *node) RemoveSandbox(_ context.Context, id string) error {
	n.removed = append(n.removed, "sandbox "+id)
	return nil
}

func (n *node) LogDirs() (links, logs string) { return n.links, "/var/log/pods" }
func (n *node) SetDeadAttempts(count int)     { n.attempts = count }
func (n *node) Healthy() error                { return n.down }
func (n *node) All() []*observed.Pod          { return n.observed }

func (n *node) Get(uid types.UID) *observed.Pod {
	for _, pod := range n.observed {
		if pod.UID == uid {
			return pod
		}
	}
	return nil
}

func (n *node) Refresh(_ context.Context, uid types.UID) (*observed.Pod, error) {
	return n.Get(uid), nil
}

func (n *node) Knows(uid types.UID) bool { return n.known[uid] }
func (n *node) Busy(types.UID) bool      { return false }
func (n *node) Remove(uid types.UID)     { n.removed = append(n.removed, "pod "+string(uid)) }

func (n *node) StatusOwners(context.Context) ([]*v1.Pod, error) { return n.stored, n.storeErr }

func (n *node) ForgetStatus(_ context.Context, pod *v1.Pod) error {
	n.removed = append(n.removed, "status "+pod.Name)
	n.stored = slices.DeleteFunc(n.stored, func(have *v1.Pod) bool { return have.UID == pod.UID })
	return nil
}

func (n *node) ForgetExcept(names []string) { n.kept = names }

// disk is the disk of a node: 1000 bytes, of which 900 are used while it is full, and 100 otherwise.
type disk struct{ n *node }

func (d disk) Images(context.Context) ([]imagegc.Image, error) { return slices.Clone(d.n.images), nil }
func (disk) InUse(context.Context) ([]string, error)           { return nil, nil }
func (disk) Sandbox(context.Context) ([]string, error)         { return nil, nil }
func (disk) Resolve(context.Context, string) (string, error)   { return "", nil }

func (d disk) Usage(context.Context) (imagegc.Usage, error) {
	u := imagegc.Usage{Mountpoint: "/images", Capacity: 1000, Available: 900}
	if d.n.full {
		u.Available = 100
	}
	return u, nil
}

func (d disk) Remove(_ context.Context, id string) error {
	d.n.removed = append(d.n.removed, "image "+id)
	d.n.images = slices.DeleteFunc(d.n.images, func(i imagegc.Image) bool { return i.ID == id })
	return nil
}

// take returns what was removed since the last call.
func (n *node) take() []string {
	got := n.removed
	n.removed = nil
	return got
}

func namedPod(name string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "main", Image: name + ":1"}}},
	}
}

// TestRun: nothing is removed while pods may be missing or the runtime does not answer; after that, dead containers go
// soon after a change, and what pods have left goes as well.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		const exited = runtimeapi.ContainerState_CONTAINER_EXITED
		ended := time.Now().Add(-time.Hour)
		n.desired.Put(namedPod("a"), false)
		n.observed = []*observed.Pod{{UID: "a", Namespace: "default", Name: "a", Containers: []*observed.Container{
			{ID: "3", Name: "main", State: exited, CreatedAt: ended, Attempt: 2},
			{ID: "2", Name: "main", State: exited, CreatedAt: ended, Attempt: 1},
			{ID: "1", Name: "main", State: exited, CreatedAt: ended, Attempt: 0},
		}}}
		n.stored = []*v1.Pod{namedPod("a"), namedPod("gone")}
		n.left = []types.UID{"a", "left", "worked-on"}
		n.known["worked-on"] = true
		done := make(chan error, 1)
		go func() { done <- n.Run(ctx) }()

		time.Sleep(time.Hour)
		synctest.Wait()
		if got := n.take(); got != nil {
			t.Errorf("removed %v before the pods were known, want nothing", got)
		}
		n.down = errors.New("no answer")
		n.ready.Start()
		n.ContainersChanged()
		time.Sleep(debounce)
		synctest.Wait()
		if got := n.take(); got != nil {
			t.Errorf("removed %v while the runtime does not answer, want nothing", got)
		}
		n.down = nil
		n.ContainersChanged()
		time.Sleep(debounce)
		synctest.Wait()
		// One dead attempt stays besides the newest, which the next start needs.
		if diff := cmp.Diff([]string{"container 1"}, n.take()); diff != "" {
			t.Errorf("removed while the manifests are unread (-want +got):\n%s", diff)
		}
		n.ready.StoreRead()
		n.ready.StaticRead()
		n.Changed()
		time.Sleep(debounce)
		synctest.Wait()
		if diff := cmp.Diff([]string{"pod left", "status gone"}, n.take()); diff != "" {
			t.Errorf("removed when all pods are known (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"docker.io/library/a:1"}, n.kept); diff != "" {
			t.Errorf("images whose repairs are kept (-want +got):\n%s", diff)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
}

// TestStatusesOfEndingPods: the status of a pod that is being stopped stays, and one that cannot be listed is tried
// again.
func TestStatusesOfEndingPods(t *testing.T) {
	n := newNode(t)
	n.ready.Start()
	n.ready.StoreRead()
	n.ready.StaticRead()
	n.stored = []*v1.Pod{namedPod("ending")}
	n.known["ending"] = true
	for _, step := range []struct {
		name string
		do   func()
		want []string
	}{
		{"being stopped", func() {}, nil},
		{"the store fails", func() {
			n.known, n.storeErr = map[types.UID]bool{}, errors.New("the disk is full")
		}, nil},
		{"stopped", func() { n.storeErr = nil }, []string{"status ending"}},
		{"nothing left", func() { n.stored = []*v1.Pod{namedPod("later")} }, nil},
	} {
		step.do()
		n.CleanUp(t.Context())
		if diff := cmp.Diff(step.want, n.take()); diff != "" {
			t.Errorf("%s: removed (-want +got):\n%s", step.name, diff)
		}
	}
}

// TestDiskFull: images that cannot free enough space set a condition, and cause one event; the condition ends when
// there is space again.
func TestDiskFull(t *testing.T) {
	n := newNode(t)
	if wait := n.collectImages(t.Context()); wait != retryAfter {
		t.Errorf("next collection after %v while the pods are unknown, want %v", wait, retryAfter)
	}
	n.ready.Start()
	n.ready.StoreRead()
	n.ready.StaticRead()
	n.images, n.full = []imagegc.Image{{ID: "old", Names: []string{"old:1"}, Size: 10}}, true
	for range 2 {
		if wait := n.collectImages(t.Context()); wait != retryAfter {
			t.Errorf("next collection after %v with a full disk, want %v", wait, retryAfter)
		}
	}
	if got := n.take(); !slices.Equal(got, []string{"image old"}) {
		t.Errorf("removed %v, want the only image", got)
	}
	if list := n.health.Snapshot(); len(list) != 1 || list[0].Code != health.ImagesFillDisk ||
		list[0].Object != "/images" {
		t.Errorf("conditions = %v, want %s of /images", list, health.ImagesFillDisk)
	}
	if list := n.events.List(); len(list) != 1 || list[0].Reason != eventFreeDiskSpaceFailed || list[0].Count > 1 {
		t.Errorf("events = %v, want one %s", list, eventFreeDiskSpaceFailed)
	}
	n.full = false
	if wait := n.collectImages(t.Context()); wait != period || len(n.health.Snapshot()) != 0 {
		t.Errorf("next collection after %v, conditions %v; want %v and none", wait, n.health.Snapshot(), period)
	}
	n.down = errors.New("no answer")
	if wait := n.collectImages(t.Context()); wait != period {
		t.Errorf("next collection after %v while the runtime does not answer, want %v", wait, period)
	}
}

// TestFree: a node that is short of disk removes dead containers and unused images at once; a new policy counts at
// once.
func TestFree(t *testing.T) {
	n := newNode(t)
	n.ready.Start()
	n.ready.StoreRead()
	n.ready.StaticRead()
	pod := namedPod("a")
	n.desired.Put(pod, false)
	n.images = []imagegc.Image{
		{ID: "used", Names: []string{"docker.io/library/a:1"}, Size: 10},
		{ID: "old", Names: []string{"old:1"}, Size: 10},
	}
	n.ImagesUsed(pod)
	n.ImagesUsed(nil)
	if err := errors.Join(n.FreeContainers(t.Context()), n.FreeImages(t.Context(), nil)); err != nil {
		t.Fatal(err)
	}
	if got := n.take(); !slices.Equal(got, []string{"image old"}) {
		t.Errorf("removed %v, want the unused image", got)
	}
	if n.attempts != 1 {
		t.Errorf("dead attempts that a start leaves = %d, want 1", n.attempts)
	}
	n.SetPolicy(Policy{Containers: gc.Policy{PerContainer: 4}})
	if n.attempts != 4 || len(n.Collectors()) != 1 {
		t.Errorf("after SetPolicy %d dead attempts stay, %d collectors; want 4, 1", n.attempts, len(n.Collectors()))
	}
}
