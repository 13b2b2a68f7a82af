package cloud

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
)

// TestEdgeController goes through a node's life, with the rights of deploy/cloudcore/rbac.yaml and no more.
func TestEdgeController(t *testing.T) {
	c := start(t, kube.Options{ControllerManager: true}, "rbac.yaml")
	c.control()
	c.defaultAccount()
	if c.how != edgecontroller.UserOnly {
		t.Errorf("cloudcore acts for nodes in way %d, want the narrow one", c.how)
	}
	for _, step := range []struct {
		name string
		run  func(*cloud)
	}{
		{"registration", registration},
		{"node status and lease", statusAndLease},
		{"pods", pods},
		{"configmaps and secrets", configmapsAndSecrets},
		{"tokens", tokens},
		{"events", events},
		{"mirror pods", mirrorPods},
		{"volumes, services, requests", volumesAndServices},
		{"old-style messages", oldStyle},
		{"tolerations", tolerations},
		{"the end of a node", endOfNode},
	} {
		t.Run(step.name, func(t *testing.T) {
			sub := *c
			sub.t = t
			step.run(&sub)
		})
	}
}

// TestWideImpersonation: what Kubernetes before 1.36 needs works, too.
func TestWideImpersonation(t *testing.T) {
	c := start(t, kube.Options{APIServerFlags: []string{"--feature-gates=ConstrainedImpersonation=false"}}, "rbac.yaml", "rbac-before-1.36.yaml")
	c.control()
	if c.how != edgecontroller.UserAndGroup {
		t.Errorf("cloudcore acts for nodes in way %d, want by user and group", c.how)
	}
	c.register("wide")
	c.must("wide", "patch", "null/nodepatch/wide", `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)
	c.refused("wide", "query", "kube-system/secret/none", nil, metav1.StatusReasonForbidden)
}

// TestNoRights: cloudcore says what to do when it was given none.
func TestNoRights(t *testing.T) {
	c := start(t, kube.Options{})
	_, err := edgecontroller.ChooseImpersonation(t.Context(), c.config)
	if err == nil || !strings.Contains(err.Error(), "rbac.yaml") {
		t.Errorf("without rights: %v", err)
	}
}

func registration(c *cloud) {
	node := c.register("reg")
	want := map[string]string{
		"kubernetes.io/hostname": "reg", "kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64", "site": "pump-7",
		"node-role.kubernetes.io/edge": "", "node-role.kubernetes.io/agent": "",
	}
	if diff := cmp.Diff(want, node.Labels); diff != "" {
		c.t.Errorf("labels (-want +got):\n%s", diff)
	}
	if node.Annotations["cloudcore"] != "192.0.2.2" || node.UID == "" || node.Kind != "" || node.ManagedFields != nil {
		c.t.Errorf("answer: %+v", node)
	}
	c.refused("reg", "insert", "null/node/reg", edgeNode("reg"), metav1.StatusReasonAlreadyExists)
	c.refused("reg", "insert", "null/node/other", edgeNode("other"), metav1.StatusReasonForbidden)
	c.refused("reg", "insert", "null/node/reg", edgeNode("other"), metav1.StatusReasonBadRequest)
	if got := object[v1.Node](c, c.must("reg", "query", "default/node/reg", nil)); got.Kind != "Node" || got.APIVersion != "v1" || got.UID != node.UID {
		c.t.Errorf("query: %+v", got)
	}
	c.refused("reg", "query", "default/node/other", nil, metav1.StatusReasonForbidden)
	c.wants("reg", "null/node/reg")

	// Labels and annotations by the edge; reserved ones not.
	answer := c.must("reg", "update", "null/node/reg", &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "reg",
		Labels: map[string]string{"site": "pump-8"}, Annotations: map[string]string{"note": "x"}}})
	if string(answer.Content) != `"OK"` || answer.Header.ResourceVersion == "" {
		c.t.Errorf("update: %s, version %q", answer.Content, answer.Header.ResourceVersion)
	}
	now, err := c.admin.CoreV1().Nodes().Get(c.t.Context(), "reg", metav1.GetOptions{})
	if err != nil || now.Labels["site"] != "pump-8" || now.Annotations["note"] != "x" || now.Labels["kubernetes.io/os"] != "linux" {
		c.t.Errorf("after the update: %v %+v", err, now)
	}
	c.refused("reg", "update", "null/node/reg", &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "reg",
		Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""}}}, metav1.StatusReasonForbidden)

	// A registration that ended half-way is finished by its next try.
	if _, err := c.admin.CoreV1().Nodes().Create(c.t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "half",
		Annotations: map[string]string{"cloudcore": "192.0.2.3"}}}, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.refused("half", "insert", "null/node/half", edgeNode("half"), metav1.StatusReasonAlreadyExists)
	c.wants("half", "null/node/half")
	// Another's node is left alone.
	if _, err := c.admin.CoreV1().Nodes().Create(c.t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "server"}}, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.refused("server", "insert", "null/node/server", edgeNode("server"), metav1.StatusReasonAlreadyExists)
	if n, err := c.admin.CoreV1().Nodes().Get(c.t.Context(), "server", metav1.GetOptions{}); err != nil || len(n.Labels) != 0 {
		c.t.Errorf("a node of somebody else: %v %+v", err, n.Labels)
	}
}

func statusAndLease(c *cloud) {
	c.register("st")
	patch := `{"status":{"capacity":{"cpu":"2"},"conditions":[{"type":"Ready","status":"True","reason":"EdgeReady"}]}}`
	answer := c.must("st", "patch", "default/nodepatch/st", patch)
	node := object[v1.Node](c, answer)
	if len(node.Status.Conditions) != 1 || node.Status.Conditions[0].Reason != "EdgeReady" || answer.Header.ResourceVersion != node.ResourceVersion {
		c.t.Errorf("answer %s", answer.Content)
	}
	c.must("st", "patch", "null/nodepatch/st", "{}")
	c.refused("st", "patch", "null/nodepatch/reg", patch, metav1.StatusReasonForbidden)
	c.refused("st", "patch", "null/nodepatch/st", "broken", metav1.StatusReasonBadRequest)

	const at = "kube-node-lease/lease/st"
	c.refused("st", "query", at, nil, metav1.StatusReasonNotFound)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "st", Namespace: "kube-node-lease"},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: new("st"), LeaseDurationSeconds: new(int32(40)), RenewTime: &metav1.MicroTime{Time: time.Now()}}}
	made := object[coordinationv1.Lease](c, c.must("st", "insert", at, lease))
	made.Spec.RenewTime = &metav1.MicroTime{Time: time.Now().Add(time.Second)}
	c.must("st", "update", at, made)
	c.refused("st", "update", at, made, metav1.StatusReasonConflict)
	c.refused("st", "update", "kube-node-lease/lease/reg", lease, metav1.StatusReasonForbidden)
	c.refused("st", "query", "kube-system/lease/st", nil, metav1.StatusReasonForbidden)

	// Renewed by cloudcore itself: a lease that is there, and one that is not.
	for _, name := range []string{"st", "reg"} {
		c.wants(name, "null/node/"+name)
		before := time.Now().Add(-time.Second)
		c.ctl.Heartbeat(c.t.Context(), name)
		got, err := c.admin.CoordinationV1().Leases("kube-node-lease").Get(c.t.Context(), name, metav1.GetOptions{})
		if err != nil || got.Spec.RenewTime.Before(&metav1.MicroTime{Time: before}) || *got.Spec.HolderIdentity != name {
			c.t.Errorf("lease of %s: %v %+v", name, err, got)
		}
		if name == "reg" && (len(got.OwnerReferences) != 1 || got.OwnerReferences[0].Name != "reg") {
			c.t.Errorf("owner of the lease: %+v", got.OwnerReferences)
		}
	}
	c.ctl.Heartbeat(c.t.Context(), "nobody")
	if _, err := c.admin.CoordinationV1().Leases("kube-node-lease").Get(c.t.Context(), "nobody", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		c.t.Errorf("a node that does not exist has a lease: %v", err)
	}
}

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
	c.eventually("the hub hears of the pod", func() error {
		if c.hub.count("p1", key) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	// Its tolerations change once; after that, only the status does.
	c.eventually("the pod's tolerations", func() error { return c.tolerant("web") })
	c.eventually("the cache has them", func() error {
		o, err := c.ctl.Object("p1", resource.Key{Namespace: "default", Type: "pod", Name: "web"})
		if err != nil || o == nil || strings.Contains(string(o.JSON), "tolerationSeconds") {
			return fmt.Errorf("%v %v", err, o)
		}
		return nil
	})
	calls := c.hub.count("p1", key)
	answer := c.must("p1", "patch", "default/podpatch/web", status(pod.UID, v1.PodRunning))
	now := object[v1.Pod](c, answer)
	if now.Status.Phase != v1.PodRunning || answer.Header.ResourceVersion != now.ResourceVersion {
		c.t.Errorf("answer %s", answer.Content)
	}
	c.eventually("the cache has the status", func() error {
		if ref := c.wants("p1", key); ref.ResourceVersion != now.ResourceVersion {
			return fmt.Errorf("version %s, want %s", ref.ResourceVersion, now.ResourceVersion)
		}
		return nil
	})
	if after := c.hub.count("p1", key); after != calls {
		c.t.Errorf("a change of status alone is told to the hub: %d calls, were %d", after, calls)
	}
	c.refused("p2", "patch", "default/podpatch/web", status(pod.UID, v1.PodFailed), metav1.StatusReasonForbidden)
	c.refused("p2", "query", key, nil, metav1.StatusReasonForbidden)
	c.refused("p1", "patch", "default/podpatch/web", status("another", v1.PodFailed), metav1.StatusReasonConflict)
	c.refused("p1", "patch", "default/podpatch/web", `{"status":{"phase":"Failed"}}`, metav1.StatusReasonBadRequest)
	c.refused("p1", "patch", "default/podpatch/web", fmt.Sprintf(`{"metadata":{"uid":%q,"labels":{"a":"b"}},"status":{}}`, pod.UID), metav1.StatusReasonForbidden)
	if o, err := c.ctl.Object("p2", resource.Key{Namespace: "default", Type: "pod", Name: "web"}); o != nil || err != nil {
		c.t.Errorf("node p2 is sent the pod of p1: %v %v", o, err)
	}

	// The end: only of the pod that is meant, only by its node.
	c.refused("p2", "delete", key, deleteOptions(pod.UID), metav1.StatusReasonForbidden)
	c.must("p1", "delete", key, deleteOptions("another"))
	c.refused("p1", "delete", key, &metav1.DeleteOptions{}, metav1.StatusReasonBadRequest)
	if _, err := c.admin.CoreV1().Pods("default").Get(c.t.Context(), "web", metav1.GetOptions{}); err != nil {
		c.t.Fatalf("the pod is gone: %v", err)
	}
	if err := c.admin.CoreV1().Pods("default").Delete(c.t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.eventually("the hub is told to delete", func() error {
		o, err := c.ctl.Object("p1", resource.Key{Namespace: "default", Type: "pod", Name: "web"})
		if err != nil || o == nil || !o.Deleting {
			return fmt.Errorf("%v %v", err, o)
		}
		return nil
	})
	if answer := c.must("p1", "delete", key, deleteOptions(pod.UID)); string(answer.Content) != `"OK"` || answer.Header.ResourceVersion != "" {
		c.t.Errorf("answer %s", answer.Content)
	}
	c.must("p1", "delete", key, deleteOptions(pod.UID)) // as good a second time
	c.eventually("the pod is wanted no more", func() error {
		if o, err := c.ctl.Object("p1", resource.Key{Namespace: "default", Type: "pod", Name: "web"}); o != nil || err != nil {
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
	c.must("p2", "delete", key, string(again.UID))
	if _, err := c.admin.CoreV1().Pods("default").Get(c.t.Context(), "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		c.t.Errorf("after its end: %v", err)
	}
}

func configmapsAndSecrets(c *cloud) {
	c.register("c1")
	c.apply(`
{apiVersion: v1, kind: ConfigMap, metadata: {name: conf}, data: {a: "1"}}
---
{apiVersion: v1, kind: Secret, metadata: {name: key}, stringData: {p: s3cret}}
---
{apiVersion: v1, kind: Secret, metadata: {name: other}, stringData: {p: s3cret}}`)
	for _, key := range []string{"default/configmap/conf", "default/secret/key", "default/secret/none"} {
		c.refused("c1", "query", key, nil, metav1.StatusReasonForbidden)
	}
	pod := c.pod("c1", "user", ", initContainers: [{name: i, image: example.com/c:1, env: [{name: A, valueFrom: {configMapKeyRef: {name: conf, key: a}}}]}], imagePullSecrets: [{name: key}]")
	answer := c.must("c1", "query", "default/configmap/conf", nil)
	conf := object[v1.ConfigMap](c, answer)
	if conf.Kind != "ConfigMap" || conf.APIVersion != "v1" || conf.Data["a"] != "1" || answer.Header.ResourceVersion != conf.ResourceVersion || conf.ManagedFields != nil {
		c.t.Errorf("answer %s", answer.Content)
	}
	if secret := object[v1.Secret](c, c.must("c1", "query", "default/secret/key", nil)); string(secret.Data["p"]) != "s3cret" {
		c.t.Errorf("secret %+v", secret)
	}
	c.refused("c1", "query", "default/secret/other", nil, metav1.StatusReasonForbidden)
	c.wants("c1", "default/configmap/conf")
	c.wants("c1", "default/secret/key")

	c.apply(`{apiVersion: v1, kind: ConfigMap, metadata: {name: conf}, data: {a: "2"}}`)
	key := resource.Key{Namespace: "default", Type: "configmap", Name: "conf"}
	c.eventually("the change is to be sent", func() error {
		o, err := c.ctl.Object("c1", key)
		if err != nil || o == nil || !strings.Contains(string(o.JSON), `"a":"2"`) || c.hub.count("c1", key.String()) < 2 {
			return fmt.Errorf("%v %+v, %d calls", err, o, c.hub.count("c1", key.String()))
		}
		return nil
	})
	calls := c.hub.count("c1", key.String())
	c.must("c1", "delete", "default/pod/user", deleteOptions(pod.UID))
	c.eventually("it is forgotten with the last pod", func() error {
		o, err := c.ctl.Object("c1", key)
		if err != nil || o != nil || c.hub.count("c1", key.String()) == calls {
			return fmt.Errorf("%v %+v", err, o)
		}
		return nil
	})
	c.eventually("it is forbidden again", func() error {
		if f := c.parse(c.ask("c1", "query", key.String(), nil)).failure(); f == nil || f.Reason != metav1.StatusReasonForbidden {
			return fmt.Errorf("%+v", f)
		}
		return nil
	})
}

func tokens(c *cloud) {
	c.register("t1")
	c.register("t2")
	pod := c.pod("t1", "runs", "")
	ask := func(uid types.UID) *authenticationv1.TokenRequest {
		return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(3607)),
			BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: "runs", UID: uid}}}
	}
	const key = "default/serviceaccounttoken/default"
	answer := c.must("t1", "query", key, ask(pod.UID))
	got := object[authenticationv1.TokenRequest](c, answer)
	if got.Status.Token == "" || got.Kind != "TokenRequest" || got.APIVersion != "authentication.k8s.io/v1" || answer.Header.ResourceVersion != "" {
		c.t.Errorf("kind %s %s, version %q, a token of %d bytes", got.APIVersion, got.Kind, answer.Header.ResourceVersion, len(got.Status.Token))
	}
	review, err := c.admin.AuthenticationV1().TokenReviews().Create(c.t.Context(),
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: got.Status.Token}}, metav1.CreateOptions{})
	if err != nil || !review.Status.Authenticated || review.Status.User.Username != "system:serviceaccount:default:default" {
		c.t.Errorf("the token: %v %+v", err, review.Status)
	}
	c.refused("t2", "query", key, ask(pod.UID), metav1.StatusReasonForbidden)
	c.refused("t1", "query", key, ask("another"), metav1.StatusReasonForbidden)
	c.refused("t1", "query", key, &authenticationv1.TokenRequest{}, metav1.StatusReasonForbidden)
	c.refused("t1", "query", "kubeedge/serviceaccounttoken/cloudcore", ask(pod.UID), metav1.StatusReasonForbidden)
	c.refused("t1", "query", key, nil, metav1.StatusReasonBadRequest)
	c.refused("t1", "query", key, "x", metav1.StatusReasonBadRequest)
	strange := ask(pod.UID)
	strange.Spec.Audiences = []string{"vault"} // of no volume of the pod
	c.refused("t1", "query", key, strange, metav1.StatusReasonForbidden)
}

func events(c *cloud) {
	c.register("e1")
	c.register("e2")
	pod := c.pod("e2", "eventful", "")
	event := func(name, kind, of string, uid types.UID) *v1.Event {
		return &v1.Event{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Reason: "Started", Message: "one", Count: 1, Type: "Normal",
			Source: v1.EventSource{Component: "edgecore", Host: "e2"}, FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(),
			InvolvedObject: v1.ObjectReference{Kind: kind, Name: of, Namespace: map[string]string{"Pod": "default"}[kind], UID: uid}}
	}
	send := func(node, op, name string, content any) {
		c.t.Helper()
		if m := c.ask(node, op, "default/event/"+name, content); m != nil {
			c.t.Errorf("%s of event %s is answered: %s", op, name, m.Content)
		}
	}
	get := func(name string) *v1.Event {
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
	e := event("ev1", "Pod", "eventful", pod.UID)
	send("e2", "insert", "ev1", e)
	if got := get("ev1"); got == nil || got.Message != "one" {
		c.t.Fatalf("inserted: %+v", got)
	}
	e.Count, e.Message = 2, "two"
	send("e2", "update", "ev1", e)
	send("e2", "insert", "ev1", e) // came twice
	if got := get("ev1"); got.Count != 2 || got.Message != "two" {
		c.t.Errorf("updated: %+v", got)
	}
	send("e2", "patch", "ev1", map[string]any{"event": e, "patchData": `{"count":3}`})
	if got := get("ev1"); got.Count != 3 {
		c.t.Errorf("patched: %+v", got)
	}
	send("e2", "patch", "ev1", map[string]any{"event": e, "patchData": `{"involvedObject":{"name":"x"}}`})
	if got := get("ev1"); got.InvolvedObject.Name != "eventful" {
		c.t.Errorf("an event became one about %s", got.InvolvedObject.Name)
	}
	late := event("ev2", "Pod", "eventful", pod.UID)
	send("e2", "patch", "ev2", map[string]any{"event": late, "patchData": `{"count":2}`})
	if get("ev2") == nil {
		c.t.Error("a patch of an event that is there no more is lost")
	}
	send("e2", "insert", "ev3", event("ev3", "Node", "e2", ""))
	send("e2", "insert", "ev4", event("ev4", "Pod", "long-gone", "u"))
	for _, name := range []string{"ev3", "ev4"} {
		if get(name) == nil {
			c.t.Errorf("event %s is not recorded", name)
		}
	}
	send("e1", "insert", "bad1", event("bad1", "Pod", "eventful", pod.UID)) // says that it is e2
	foreign := event("bad2", "Pod", "eventful", pod.UID)
	foreign.Source.Host = "e1"
	send("e1", "insert", "bad2", foreign)
	send("e2", "insert", "bad3", event("bad3", "Node", "e1", ""))
	send("e2", "insert", "bad4", event("bad4", "Deployment", "d", ""))
	send("e2", "insert", "bad5", event("else", "Node", "e2", ""))
	send("e2", "insert", "bad6", "x")
	list, err := c.admin.CoreV1().Events("default").List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, e := range list.Items {
		if strings.HasPrefix(e.Name, "bad") || e.Name == "else" {
			c.t.Errorf("event %s is recorded", e.Name)
		}
	}
}

func mirrorPods(c *cloud) {
	node := c.register("m1")
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "static-m1", Namespace: "default",
		Annotations:     map[string]string{v1.MirrorPodAnnotationKey: "h"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "m1", UID: node.UID, Controller: new(true)}}},
		Spec: v1.PodSpec{NodeName: "m1", Containers: []v1.Container{{Name: "c", Image: "example.com/c:1"}},
			Tolerations: []v1.Toleration{{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}}}}
	made := object[v1.Pod](c, c.must("m1", "insert", "default/pod/static-m1", pod))
	if made.UID == "" {
		c.t.Errorf("made %+v", made)
	}
	c.refused("m1", "insert", "default/pod/static-m1", pod, metav1.StatusReasonAlreadyExists)
	plain := pod.DeepCopy()
	plain.Name, plain.Annotations = "plain", nil
	c.refused("m1", "insert", "default/pod/plain", plain, metav1.StatusReasonForbidden)
	elsewhere := pod.DeepCopy()
	elsewhere.Name, elsewhere.Spec.NodeName = "elsewhere", "reg"
	c.refused("m1", "insert", "default/pod/elsewhere", elsewhere, metav1.StatusReasonForbidden)
	c.refused("m1", "insert", "default/pod/x", pod, metav1.StatusReasonBadRequest)
}

func volumesAndServices(c *cloud) {
	c.register("v1")
	c.register("v2")
	c.apply(`
{apiVersion: v1, kind: Secret, metadata: {name: pv-secret}, stringData: {p: x}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: none
  claimRef: {namespace: default, name: claim}
  csi: {driver: d.example.com, volumeHandle: h, nodePublishSecretRef: {name: pv-secret, namespace: default}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claim}
spec: {accessModes: [ReadWriteOnce], storageClassName: none, volumeName: disk, resources: {requests: {storage: 1Gi}}}
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {name: attached}
spec: {attacher: d.example.com, nodeName: v1, source: {persistentVolumeName: disk}}
---
{apiVersion: v1, kind: Service, metadata: {name: db}, spec: {selector: {app: db}, ports: [{port: 5432}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: headless}, spec: {clusterIP: None, ports: [{port: 1}]}}`)
	for _, key := range []string{"default/persistentvolumeclaim/claim", "null/persistentvolume/disk", "default/secret/pv-secret"} {
		c.refused("v1", "query", key, nil, metav1.StatusReasonForbidden)
	}
	c.pod("v1", "with-disk", ", volumes: [{name: d, persistentVolumeClaim: {claimName: claim}}]")
	c.eventually("the node may read the claim's volume and its secret", func() error {
		for _, key := range []string{"default/persistentvolumeclaim/claim", "null/persistentvolume/disk", "default/secret/pv-secret", "default/volumeattachment/attached"} {
			if f := c.parse(c.ask("v1", "query", key, nil)).failure(); f != nil {
				return errors.New(f.Message)
			}
		}
		return nil
	})
	answer := c.must("v1", "query", "null/persistentvolume/disk", nil)
	if pv := object[v1.PersistentVolume](c, answer); pv.Kind != "PersistentVolume" || answer.Header.ResourceVersion != pv.ResourceVersion {
		c.t.Errorf("answer %s", answer.Content)
	}
	for _, key := range []string{"null/persistentvolume/disk", "default/volumeattachment/attached", "default/secret/pv-secret"} {
		c.refused("v2", "query", key, nil, metav1.StatusReasonForbidden)
	}

	// Services for edges of ours, by pods.
	c.wants("v1", "default/service/db")
	c.wants("v1", "default/service/kubernetes")
	for _, ref := range c.ctl.Desired("v1") {
		if ref.Key.Name == "headless" {
			c.t.Error("a service without an address is sent")
		}
	}
	c.ctl.Connected(c.t.Context(), "upstream", "websocket")
	defer c.ctl.Disconnected("upstream", "done")
	c.pod("upstream", "elsewhere", "")
	if slices.ContainsFunc(c.ctl.Desired("upstream"), isService) || slices.ContainsFunc(c.ctl.Desired("v2"), isService) {
		c.t.Error("services for an upstream edge, or for one without pods")
	}
	if s := object[v1.Service](c, c.must("v1", "query", "default/service/db", nil)); s.Kind != "Service" || s.Spec.ClusterIP == "" {
		c.t.Errorf("service %+v", s)
	}
	c.eventually("the endpoints of the service", func() error {
		if f := c.parse(c.ask("v1", "query", "default/endpoints/db", nil)).failure(); f != nil {
			return errors.New(f.Message)
		}
		return nil
	})
	c.refused("v1", "query", "default/service/none", nil, metav1.StatusReasonNotFound)
}

func oldStyle(c *cloud) {
	c.ctl.Connected(c.t.Context(), "old", "websocket")
	c.t.Cleanup(func() { c.ctl.Disconnected("old", "done") })
	ask := func(op, res string, content any) string {
		c.t.Helper()
		return string(c.oldAsk("old", op, res, content).Content)
	}
	for range 2 {
		if got := ask("insert", "default/nodestatus/old", edgeNode("old")); got != `"OK"` {
			c.t.Fatalf("registration: %s", got)
		}
	}
	c.wants("old", "null/node/old")
	got := ask("update", "default/nodestatus/old", map[string]any{"UID": "u", "Status": v1.NodeStatus{
		Conditions: []v1.NodeCondition{{Type: "Ready", Status: "True"}}},
		"ExtendResources": map[string]any{"nvidia.com/gpu": []map[string]string{{"name": "g0", "type": "t"}}}})
	if got != `"OK"` {
		c.t.Fatalf("status: %s", got)
	}
	node, err := c.admin.CoreV1().Nodes().Get(c.t.Context(), "old", metav1.GetOptions{})
	if err != nil || len(node.Status.Conditions) != 1 || node.Annotations["huawei.com/gpu-status"] == "" {
		c.t.Errorf("%v %+v", err, node)
	}
	pod := c.pod("old", "oldpod", "")
	if got := ask("update", "default/podstatus", []map[string]any{
		{"UID": pod.UID, "Name": "oldpod", "Status": v1.PodStatus{Phase: v1.PodRunning}},
		{"UID": "gone", "Name": "gone", "Status": v1.PodStatus{}}}); got != `"OK"` {
		c.t.Errorf("statuses: %s", got)
	}
	if c.hub.count("old", "default/pod/gone") == 0 {
		c.t.Error("the edge is not told that a pod is gone")
	}
	if pod, err = c.admin.CoreV1().Pods("default").Get(c.t.Context(), "oldpod", metav1.GetOptions{}); err != nil || pod.Status.Phase != v1.PodRunning {
		c.t.Errorf("%v %+v", err, pod.Status)
	}
	if err := c.admin.CoreV1().Pods("default").Delete(c.t.Context(), "oldpod", metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
	if got := ask("update", "default/podstatus/oldpod", map[string]any{"UID": pod.UID, "Name": "oldpod", "Status": v1.PodStatus{Phase: v1.PodFailed}}); got != `"OK"` {
		c.t.Errorf("status: %s", got)
	}
	if _, err := c.admin.CoreV1().Pods("default").Get(c.t.Context(), "oldpod", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		c.t.Errorf("the ended pod: %v", err)
	}
}

func tolerations(c *cloud) {
	c.register("tol")
	c.pod("tol", "tolerant", "")
	c.eventually("the tolerations have no limit", func() error { return c.tolerant("tolerant") })
	c.apply(`{apiVersion: v1, kind: Pod, metadata: {name: fixed, annotations: {edgecore.io/keep-evictions: "true"}}, spec: {nodeName: tol, containers: [{name: c, image: example.com/c:1}]}}`)
	// One on a node of another kind is left alone, and one that is bound later shows that its turn has passed.
	c.pod("server", "on-server", "")
	c.pod("tol", "later", "")
	c.eventually("the tolerations have no limit", func() error { return c.tolerant("later") })
	for _, name := range []string{"fixed", "on-server"} {
		pod, err := c.admin.CoreV1().Pods("default").Get(c.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			c.t.Fatal(err)
		}
		for _, tol := range pod.Spec.Tolerations {
			if tol.TolerationSeconds == nil {
				c.t.Errorf("pod %s got %+v", name, tol)
			}
		}
	}
}

func (c *cloud) tolerant(pod string) error {
	p, err := c.admin.CoreV1().Pods("default").Get(c.t.Context(), pod, metav1.GetOptions{})
	if err != nil {
		return err
	}
	want := []v1.Toleration{
		{Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoExecute"},
		{Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoExecute"},
	}
	if diff := cmp.Diff(want, p.Spec.Tolerations); diff != "" {
		return errors.New(diff)
	}
	return nil
}

func endOfNode(c *cloud) {
	c.register("end")
	c.wants("end", "null/node/end")
	if err := c.admin.CoreV1().Nodes().Delete(c.t.Context(), "end", metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.eventually("the session ends", func() error {
		if c.hub.reason("end") == "" {
			return errors.New("it does not")
		}
		return nil
	})
}

// TestAPIServerRestarts: meanwhile, nothing is said to be gone and requests fail in a way that is tried again; afterwards,
// changes arrive.
func TestAPIServerRestarts(t *testing.T) {
	c := start(t, kube.Options{ControllerManager: true}, "rbac.yaml")
	c.control()
	c.defaultAccount()
	c.register("r1")
	c.apply(`{apiVersion: v1, kind: ConfigMap, metadata: {name: conf}, data: {a: "1"}}`)
	c.pod("r1", "runs", ", volumes: [{name: v, configMap: {name: conf}}]")
	c.wants("r1", "default/configmap/conf")
	if err := c.cluster.APIServer.Kill9(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := len(c.ctl.Desired("r1"))
	if o, err := c.ctl.Object("r1", key("default/pod/runs")); o == nil || err != nil {
		t.Errorf("a pod, from memory: %v %v", err, o)
	}
	if o, err := c.ctl.Object("r1", key("default/pod/other")); o != nil || err == nil {
		t.Errorf("a pod that is said to be gone while nobody can know: %v", o)
	}
	if conf := object[v1.ConfigMap](c, c.must("r1", "query", "default/configmap/conf", nil)); conf.Data["a"] != "1" {
		t.Errorf("a configmap, from memory: %+v", conf)
	}
	if f := c.parse(c.ask("r1", "patch", "null/nodepatch/r1", "{}")).failure(); f == nil || f.Code < 500 {
		t.Errorf("a write: %+v", f)
	}
	if err := c.cluster.APIServer.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.apply(`{apiVersion: v1, kind: ConfigMap, metadata: {name: conf}, data: {a: "2"}}`)
	c.eventually("the change arrives", func() error {
		o, err := c.ctl.Object("r1", key("default/configmap/conf"))
		if err != nil || o == nil || !strings.Contains(string(o.JSON), `"a":"2"`) {
			return fmt.Errorf("%v %v", err, o)
		}
		return nil
	})
	if after := len(c.ctl.Desired("r1")); after != before {
		t.Errorf("%d objects are wanted, and were %d", after, before)
	}
	c.must("r1", "patch", "null/nodepatch/r1", "{}")
}
