package mirror

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/podstate/source"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

func static(name, hash string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Namespace:   "n",
			UID:         types.UID(hash),
			Labels:      map[string]string{"a": "b"},
			Annotations: map[string]string{source.AnnotationHash: hash, source.AnnotationSource: "file"},
		},
		Spec: v1.PodSpec{
			NodeName:           "edge",
			Priority:           ptr.To[int32](7),
			ServiceAccountName: "x",
			PriorityClassName:  "system-node-critical",
		},
	}
}

func mirrored(name, uid, hash string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name:        name,
		Namespace:   "n",
		UID:         types.UID(uid),
		Annotations: map[string]string{v1.MirrorPodAnnotationKey: hash},
	}}
}

func TestDecide(t *testing.T) {
	leaving := mirrored("p", "m", "h")
	leaving.DeletionTimestamp = &metav1.Time{}
	for name, c := range map[string]struct {
		p       pair
		offline bool
		want    action
	}{
		"nothing":            {pair{}, false, nothing},
		"no mirror":          {pair{static: static("p", "h")}, false, create},
		"no mirror, no link": {pair{static: static("p", "h")}, true, nothing},
		"mirror":             {pair{static: static("p", "h"), mirror: mirrored("p", "m", "h")}, true, tell},
		"another manifest":   {pair{static: static("p", "i"), mirror: mirrored("p", "m", "h")}, true, remove},
		"another manifest, said": {pair{static: static("p", "i"), mirror: mirrored("p", "m", "h"), ended: "m"},
			false, nothing},
		"another manifest, said once": {pair{static: static("p", "i"), mirror: mirrored("p", "m2", "h"), ended: "m"},
			false, remove},
		"deleted by someone": {pair{static: static("p", "h"), mirror: leaving}, false, remove},
		"no manifest":        {pair{mirror: mirrored("p", "m", "h")}, true, remove},
	} {
		if got := decide(&c.p, !c.offline); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestOf(t *testing.T) {
	s := static("p", "h")
	before := s.DeepCopy()
	got := Of(s, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "edge", UID: "u"}})
	want := &v1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name:      "p",
			Namespace: "n",
			Labels:    map[string]string{"a": "b"},
			Annotations: map[string]string{
				source.AnnotationHash: "h", source.AnnotationSource: "file", v1.MirrorPodAnnotationKey: "h",
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1",
				Kind:       "Node",
				Name:       "edge",
				UID:        "u",
				Controller: ptr.To(true),
			}},
		},
		Spec: v1.PodSpec{NodeName: "edge", PriorityClassName: "system-node-critical"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("mirror pod mismatch (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, s); diff != "" {
		t.Errorf("the static pod has changed (-want +got):\n%s", diff)
	}
	if !Is(got) || Is(s) {
		t.Errorf("Is(mirror pod) = %t, Is(static pod) = %t, want true, false", Is(got), Is(s))
	}
}

// cloud keeps what it is sent.
type cloud struct {
	mu      sync.Mutex
	n       int
	refuse  error
	created []string
	deleted []types.UID
	told    []string
}

func (c *cloud) Node(context.Context, string) (*v1.Node, error) {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "edge", UID: "u"}}, nil
}

func (c *cloud) CreatePod(_ context.Context, pod *v1.Pod) (*v1.Pod, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.created = append(c.created, pod.Annotations[v1.MirrorPodAnnotationKey])
	if c.refuse != nil {
		return nil, c.refuse
	}
	c.n++
	made := pod.DeepCopy()
	made.UID = types.UID(fmt.Sprintf("m%d", c.n))
	return made, nil
}

func (c *cloud) ReportDeleted(_ context.Context, pod *v1.Pod) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deleted = append(c.deleted, pod.UID)
	return nil
}

func (c *cloud) ReportMirrorStatus(_ context.Context, pod *v1.Pod, status v1.PodStatus) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told = append(c.told, string(pod.UID)+" "+string(status.Phase))
	return nil
}

// fixture is a manager that runs, with its cloud.
type fixture struct {
	*Manager
	t      *testing.T
	cloud  *cloud
	phases map[types.UID]v1.PodPhase
}

func run(t *testing.T, test func(w *fixture)) {
	synctest.Test(t, func(t *testing.T) {
		w := &fixture{t: t, cloud: &cloud{}, phases: map[types.UID]v1.PodPhase{}}
		w.Manager = New(Options{Cloud: w.cloud, NodeName: "edge", Status: func(uid types.UID) (v1.PodStatus, bool) {
			w.cloud.mu.Lock()
			defer w.cloud.mu.Unlock()
			phase, ok := w.phases[uid]
			return v1.PodStatus{Phase: phase}, ok
		}})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = w.Run(ctx) }()
		test(w)
		cancel()
		synctest.Wait()
	})
}

func (w *fixture) phase(uid types.UID, phase v1.PodPhase) {
	w.cloud.mu.Lock()
	w.phases[uid] = phase
	w.cloud.mu.Unlock()
	w.Wake()
}

// expect compares what the cloud was asked and told so far.
func (w *fixture) expect(created, deleted, told string) {
	w.t.Helper()
	synctest.Wait()
	w.cloud.mu.Lock()
	defer w.cloud.mu.Unlock()
	got := []string{
		strings.Join(w.cloud.created, ","), strings.Trim(fmt.Sprint(w.cloud.deleted), "[]"),
		strings.Join(w.cloud.told, ","),
	}
	if diff := cmp.Diff([]string{created, deleted, told}, got); diff != "" {
		w.t.Errorf("created, deleted, told (-want +got):\n%s", diff)
	}
}

// TestLife: a static pod comes, changes, goes; someone deletes its mirror.
func TestLife(t *testing.T) {
	run(t, func(w *fixture) {
		w.SetStatic([]*v1.Pod{static("p", "h")})
		w.Link(true)
		w.expect("", "", "") // before the store was read nothing is known
		w.Loaded()
		w.expect("h", "", "")
		w.phase("h", v1.PodRunning)
		w.expect("h", "", "m1 Running")
		w.Seen(mirrored("p", "m1", "h"))
		w.Wake()
		w.expect("h", "", "m1 Running") // nothing changed, nothing is reported

		w.SetStatic([]*v1.Pod{static("p", "i")})
		w.expect("h", "m1", "m1 Running")
		w.Wake()
		w.expect("h", "m1", "m1 Running") // said once
		w.Gone("m1")
		w.phase("i", v1.PodPending)
		w.expect("h,i", "m1", "m1 Running,m2 Pending")

		deleted := mirrored("p", "m2", "i")
		deleted.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		w.Seen(deleted)
		w.expect("h,i", "m1 m2", "m1 Running,m2 Pending")
		w.Gone("m2")
		w.expect("h,i,i", "m1 m2", "m1 Running,m2 Pending,m3 Pending")

		w.SetStatic(nil)
		w.expect("h,i,i", "m1 m2 m3", "m1 Running,m2 Pending,m3 Pending")
		w.Gone("m3")
		w.expect("h,i,i", "m1 m2 m3", "m1 Running,m2 Pending,m3 Pending")
		if len(w.pods) != 0 {
			t.Errorf("%v is remembered of what is gone, want nothing", w.pods)
		}
	})
}

// TestOffline: what happens without a link is reported, and made up for when there is one; a restart makes nothing
// again.
func TestOffline(t *testing.T) {
	run(t, func(w *fixture) {
		w.Seen(mirrored("stays", "m1", "h"))
		w.Seen(mirrored("changed", "m2", "old"))
		w.Seen(mirrored("gone", "m3", "x"))
		w.phases["h"] = v1.PodRunning
		w.SetStatic([]*v1.Pod{static("stays", "h"), static("changed", "i"), static("new", "j")})
		w.Loaded()
		synctest.Wait()
		if len(w.cloud.deleted) != 2 || len(w.cloud.created) != 0 {
			t.Errorf("ended %v, made %v: want the ends of m2 and m3, and nothing made", w.cloud.deleted,
				w.cloud.created)
		}
		w.Link(true)
		w.Gone("m2")
		w.Gone("m3")
		synctest.Wait()
		w.cloud.mu.Lock()
		defer w.cloud.mu.Unlock()
		if len(w.cloud.created) != 2 || strings.Join(w.cloud.told, ",") != "m1 Running" {
			t.Errorf("made %v, told %v; want two made, and m1 Running", w.cloud.created, w.cloud.told)
		}
	})
}

// TestRefused: it is tried again ever more slowly, and at once over a new link.
func TestRefused(t *testing.T) {
	run(t, func(w *fixture) {
		w.cloud.refuse = errors.New("a mirror pod may not reference secrets")
		w.SetStatic([]*v1.Pod{static("p", "h")})
		w.Loaded()
		w.Link(true)
		time.Sleep(time.Hour)
		synctest.Wait()
		w.cloud.mu.Lock()
		tries := len(w.cloud.created)
		w.cloud.created, w.cloud.refuse = nil, nil
		w.cloud.mu.Unlock()
		if tries < 12 || tries > 25 {
			t.Errorf("tried %d times within an hour, want 12 to 25", tries)
		}
		w.Link(false)
		w.Link(true)
		w.expect("h", "", "")
	})
}

// TestNoCloud: a device without a cloud has no manager.
func TestNoCloud(*testing.T) {
	var m *Manager
	m.Wake()
	m.SetStatic(nil)
	m.Loaded()
	m.Link(true)
	m.Gone("x")
	m.Seen(static("p", "h"))
}
