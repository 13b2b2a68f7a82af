package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/proxy"
)

const (
	// patience is the timeout of every wait; on an idle machine each takes seconds.
	patience = 2 * time.Minute
	replicas = 3
	manifest = "hack/demo/web.yaml"
	oldPage  = "Hello from the cluster."
	newPage  = "Hello again: this was changed while the device was away."
)

// tell runs the story.
func (d *demo) tell(ctx context.Context) error {
	fmt.Fprintf(d.out,
		`This demo runs a Kubernetes cluster and an edge device on this machine. It shows how kubectl reaches the device's
pods although the device is behind NAT, and what happens to them when the link between the two is cut, the agent is
killed and every container is lost.

  the cluster   etcd, kube-apiserver, kube-controller-manager, kube-scheduler, metrics-server
  cloudcore     stands between kube-apiserver and the devices
  the link      a cable that this program can cut
  the device    %s: edgecore, on a containerd of its own, behind a router with NAT, with a sensor beside it

Lines that begin with $ are commands that are run here, followed by what they print. "device COMMAND" runs a command
on the device. All files are in %s. Ctrl-C ends the demo at any time; whatever it made is removed at its end.
`, node, shown(d.dir))
	for _, chapter := range []func(context.Context) error{d.cluster, d.cloudHalf, d.device, d.deployment, d.reach,
		d.readSensor, d.cut, d.loss, d.change, d.reconnect} {
		if err := chapter(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) cluster(ctx context.Context) error {
	d.title("Start a Kubernetes cluster")
	d.say("Its programs are built from source once, which takes about 13 minutes on 2 cores, and kept in the user's " +
		"cache folder.")
	if err := d.startCluster(ctx); err != nil {
		return err
	}
	_, err := d.sh(ctx, "kubectl version")
	return err
}

func (d *demo) cloudHalf(ctx context.Context) error {
	d.title("Install cloudcore")
	d.say("Its namespace, its rights and its kinds of objects come from deploy/cloudcore. A cluster of yours would " +
		"run its\nDeployment too; here it runs beside the cluster, as the service account kubeedge/cloudcore with " +
		"the same rights.")
	for _, command := range []string{
		"kubectl apply -k deploy/cloudcore/setup",
		"kubectl apply -f deploy/cloudcore/base/rbac.yaml -f deploy/cloudcore/base/devices.yaml",
	} {
		if _, err := d.sh(ctx, command); err != nil {
			return err
		}
	}
	if err := d.startCloud(ctx); err != nil {
		return err
	}
	_, err := d.sh(ctx, fmt.Sprintf("curl -sS 'http://127.0.0.1:%d/readyz?verbose'", d.cloud.Monitor))
	return err
}

func (d *demo) device(ctx context.Context) error {
	d.title("Join a device")
	d.say("The device is in a network of its own, behind a router that masquerades. It reaches this machine at %s,\n"+
		"and nothing outside has a route to it. It has a containerd with two images (built here from busybox: nothing "+
		"is pulled),\nand edgecore.", d.network.Host)
	if err := d.startRuntime(ctx); err != nil {
		return err
	}
	if err := d.makeDevice(); err != nil {
		return err
	}
	if _, err := d.sh(ctx, "device ip -4 -brief address show eth0"); err != nil {
		return err
	}
	d.say("A token from cloudcore gets it a certificate; the rest of its life it needs no token.")
	if _, err := d.sh(ctx, d.join()); err != nil {
		return err
	}
	if err := d.startAgent(ctx); err != nil {
		return err
	}
	if err := d.until(ctx, patience, "the node is Ready", func() error {
		return d.nodeIs(ctx, v1.ConditionTrue)
	}); err != nil {
		return err
	}
	_, err := d.sh(ctx, "kubectl get nodes -o wide")
	return err
}

func (d *demo) deployment(ctx context.Context) error {
	d.title("Run a Deployment on it")
	d.say("%d web servers that show a page out of a configmap.", replicas)
	if err := d.until(ctx, patience, "there is a default service account", func() error {
		_, err := d.kube.Client().CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	}); err != nil {
		return err
	}
	for _, command := range []string{
		"kubectl apply -f " + manifest,
		"kubectl rollout status deployment/web --timeout=120s",
		"kubectl get pods -o wide",
	} {
		if _, err := d.sh(ctx, command); err != nil {
			return err
		}
	}
	return d.showPage(ctx, oldPage)
}

func (d *demo) cut(ctx context.Context) error {
	d.title("Cut the link")
	d.say("From here on no byte passes between device and cloud. After %.0f s without a heartbeat the cluster calls "+
		"the node NotReady\n(Kubernetes' own time is 50 s). The device says itself what it knows of it.",
		gracePeriod.Seconds())
	d.cable(proxy.Cut)
	if err := d.until(ctx, patience, "the cluster notices that the node is away", func() error {
		return d.nodeIs(ctx, v1.ConditionUnknown)
	}); err != nil {
		return err
	}
	if _, err := d.sh(ctx, "kubectl get nodes"); err != nil {
		return err
	}
	status := "device edgecore status --config " + shown(d.edge.Config())
	if err := d.until(ctx, patience, "edgecore says that the cloud cannot be reached", func() error {
		out, err := d.quiet(ctx, status)
		if err == nil && !strings.Contains(out, "CloudUnreachable") {
			err = errors.New(out)
		}
		return err
	}); err != nil {
		return err
	}
	if _, err := d.sh(ctx, status); err != nil {
		return err
	}
	if err := d.outOfReach(ctx); err != nil {
		return err
	}
	d.say("Kubernetes evicts the pods of a node that is away for 5 minutes, and a device would find all its pods " +
		"replaced. Not\nthese: cloudcore takes the time limit off what they tolerate, at the latest when their node " +
		"is lost.")
	err := d.until(ctx, patience, "the pods tolerate the loss of their node without a limit", func() error {
		pods, err := d.pods(ctx)
		for i := range pods {
			for _, t := range pods[i].Spec.Tolerations {
				if t.Key == v1.TaintNodeUnreachable && t.TolerationSeconds != nil {
					err = errors.Join(err, fmt.Errorf("%s tolerates it for %d s", pods[i].Name, *t.TolerationSeconds))
				}
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	_, err = d.sh(ctx,
		"kubectl get pods -o "+
			"custom-columns='POD:.metadata.name,TOLERATES:.spec.tolerations[*].key,"+
			"SECONDS:.spec.tolerations[*].tolerationSeconds'")
	return err
}

func (d *demo) loss(ctx context.Context) error {
	d.title("Kill edgecore, and remove every container")
	d.say("Worse than a power cut: the agent is killed, and all containers are removed from the runtime.")
	if _, err := d.sh(ctx, fmt.Sprintf("kill -9 %d    # edgecore", d.edge.PID())); err != nil {
		return err
	}
	if err := d.edge.Kill9(ctx); err != nil { // it is killed; this waits for its end
		return err
	}
	if err := containerd.RemovePods(ctx, d.cri, func(*runtimeapi.PodSandbox) bool { return true }); err != nil {
		return err
	}
	left, err := d.sh(ctx, fmt.Sprintf("device ctr -a %s -n k8s.io containers ls", d.ctrd.Socket()))
	if err != nil {
		return err
	}
	if n := strings.Count(strings.TrimSpace(left), "\n"); n > 0 {
		return fmt.Errorf("%d containers are left", n)
	}
	d.say("None is left. edgecore is started again, still without a cloud; all that it has is its store.")
	began := time.Now()
	if err := d.startAgent(ctx); err != nil {
		return err
	}
	if err := d.until(ctx, patience, "the pods are back on the device", func() error {
		return d.backOnDevice(ctx)
	}); err != nil {
		return err
	}
	d.say("All %d pods are Ready again %s after edgecore was started, with no cloud:", replicas,
		seconds(time.Since(began)))
	if _, err := d.sh(ctx, "device edgecore get pods -o wide --config "+shown(d.edge.Config())); err != nil {
		return err
	}
	if err := d.showPage(ctx, oldPage); err != nil {
		return err
	}
	d.say("The sensor works on without the cluster, too: it has become warm.")
	d.sensor.Set(tempRegister, 31)
	return d.showSensor(ctx, "31")
}

func (d *demo) change(ctx context.Context) error {
	d.title("Change the page in the cluster meanwhile")
	d.say("The device cannot know of it yet, and its pods show the old page. (kubectl shows what it was told last.)")
	patch := fmt.Sprintf(`kubectl patch configmap page --type=merge -p '{"data":{"index.html":"%s\n"}}'`, newPage)
	for _, command := range []string{patch, "kubectl get nodes,pods"} {
		if _, err := d.sh(ctx, command); err != nil {
			return err
		}
	}
	if err := d.showPage(ctx, oldPage); err != nil {
		return err
	}
	_, err := d.sh(ctx, valuesInCloud)
	return err
}

func (d *demo) reconnect(ctx context.Context) error {
	d.title("Mend the link")
	before, err := d.lives(ctx)
	if err != nil {
		return err
	}
	up, down := d.cables[0].Up.Load(), d.cables[0].Down.Load()
	d.cable(proxy.Passing)
	mended := time.Now()
	if err := d.until(ctx, patience, "the device dials again", d.linked); err != nil {
		return err
	}
	d.say("The device dials again by itself, at random times so that a thousand devices do not come at once: here "+
		"after %s.", seconds(time.Since(mended)))
	linked := time.Now()
	if err := d.until(ctx, patience, "the cluster knows the new containers", func() error {
		return d.cloudKnows(ctx, before)
	}); err != nil {
		return err
	}
	current := time.Since(linked)
	if err := d.until(ctx, patience, "the change arrives", func() error { return d.pageIs(ctx, newPage) }); err != nil {
		return err
	}
	arrived := time.Since(linked)
	if err := d.until(ctx, patience, "the node is Ready", func() error {
		return d.nodeIs(ctx, v1.ConditionTrue)
	}); err != nil {
		return err
	}
	after, err := d.lives(ctx)
	if err != nil {
		return err
	}
	if len(after) != len(before) {
		return fmt.Errorf("%d containers ran before the link was mended, and %d run after it", len(before), len(after))
	}
	for id, started := range before {
		if after[id] != started {
			return fmt.Errorf("container %s was restarted when the link was mended", id)
		}
	}
	d.say("%s after that the cluster knew all that had happened on the device, and after %s the pods showed the new "+
		"page.\nIt took %s from the device and %s to it, TLS and all.",
		seconds(current), seconds(arrived), kilobytes(d.cables[0].Up.Load()-up),
		kilobytes(d.cables[0].Down.Load()-down))
	if err := d.showPage(ctx, newPage); err != nil {
		return err
	}
	if _, err := d.sh(ctx, "kubectl get nodes,pods -o wide"); err != nil {
		return err
	}
	if err := d.untilShown(ctx, lastLog, "response:200"); err != nil {
		return err
	}
	if err := d.until(ctx, patience, "the cluster has the new temperature", func() error {
		return d.cloudHas(ctx, "temp = 31")
	}); err != nil {
		return err
	}
	if _, err := d.sh(ctx, valuesInCloud); err != nil {
		return err
	}
	d.say("No pod was restarted by it: the %d containers that run are those that edgecore started without a cloud. "+
		"(RESTARTS\ncounts those that were lost before.)", len(after))
	return nil
}

// nodeIs checks the node's condition Ready in the API.
func (d *demo) nodeIs(ctx context.Context, want v1.ConditionStatus) error {
	n, err := d.kube.Client().CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, c := range n.Status.Conditions {
		if c.Type == v1.NodeReady && c.Status == want {
			return nil
		} else if c.Type == v1.NodeReady {
			return fmt.Errorf("its condition Ready is %s: %s", c.Status, c.Message)
		}
	}
	return errors.New("it has no condition Ready")
}

// backOnDevice checks that the device itself has all pods Ready, in new containers.
func (d *demo) backOnDevice(ctx context.Context) error {
	lives, err := d.lives(ctx)
	if err != nil {
		return err
	}
	if len(lives) != replicas { // at first the agent reports what it knew
		return fmt.Errorf("%d containers run", len(lives))
	}
	pods, err := d.edge.Pods(ctx)
	if err != nil {
		return err
	}
	for name, p := range pods {
		if !ready(p) {
			return fmt.Errorf("pod %s is not Ready", name)
		}
	}
	if len(pods) != replicas {
		return fmt.Errorf("edgecore has %d pods", len(pods))
	}
	return nil
}

func ready(p *v1.Pod) bool {
	return p.Status.Phase == v1.PodRunning && slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
	})
}

func (d *demo) linked() error {
	if d.cables[0].Conns() == 0 {
		return errors.New("there is no connection")
	}
	return nil
}

// cloudKnows checks that the pods in the API have these containers.
func (d *demo) cloudKnows(ctx context.Context, lives map[string]int64) error {
	pods, err := d.pods(ctx)
	if err != nil {
		return err
	}
	for _, p := range pods {
		for _, s := range p.Status.ContainerStatuses {
			if id := strings.TrimPrefix(s.ContainerID, "containerd://"); lives[id] == 0 {
				return fmt.Errorf("pod %s still has container %s", p.Name, id)
			}
		}
	}
	return nil
}

func (d *demo) pods(ctx context.Context) ([]v1.Pod, error) {
	list, err := d.kube.Client().CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
	if err == nil && len(list.Items) != replicas {
		err = fmt.Errorf("the cluster has %d pods", len(list.Items))
	}
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}
