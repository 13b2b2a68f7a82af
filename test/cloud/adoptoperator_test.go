package cloud

import (
	"errors"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/adopt"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// noCloudcore is an admission policy that refuses Deployments with an image.
const noCloudcore = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: images}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules: [{apiGroups: [apps], apiVersions: [v1], operations: [CREATE], resources: [deployments]}]
  validations:
  - expression: "object.spec.template.spec.containers.all(c, !c.image.startsWith('IMAGE'))"
    message: "images of IMAGE are not allowed here"
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: images}
spec: {policyName: images, validationActions: [Deny]}
`

// noUpdates is an admission policy that refuses updates of cloudcore's ConfigMap.
const noUpdates = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: images}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [configmaps]}]
  validations:
  - expression: "object.metadata.name != 'cloudcore'"
    message: "updates are not allowed here"
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: images}
spec: {policyName: images, validationActions: [Deny]}
`

// TestAdoptOperator: what an operator of the cluster has set up is found before anything is changed, or named with what
// to do about it: admission policies, and a node that is lost with its pod.
func TestAdoptOperator(t *testing.T) {
	t.Parallel()
	a := startAdoption(t, "nodeport")
	theirs, _ := a.state()
	const creation = "create deployment/cloudcore"
	probe := func(image string) {
		t.Helper()
		wait.Until(t, "the policy refuses "+image, func() error {
			_, err := a.cluster.Kubectl(t.Context(), "create", "deployment", "probe", "--image", image+"/a",
				"--dry-run=server")
			if err == nil {
				return errors.New("it does not")
			}
			return nil
		})
	}
	refused := func(what string, do command, step string, before map[string]string) {
		t.Helper()
		out, writes, err := a.run(do, 0, false)
		for _, want := range []string{
			"REFUSED: " + step + " (dry run): ", "not allowed here", "remedy: change the admission policy",
		} {
			if !errors.Is(err, adopt.ErrRefused) || writes != 0 || !strings.Contains(out, want) ||
				!strings.HasSuffix(err.Error(), "nothing was changed") {
				t.Errorf("%s: %v after %d writes, want a refusal before the first that prints %q:\n%s", what, err,
					writes, want, out)
			}
		}
		now, _ := a.state()
		same(t, what, before, now)
	}
	for _, image := range []string{"registry.example.com", "kubeedge"} { // ours, and theirs, to which undo goes back
		a.create("the policy", strings.ReplaceAll(noCloudcore, "IMAGE", image))
		probe(image)
		before, _ := a.state()
		refused("plan without "+image, (*adopt.Adoption).Plan, creation, before)
		refused("apply without "+image, (*adopt.Adoption).Apply, creation, before)
	}
	a.unpolice()

	// A policy on updates is not evaded by deleting the object and creating it again.
	a.create("the policy", noUpdates)
	wait.Until(t, "the policy refuses updates", func() error {
		if a.mayUpdate() == nil {
			return errors.New("it does not")
		}
		return nil
	})
	before, _ := a.state()
	refused("plan without updates", (*adopt.Adoption).Plan, "replace configmap/cloudcore", before)
	a.unpolice()

	a.lostNode()
	a.create("the policy", strings.ReplaceAll(noCloudcore, "IMAGE", "kubeedge"))
	probe("kubeedge")
	before, _ = a.state()
	refused("undo without kubeedge", (*adopt.Adoption).Undo, creation, before)
	a.unpolice()
	a.must((*adopt.Adoption).Undo)
	now, _ := a.state()
	same(t, "undo", theirs, now)
}

// unpolice deletes the policy.
func (a *adoption) unpolice() {
	a.t.Helper()
	a.kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", "images")
	wait.Until(a.t, "the policy is gone", func() error {
		for _, image := range []string{"registry.example.com/a", "kubeedge/a"} {
			if _, err := a.cluster.Kubectl(a.t.Context(), "create", "deployment", "probe", "--image", image,
				"--dry-run=server"); err != nil {
				return err
			}
		}
		return a.mayUpdate()
	})
}

// mayUpdate returns the error of an update of cloudcore's ConfigMap, which it does not change.
func (a *adoption) mayUpdate() error {
	_, err := a.cluster.Kubectl(a.t.Context(), "label", "configmap", "-n", "kubeedge", "cloudcore", "a=b",
		"--dry-run=server")
	return err
}

// lostNode applies while cloudcore's pod is on a node that is lost, and then with the command that the error names.
func (a *adoption) lostNode() {
	a.t.Helper()
	pod := a.kubectl("get", "pods", "-n", "kubeedge", "-l", "kubeedge=cloudcore", "-o",
		"jsonpath={.items[0].metadata.name}")
	a.create("the node", "{apiVersion: v1, kind: Node, metadata: {name: lost}}")
	binding := &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: pod}, Target: v1.ObjectReference{Kind: "Node", Name: "lost"},
	}
	err := a.cluster.Client().CoreV1().Pods("kubeedge").Bind(a.t.Context(), binding, metav1.CreateOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	a.wait = 3 * time.Second
	first, _, err := a.run((*adopt.Adoption).Apply, 0, false)
	a.wait = time.Minute
	command := "kubectl -n kubeedge delete pod " + pod + " --force"
	want := `on node "lost". If that node is lost for good, ` + "`" + command + "` forgets the pod\n" +
		"`cloudcore adopt apply` goes on from here, `cloudcore adopt undo` goes back"
	if err == nil || !strings.HasSuffix(err.Error(), want) {
		a.t.Errorf("apply with a pod on a node that is lost: %v, want %q at its end\n%s", err, want, first)
	}
	a.kubectl(strings.Fields(command)[1:]...)
	a.must((*adopt.Adoption).Apply)
	a.kubectl("delete", "node", "lost")
}
