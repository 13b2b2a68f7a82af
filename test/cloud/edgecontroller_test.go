package cloud

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestEdgeController goes through a node's life, with the rights of deploy/cloudcore/base/rbac.yaml and no more.
func TestEdgeController(t *testing.T) {
	t.Parallel()
	c := start(t, kube.Options{
		ControllerManager: true, APIServerFlags: []string{"--feature-gates=ClusterTrustBundle=true",
			"--runtime-config=" + trustBundles + "/clustertrustbundles=true"},
	}, "base/rbac.yaml")
	c.control()
	c.defaultAccount()
	if c.how != impersonate.UserOnly {
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
		{"events that are refused", foreignEvents},
		{"events of others", eventsOfOthers},
		{"late statuses", lateStatuses},
		{"certificate requests", certificateRequests},
		{"volumes", volumes},
		{"runtime classes, CSI drivers and trust bundles", rareObjects},
		{"services", services},
		{"reviews of users", reviews},
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
	t.Parallel()
	c := start(t, kube.Options{APIServerFlags: []string{"--feature-gates=ConstrainedImpersonation=false"}},
		"base/rbac.yaml", "before-1.36/rbac.yaml")
	c.control()
	if c.how != impersonate.UserAndGroup {
		t.Errorf("cloudcore acts for nodes in way %d, want by user and group", c.how)
	}
	c.register("wide")
	c.must("wide", "patch", "null/nodepatch/wide", `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)
	c.refused("wide", "query", "kube-system/secret/none", nil, metav1.StatusReasonForbidden)
}

// TestAPIServerRestarts: meanwhile, nothing is said to be gone and requests fail in a way that is tried again;
// afterwards, changes arrive.
func TestAPIServerRestarts(t *testing.T) {
	t.Parallel()
	c := start(t, kube.Options{ControllerManager: true}, "base/rbac.yaml")
	c.control()
	c.defaultAccount()
	c.register("r1")
	c.apply(`{apiVersion: v1, kind: ConfigMap, metadata: {name: conf}, data: {a: "1"}}`)
	c.pod("r1", "runs", ", volumes: [{name: v, configMap: {name: conf}}]")
	c.wants("r1", "default/configmap/conf")
	c.wants("r1", "default/configmap/kube-root-ca.crt") // which Kubernetes makes when it comes to that
	if o, err := c.ctl.Object("r1", key("default/pod/runs")); o == nil || err != nil {
		t.Fatalf("a pod that the node does not hold yet = %v, %v, want the pod", o, err)
	}
	if o, err := c.ctl.Object("r1", key("default/configmap/conf")); o == nil || err != nil { // which goes before it
		t.Fatalf("a configmap that the node does not hold yet = %v, %v, want the configmap", o, err)
	}
	c.ctl.Connected(t.Context(), "r2", "edgecore/websocket")
	t.Cleanup(func() { c.ctl.Disconnected("r2", "the test ended") })
	if err := c.cluster.APIServer.Kill9(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := len(c.ctl.Desired("r1"))
	if o, err := c.ctl.Object("r1", key("default/pod/runs")); o == nil || err != nil {
		t.Errorf("a pod, from memory = %v, %v, want the pod", o, err)
	}
	for _, unknown := range []string{"default/pod/other", "default/secret/other", "default/configmap/other"} {
		if o, err := c.ctl.Object("r2", key(unknown)); o != nil || err == nil {
			t.Errorf("%s without an API server = %v, %v, want an error", unknown, o, err)
		}
	}
	if conf := object[v1.ConfigMap](c, c.must("r1", "query", "default/configmap/conf", nil)); conf.Data["a"] != "1" {
		t.Errorf("a configmap, from memory = %+v, want a=1", conf)
	}
	if f := c.parse(c.ask("r1", "patch", "null/nodepatch/r1", "{}")).failure(); f == nil || f.Code < 500 {
		t.Errorf("failure of a write = %+v, want a code of 500 or more", f)
	}
	if err := c.cluster.APIServer.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.apply(`{apiVersion: v1, kind: ConfigMap, metadata: {name: conf}, data: {a: "2"}}`)
	wait.Until(c.t, "the change arrives", func() error {
		o, err := c.ctl.Object("r1", key("default/configmap/conf"))
		if err != nil || o == nil || !strings.Contains(string(o.JSON), `"a":"2"`) {
			return fmt.Errorf("it is %v, %v, want a=2", o, err)
		}
		return nil
	})
	if after := len(c.ctl.Desired("r1")); after != before {
		t.Errorf("%d objects are desired, want %d as before the restart", after, before)
	}
	c.must("r1", "patch", "null/nodepatch/r1", "{}")
}
