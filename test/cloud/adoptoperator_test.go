package cloud

import (
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/adopt"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// policy is an admission policy, and its binding, that refuses an operation on a resource of an API group unless an
// expression is true.
func policy(operation, group, resource, expression string) string {
	return fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: images}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules: [{apiGroups: [%q], apiVersions: [v1], operations: [%s], resources: [%s]}]
  validations:
  - expression: %q
    message: "this is not allowed here"
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: images}
spec: {policyName: images, validationActions: [Deny]}
`, group, operation, resource, expression)
}

// noImages is a policy that refuses new Deployments with images of a registry.
func noImages(registry string) string {
	return policy("CREATE", "apps", "deployments",
		"object.spec.template.spec.containers.all(c, !c.image.startsWith('"+registry+"'))")
}

// noUpdates is a policy that refuses updates of cloudcore's ConfigMap.
func noUpdates() string {
	return policy("UPDATE", "", "configmaps", "object.metadata.name != 'cloudcore'")
}

// TestAdoptOperator: what an operator of the cluster has set up is found before anything is changed, or named with what
// to do about it: an admission policy that refuses a Deployment, a node that is lost with its pod, and users who have
// rights by cloudcore's bindings.
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
		a.create("the policy", noImages(image))
		probe(image)
		before, _ := a.state()
		refused("plan without "+image, (*adopt.Adoption).Plan, creation, before)
		refused("apply without "+image, (*adopt.Adoption).Apply, creation, before)
	}
	a.unpolice()

	// A policy on updates is not evaded by deleting the object and creating it again.
	a.create("the policy", noUpdates())
	wait.Until(t, "the policy refuses updates", func() error {
		if a.mayUpdate() == nil {
			return errors.New("it does not")
		}
		return nil
	})
	before, _ := a.state()
	refused("plan without updates", (*adopt.Adoption).Plan, "replace configmap/cloudcore", before)
	a.unpolice()

	a.users()
	a.create("the policy", noImages("kubeedge"))
	probe("kubeedge")
	before, _ = a.state()
	refused("undo without kubeedge", (*adopt.Adoption).Undo, creation, before)
	a.unpolice()
	a.withoutCA()
	a.usersBack()
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

// may waits until a user may do something, or may not.
func (a *adoption) may(answer, user string, question ...string) {
	a.t.Helper()
	wait.Until(a.t, user+" may "+strings.Join(question, " ")+": "+answer, func() error {
		args := append([]string{"auth", "can-i", "--as=" + user}, question...)
		out, _ := a.cluster.Kubectl(a.t.Context(), args...) // it fails where the answer is no
		if strings.Fields(out + " -")[0] != answer {        // "no" may have a reason
			return fmt.Errorf("the answer is %q", out)
		}
		return nil
	})
}

// keep runs the commands that an output names for keeping rights.
func (a *adoption) keep(out string, want int) {
	a.t.Helper()
	commands := regexp.MustCompile(`(?m)printf .* \| kubectl apply -f -$`).FindAllString(out, -1)
	if len(commands) != want {
		a.t.Errorf("there are %d commands that keep rights, want %d:\n%s", len(commands), want, out)
	}
	for _, text := range commands {
		cmd := exec.CommandContext(a.t.Context(), "sh", "-euc",
			strings.ReplaceAll(text, "kubectl", a.cluster.KubectlPath()))
		cmd.Env = append(cmd.Environ(), "KUBECONFIG="+a.cluster.Kubeconfig(kube.AdminUser),
			"KUBECACHEDIR="+a.t.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil {
			a.t.Errorf("%s: %v, want no error\n%s", text, err, out)
		}
	}
}

// users adopts a cloud whose bindings operators have given to users. The plan and apply print commands that keep their
// rights, before and after apply.
func (a *adoption) users() {
	a.t.Helper()
	a.kubectl("patch", "clusterrolebinding", "cloudcore", "--type=json", "-p", `[{"op": "add", "path": "/subjects/-",
		"value": {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann o'hara"}}]`)
	a.kubectl("create", "rolebinding", "-n", "default", "bob", "--clusterrole=cloudcore", "--user=bob")
	a.may("yes", "ann o'hara", "update", "secrets")
	a.may("yes", "bob", "update", "secrets", "-n", "default")
	plan, _ := a.must((*adopt.Adoption).Plan)
	for _, want := range []string{
		"clusterrolebinding/cloudcore is replaced by one for edgecore's ServiceAccount alone, and no longer gives ",
		"rolebinding/bob in the namespace default gives User bob the ClusterRole cloudcore, whose rules become those",
	} {
		if !strings.Contains(plan, want) {
			a.t.Errorf("the plan does not print %q:\n%s", want, plan)
		}
	}
	out := a.lostNode()
	a.may("no", "ann o'hara", "update", "secrets")
	a.may("no", "bob", "update", "secrets", "-n", "default")
	a.keep(out, 2)
	a.may("yes", "ann o'hara", "update", "secrets")
	a.may("yes", "bob", "update", "secrets", "-n", "default")
	a.keep(plan, 2)
}

// lostNode applies while cloudcore's pod is on a node that is lost, and then with the command that the error names. It
// returns what the first apply prints.
func (a *adoption) lostNode() string {
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
	return first
}

// withoutCA asks for the plan of an adopted cloud without the CA that devices trust.
func (a *adoption) withoutCA() {
	a.t.Helper()
	saved := a.kubectl("get", "secret", "-n", "kubeedge", "casecret", "-o",
		"jsonpath=cadata: {.data.cadata}, cakeydata: {.data.cakeydata}")
	a.kubectl("delete", "secret", "-n", "kubeedge", "casecret")
	out, _ := a.must((*adopt.Adoption).Plan)
	if !strings.Contains(out, "warning: secret/casecret, the CA that devices trust, is gone") {
		a.t.Errorf("the plan without a CA does not say so:\n%s", out)
	}
	a.create("the CA", "{apiVersion: v1, kind: Secret, metadata: {name: casecret, namespace: kubeedge}, "+
		"data: {"+saved+"}}")
	out, _ = a.must((*adopt.Adoption).Plan)
	if strings.Contains(out, "casecret") {
		a.t.Errorf("the plan with the CA of before warns of it:\n%s", out)
	}
}

// usersBack goes back after operators have given users rights by edgecore's bindings and roles. Undo prints commands
// that keep these.
func (a *adoption) usersBack() {
	a.t.Helper()
	a.kubectl("patch", "clusterrolebinding", "cloudcore", "--type=json", "-p", `[{"op": "add", "path": "/subjects/-",
		"value": {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "carol"}}]`)
	a.kubectl("create", "clusterrolebinding", "dave", "--clusterrole=edgecore-devices-operator", "--user=dave")
	a.may("yes", "carol", "patch", "pods")
	a.may("yes", "dave", "patch", "devices.devices.kubeedge.io")
	out, _ := a.must((*adopt.Adoption).Undo)
	for _, want := range []string{
		"clusterrolebinding/cloudcore is replaced by KubeEdge's, and no longer gives rights to User carol. ",
		"clusterrolebinding/dave gives User dave clusterrole/edgecore-devices-operator, which is deleted",
		"rolebinding/bob in the namespace default gives User bob clusterrole/cloudcore, whose rules become KubeEdge's",
	} {
		if !strings.Contains(out, want) {
			a.t.Errorf("undo does not print %q:\n%s", want, out)
		}
	}
	a.may("no", "carol", "patch", "pods")
	a.may("no", "dave", "patch", "devices.devices.kubeedge.io")
	a.keep(out, 3)
	a.may("yes", "carol", "patch", "pods")
	a.may("yes", "dave", "patch", "devices.devices.kubeedge.io")
	a.may("yes", "ann o'hara", "update", "secrets")
	a.kubectl("delete", "clusterrolebinding", "cloudcore-kubeedge", "cloudcore-edgecore", "dave", "dave-edgecore")
	a.kubectl("delete", "clusterrole", "cloudcore-kubeedge", "cloudcore-edgecore", "edgecore-devices-operator-edgecore")
	a.kubectl("patch", "clusterrolebinding", "cloudcore", "--type=json", "-p",
		`[{"op": "remove", "path": "/subjects/1"}]`)
}
