package link

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// denyPolicy denies the node NAME to delete pods, and to report the status of the pod "two". An admission webhook
// denies with code 400 where this policy has 422.
const denyPolicy = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: deny-NAME}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [DELETE], resources: [pods]}
    - {apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [pods/status]}
  matchConditions:
  - {name: node, expression: "request.userInfo.username == 'system:node:NAME'"}
  validations:
  - {expression: "request.operation == 'UPDATE' && request.name != 'two'", message: denied for a moment}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: deny-NAME}
spec: {policyName: deny-NAME, validationActions: [Deny]}
`

// testDenied: an admission policy denies the end of one pod and the status of another. Once the policy is gone, both
// reach the API server, over the same link.
func testDenied(t *testing.T, c *env.Cluster) {
	e := startEdge(t, c, nil)
	e.apply(e.pod("one", env.Forever))
	e.running("one")
	c.Apply(strings.ReplaceAll(denyPolicy, "NAME", e.NodeName))
	wait.Until(t, "the policy to be in force", func() error {
		_, err := c.Kube.Kubectl(t.Context(), "delete", "pod", "one", "-n", e.NodeName, "--grace-period=0",
			"--dry-run=server", "--wait=false", "--as=system:node:"+e.NodeName, "--as-group=system:nodes")
		switch {
		case err == nil:
			return errors.New("a node may delete its pod")
		case !strings.Contains(err.Error(), "denied for a moment"):
			return err
		}
		return nil
	})
	links := e.Metric("edgecore_link_connects_total")
	e.apply(e.pod("two", env.Forever))
	e.Running("two")
	e.refusals("podpatch")
	c.Kubectl("delete", "pod", "one", "-n", e.NodeName, "--wait=false")
	e.containersGone("one")
	e.refusals("pod")
	c.Kubectl("delete", "validatingadmissionpolicybinding", "deny-"+e.NodeName)
	e.running("two")
	e.gone("one")
	if now := e.Metric("edgecore_link_connects_total"); now != links {
		t.Errorf("links after the policy is gone = %s, want still %s", now, links)
	}
}

// refusals waits until the API server has refused three requests of a type as invalid: the report is sent again.
func (e *edge) refusals(resource string) {
	e.T.Helper()
	count := regexp.MustCompile(`cloudcore_edgecontroller_requests_total\{code="422",operation="[a-z]+",type="` + resource +
		`"\} (\d+)`)
	wait.Until(e.T, "reports to be refused with 422: "+resource, func() error {
		text, err := e.cluster.Cloud.Get(e.T.Context(), "/metrics")
		if err != nil {
			return err
		}
		var n int
		if found := count.FindStringSubmatch(text); found != nil {
			if _, err := fmt.Sscan(found[1], &n); err != nil {
				return err
			}
		}
		if n < 3 {
			return fmt.Errorf("%d of %s", n, resource)
		}
		return nil
	})
}
