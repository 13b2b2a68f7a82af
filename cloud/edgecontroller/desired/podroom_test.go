package desired

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/shares"
)

var long = flag.Bool("long", false, "run the tests with random orders in their long form")

// TestWithholdPods: which pods have room on a node.
func TestWithholdPods(t *testing.T) {
	type pod struct {
		name    string // NAMESPACE/NAME; older ones come first
		size    int
		started bool
	}
	const own, shared = 10, 100
	for name, tc := range map[string]struct {
		pods []pod
		want map[string]withheld
	}{
		"all have room": {[]pod{{"a/1", 60, true}, {"a/2", 50, false}, {"b/1", 10, false}}, nil},
		"the newest waits": {[]pod{{"a/1", 60, false}, {"a/2", 60, false}, {"a/3", 40, false}},
			map[string]withheld{"a/2": withheldWaiting}},
		"a started one goes first": {[]pod{{"a/1", 60, false}, {"a/2", 60, true}},
			map[string]withheld{"a/1": withheldWaiting}},
		"another namespace has its own room": {[]pod{{"a/1", 110, true}, {"b/1", 6, false}, {"b/2", 5, false},
			{"b/3", 4, false}}, map[string]withheld{"b/2": withheldWaiting}},
		"too large for any node": {[]pod{{"a/1", 111, false}, {"a/2", 110, false}},
			map[string]withheld{"a/1": withheldWaiting}},
		"grown": {[]pod{{"a/1", 100, true}, {"a/2", 11, true}, {"b/1", 60, true}, {"c/1", 10, true}},
			map[string]withheld{"a/1": withheldChange, "a/2": withheldChange}},
		"one that is being deleted takes what it is sent": {[]pod{{"a/gone", 60, false}, {"a/2", 60, false},
			{"a/3", 50, false}}, map[string]withheld{"a/gone": withheldWaiting, "a/2": withheldWaiting}},
		"a namespace's share goes before another's queue": {[]pod{{"a/1", 80, true}, {"a/2", 20, false},
			{"b/1", 10, true}, {"b/2", 25, false}, {"a/3", 1, false}, {"a/4", 9, false}}, map[string]withheld{
			"a/2": withheldWaiting, "a/4": withheldWaiting}},
		"nothing is left after they have grown": {[]pod{{"a/1", 200, true}, {"a/2", 1, false}, {"b/1", 10, false},
			{"b/2", 1, false}}, map[string]withheld{"a/1": withheldChange, "a/2": withheldWaiting,
			"b/2": withheldWaiting}},
	} {
		t.Run(name, func(t *testing.T) {
			pods := map[types.UID]podNeed{}
			for i, p := range tc.pods {
				namespace, name, _ := strings.Cut(p.name, "/")
				pods[types.UID(p.name)] = podNeed{
					key:     resource.Key{Namespace: namespace, Type: resource.TypePod, Name: name},
					uid:     types.UID(p.name),
					created: time.Unix(int64(i), 0),
					size:    p.size,
					started: p.started,

					deleting: p.name == "a/gone",
				}
			}
			got := map[string]withheld{}
			for uid, why := range withholdPods(pods, own, shared) {
				got[string(uid)] = why
			}
			if tc.want == nil {
				tc.want = map[string]withheld{}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("withheld (-want +got):\n%s", diff)
			}
		})
	}
}

// roomSim has a node with a device, two cloudcores, and tenants who create, change and delete pods.
type roomSim struct {
	t    *testing.T
	r    *rand.Rand
	seed uint64
	// now is the API server's pods; version and clock count up.
	now            map[resource.Key]*v1.Pod
	version, clock int
	clouds         []*fixture
	// late are the events that a cloudcore has not seen yet.
	late [2][]func(w *fixture)
	link int // the cloudcore that the device is connected to; -1 is none
	// device is what the device has.
	device map[resource.Key]*v1.Pod
	most   int
}

const simOwn, simShared = 40 << 10, 200 << 10

func newRoomSim(t *testing.T, seed uint64) *roomSim {
	s := &roomSim{
		t: t, r: rand.New(rand.NewPCG(seed, 2)), seed: seed, now: map[resource.Key]*v1.Pod{},
		device: map[resource.Key]*v1.Pod{}, clouds: make([]*fixture, 2),
	}
	for i := range s.clouds {
		s.restart(i)
	}
	return s
}

// restart starts a cloudcore, which knows what the API server has.
func (s *roomSim) restart(i int) {
	w := newFixture(s.t)
	w.room.own, w.room.shared = simOwn, simShared
	w.wholeSent = shares.NewBudget[string](simShared*4, simShared*2)
	w.caches.Pods.Changed = w.podEvent
	w.decideRoom = func(node string, _ time.Duration) { // later, like an event
		s.late[i] = append(s.late[i], func(w *fixture) { w.roomChanged(w.room.decide(node)) })
	}
	w.add(fakes.Node("e1"))
	w.api.Answer(func(r fakes.Call) (int, any) {
		for key, pod := range s.now {
			if strings.HasSuffix(r.Path, "/namespaces/"+key.Namespace+"/pods/"+key.Name) && r.Method == http.MethodGet {
				return http.StatusOK, pod
			}
		}
		return fakes.NotFound(r.Path)
	})
	s.late[i] = nil
	list := []any{}
	for _, pod := range s.now {
		list = append(list, pod.DeepCopy())
	}
	if err := w.caches.Pods.Replace(list, fmt.Sprint(s.version)); err != nil {
		s.t.Fatal(err)
	}
	s.clouds[i] = w
}

// changed writes a pod, or deletes it.
func (s *roomSim) changed(old, now *v1.Pod) {
	s.version++
	var event func(w *fixture)
	if now == nil {
		delete(s.now, caches.PodKey(old))
		event = func(w *fixture) { _ = w.caches.Pods.Delete(old.DeepCopy()) }
	} else {
		now.ResourceVersion = fmt.Sprint(s.version)
		s.now[caches.PodKey(now)] = now
		seen := now.DeepCopy()
		event = func(w *fixture) { _ = w.caches.Pods.Update(seen.DeepCopy()) }
	}
	for i := range s.clouds {
		s.late[i] = append(s.late[i], event)
	}
}

// see lets a cloudcore see some of the events.
func (s *roomSim) see(i, n int) {
	for range min(n, len(s.late[i])) {
		event := s.late[i][0]
		s.late[i] = s.late[i][1:]
		event(s.clouds[i])
	}
}

// any returns one of the pods, or nil.
func (s *roomSim) any() *v1.Pod {
	keys := slices.SortedFunc(maps.Keys(s.now), byText)
	if len(keys) == 0 {
		return nil
	}
	return s.now[keys[s.r.IntN(len(keys))]]
}

func (s *roomSim) fill(pod *v1.Pod) {
	size := s.r.IntN(120 << 10)
	if pod.Namespace == "modest" { // an ordinary tenant
		size = s.r.IntN(2 << 10)
	}
	pod.Annotations = map[string]string{"fill": strings.Repeat("x", size), "change": fmt.Sprint(s.version)}
}

func (s *roomSim) create(namespace, name string) {
	s.clock++
	pod := fakes.Pod("e1", namespace, name)
	if s.now[caches.PodKey(pod)] != nil || namespace == "modest" && pod.Name > "p5" {
		return
	}
	pod.UID = types.UID(fmt.Sprint("uid-", s.clock))
	pod.CreationTimestamp = metav1.Unix(int64(s.clock/2), 0)
	s.fill(pod)
	s.changed(nil, pod)
}

// step does one thing.
func (s *roomSim) step() {
	switch pod := s.any(); s.r.IntN(12) {
	case 0, 1, 2, 3:
		s.create([]string{"greedy", "greedy", "other", "modest"}[s.r.IntN(4)], fmt.Sprint("p", s.r.IntN(12)))
	case 4, 5, 6:
		if pod != nil {
			now := pod.DeepCopy()
			s.fill(now)
			s.changed(pod, now)
		}
	case 7:
		if pod != nil && pod.DeletionTimestamp == nil {
			now := pod.DeepCopy()
			s.clock++
			at := metav1.Unix(int64(s.clock), 0)
			now.DeletionTimestamp = &at
			s.changed(pod, now)
		} else if pod != nil {
			s.changed(pod, nil)
		}
	case 8:
		if pod != nil && s.r.IntN(3) == 0 { // by force
			s.changed(pod, nil)
			s.create(pod.Namespace, pod.Name)
		}
	case 9: // the device reports what it has
		s.report(2)
	case 10:
		s.link = s.r.IntN(3) - 1
		if s.link >= 0 {
			s.reconcile(true)
		}
	case 11:
		s.restart(s.r.IntN(2))
	}
	for i := range s.clouds {
		s.see(i, s.r.IntN(4))
	}
	if s.link >= 0 && s.r.IntN(3) > 0 {
		s.reconcile(false)
	}
}

// report has the device report one of so many pods that it has, and has not reported yet.
func (s *roomSim) report(of int) {
	for _, key := range slices.SortedFunc(maps.Keys(s.device), byText) {
		now := s.now[key]
		if now != nil && now.UID == s.device[key].UID && now.Status.StartTime == nil && s.r.IntN(of) == 0 {
			started := now.DeepCopy()
			s.clock++
			at := metav1.Unix(int64(s.clock), 0)
			started.Status.StartTime = &at
			s.changed(now, started)
		}
	}
}

// reconcile has the cloudcore send what the hub marked, or all after a reconnect.
func (s *roomSim) reconcile(all bool) {
	w := s.clouds[s.link]
	var keys []string
	if all {
		w.hub.Take()
		w.podLists.connected("e1")
		for _, ref := range w.Desired("e1") {
			keys = append(keys, "e1 "+ref.Key.String())
		}
		has := map[types.UID]bool{}
		for key, pod := range s.device {
			keys = append(keys, "e1 "+key.String())
			has[pod.UID] = true
		}
		w.roomChanged(w.room.inventoried("e1", has))
		slices.Sort(keys)
	} else {
		keys = w.hub.Take()
	}
	for _, text := range keys {
		k := fakes.Key(strings.TrimPrefix(text, "e1 "))
		if k.Type == resource.TypePod {
			s.send(w, k)
		}
	}
}

// send does what the hub does with a key.
func (s *roomSim) send(w *fixture, k resource.Key) {
	has := s.device[k]
	if has != nil { // the session's list of pods is not what this tests
		w.podLists.inventoried("e1", map[types.UID]bool{has.UID: true})
	}
	cached := w.caches.Pod(k.Namespace, k.Name)
	w.podLists.disconnected("e1")
	if cached == nil { // the hub would ask the API server
		if now := s.now[k]; has != nil && (now == nil || now.UID != has.UID) {
			delete(s.device, k)
		}
		return
	}
	o, err := w.podFor("e1", k)
	switch {
	case err != nil:
		if withheld, ok := errors.AsType[*cloudhub.WithheldError](err); ok && has != nil && has.UID != withheld.UID {
			delete(s.device, k)
		} else if !ok {
			w.hub.Changed("e1", k) // it is tried again
		}
		return
	case o == nil:
		s.t.Fatalf("seed %d: pod %s is to be taken from the device", s.seed, k)
	}
	if o.Done != nil {
		o.Done()
	}
	var pod v1.Pod
	if err := json.Unmarshal(o.JSON, &pod); err != nil {
		s.t.Fatal(err)
	}
	s.device[k] = &pod
}

// quiet lets everything be seen and sent, through one cloudcore.
func (s *roomSim) quiet(link int) {
	s.seeAll()
	s.link = link
	s.reconcile(true)
	for range 3 {
		s.report(1)
		s.seeAll()
		s.reconcile(false)
	}
	s.seeAll()
}

// seeAll lets the cloudcores see all events, and decide.
func (s *roomSim) seeAll() {
	for i := range s.clouds {
		for len(s.late[i]) > 0 {
			s.see(i, 1)
		}
	}
}

// decided returns what a cloudcore has decided about a pod, whatever it knows to be on the device.
func (s *roomSim) decided(i int, uid types.UID) withheld {
	if n := s.clouds[i].room.nodes["e1"]; n != nil {
		return n.withheld[uid]
	}
	return withheldNot
}

func (s *roomSim) check() {
	bytes := 0
	namespaces := map[string]bool{}
	for k, pod := range s.device {
		if s.now[k] == nil || s.now[k].UID != pod.UID {
			s.t.Fatalf("seed %d: the device has pod %s, which is gone", s.seed, k)
		}
		bytes += caches.ContentSize(pod)
		namespaces[k.Namespace] = true
	}
	s.most = max(s.most, bytes)
	// With n namespaces that take turns to grow, a device may keep 1 + 1/2 + ... + 1/n of the shared limit.
	if most := simShared*11/6 + 3*simOwn; bytes > most {
		s.t.Fatalf("seed %d: the device has %d bytes, limit %d", s.seed, bytes, most)
	}
	for k, now := range s.now {
		has := s.device[k]
		switch {
		case k.Namespace != "modest":
		case has == nil:
			s.t.Fatalf("seed %d: the device lacks %s of a tenant with small pods", s.seed, k)
		case now.DeletionTimestamp == nil && has.Annotations["change"] != now.Annotations["change"]:
			s.t.Fatalf("seed %d: the device has an older version of %s of a tenant with small pods", s.seed, k)
		}
		if now.DeletionTimestamp != nil && (has == nil || has.DeletionTimestamp == nil) {
			s.t.Fatalf("seed %d: the device has not heard of the deletion of %s", s.seed, k)
		}
	}
	for _, uid := range slices.Collect(maps.Keys(s.now)) {
		pod := s.now[uid]
		if a, b := s.decided(0, pod.UID), s.decided(1, pod.UID); a != b {
			s.t.Fatalf("seed %d: pod %s is withheld as %q by one cloudcore, as %q by the other", s.seed, uid, a, b)
		}
	}
}

// TestPodRoomRandomly: whatever tenants, devices and cloudcores do, in any order: no pod is taken from a device before
// it is deleted, a device gets no more than the limit, another tenant's small pods come and change all the
// while, all deletions arrive, all cloudcores decide the same, and what waits comes when there is room.
func TestPodRoomRandomly(t *testing.T) {
	const steps = 40
	orders := 40
	if *long {
		orders = 500
	}
	waited, most := 0, 0
	for seed := range orders {
		s := newRoomSim(t, uint64(seed))
		for i := range steps {
			s.step()
			if i%10 == 9 {
				s.quiet(s.r.IntN(2))
				s.check()
				pods := s.clouds[0].room.withheldPods()
				waited += pods[withheldWaiting] + pods[withheldChange]
			}
		}
		for _, pod := range s.now {
			if pod.Namespace == "greedy" {
				s.changed(pod, nil)
			}
		}
		for k, pod := range s.now {
			if total := len(s.now); total > 3 && k.Namespace == "other" {
				s.changed(pod, nil)
			}
		}
		s.quiet(0)
		s.check()
		for k, now := range s.now {
			if why := s.clouds[0].room.withheldWhy("e1", now.UID); why == withheldNot && s.device[k] == nil {
				t.Fatalf("seed %d: in the end the device lacks %s", seed, k)
			}
		}
		most = max(most, s.most)
	}
	t.Logf("%d pods were withheld at the moments looked at; a device had %d KiB at most", waited, most>>10)
	if waited < orders {
		t.Errorf("%d pods were withheld, want many", waited)
	}
}

// TestReleasedPods: what waits is told to the hub when there is room, the oldest first, and its references before it.
func TestReleasedPods(t *testing.T) {
	w := newFixture(t)
	w.room.own, w.room.shared = 0, 100<<10
	pod := func(name string, size int) *v1.Pod {
		p := fakes.Pod("e1", "ns", name)
		p.Annotations = map[string]string{"fill": strings.Repeat("x", size)}
		return p
	}
	first, second := pod("first", 60<<10), pod("second", 60<<10)
	second.CreationTimestamp = metav1.Unix(1, 0)
	w.add(fakes.Node("e1"), first, second)
	w.podEvent(nil, first)
	w.podEvent(nil, second)
	for _, name := range []string{"ns/pod/second", "ns/configmap/cm-second"} {
		if _, err := w.Object("e1", fakes.Key(name)); !errors.Is(err, cloudhub.ErrWithheld) {
			t.Errorf("Object(%s) = %v, want it withheld", name, err)
		}
	}
	w.hub.Take()
	w.remove(first)
	w.podEvent(first, nil)
	got := w.hub.Take()
	want := []string{"e1 ns/configmap/cm-second", "e1 ns/secret/shared", "e1 ns/pod/second"}
	if len(got) < 3 || !slices.Equal(got[len(got)-3:], want) {
		t.Errorf("changes = %v, want %v in the end", got, want)
	}
	if o, err := w.podFor("e1", fakes.Key("ns/pod/second")); o == nil || err != nil {
		t.Errorf("podFor = %v, %v; want the pod", o, err)
	}
}

// TestPodNotices: a pod that waits gets an event once for each session of an hour, and none once it has room.
func TestPodNotices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		w.api.Answer(func(r fakes.Call) (int, any) { return http.StatusCreated, json.RawMessage(r.Body) })
		w.room.own, w.room.shared = 0, 1<<10
		pod := fakes.Pod("e1", "ns", "large")
		pod.Annotations = map[string]string{"fill": strings.Repeat("x", 2<<10)}
		w.add(fakes.Node("e1"), pod)
		w.podEvent(nil, pod)
		id := "ns/large/" + string(pod.UID)
		events := func(want int) {
			t.Helper()
			if err := w.notices.sync(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			w.api.Mu.Lock()
			defer w.api.Mu.Unlock()
			got := 0
			for _, c := range w.api.Calls {
				if c.Method == http.MethodPost && strings.HasSuffix(c.Path, "/namespaces/ns/events") {
					got++
					if !strings.Contains(c.Body, "NodeHasNoRoom") || !strings.Contains(c.Body, "delete other pods") {
						t.Errorf("event %s, want the cause and what to do", c.Body)
					}
				}
			}
			if got != want {
				t.Errorf("%d events, want %d", got, want)
			}
		}
		events(0) // its node is not connected here
		w.sessions.Connected("e1", "edgecore/websocket")
		events(1)
		events(1)
		time.Sleep(noticeRepeat + time.Second)
		events(2)
		time.Sleep(noticeRepeat + time.Second)
		w.room.shared = 1 << 20
		pod = pod.DeepCopy()
		pod.Annotations["change"] = "yes"
		w.podEvent(nil, pod)
		events(2)
	})
}

// TestEndingPods: of a withheld pod that is deleted, its node gets no more than it takes to end it.
func TestEndingPods(t *testing.T) {
	at := metav1.Unix(1, 0)
	for name, started := range map[string]bool{"started": true, "not started": false} {
		t.Run(name, func(t *testing.T) {
			pod := fakes.Pod("e1", "ns", "p")
			pod.Annotations = map[string]string{"large": strings.Repeat("x", 1<<20), v1.MirrorPodAnnotationKey: "hash"}
			pod.Labels, pod.Finalizers = map[string]string{"large": "x"}, []string{"example.com/x"}
			pod.DeletionTimestamp = &at
			pod.Spec.Containers[0].Image = strings.Repeat("i", 1<<20) // patched since the node got it
			for i := range 1000 {
				pod.Spec.Tolerations = append(pod.Spec.Tolerations, v1.Toleration{Key: fmt.Sprint(i)})
				if !started {
					pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: fmt.Sprint(i),
						Lifecycle: &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{
							Command: []string{strings.Repeat("x", 10<<10)}}}}})
				}
			}
			out := endingPod(pod, started)
			most := endingBytes
			if started {
				most = caches.TrimBytes
			}
			if size := caches.ContentSize(out); size > most {
				t.Errorf("it has %d bytes, want at most %d", size, most)
			}
			if out.UID != pod.UID || out.DeletionTimestamp == nil || out.Spec.NodeName != "e1" ||
				out.Annotations[v1.MirrorPodAnnotationKey] != "hash" || len(out.Spec.Containers) == 0 {
				t.Errorf("it is %.500v, want the pod's identity and containers", out)
			}
			pod.Spec.Containers[0].Image = ""
			if diff := cmp.Diff(pod.Spec.Containers, out.Spec.Containers); started && diff != "" {
				t.Errorf("containers of a pod that has started (-whole +sent):\n%s", diff)
			}
		})
	}
}

// TestEndingPodsAtMost: the largest end of a pod takes endingBytes, and that of an ordinary one has its hooks.
func TestEndingPodsAtMost(t *testing.T) {
	at, grace := metav1.Unix(1, 0), int64(30)
	pod := fakes.Pod("e1", strings.Repeat("n", 63), strings.Repeat("p", 253))
	pod.UID, pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = types.UID(strings.Repeat("u", 36)), &at, &grace
	pod.Annotations = map[string]string{v1.MirrorPodAnnotationKey: strings.Repeat("h", caches.TrimmedMost)}
	pod.Spec.Containers, pod.Spec.TerminationGracePeriodSeconds = nil, &grace
	hook := func(bytes int) *v1.Lifecycle {
		return &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{
			Command: []string{strings.Repeat("x", bytes)}}}}
	}
	for range 100 {
		pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: strings.Repeat("c", 63),
			Image: strings.Repeat("i", 40<<10), Lifecycle: hook(0)})
	}
	pod.Spec.Containers[0].Lifecycle = hook(endingHookBytes - endingContainers*100)
	out := endingPod(pod, false)
	if size := caches.ContentSize(out); size > endingBytes || out.Spec.Containers[0].Lifecycle == nil {
		t.Errorf("it has %d bytes, want at most %d, with the hooks", size, endingBytes)
	}
	pod.Spec.Containers[0].Lifecycle = hook(endingHookBytes)
	if out = endingPod(pod, false); out.Spec.Containers[0].Lifecycle != nil || len(out.Spec.Containers) == 0 {
		t.Errorf("it is %.500v, want no hooks", out)
	}
}

// byText orders keys.
func byText(a, b resource.Key) int { return strings.Compare(a.String(), b.String()) }
