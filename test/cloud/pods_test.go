package cloud

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func status(uid types.UID, phase v1.PodPhase) string {
	return fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"phase":%q}}`, uid, phase)
}

func deleteOptions(uid types.UID) *metav1.DeleteOptions {
	return &metav1.DeleteOptions{GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &uid}}
}

func pods(c *cloud) {
	c.register("p1")
	c.register("p2")
	pod := c.pod("p1", "web", "")
	const key = "default/pod/web"
	wait.Until(c.t, "the hub hears of the pod", func() error {
		if c.hub.count("p1", key) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	// Its tolerations change once; after that, only the status does.
	wait.Until(c.t, "the pod's tolerations", func() error { return c.tolerant("web") })
	wait.Until(c.t, "the hub hears of them", func() error {
		if calls := c.hub.count("p1", key); calls < 2 {
			return fmt.Errorf("%d calls, want 2", calls)
		}
		return nil
	})
	calls := c.hub.count("p1", key)
	answer := c.must("p1", "patch", "default/podpatch/web", status(pod.UID, v1.PodRunning))
	now := object[v1.Pod](c, answer)
	if now.Name != "web" || answer.Header.ResourceVersion != now.ResourceVersion {
		c.t.Errorf("answer %s, version %q, want pod web and its version", answer.Content, answer.Header.ResourceVersion)
	}
	if pod, err := c.admin.CoreV1().Pods("default").Get(c.t.Context(), "web", metav1.GetOptions{}); err != nil ||
		pod.Status.Phase != v1.PodRunning {
		c.t.Errorf("status %+v, %v, want phase %s", pod.Status, err, v1.PodRunning)
	}
	wait.Until(c.t, "the cache has the status", func() error {
		if ref := c.wants("p1", key); ref.ResourceVersion != now.ResourceVersion {
			return fmt.Errorf("version %s, want %s", ref.ResourceVersion, now.ResourceVersion)
		}
		return nil
	})
	if after := c.hub.count("p1", key); after != calls {
		c.t.Errorf("%d calls of the hub after a change of status alone, want %d", after, calls)
	}
	c.refused("p2", "patch", "default/podpatch/web", status(pod.UID, v1.PodFailed), metav1.StatusReasonForbidden)
	c.refused("p2", "query", key, nil, metav1.StatusReasonForbidden)
	c.refused("p1", "patch", "default/podpatch/web", status("another", v1.PodFailed), metav1.StatusReasonConflict)
	c.refused("p1", "patch", "default/podpatch/web", `{"status":{"phase":"Failed"}}`, metav1.StatusReasonBadRequest)
	c.refused("p1", "patch", "default/podpatch/web",
		fmt.Sprintf(`{"metadata":{"uid":%q,"labels":{"a":"b"}},"status":{}}`, pod.UID), metav1.StatusReasonForbidden)
	if o, err := c.ctl.Object("p2", resource.Key{Namespace: "default", Type: "pod", Name: "web"}); o != nil ||
		err != nil {
		c.t.Errorf("Object(p2, the pod of p1) = %v, %v, want nil, nil", o, err)
	}
	endOfPod(c, pod)
}

// endOfPod: only of the pod that is meant, only by its node.
func endOfPod(c *cloud, pod *v1.Pod) {
	c.t.Helper()
	const key = "default/pod/web"
	c.refused("p2", "delete", key, deleteOptions(pod.UID), metav1.StatusReasonForbidden)
	c.must("p1", "delete", key, deleteOptions("another"))
	c.refused("p1", "delete", key, &metav1.DeleteOptions{}, metav1.StatusReasonBadRequest)
	if _, err := c.admin.CoreV1().Pods("default").Get(c.t.Context(), "web", metav1.GetOptions{}); err != nil {
		c.t.Fatalf("Get of the pod: %v, want it to exist", err)
	}
	if err := c.admin.CoreV1().Pods("default").Delete(c.t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
	wait.Until(c.t, "the hub is told to delete", func() error {
		o, err := c.ctl.Object("p1", resource.Key{Namespace: "default", Type: "pod", Name: "web"})
		if err != nil || o == nil || !o.Deleting {
			return fmt.Errorf("%v %v", err, o)
		}
		return nil
	})
	if answer := c.soon("p1", "delete", key, deleteOptions(pod.UID)); string(answer.Content) != `"OK"` ||
		answer.Header.ResourceVersion != "" {
		c.t.Errorf("answer %s, version %q, want \"OK\", none", answer.Content, answer.Header.ResourceVersion)
	}
	c.must("p1", "delete", key, deleteOptions(pod.UID)) // as good a second time
	wait.Until(c.t, "the pod is wanted no more", func() error {
		if o, err := c.ctl.Object("p1", resource.Key{Namespace: "default", Type: "pod", Name: "web"}); o != nil ||
			err != nil {
			return fmt.Errorf("%v %v", err, o)
		}
		return nil
	})
	c.refused("p1", "patch", "default/podpatch/web", status(pod.UID, v1.PodFailed), metav1.StatusReasonNotFound)

	// A pod of that name, on another node by now.
	c.pod("p2", "web", "")
	c.must("p1", "delete", key, deleteOptions(pod.UID))
	c.refused("p1", "patch", "default/podpatch/web", status(pod.UID, v1.PodFailed), metav1.StatusReasonConflict)
	// The bare UID of older edges.
	again, err := c.admin.CoreV1().Pods("default").Get(c.t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	c.soon("p2", "delete", key, string(again.UID))
	if _, err := c.admin.CoreV1().Pods("default").Get(c.t.Context(), "web", metav1.GetOptions{}); !apierrors.IsNotFound(
		err) {
		c.t.Errorf("Get of the pod after its deletion: %v, want NotFound", err)
	}
}

func mirrorPods(c *cloud) {
	node := c.register("m1")
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name:        "static-m1",
		Namespace:   "default",
		Annotations: map[string]string{v1.MirrorPodAnnotationKey: "h"},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "v1",
			Kind:       "Node",
			Name:       "m1",
			UID:        node.UID,
			Controller: new(true),
		}},
	},
		Spec: v1.PodSpec{NodeName: "m1", Containers: []v1.Container{{Name: "c", Image: "example.com/c:1"}},
			Tolerations: []v1.Toleration{{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}}}}
	made := object[v1.Pod](c, c.soon("m1", "insert", "default/pod/static-m1", pod))
	if made.UID == "" {
		c.t.Errorf("created pod = %+v, want one with a UID", made)
	}
	if there := object[v1.Pod](c, c.soon("m1", "insert", "default/pod/static-m1", pod)); there.UID != made.UID {
		c.t.Errorf("the answer to the second insert has UID %s, want %s as in the first answer", there.UID, made.UID)
	}
	other := pod.DeepCopy()
	other.Annotations = map[string]string{v1.MirrorPodAnnotationKey: "g"}
	c.refused("m1", "insert", "default/pod/static-m1", other, metav1.StatusReasonAlreadyExists)
	plain := pod.DeepCopy()
	plain.Name, plain.Annotations = "plain", nil
	c.refused("m1", "insert", "default/pod/plain", plain, metav1.StatusReasonForbidden)
	elsewhere := pod.DeepCopy()
	elsewhere.Name, elsewhere.Spec.NodeName = "elsewhere", "reg"
	c.refused("m1", "insert", "default/pod/elsewhere", elsewhere, metav1.StatusReasonForbidden)
	c.refused("m1", "insert", "default/pod/x", pod, metav1.StatusReasonBadRequest)
}

// event is one about a node or a pod, as the node tells it.
func event(node, name, kind, of string, uid types.UID) *v1.Event {
	return &v1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: name, Namespace: "default"},
		Reason:         "Started",
		Message:        "one",
		Count:          1,
		Type:           "Normal",
		Source:         v1.EventSource{Component: "edgecore", Host: node},
		FirstTimestamp: metav1.Now(),
		LastTimestamp:  metav1.Now(),
		InvolvedObject: v1.ObjectReference{
			Kind:      kind,
			Name:      of,
			Namespace: map[string]string{"Pod": "default"}[kind],
			UID:       uid,
		},
	}
}

// send sends an event of an edge of ours, which is to hear what became of it.
func (c *cloud) send(node, op, name string, content any) {
	c.t.Helper()
	if m := c.ask(node, op, "default/event/"+name, content); m == nil || string(m.Content) != `"OK"` {
		c.t.Errorf("%s of event %s is answered %+v, want \"OK\"", op, name, m)
	}
}

// sendBad sends one that is refused.
func (c *cloud) sendBad(node, op, name string, content any) {
	c.t.Helper()
	if m := c.ask(node, op, "default/event/"+name, content); m == nil ||
		!strings.Contains(string(m.Content), `"ErrStatus"`) {
		c.t.Errorf("%s of event %s is answered %+v, want ErrStatus", op, name, m)
	}
}

// recorded is an event as the API has it; nil when it does not.
func (c *cloud) recorded(name string) *v1.Event {
	c.t.Helper()
	e, err := c.admin.CoreV1().Events("default").Get(c.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return e
}

func events(c *cloud) {
	c.register("e1")
	c.register("e2")
	pod := c.pod("e2", "eventful", "")
	e := event("e2", "ev1", "Pod", "eventful", pod.UID)
	c.send("e2", "insert", "ev1", e)
	if got := c.recorded("ev1"); got == nil || got.Message != "one" {
		c.t.Fatalf("event after insert = %+v, want message \"one\"", got)
	}
	e.Count, e.Message = 2, "two"
	c.send("e2", "update", "ev1", e)
	c.send("e2", "insert", "ev1", e) // came twice
	if got := c.recorded("ev1"); got.Count != 2 || got.Message != "two" {
		c.t.Errorf("event after update = %+v, want count 2, message \"two\"", got)
	}
	c.send("e2", "patch", "ev1", map[string]any{"event": e, "patchData": `{"count":3}`})
	if got := c.recorded("ev1"); got.Count != 3 {
		c.t.Errorf("event after patch = %+v, want count 3", got)
	}
	c.sendBad("e2", "patch", "ev1", map[string]any{"event": e, "patchData": `{"involvedObject":{"name":"x"}}`})
	if got := c.recorded("ev1"); got.InvolvedObject.Name != "eventful" {
		c.t.Errorf("event after a refused patch is about %q, want \"eventful\"", got.InvolvedObject.Name)
	}
	late := event("e2", "ev2", "Pod", "eventful", pod.UID)
	c.send("e2", "patch", "ev2", map[string]any{"event": late, "patchData": `{"count":2}`})
	if c.recorded("ev2") == nil {
		c.t.Error("event ev2 after a patch of an event that no longer exists = nil, want it recorded")
	}
	c.send("e2", "insert", "ev3", event("e2", "ev3", "Node", "e2", ""))
	c.send("e2", "insert", "ev4", event("e2", "ev4", "Pod", "long-gone", "u"))
	for _, name := range []string{"ev3", "ev4"} {
		if c.recorded(name) == nil {
			c.t.Errorf("event %s = nil, want it recorded", name)
		}
	}
}

func foreignEvents(c *cloud) {
	c.register("e3")
	c.register("e4")
	pod := c.pod("e4", "quiet", "")
	c.sendBad("e3", "insert", "bad1", event("e4", "bad1", "Pod", "quiet", pod.UID)) // says that it is e2
	foreign := event("e4", "bad2", "Pod", "quiet", pod.UID)
	foreign.Source.Host = "e3"
	c.sendBad("e3", "insert", "bad2", foreign)
	c.sendBad("e4", "insert", "bad3", event("e4", "bad3", "Node", "e3", ""))
	c.sendBad("e4", "insert", "bad4", event("e4", "bad4", "Deployment", "d", ""))
	c.sendBad("e4", "insert", "bad5", event("e4", "else", "Node", "e4", ""))
	c.sendBad("e4", "insert", "bad6", "x")
	list, err := c.admin.CoreV1().Events("default").List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, e := range list.Items {
		if strings.HasPrefix(e.Name, "bad") || e.Name == "else" {
			c.t.Errorf("event %s is recorded, want it refused", e.Name)
		}
	}
}

func tolerations(c *cloud) {
	c.register("tol")
	c.pod("tol", "tolerant", "")
	wait.Until(c.t, "the tolerations have no limit", func() error { return c.tolerant("tolerant") })
	c.apply(`{apiVersion: v1, kind: Pod, metadata: {name: fixed, annotations: {edgecore.io/keep-evictions: "true"}}, spec: {nodeName: tol, containers: [{name: c, image: example.com/c:1}]}}`)
	// One on a node of another kind is left alone, and one that is bound later shows that its turn has passed.
	c.bound("server", "on-server", "")
	c.pod("tol", "later", "")
	wait.Until(c.t, "the tolerations have no limit", func() error { return c.tolerant("later") })
	for _, name := range []string{"fixed", "on-server"} {
		pod, err := c.admin.CoreV1().Pods("default").Get(c.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			c.t.Fatal(err)
		}
		for _, tol := range pod.Spec.Tolerations {
			if tol.TolerationSeconds == nil {
				c.t.Errorf("toleration of pod %s = %+v, want one with TolerationSeconds", name, tol)
			}
		}
	}
}

// tolerant returns nil when a pod tolerates for good that its node cannot be reached.
func (c *cloud) tolerant(pod string) error {
	p, err := c.admin.CoreV1().Pods("default").Get(c.t.Context(), pod, metav1.GetOptions{})
	if err != nil {
		return err
	}
	want := []v1.Toleration{
		{Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoExecute"},
		{Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoExecute"},
	}
	slices.SortFunc(p.Spec.Tolerations, func(a, b v1.Toleration) int { return strings.Compare(a.Key, b.Key) })
	if diff := cmp.Diff(want, p.Spec.Tolerations); diff != "" {
		return errors.New(diff)
	}
	return nil
}
