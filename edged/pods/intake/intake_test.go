package intake

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/edged/containers/pleg"
	"github.com/edgecore-io/edgecore/edged/pods/podworker"
	"github.com/edgecore-io/edgecore/edged/pods/termination"
	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/readiness"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// fixture is all that an Intake works with. It records its calls in order.
type fixture struct {
	told []string
	// known are the pods that have workers, running those that the runtime has.
	known   map[types.UID]bool
	running []types.UID
	down    error
	// answers are the errors of the store, one for each time that it is asked; stored is what it has.
	answers []error
	stored  []*v1.Pod
	bad     error
	// messages are delivered in order, and then broken is returned.
	messages []*model.Message
	desired  *desired.Pods
	statuses *status.Manager
	ready    *readiness.Tracker
}

var errBroken = errors.New("broken")

func (f *fixture) tell(what string, uid types.UID) { f.told = append(f.told, what+" "+string(uid)) }

func (f *fixture) Admit(uid types.UID)  { f.tell("admit", uid) }
func (f *fixture) Changed()             { f.tell("garbage", "all") }
func (f *fixture) ContainersChanged()   { f.tell("garbage", "containers") }
func (f *fixture) Forget(uid types.UID) { f.tell("drop allocation", uid) }

// workers are a fixture's workers, snapshots its PLEG.
type (
	workers struct {
		podworker.Interface
		*fixture
	}
	snapshots struct {
		pleg.Interface
		*fixture
	}
)

func (w workers) Knows(uid types.UID) bool { return w.known[uid] }
func (w workers) Remove(uid types.UID)     { w.tell("end", uid) }
func (w workers) Enqueue(uid types.UID)    { w.tell("sync", uid) }
func (w workers) EnqueueAll()              { w.tell("sync", "all") }

func (f snapshots) Healthy() error { return f.down }

func (f snapshots) Get(uid types.UID) *observed.Pod {
	if !slices.Contains(f.running, uid) {
		return nil
	}
	return &observed.Pod{UID: uid, Sandboxes: []*observed.Sandbox{{ID: string(uid)}}}
}

func (f snapshots) All() []*observed.Pod {
	var all []*observed.Pod
	for _, uid := range f.running {
		all = append(all, f.Get(uid))
	}
	return all
}

func (f *fixture) PodStatuses(context.Context) (map[types.UID]v1.PodStatus, error) {
	if len(f.answers) > 0 {
		err := f.answers[0]
		f.answers = f.answers[1:]
		return nil, err
	}
	return map[types.UID]v1.PodStatus{"before": {}}, nil
}

func (f *fixture) Pods(context.Context) ([]*v1.Pod, error) { return f.stored, f.bad }

func (f *fixture) Receive(context.Context, string) (*model.Message, error) {
	if len(f.messages) == 0 {
		return nil, errBroken
	}
	m := f.messages[0]
	f.messages = f.messages[1:]
	return m, nil
}

// expect checks what was told since it was called last.
func (f *fixture) expect(t *testing.T, when string, want ...string) {
	t.Helper()
	if !slices.Equal(f.told, want) {
		t.Errorf("%s: told %q, want %q", when, f.told, want)
	}
	f.told = nil
}

// newFixture returns an Intake of node n without a cloud, and what it works with.
func newFixture(damaged bool) (*Intake, *fixture) {
	f := &fixture{
		known:    map[types.UID]bool{},
		desired:  desired.New(),
		statuses: status.NewManager(nil),
		ready:    readiness.New(damaged),
	}
	return New(Options{
		NodeName:    "n",
		Bus:         f,
		Store:       f,
		Ready:       f.ready,
		Desired:     f.desired,
		Admission:   f,
		Workers:     workers{fixture: f},
		PLEG:        snapshots{fixture: f},
		Statuses:    f.statuses,
		Garbage:     f,
		Allocations: f,
		Waiters:     &termination.Waiters{},
		Started:     func(context.Context) { f.tell("started", "") },
		Freed:       func() { f.tell("freed", "") },
		Linked:      func() { f.tell("linked", "") },
		Synced:      func() { f.tell("synced", "") },
	}), f
}

func pod(name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID(name)}}
}

// TestLoad: the store is asked until it answers. Pods of other nodes and mirror pods are not run, and orphans are ended
// only once all pods are known.
func TestLoad(t *testing.T) {
	elsewhere, mirrored := pod("elsewhere"), pod("mirrored")
	elsewhere.Spec.NodeName = "other"
	mirrored.Annotations = map[string]string{v1.MirrorPodAnnotationKey: "x"}
	for name, c := range map[string]struct {
		bad     error
		damaged bool
		want    []string
	}{
		"all read":      {nil, false, []string{"admit mine", "end orphan"}},
		"one left out":  {errBroken, false, []string{"admit mine"}},
		"store damaged": {nil, true, []string{"admit mine"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				in, f := newFixture(c.damaged)
				f.stored, f.bad, f.running = []*v1.Pod{pod("mine"), elsewhere, mirrored}, c.bad,
					[]types.UID{"mine", "orphan"}
				f.answers = []error{errBroken, errBroken}
				if err := in.Load(t.Context()); err != nil {
					t.Errorf("Load = %v, want nil", err)
				}
				in.SetStatic(nil)
				in.Start()
				f.expect(t, "loaded", c.want...)
				if !f.statuses.Restored("before") {
					t.Error("the status of an earlier run is not restored")
				}
			})
		})
	}
}

// TestRun: pods start when the runtime answers and both sources were asked, and again when the runtime comes back.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, f := newFixture(false)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- in.Run(ctx) }()
		in.SetStatic([]*v1.Pod{pod("static")})
		synctest.Wait()
		f.expect(t, "the store was not asked")
		f.down, f.answers = errBroken, nil
		if err := in.Load(ctx); err != nil {
			t.Errorf("Load = %v, want nil", err)
		}
		synctest.Wait()
		f.expect(t, "the runtime is down")
		f.down = nil
		in.Wake()
		synctest.Wait()
		f.expect(t, "the runtime answers", "admit static", "started ")
		in.Wake()
		synctest.Wait()
		f.expect(t, "the runtime is back", "admit static", "started ")
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
}

// TestSetStatic: manifests that come and go while pods run. A pod that comes again begins without its earlier status.
func TestSetStatic(t *testing.T) {
	in, f := newFixture(false)
	in.SetStatic([]*v1.Pod{pod("a")})
	f.expect(t, "before the start")
	in.Start()
	f.expect(t, "at the start", "admit a")
	f.known["a"] = true
	f.statuses.Restore(map[types.UID]v1.PodStatus{"b": {}})
	in.SetStatic([]*v1.Pod{pod("b")})
	f.expect(t, "a replaced by b", "end a", "admit b")
	if got, ok := f.statuses.Get("b"); ok {
		t.Errorf("the status of b is still %v, want none: it begins anew", got)
	}
	in.SetStatic([]*v1.Pod{pod("a"), pod("b")})
	f.expect(t, "a comes again while it ends", "admit a")
}

// TestReceive: what follows from each message; one that makes no sense changes nothing.
func TestReceive(t *testing.T) {
	const ns, name = "ns", "user"
	user := pod(name)
	user.Spec.Volumes = []v1.Volume{
		{
			VolumeSource: v1.VolumeSource{
				ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "c"}},
			},
		},
		{VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}},
	}
	data, err := json.Marshal(user)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		operation, resource, content string
		want                         []string
	}{
		"a new pod":           {model.OpInsert, "ns/pod/user", string(data), []string{"admit user"}},
		"a pod that is none":  {model.OpUpdate, "ns/pod/user", `{"metadata":{}}`, nil},
		"a pod deleted":       {model.OpDelete, "ns/pod/old", `{"metadata":{"uid":"old"}}`, []string{"end old"}},
		"deleted, no UID":     {model.OpDelete, "ns/pod/old", `{"metadata":{"name":"old"}}`, nil},
		"deleted, no pod":     {model.OpDelete, "ns/pod/old", `7`, nil},
		"its configmap":       {model.OpUpdate, "ns/configmap/c", `{}`, []string{"sync old"}},
		"its secret":          {model.OpUpdate, "ns/secret/s", `{}`, []string{"sync old"}},
		"another configmap":   {model.OpUpdate, "ns/configmap/d", `{}`, nil},
		"another namespace":   {model.OpUpdate, "other/configmap/c", `{}`, nil},
		"nothing of interest": {model.OpUpdate, "ns/service/s", `{}`, nil},
		"no resource":         {model.OpUpdate, "?", `{}`, nil},
		"the link is cut":     {model.OpUpdate, "ns/link/l", `{"connected":false}`, nil},
		"there is a link":     {model.OpUpdate, "ns/link/l", `{"connected":true}`, []string{"linked ", "sync all"}},
		"all was sent": {model.OpUpdate, "ns/link/l", `{"connected":true,"synced":true}`,
			[]string{"synced ", "end orphan", "garbage all"}},
	} {
		in, f := newFixture(true)
		old := pod("old")
		old.Spec.Volumes = user.Spec.Volumes
		f.desired.Put(old, false)
		f.running = []types.UID{"old", "orphan"}
		f.ready.StaticRead()
		f.ready.StoreRead()
		f.ready.Start()
		f.messages = []*model.Message{model.New("x", "y", c.operation, c.resource, json.RawMessage(c.content))}
		if err := in.Receive(t.Context()); !errors.Is(err, errBroken) {
			t.Errorf("%s: Receive = %v, want the error of the bus", what, err)
		}
		f.expect(t, what, c.want...)
	}
}

// TestReceiveEnds: the end of the run is not an error.
func TestReceiveEnds(t *testing.T) {
	in, _ := newFixture(false)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := in.Receive(ctx); err != nil {
		t.Errorf("Receive with a context that has ended = %v, want nil", err)
	}
}

// TestPodChanged: the worker of a pod is told of a change. A pod without one is ended, unless it may be desired.
func TestPodChanged(t *testing.T) {
	in, f := newFixture(false)
	f.running = []types.UID{"orphan"}
	f.known["mine"] = true
	in.PodChanged("mine")
	f.expect(t, "with a worker", "garbage containers", "sync mine")
	in.PodChanged("orphan")
	f.expect(t, "not all pods are known", "garbage containers")
	f.ready.StaticRead()
	f.ready.StoreRead()
	f.ready.Start()
	in.PodChanged("orphan")
	f.expect(t, "an orphan", "garbage containers", "end orphan")
	in.PodChanged("gone")
	f.expect(t, "a pod that the runtime has not", "garbage containers")
}

// TestPodForgotten: nothing is kept of a pod that is gone. One of the same UID that has come meanwhile keeps its
// allocation.
func TestPodForgotten(t *testing.T) {
	in, f := newFixture(false)
	f.desired.Put(pod("p"), false)
	f.desired.Remove("p")
	in.PodForgotten("p")
	f.expect(t, "gone", "drop allocation p", "freed ")
	f.desired.Put(pod("p"), false)
	in.PodForgotten("p")
	f.expect(t, "there again", "freed ")
}

// TestShown: a static pod that is on its way out is shown until another has its name.
func TestShown(t *testing.T) {
	leaving, next, other := pod("web"), pod("web"), pod("other")
	leaving.UID, next.UID = "1", "2"
	was := desired.Pod{Pod: leaving, Static: true, Removed: true}
	is := desired.Pod{Pod: next, Static: true}
	for name, c := range map[string]struct {
		all  []desired.Pod
		want []types.UID
	}{
		"leaving":            {[]desired.Pod{was}, []types.UID{"1"}},
		"replaced":           {[]desired.Pod{was, is}, []types.UID{"2"}},
		"replaced, in turn":  {[]desired.Pod{is, was}, []types.UID{"2"}},
		"of the API server":  {[]desired.Pod{{Pod: other}}, nil},
		"nothing is desired": {nil, nil},
	} {
		var got []types.UID
		for _, p := range shown(c.all) {
			got = append(got, p.UID)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: shown %v, want %v", name, got, c.want)
		}
	}
}
