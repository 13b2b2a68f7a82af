package cloud

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestPolicies: with deploy/cloudcore/base/policy.yaml, what cloudcore does passes, and everything else that its rights
// to patch pods and nodes and to write Leases would allow is refused with the policy's words. Administrators and nodes
// are not concerned.
func TestPolicies(t *testing.T) {
	t.Parallel()
	c := start(t, kube.Options{ControllerManager: true}, "base/rbac.yaml", "base/policy.yaml")
	own, err := kubernetes.NewForConfig(c.config)
	if err != nil {
		t.Fatal(err)
	}
	c.control()
	c.defaultAccount()
	patchNode := func(client kubernetes.Interface, patch string) error {
		_, err := client.CoreV1().Nodes().Patch(t.Context(), "edge", types.MergePatchType, []byte(patch),
			metav1.PatchOptions{})
		return err
	}
	patchPod := func(client kubernetes.Interface, kind types.PatchType, patch string) error {
		_, err := client.CoreV1().Pods("default").Patch(t.Context(), "web", kind, []byte(patch), metav1.PatchOptions{})
		return err
	}

	// The API server takes note of policies a moment after they are made.
	c.register("edge")
	c.pod("edge", "web", "")
	const foreign = `{"metadata":{"labels":{"example.com/zone":"a"}}}`
	try := 0 // a patch that changes nothing is never refused
	next := func() string {
		try++
		return fmt.Sprintf(`{"metadata":{"labels":{"example.com/zone":"try-%d"}}}`, try)
	}
	for what, patch := range map[string]func() error{
		"nodes": func() error { return patchNode(own, next()) },
		"pods":  func() error { return patchPod(own, types.MergePatchType, next()) },
	} {
		wait.Until(t, "the policy of "+what+" is in force", func() error {
			if err := patch(); err == nil {
				return errors.New("labels are not refused")
			}
			return nil
		})
	}
	policies := c.admin.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	for _, name := range []string{"cloudcore-pods", "cloudcore-nodes", "cloudcore-node-creation", "cloudcore-leases"} {
		wait.Until(t, "the expressions of "+name+" are checked", func() error {
			policy, err := policies.Get(t.Context(), name, metav1.GetOptions{})
			if err == nil && policy.Status.TypeChecking == nil {
				err = errors.New("they are not")
			}
			if err == nil && len(policy.Status.TypeChecking.ExpressionWarnings) > 0 {
				t.Fatalf("warnings about %s = %+v, want none", name, policy.Status.TypeChecking.ExpressionWarnings)
			}
			return err
		})
	}

	// What cloudcore does.
	c.register("labelled")
	node, err := c.admin.CoreV1().Nodes().Get(t.Context(), "labelled", metav1.GetOptions{})
	if _, edge := node.Labels["node-role.kubernetes.io/edge"]; err != nil || !edge {
		t.Errorf("labels of a registered node = %v, %v, want node-role.kubernetes.io/edge among them", node.Labels, err)
	}
	c.pod("labelled", "later", "")
	wait.Until(t, "tolerations change under the policy", func() error { return c.tolerant("later") })
	for _, patch := range []string{
		`{"metadata":{"labels":{"node-role.kubernetes.io/agent":""}}}`,
		`{"metadata":{"labels":{"edgecore.io.node-restriction.kubernetes.io/holder":"device-1"}}}`,
		`{"metadata":{"labels":{"edgecore.io.node-restriction.kubernetes.io/holder":"device-2"}}}`,
		`{"metadata":{"annotations":{"edgecore.io/instance":"00112233445566778899aabbccddeeff 2026-11-22T10:11:12.131Z"}}}`,
		`{"metadata":{"annotations":{"edgecore.io/instance":"ffeeddccbbaa99887766554433221100 2026-11-22T10:11:12.132Z"}}}`,
	} {
		if err := patchNode(own, patch); err != nil {
			t.Errorf("patch %s of a node = %v, want it allowed", patch, err)
		}
	}

	// What it could do beyond that.
	const spec = "nothing in a pod's specification but its tolerations"
	const others = "for nodes that are not ready or unreachable, and no others"
	const podMeta = "nothing in a pod's metadata"
	for _, row := range []struct {
		kind        types.PatchType
		patch, want string
	}{
		{types.StrategicMergePatchType, `{"spec":{"containers":[{"name":"c","image":"example.com/other:1"}]}}`, spec},
		{types.MergePatchType, `{"spec":{"activeDeadlineSeconds":1}}`, spec},
		{types.JSONPatchType, `[{"op":"add","path":"/spec/tolerations/-","value":{"operator":"Exists"}}]`, others},
		{types.JSONPatchType, `[{"op":"add","path":"/spec/tolerations/-","value":{"key":"a","operator":"Exists"}}]`,
			others},
		{types.MergePatchType, foreign, podMeta},
		{types.MergePatchType, `{"metadata":{"annotations":{"a":"b"}}}`, podMeta},
		{types.MergePatchType, `{"metadata":{"finalizers":["example.com/stay"]}}`, podMeta},
	} {
		if err := refusedBy(patchPod(own, row.kind, row.patch), row.want); err != nil {
			t.Errorf("patch %s of a pod: %v", row.patch, err)
		}
	}
	if err := patchNode(c.admin, `{"metadata":{"annotations":{"site":"7"}},
		"spec":{"taints":[{"key":"example.com/wet","effect":"NoSchedule"}]}}`); err != nil {
		t.Fatal(err)
	}
	const labels = "may set the labels node-role.kubernetes.io/edge"
	const annotations = "may set the annotation edgecore.io/instance of a node, and change no others"
	for patch, want := range map[string]string{
		foreign: labels,
		`{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`: labels,
		`{"metadata":{"labels":{"site":null}}}`:                                labels,
		`{"metadata":{"labels":{"node-role.kubernetes.io/edge":null}}}`:        labels,
		`{"metadata":{"labels":null}}`:                                         labels,
		`{"metadata":{"annotations":{"a":"b"}}}`:                               annotations,
		`{"metadata":{"annotations":{"edgecore.io/instance":"x"}}}`:            annotations,
		`{"metadata":{"annotations":{"edgecore.io/instance":null}}}`:           annotations,
		`{"metadata":{"annotations":{"site":null}}}`:                           annotations,
		`{"metadata":{"annotations":null}}`:                                    annotations,
		`{"metadata":{"finalizers":["example.com/stay"]}}`: "nothing in a node's metadata but " +
			"labels",
		`{"spec":{"unschedulable":true}}`:                        "nothing in a node's specification",
		`{"spec":{"taints":[{"key":"a","effect":"NoExecute"}]}}`: "nothing in a node's specification",
		`{"spec":{"taints":null}}`:                               "nothing in a node's specification",
	} {
		if err := refusedBy(patchNode(own, patch), want); err != nil {
			t.Errorf("patch %s of a node: %v", patch, err)
		}
	}

	create := func(name string, labels map[string]string) error {
		_, err := own.CoreV1().Nodes().Create(t.Context(), &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		}, metav1.CreateOptions{})
		return err
	}
	for _, labels := range []map[string]string{nil, {"site": "pump-7"}, {"node-role.kubernetes.io/edge": "no"}} {
		if err := refusedBy(create("server", labels),
			"no node without the label node-role.kubernetes.io/edge"); err != nil {
			t.Errorf("create a node with the labels %v: %v", labels, err)
		}
	}
	if err := create("device", map[string]string{"node-role.kubernetes.io/edge": ""}); err != nil {
		t.Errorf("create a device's node = %v, want it allowed", err)
	}

	c.leases(own)

	// Others.
	c.must("edge", "patch", "null/nodepatch/edge", `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)
	changed := edgeNode("edge")
	changed.Labels = map[string]string{"site": "pump-8"}
	changed.Annotations = map[string]string{"by": "node"}
	c.must("edge", "update", "null/node/edge", changed)
	if err := patchNode(c.admin, foreign); err != nil {
		t.Errorf("an administrator's patch of a node = %v, want it allowed", err)
	}
	if err := patchPod(c.admin, types.MergePatchType, foreign); err != nil {
		t.Errorf("an administrator's patch of a pod = %v, want it allowed", err)
	}
}

// leases checks that cloudcore may write Leases of cloudcores alone.
func (c *cloud) leases(own kubernetes.Interface) {
	c.t.Helper()
	const words = "no Leases but those of cloudcores"
	ctx := c.t.Context()
	leases, admins := own.CoordinationV1().Leases("kubeedge"), c.admin.CoordinationV1().Leases("kubeedge")
	named := func(name string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	created := func(name string) error {
		_, err := leases.Create(ctx, named(name), metav1.CreateOptions{})
		return err
	}
	try := 0
	wait.Until(c.t, "the policy of leases is in force", func() error {
		try++
		return refusedBy(created(fmt.Sprintf("other-%d", try)), words)
	})
	c.gone("192.0.2.7") // creates, reads and updates its own
	if err := leases.Delete(ctx, "cloudcore-192-0-2-7", metav1.DeleteOptions{}); err != nil {
		c.t.Errorf("delete the lease of a cloudcore = %v, want it allowed", err)
	}
	other, err := admins.Create(ctx, named("scheduler"), metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	seconds := int32(10)
	other.Spec.LeaseDurationSeconds = &seconds
	_, updated := leases.Update(ctx, other, metav1.UpdateOptions{})
	for what, err := range map[string]error{
		"create": created("controller"),
		"update": updated,
		"delete": leases.Delete(ctx, "scheduler", metav1.DeleteOptions{}),
	} {
		if err := refusedBy(err, words); err != nil {
			c.t.Errorf("%s a lease that is not a cloudcore's: %v", what, err)
		}
	}
	if _, err := admins.Update(ctx, other, metav1.UpdateOptions{}); err != nil {
		c.t.Errorf("an administrator's update of a lease = %v, want it allowed", err)
	}
}

// refusedBy checks that a request was refused by a policy, with these words.
func refusedBy(err error, words string) error {
	if err == nil {
		return errors.New("it is allowed, want it refused")
	}
	if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "ValidatingAdmissionPolicy") || !strings.Contains(err.Error(), words) {
		return fmt.Errorf("refused with %q, want a ValidatingAdmissionPolicy that says %q", err, words)
	}
	return nil
}
