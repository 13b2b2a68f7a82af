package cloud

import (
	"errors"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func registration(c *cloud) {
	node := c.register("reg")
	want := map[string]string{
		"kubernetes.io/hostname": "reg", "kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64",
		"site":                         "pump-7",
		"node-role.kubernetes.io/edge": "", "node-role.kubernetes.io/agent": "",
	}
	delete(node.Labels, "beta.kubernetes.io/os") // the controller manager adds it, sooner or later
	if diff := cmp.Diff(want, node.Labels); diff != "" {
		c.t.Errorf("labels (-want +got):\n%s", diff)
	}
	if node.Annotations["cloudcore"] != "192.0.2.2" || node.UID == "" || node.Kind != "" || node.ManagedFields != nil {
		c.t.Errorf("answer = %+v, want a UID, the annotation cloudcore=192.0.2.2, no kind and no managed fields", node)
	}
	c.refused("reg", "insert", "null/node/reg", edgeNode("reg"), metav1.StatusReasonAlreadyExists)
	c.refused("reg", "insert", "null/node/other", edgeNode("other"), metav1.StatusReasonForbidden)
	c.refused("reg", "insert", "null/node/reg", edgeNode("other"), metav1.StatusReasonBadRequest)
	if got := object[v1.Node](c, c.must("reg", "query", "default/node/reg", nil)); got.Kind != "Node" ||
		got.APIVersion != "v1" || got.UID != node.UID {
		c.t.Errorf("query = %+v, want kind Node of v1 with UID %s", got, node.UID)
	}
	c.refused("reg", "query", "default/node/other", nil, metav1.StatusReasonForbidden)
	c.wants("reg", "null/node/reg")

	// Labels and annotations by the edge; reserved ones not.
	answer := c.must("reg", "update", "null/node/reg", &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "reg",
		Labels: map[string]string{"site": "pump-8"}, Annotations: map[string]string{"note": "x"}}})
	if string(answer.Content) != `"OK"` || answer.Header.ResourceVersion == "" {
		c.t.Errorf("update = %s, version %q, want \"OK\" and a version", answer.Content, answer.Header.ResourceVersion)
	}
	now, err := c.admin.CoreV1().Nodes().Get(c.t.Context(), "reg", metav1.GetOptions{})
	if err != nil || now.Labels["site"] != "pump-8" || now.Annotations["note"] != "x" ||
		now.Labels["kubernetes.io/os"] != "linux" {
		c.t.Errorf("after the update: %v, labels %v, annotations %v, want site=pump-8, kubernetes.io/os=linux, note=x",
			err, now.Labels, now.Annotations)
	}
	c.must("reg", "update", "null/node/reg", &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "reg",
		Labels: map[string]string{"node-role.kubernetes.io/control-plane": "", "site": "pump-9"}}})
	now, err = c.admin.CoreV1().Nodes().Get(c.t.Context(), "reg", metav1.GetOptions{})
	_, has := now.Labels["node-role.kubernetes.io/control-plane"]
	if err != nil || has || now.Labels["site"] != "pump-9" {
		c.t.Errorf("after an update with a reserved label: %v, labels %v, want site=pump-9 and not the reserved one",
			err, now.Labels)
	}

	// Another's node is left alone, also one with the annotation that a node may give itself.
	if _, err := c.admin.CoreV1().Nodes().Create(c.t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "server",
		Annotations: map[string]string{"cloudcore": "192.0.2.3"}}}, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.refused("server", "insert", "null/node/server", edgeNode("server"), metav1.StatusReasonAlreadyExists)
	if n, err := c.admin.CoreV1().Nodes().Get(c.t.Context(), "server", metav1.GetOptions{}); err != nil ||
		len(n.Labels) != 0 {
		c.t.Errorf("labels of a node of someone else: %v %+v, want none", err, n.Labels)
	}
}

func statusAndLease(c *cloud) {
	c.register("st")
	patch := `{"status":{"capacity":{"cpu":"2"},"conditions":[{"type":"Ready","status":"True","reason":"EdgeReady"}]}}`
	answer := c.must("st", "patch", "default/nodepatch/st", patch)
	if told := object[v1.Node](c, answer); told.Name != "st" || told.ResourceVersion == "" ||
		answer.Header.ResourceVersion != told.ResourceVersion {
		c.t.Errorf("answer %s, version %q, want node st and its version", answer.Content, answer.Header.ResourceVersion)
	}
	node, err := c.admin.CoreV1().Nodes().Get(c.t.Context(), "st", metav1.GetOptions{})
	if err != nil || len(node.Status.Conditions) != 1 || node.Status.Conditions[0].Reason != "EdgeReady" {
		c.t.Errorf("status %+v, %v, want one condition, EdgeReady", node.Status, err)
	}
	c.must("st", "patch", "null/nodepatch/st", "{}")
	c.refused("st", "patch", "null/nodepatch/reg", patch, metav1.StatusReasonForbidden)
	c.refused("st", "patch", "null/nodepatch/st", "broken", metav1.StatusReasonBadRequest)

	const at = "kube-node-lease/lease/st"
	c.refused("st", "query", at, nil, metav1.StatusReasonNotFound)
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "st", Namespace: "kube-node-lease"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("st"), LeaseDurationSeconds: new(int32(40)),
			RenewTime: &metav1.MicroTime{Time: time.Now()},
		},
	}
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
		var got *coordinationv1.Lease
		// one that is not there is made once the cache has the node
		wait.Until(c.t, "a renewed lease of "+name, func() (err error) {
			if err := c.ctl.Heartbeat(c.t.Context(), name); err != nil {
				c.t.Errorf("Heartbeat(%s): %v, want no error", name, err)
			}
			got, err = c.admin.CoordinationV1().Leases("kube-node-lease").Get(c.t.Context(), name, metav1.GetOptions{})
			return err
		})
		if got.Spec.RenewTime.Before(&metav1.MicroTime{Time: before}) || *got.Spec.HolderIdentity != name {
			c.t.Errorf("lease of %s: %+v, want it held by %s and renewed after %v", name, got.Spec, name, before)
		}
		if name == "reg" && (len(got.OwnerReferences) != 1 || got.OwnerReferences[0].Name != "reg") {
			c.t.Errorf("owners of the lease: %+v, want node reg alone", got.OwnerReferences)
		}
	}
	if err := c.ctl.Heartbeat(c.t.Context(), "nobody"); err != nil {
		c.t.Errorf("Heartbeat(a node that does not exist): %v, want no error", err)
	}
	if _, err := c.admin.CoordinationV1().Leases("kube-node-lease").Get(c.t.Context(), "nobody",
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		c.t.Errorf("Get of the lease of a node that does not exist: %v, want NotFound", err)
	}
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
			c.t.Fatalf("answer to the registration = %s, want \"OK\"", got)
		}
	}
	c.wants("old", "null/node/old")
	// Between the reading and the writing of a status, others write: the node lifecycle controller sets taints.
	c.meanwhile("/api/v1/nodes/old/status", func() error {
		patch := []byte(`{"spec":{"taints":[{"key":"meanwhile","effect":"PreferNoSchedule"}]}}`)
		_, err := c.admin.CoreV1().Nodes().Patch(c.t.Context(), "old", types.StrategicMergePatchType, patch,
			metav1.PatchOptions{})
		return err
	})
	got := ask("update", "default/nodestatus/old", map[string]any{"UID": "u", "Status": v1.NodeStatus{
		Conditions: []v1.NodeCondition{{Type: "Ready", Status: "True"}}},
		"ExtendResources": map[string]any{"nvidia.com/gpu": []map[string]string{{"name": "g0", "type": "t"}}}})
	if got != `"OK"` {
		c.t.Fatalf("answer to the status = %s, want \"OK\"", got)
	}
	node, err := c.admin.CoreV1().Nodes().Get(c.t.Context(), "old", metav1.GetOptions{})
	if err != nil || len(node.Status.Conditions) != 1 || node.Annotations["huawei.com/gpu-status"] == "" {
		c.t.Errorf("node after the update: %v %+v, want one condition and the annotation huawei.com/gpu-status", err,
			node)
	}
	pod := c.pod("old", "oldpod", "")
	c.meanwhile("/api/v1/namespaces/default/pods/oldpod/status", func() error {
		patch := []byte(`{"metadata":{"labels":{"by":"another"}}}`)
		_, err := c.admin.CoreV1().Pods("default").Patch(c.t.Context(), "oldpod", types.MergePatchType, patch,
			metav1.PatchOptions{})
		return err
	})
	if got := ask("update", "default/podstatus", []map[string]any{
		{"UID": pod.UID, "Name": "oldpod", "Status": v1.PodStatus{Phase: v1.PodRunning}},
		{"UID": "gone", "Name": "gone", "Status": v1.PodStatus{}}}); got != `"OK"` {
		c.t.Errorf("answer to the statuses = %s, want \"OK\"", got)
	}
	if c.hub.count("old", "default/pod/gone") == 0 {
		c.t.Error("the hub has heard of default/pod/gone 0 times, want at least 1")
	}
	if pod, err = c.admin.CoreV1().Pods("default").Get(c.t.Context(), "oldpod", metav1.GetOptions{}); err != nil ||
		pod.Status.Phase != v1.PodRunning {
		c.t.Errorf("pod status after the update: %v %+v, want phase Running", err, pod.Status)
	}
	if err := c.admin.CoreV1().Pods("default").Delete(c.t.Context(), "oldpod", metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
	if got := ask("update", "default/podstatus/oldpod", map[string]any{
		"UID": pod.UID, "Name": "oldpod", "Status": v1.PodStatus{Phase: v1.PodFailed},
	}); got != `"OK"` {
		c.t.Errorf("answer to the status = %s, want \"OK\"", got)
	}
	if _, err := c.admin.CoreV1().Pods("default").Get(c.t.Context(), "oldpod",
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		c.t.Errorf("get the ended pod: %v, want not found", err)
	}
}

func endOfNode(c *cloud) {
	c.register("end")
	c.wants("end", "null/node/end")
	if err := c.admin.CoreV1().Nodes().Delete(c.t.Context(), "end", metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
	wait.Until(c.t, "the session ends", func() error {
		if c.hub.reason("end") == "" {
			return errors.New("it does not")
		}
		return nil
	})
}
