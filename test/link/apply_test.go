package link

import (
	"fmt"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// testApply: what kubectl apply asks for runs on the edge, and what happens there is seen with kubectl.
func testApply(t *testing.T, c *env.Cluster) {
	e := startEdge(t, c, nil)
	for _, test := range []struct {
		name string
		run  func(*edge)
	}{
		{"node", (*edge).checkNode},
		{"pod with configmap, secret and token", (*edge).checkObjects},
		{"deployment, daemonset and service", (*edge).checkWorkloads},
		{"deletion", (*edge).checkDeletion},
		{"events", (*edge).checkEvents},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(e.with(t))
		})
	}
}

func (e *edge) checkNode() {
	t := e.T
	n := e.cluster.NodeUntil(e.NodeName, "to have our labels", func(n *v1.Node) error {
		_, edge := n.Labels["node-role.kubernetes.io/edge"]
		if !edge || n.Labels[v1.LabelHostname] != e.NodeName {
			return fmt.Errorf("labels are %v, want node-role.kubernetes.io/edge and hostname %s", n.Labels, e.NodeName)
		}
		return nil
	})
	info := n.Status.NodeInfo
	if n.Status.Capacity.Cpu().IsZero() || n.Status.Allocatable.Pods().IsZero() || info.BootID == "" ||
		!strings.HasPrefix(info.ContainerRuntimeVersion, "containerd://") ||
		!strings.Contains(info.KubeletVersion, "edgecore") {
		t.Errorf("node status is %+v, want cpu, pods, a boot ID, a containerd and a version of edgecore", n.Status)
	}
	var lease *coordinationv1.Lease
	wait.Until(t, "the node's lease", func() (err error) {
		lease, err = e.cluster.API.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), e.NodeName,
			metav1.GetOptions{})
		return err
	})
	if got := ptr.Deref(lease.Spec.HolderIdentity, ""); got != e.NodeName {
		t.Errorf("holder of the lease = %q, want %q", got, e.NodeName)
	}
	wait.Until(t, "the lease to be renewed", func() error {
		now, err := e.cluster.API.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), e.NodeName,
			metav1.GetOptions{})
		if err == nil && !now.Spec.RenewTime.After(lease.Spec.RenewTime.Time) {
			err = fmt.Errorf("renewed at %v", now.Spec.RenewTime)
		}
		return err
	})
}

func (e *edge) checkObjects() {
	t := e.T
	e.apply(confAndKey, e.pod("full", "echo env $FROM_MAP; "+env.Forever, `  volumes:
  - {name: conf, configMap: {name: conf}}
  - {name: key, secret: {secretName: key}}`)+
		`    env: [{name: FROM_MAP, valueFrom: {configMapKeyRef: {name: conf, key: a}}}]
    volumeMounts: [{name: conf, mountPath: /conf}, {name: key, mountPath: /key}]
`)
	e.running("full")
	const token = "/var/run/secrets/kubernetes.io/serviceaccount/"
	out, err := e.ExecIn("full", "sh", "-c",
		"cat /conf/a /key/k; echo; cut -c1-3 "+token+"token; head -1 "+token+"ca.crt; cat "+token+"namespace")
	if want := "onehush\neyJ\n-----BEGIN CERTIFICATE-----\n" + e.NodeName; err != nil || out != want {
		t.Errorf("files in the container = %q, %v, want %q", out, err, want)
	}
	before := e.ContainersOf("full")
	e.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {a: two}\n")
	e.apply("apiVersion: v1\nkind: Secret\nmetadata: {name: key}\nstringData: {k: hark}\n")
	wait.Until(t, "the volumes to be updated", func() error {
		out, err := e.ExecIn("full", "cat", "/conf/a", "/key/k")
		if err == nil && out != "twohark" {
			err = fmt.Errorf("they have %q, want %q", out, "twohark")
		}
		return err
	})
	if after := e.ContainersOf("full"); len(after) != 1 || after[0] != before[0] {
		t.Errorf("containers after the update = %v, want %v", after, before)
	}
}

func (e *edge) checkWorkloads() {
	t := e.T
	workload := func(kind, name, replicas string) string {
		return fmt.Sprintf(`apiVersion: apps/v1
kind: %s
metadata: {name: %s}
spec:
  %s
  selector: {matchLabels: {app: %s}}
  template:
    metadata: {labels: {app: %s}}
    spec:
      nodeSelector: {kubernetes.io/hostname: %s}
      terminationGracePeriodSeconds: 1
      containers:
      - {name: main, image: "edgecore.local/demo:1", imagePullPolicy: IfNotPresent, command: [sh, -c, %q]}
`, kind, name, replicas, name, name, e.NodeName, env.Forever)
	}
	e.apply(`apiVersion: v1
kind: Service
metadata: {name: redis-primary}
spec: {selector: {app: web}, ports: [{port: 6379}]}
`)
	e.apply(workload("Deployment", "web", "replicas: 2"), workload("DaemonSet", "agent", ""))
	apps := e.cluster.API.AppsV1()
	wait.Until(t, "the workloads to be ready", func() error {
		web, err := apps.Deployments(e.NodeName).Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		agent, err := apps.DaemonSets(e.NodeName).Get(t.Context(), "agent", metav1.GetOptions{})
		if err == nil && (web.Status.ReadyReplicas != 2 || agent.Status.NumberReady != 1) {
			err = fmt.Errorf("deployment %+v, daemonset %+v", web.Status, agent.Status)
		}
		return err
	})
	core := e.cluster.API.CoreV1()
	service, err := core.Services(e.NodeName).Get(t.Context(), "redis-primary", metav1.GetOptions{})
	env.Must(t, err)
	pods, err := core.Pods(e.NodeName).List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	env.Must(t, err)
	out, err := e.ExecIn(pods.Items[0].Name, "sh", "-c",
		"echo $REDIS_PRIMARY_SERVICE_HOST:$REDIS_PRIMARY_SERVICE_PORT $KUBERNETES_SERVICE_PORT")
	if want := service.Spec.ClusterIP + ":6379 443\n"; err != nil || out != want {
		t.Errorf("environment of the service = %q, %v, want %q", out, err, want)
	}
	e.cluster.Kubectl("-n", e.NodeName, "delete", "deployment/web", "daemonset/agent", "--wait=false")
	wait.Until(t, "the pods of the workloads to be gone", func() error {
		left, err := core.Pods(e.NodeName).List(t.Context(), metav1.ListOptions{LabelSelector: "app in (web, agent)"})
		if err == nil && len(left.Items) > 0 {
			err = fmt.Errorf("%d pods are left", len(left.Items))
		}
		return err
	})
}

func (e *edge) checkDeletion() {
	e.apply(e.pod("graceful", "trap 'sleep 2; exit 0' TERM; while true; do sleep 1 & wait; done"))
	e.apply(e.pod("forced", env.Forever))
	e.running("graceful", "forced")
	e.delete("graceful", 3600) // it ends by itself, long before that
	e.delete("forced", 0)
	e.gone("graceful", "forced")
	e.containersGone("graceful", "forced")
}

// delete deletes a pod with a grace period.
func (e *edge) delete(pod string, grace int64) {
	e.T.Helper()
	opts := metav1.DeleteOptions{GracePeriodSeconds: &grace}
	env.Must(e.T, e.cluster.API.CoreV1().Pods(e.NodeName).Delete(e.T.Context(), pod, opts))
}

func (e *edge) checkEvents() {
	e.apply(e.pod("bad", "true") + "    envFrom: [{configMapRef: {name: nowhere}}]\n")
	wait.Until(e.T, "kubectl describe to say why the pod does not start", func() error {
		out := e.cluster.Kubectl("-n", e.NodeName, "describe", "pod", "bad")
		if !strings.Contains(out, `configmap "nowhere" not found`) || !strings.Contains(out, "edgecore") {
			return fmt.Errorf("it says:\n%s", out)
		}
		return nil
	})
	e.cluster.Kubectl("-n", e.NodeName, "delete", "pod", "bad")
}
