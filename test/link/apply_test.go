package link

import (
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestApply: what kubectl apply asks for runs on the edge, and what happens there is seen with kubectl.
func TestApply(t *testing.T) {
	s := newSite(t, siteOptions{})
	t.Run("node", func(t *testing.T) { s.checkNode(t) })
	t.Run("pod with configmap, secret and token", func(t *testing.T) { s.checkObjects(t) })
	t.Run("deployment, daemonset and service", func(t *testing.T) { s.checkWorkloads(t) })
	t.Run("deletion", func(t *testing.T) { s.checkDeletion(t) })
	t.Run("events", func(t *testing.T) { s.checkEvents(t) })
}

// with returns the same site for a subtest.
func (s *site) with(t *testing.T) *site {
	own := *s
	own.t = t
	return &own
}

func (s *site) checkNode(t *testing.T) {
	s = s.with(t)
	var n *v1.Node
	s.until("it has our labels", func() (err error) {
		if n, err = s.api.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{}); err != nil {
			return err
		}
		if _, edge := n.Labels["node-role.kubernetes.io/edge"]; !edge || n.Labels[v1.LabelHostname] != node {
			return fmt.Errorf("labels %v", n.Labels)
		}
		return nil
	})
	if n.Status.Capacity.Cpu().IsZero() || n.Status.Allocatable.Pods().IsZero() || n.Status.NodeInfo.BootID == "" ||
		!strings.HasPrefix(n.Status.NodeInfo.ContainerRuntimeVersion, "containerd://") || !strings.Contains(n.Status.NodeInfo.KubeletVersion, "edgecore") {
		t.Errorf("status %+v", n.Status)
	}
	var lease *coordinationv1.Lease
	s.until("it has a lease", func() (err error) {
		lease, err = s.api.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), node, metav1.GetOptions{})
		return err
	})
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity != node {
		t.Errorf("lease %+v", lease.Spec)
	}
	s.until("the lease is renewed", func() error {
		now, err := s.api.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), node, metav1.GetOptions{})
		if err == nil && !now.Spec.RenewTime.After(lease.Spec.RenewTime.Time) {
			err = fmt.Errorf("renewed at %v", now.Spec.RenewTime)
		}
		return err
	})
}

func (s *site) checkObjects(t *testing.T) {
	s = s.with(t)
	s.apply(`apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {a: one}
---
apiVersion: v1
kind: Secret
metadata: {name: key}
stringData: {k: hush}
---
` + podOn("full", "echo env $FROM_MAP; "+forever, `
  volumes:
  - {name: conf, configMap: {name: conf}}
  - {name: key, secret: {secretName: key}}
`) + `    env: [{name: FROM_MAP, valueFrom: {configMapKeyRef: {name: conf, key: a}}}]
    volumeMounts: [{name: conf, mountPath: /conf}, {name: key, mountPath: /key}]
`)
	s.until("it runs", s.running("full"))
	const token = "/var/run/secrets/kubernetes.io/serviceaccount/"
	out, err := s.exec("full", "sh", "-c", "cat /conf/a /key/k; echo; cut -c1-3 "+token+"token; head -1 "+token+"ca.crt; cat "+token+"namespace")
	if want := "onehush\neyJ\n-----BEGIN CERTIFICATE-----\ndefault"; err != nil || out != want {
		t.Errorf("in the container: %q, %v; want %q", out, err, want)
	}
	before := s.lives()
	s.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {a: two}\n")
	s.apply("apiVersion: v1\nkind: Secret\nmetadata: {name: key}\nstringData: {k: hark}\n")
	began := time.Now()
	s.until("the volumes follow", func() error {
		out, err := s.exec("full", "cat", "/conf/a", "/key/k")
		if err == nil && out != "twohark" {
			err = fmt.Errorf("they have %q", out)
		}
		return err
	})
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("an update took %v to reach the volume, want less than 30 s", took)
	}
	for id := range s.lives() {
		if before[id] == 0 {
			t.Error("an update of a configmap restarted a container")
		}
	}
}

func (s *site) checkWorkloads(t *testing.T) {
	s = s.with(t)
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
      terminationGracePeriodSeconds: 1
      containers:
      - {name: main, image: "edgecore.local/demo:1", imagePullPolicy: IfNotPresent, command: [sh, -c, %q]}
---
`, kind, name, replicas, name, name, forever)
	}
	s.apply(`apiVersion: v1
kind: Service
metadata: {name: redis-primary}
spec: {selector: {app: web}, ports: [{port: 6379}]}
`)
	s.apply(workload("Deployment", "web", "replicas: 2") + workload("DaemonSet", "agent", ""))
	s.until("all are there", func() error {
		web, err := s.api.AppsV1().Deployments("default").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		agent, err := s.api.AppsV1().DaemonSets("default").Get(t.Context(), "agent", metav1.GetOptions{})
		if err == nil && (web.Status.ReadyReplicas != 2 || agent.Status.NumberReady != 1) {
			err = fmt.Errorf("deployment %+v, daemonset %+v", web.Status, agent.Status)
		}
		return err
	})
	service, err := s.api.CoreV1().Services("default").Get(t.Context(), "redis-primary", metav1.GetOptions{})
	s.must(err)
	pods, err := s.api.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	s.must(err)
	out, err := s.exec(pods.Items[0].Name, "sh", "-c", "echo $REDIS_PRIMARY_SERVICE_HOST:$REDIS_PRIMARY_SERVICE_PORT $KUBERNETES_SERVICE_PORT")
	if want := service.Spec.ClusterIP + ":6379 443\n"; err != nil || out != want {
		t.Errorf("environment of the service: %q, %v; want %q", out, err, want)
	}
	s.kubectl("delete", "deployment/web", "daemonset/agent", "--wait=false")
	s.until("their pods are gone", func() error {
		left, err := s.api.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app in (web, agent)"})
		if err == nil && len(left.Items) > 0 {
			err = fmt.Errorf("%d pods are left", len(left.Items))
		}
		return err
	})
}

func (s *site) checkDeletion(t *testing.T) {
	s = s.with(t)
	s.apply(podOn("graceful", "trap 'sleep 2; exit 0' TERM; while true; do sleep 1 & wait; done", ""))
	s.apply(podOn("forced", forever, ""))
	s.until("they run", s.running("graceful", "forced"))
	s.must(s.api.CoreV1().Pods("default").Delete(t.Context(), "graceful", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](30)}))
	s.must(s.api.CoreV1().Pods("default").Delete(t.Context(), "forced", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
	s.until("both are gone", s.gone("graceful", "forced"))
	s.until("and their containers are", func() error {
		for _, name := range []string{"graceful", "forced"} {
			if _, err := s.exec(name, "true"); err == nil {
				return fmt.Errorf("%s still runs", name)
			}
		}
		return nil
	})
}

func (s *site) checkEvents(t *testing.T) {
	s = s.with(t)
	s.apply(podOn("bad", "true", "") + "    envFrom: [{configMapRef: {name: nowhere}}]\n")
	s.until("kubectl describe tells why", func() error {
		if out := s.kubectl("describe", "pod", "bad"); !strings.Contains(out, `configmap "nowhere" not found`) || !strings.Contains(out, "edgecore") {
			return fmt.Errorf("it says:\n%s", out)
		}
		return nil
	})
	s.kubectl("delete", "pod", "bad")
}
