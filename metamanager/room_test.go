package metamanager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/refused"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// smallEdge is an edge whose rooms have 320 KB each: a namespace may have 200 KB, and all may have 240 KB.
type smallEdge struct {
	*edge
	module *Module
	mu     sync.Mutex
	full   map[string]string
}

const smallRoom = 320_000

func newSmallEdge(t *testing.T, fill func(*store.Store)) *smallEdge {
	t.Helper()
	e := &smallEdge{edge: &edge{t: t, bus: beehive.New(), store: openStore(t)}, full: map[string]string{}}
	if fill != nil {
		fill(e.store)
	}
	e.module = New(e.bus, e.store, Options{NoRoom: func(object string, err error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if delete(e.full, object); err != nil {
			e.full[object] = err.Error()
		}
	}})
	e.module.rooms.pods.most, e.module.rooms.objects.most = smallRoom, smallRoom
	if err := errors.Join(e.bus.Add(e.module), e.bus.Add(edged{})); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = e.bus.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return e
}

func (e *smallEdge) noRoom(object string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.full[object]
}

// podOf is a pod of about that many bytes.
func podOf(namespace, name string, bytes int) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1",
			Annotations: map[string]string{"fill": strings.Repeat("x", bytes)},
		},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main", Image: "image"}}},
	}
}

func podText(t testing.TB, pod *v1.Pod) string {
	t.Helper()
	text, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (e *smallEdge) sendPod(pod *v1.Pod) {
	e.t.Helper()
	e.ok(e.cloud(model.OpUpdate, pod.Namespace+"/pod/"+pod.Name, podText(e.t, pod)))
}

// storedPod returns a stored pod, and whether it is a stub.
func (e *smallEdge) storedPod(namespace, name string) (pod *v1.Pod, isStub bool) {
	e.t.Helper()
	row, err := e.store.Get(e.t.Context(), namespace+"/pod/"+name)
	if err != nil {
		e.t.Fatal(err)
	}
	pod = &v1.Pod{}
	if err := json.Unmarshal(row.Value, pod); err != nil {
		e.t.Fatal(err)
	}
	_, isStub = refused.Of(pod.Annotations)
	if isStub && len(row.Value) > 1500 {
		e.t.Errorf("the stub of pod %s has %d bytes, want at most 1500", name, len(row.Value))
	}
	return pod, isStub
}

func (e *smallEdge) wantPod(namespace, name string, stub bool) {
	e.t.Helper()
	if _, is := e.storedPod(namespace, name); is != stub {
		e.t.Errorf("pod %s/%s is a stub: %t, want %t", namespace, name, is, stub)
	}
}

// TestRoomOfPods: pods that do not fit become stubs, by namespace and in all, and critical ones get the last room.
func TestRoomOfPods(t *testing.T) {
	e := newSmallEdge(t, nil)
	e.sendPod(podOf("a", "first", 90_000))
	e.sendPod(podOf("a", "second", 90_000))
	e.sendPod(podOf("a", "third", 90_000)) // beyond 200 KB of the namespace
	e.wantPod("a", "second", false)
	e.wantPod("a", "third", true)
	pod, _ := e.storedPod("a", "third")
	stub, _ := refused.Of(pod.Annotations)
	for _, part := range []string{"it takes 9", "namespace a has 18", "of 200000 and 240000", "make the pod smaller"} {
		if !strings.Contains(stub.Message, part) {
			t.Errorf("message = %q, want %q in it", stub.Message, part)
		}
	}
	if stub.Size < 90_000 || stub.Size > 95_000 {
		t.Errorf("size of the refused pod = %d, want 90 to 95 KB", stub.Size)
	}
	if got := e.noRoom("a/pod/third"); got == "" {
		t.Error("NoRoom was not told of pod third, want it told")
	}
	e.sendPod(podOf("b", "large", 90_000)) // beyond 240 KB of all
	e.wantPod("b", "large", true)
	e.sendPod(podOf("b", "small", 3_000)) // beyond nothing
	e.wantPod("b", "small", false)
	critical := podOf("kube-system", "critical", 90_000)
	critical.Spec.Priority = ptr.To[int32](2_000_001_000)
	e.sendPod(critical)
	e.wantPod("kube-system", "critical", false)

	// The cloud is told the version of the whole pod, so that it does not send it again.
	want, err := wire.Version([]byte(podText(t, podOf("a", "third", 90_000))))
	if err != nil {
		t.Fatal(err)
	}
	list, err := e.module.inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range list {
		if h.Key == "a/pod/third" && (h.Version != want || h.UID != "uid-third") {
			t.Errorf("inventory of the refused pod = %+v, want version %s", h, want)
		}
	}

	// It stays refused, also when there is room, and its deletion is heard.
	e.ok(e.cloud(model.OpDelete, "a/pod/first", podText(t, podOf("a", "first", 1))))
	deleted := podOf("a", "third", 10)
	deleted.DeletionTimestamp = ptr.To(metav1.Unix(1_800_000_000, 0))
	e.sendPod(deleted)
	if got, isStub := e.storedPod("a", "third"); !isStub || got.DeletionTimestamp == nil {
		t.Errorf("deleted pod third is a stub: %t, deleted at %v; want a stub with the time",
			isStub, got.DeletionTimestamp)
	}
	e.ok(e.cloud(model.OpDelete, "a/pod/third", podText(t, deleted)))
	if got := e.noRoom("a/pod/third"); got != "" {
		t.Errorf("NoRoom of a pod that is gone = %q, want none", got)
	}
	e.sendPod(podOf("a", "fourth", 30_000))
	e.wantPod("a", "fourth", false)
}

// TestRoomOfGrownPod: a pod that grows beyond the limit stays as it is, and its deletion is heard.
func TestRoomOfGrownPod(t *testing.T) {
	e := newSmallEdge(t, nil)
	e.sendPod(podOf("a", "web", 10_000))
	e.sendPod(podOf("a", "web", 300_000))
	if pod, isStub := e.storedPod("a", "web"); isStub || len(pod.Annotations["fill"]) != 10_000 {
		t.Errorf("grown pod is a stub: %t, with %d bytes; want it as it was", isStub, len(pod.Annotations["fill"]))
	}
	if got := e.forwarded(); len(got) != 1 {
		t.Errorf("edged got %v, want only the first version", got)
	}
	deleted := podOf("a", "web", 300_000)
	deleted.DeletionTimestamp, deleted.DeletionGracePeriodSeconds = ptr.To(metav1.Unix(1, 0)), ptr.To[int64](7)
	e.sendPod(deleted)
	pod, _ := e.storedPod("a", "web")
	if pod.DeletionTimestamp == nil || *pod.DeletionGracePeriodSeconds != 7 || len(pod.Annotations["fill"]) != 10_000 {
		t.Errorf("deleted pod has deletion %v and %d bytes, want it as it was, being deleted", pod.DeletionTimestamp,
			len(pod.Annotations["fill"]))
	}
	if got := e.forwarded(); len(got) != 1 {
		t.Errorf("edged got %v, want the deletion", got)
	}
}

// TestRoomOfManyPods: pods of many namespaces, and those that differ in nothing but the UID, stay within the limit.
func TestRoomOfManyPods(t *testing.T) {
	e := newSmallEdge(t, nil)
	for i := range 100 {
		pod := podOf(fmt.Sprintf("ns-%d", i), "web", 8_000)
		pod.UID = types.UID(fmt.Sprint(i))
		e.sendPod(pod)
		again := podOf("same", "web", 8_000)
		again.UID = types.UID(fmt.Sprint("again-", i))
		e.sendPod(again)
	}
	whole := 0
	for _, text := range e.rows("pod") {
		if len(text) > 2_000 {
			whole += len(text)
		}
	}
	if whole < smallRoom/2 || whole > smallRoom/8*7 {
		t.Errorf("whole pods have %d bytes, want between half and 7/8 of %d", whole, smallRoom)
	}
}

// TestRoomOfTinyText: what is short in JSON and large in memory counts as it is in memory.
func TestRoomOfTinyText(t *testing.T) {
	e := newSmallEdge(t, nil)
	text := `{"metadata":{"namespace":"a","name":"web","uid":"u"},"spec":{"containers":[` +
		strings.TrimSuffix(strings.Repeat("{},", 2_000), ",") + `]}}`
	e.ok(e.cloud(model.OpUpdate, "a/pod/web", text))
	e.wantPod("a", "web", true)
}

func configMap(name, uid, version string, bytes int) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"a","uid":%q,"resourceVersion":%q},"data":{"k":%q}}`,
		name, uid, version, strings.Repeat("x", bytes))
}

// TestRoomOfConfigMaps: what does not fit is answered as too large, and asked for again when there is room; what is
// stored stays in use when it grows.
func TestRoomOfConfigMaps(t *testing.T) {
	e := newSmallEdge(t, nil)
	send := func(name, version string, bytes int) {
		t.Helper()
		e.ok(e.cloud(model.OpUpdate, "a/configmap/"+name, configMap(name, "u-"+name, version, bytes)))
	}
	query := func(name string) string {
		t.Helper()
		return string(e.edged(model.OpQuery, "a/configmap/"+name, `null`).ContentData())
	}
	send("first", "1", 150_000)
	send("grows", "1", 1_000)
	send("second", "1", 150_000)
	got := query("second")
	if !strings.Contains(got, `"code":413`) || !strings.Contains(got, "a is too large: it takes") {
		t.Errorf("refused configmap = %.300s, want 413 with the size", got)
	}
	if got := e.rows("configmap")["a/configmap/second"]; len(got) > 1500 {
		t.Errorf("%d bytes are stored of the refused configmap, want at most 1500", len(got))
	}
	send("grows", "2", 100_000)
	if got := query("grows"); len(got) > 2_000 || !strings.Contains(got, `"resourceVersion":"1"`) {
		t.Errorf("grown configmap = %d bytes, %.200s; want version 1", len(got), got)
	}
	if e.noRoom("a/configmap/grows") == "" {
		t.Error("NoRoom was not told of the configmap that grew, want it told")
	}
	e.ok(e.cloud(model.OpDelete, "a/configmap/first", `{"metadata":{"uid":"u-first"}}`))
	if got := query("second"); !strings.Contains(got, `"code":404`) { // the cloud is asked; there is no link here
		t.Errorf("refused configmap when there is room = %.300s, want 404", got)
	}
	send("second", "2", 150_000)
	if got := query("second"); len(got) < 150_000 {
		t.Errorf("configmap that fits now = %.300s, want it whole", got)
	}
}

// TestRoomOfOldStore: the store of an older version that has more than fits keeps what runs.
func TestRoomOfOldStore(t *testing.T) {
	e := newSmallEdge(t, func(s *store.Store) {
		for i := range 12 {
			pod := podOf("a", fmt.Sprintf("pod-%02d", i), 60_000)
			pod.CreationTimestamp = metav1.Unix(int64(1_700_000_000+i), 0)
			ops := []store.Op{store.Upsert(store.Meta{
				Key: "a/pod/" + pod.Name, Type: "pod", Value: []byte(podText(t, pod)),
			})}
			phase := map[int]string{0: "Running", 1: "Failed", 2: "Succeeded", 3: "Pending"}[i%4]
			if i < 11 {
				ops = append(ops, store.Upsert(store.Meta{
					Key: "a/podpatch/" + pod.Name, Type: "podpatch", Value: fmt.Appendf(nil,
						`{"metadata":{"uid":%q},"status":{"phase":%q}}`, pod.UID, phase),
				}))
			}
			if err := s.Apply(t.Context(), ops...); err != nil {
				t.Fatal(err)
			}
		}
	})
	var pods []v1.Pod
	answer := e.edged(model.OpQuery, "null/podlist", "null")
	if err := json.Unmarshal(answer.ContentData(), &pods); err != nil || len(pods) != 12 {
		t.Fatalf("%d pods, err %v; want 12", len(pods), err)
	}
	for i := range pods {
		_, isStub := refused.Of(pods[i].Annotations)
		// Running and Pending pods stay whole, and the one that has no status yet goes last.
		if want := i%4 == 1 || i%4 == 2 || i == 11; isStub != want {
			t.Errorf("%s is a stub: %t, want %t", pods[i].Name, isStub, want)
		}
	}
	e.sendPod(podOf("b", "large", 60_000))
	e.wantPod("b", "large", true)
}

// TestIncomingPod: a pod is decoded whole, as the API's type is, and what is no pod is refused.
func TestIncomingPod(t *testing.T) {
	pod := podOf("a", "web", 10)
	pod.Kind, pod.APIVersion, pod.Status.Phase = "Pod", "v1", v1.PodRunning
	pod.Spec.ServiceAccountName = "robot"
	key := resource.Key{Namespace: "a", Type: resource.TypePod, Name: "web"}
	text := podText(t, pod)
	in, err := readIncoming(key, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var want v1.Pod
	if err := json.Unmarshal([]byte(text), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&want, in.sized.pod); diff != "" {
		t.Errorf("pod (-want +got):\n%s", diff)
	}
	if got := in.Metadata; got.UID != "uid-web" || got.ResourceVersion != "1" || got.Name != "web" ||
		got.Namespace != "a" {
		t.Errorf("identity = %+v, want that of the pod", got)
	}
	if size := podSize(&want, []byte(text)); in.sized.size != size {
		t.Errorf("size = %d, want %d", in.sized.size, size)
	}
	for text, want := range map[string]string{
		`{"metadata":{"uid":"u"},"spec":null,"status":null}`:          "",
		`{"metadata":{"uid":"u"},"ErrStatus":{"code":500}}`:           "is an error",
		`{"metadata":{"uid":"u"},"spec":{"containers":7}}`:            "not a pod",
		`{"metadata":{"uid":7}}`:                                      "not an object",
		`{"metadata":{"uid":"u","name":"db"}}`:                        `name "db"`,
		`{"metadata":{"uid":"u","namespace":"b"}}`:                    `namespace "b"`,
		`{"metadata":{"uid":"u"},"spec":{"containers":[{}`:            "not an object",
		`{"metadata":{"uid":"u","creationTimestamp":"yesterday"}}`:    "not a pod",
		`{"kind":"Pod","metadata":{"uid":"u","annotations":{"a":1}}}`: "not a pod",
	} {
		if _, err := readIncoming(key, []byte(text)); (err != nil) != (want != "") ||
			err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", text, err, want)
		}
	}
}

// TestRepeatedKeys: a pod in which keys are repeated has the size of what it is decoded to.
func TestRepeatedKeys(t *testing.T) {
	key := resource.Key{Namespace: "a", Type: resource.TypePod, Name: "web"}
	for _, text := range []string{
		`{"metadata":{"uid":"u"},"spec":null,"spec":{"containers":[{},{},{}],"priority":2000000000}}`,
		`{"metadata":{"uid":"u"},"spec":null,"SPEC":{"containers":[{},{},{}]}}`,
		`{"metadata":null,"metadata":{"uid":"u","namespace":"a"},"status":null,"status":{"phase":"Running"}}`,
	} {
		var want v1.Pod
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatal(err)
		}
		in, err := readIncoming(key, []byte(text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if diff := cmp.Diff(&want, in.sized.pod); diff != "" {
			t.Errorf("%s: pod (-want +got):\n%s", text, diff)
		}
		if size := podSize(&want, []byte(text)); in.sized.size != size {
			t.Errorf("%s: size = %d, want %d", text, in.sized.size, size)
		}
	}
}

// FuzzRoom: whatever comes and goes, the counts are those of what is stored.
func FuzzRoom(f *testing.F) {
	f.Add([]byte{1, 2, 3, 250, 130, 7, 1, 255})
	f.Fuzz(func(t *testing.T, steps []byte) {
		r := &room{most: 1000}
		for _, b := range steps {
			key := fmt.Sprint(b % 5)
			h := counted{namespace: fmt.Sprint(b % 3), size: int(b) * 2}
			if b%7 == 0 {
				r.set(key, nil)
			} else if before, _ := r.get(key); r.reserve(key, h) == nil && r.all > r.most && h.size > before.size {
				t.Fatalf("%d of %d bytes were given away", r.all, r.most)
			}
			sum := 0
			for _, h := range r.held {
				sum += h.size
			}
			byNamespace := 0
			for _, n := range r.byNamespace {
				byNamespace += n
			}
			if sum != r.all || sum != byNamespace {
				t.Fatalf("held %d, all %d, by namespace %d; want them equal", sum, r.all, byNamespace)
			}
		}
	})
}
