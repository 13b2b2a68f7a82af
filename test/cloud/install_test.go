package cloud

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	manifests "github.com/edgecore-io/edgecore/deploy/cloudcore"
	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// installer is a cluster with all controllers and no nodes, in which kubectl installs cloudcore.
type installer struct {
	t       *testing.T
	cluster *kube.Cluster
	admin   kubernetes.Interface
}

func (i *installer) kubectl(args ...string) string {
	i.t.Helper()
	out, err := i.cluster.Kubectl(i.t.Context(), args...)
	if err != nil {
		i.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// folder is where a kustomization is.
func folder(name string) string { return filepath.Join("..", "..", "deploy", "cloudcore", name) }

// kept is what an operator must not lose with cloudcore.
var kept = []string{
	"namespace/kubeedge", "secret/casecret", "device/lamp", "crd/devices.devices.kubeedge.io",
	"crd/devicemodels.devices.kubeedge.io", "crd/devicestatuses.devices.kubeedge.io",
	"crd/objectsyncs.reliablesyncs.kubeedge.io", "crd/clusterobjectsyncs.reliablesyncs.kubeedge.io",
}

// uids returns the UIDs of what has to be kept.
func (i *installer) uids() map[string]string {
	i.t.Helper()
	out := map[string]string{}
	for _, name := range kept {
		out[name] = i.kubectl("-n", "kubeedge", "get", name, "-o", "jsonpath={.metadata.uid}")
	}
	return out
}

// TestInstallations: kubectl applies and deletes each overlay on a real API server. Devices dial the ports that
// KubeEdge's chart has, the pods are let in, and what is deleted is neither the namespace, nor the devices' CA, nor a
// Device.
func TestInstallations(t *testing.T) {
	t.Parallel()
	i := &installer{t: t, cluster: kube.Start(t, kube.Options{ControllerManager: true})}
	i.admin = i.cluster.Client()
	i.kubectl("apply", "-k", folder(manifests.Setup))
	if err := i.cluster.Apply(t.Context(), `
{apiVersion: v1, kind: Secret, metadata: {name: casecret, namespace: kubeedge}, stringData: {cadata: key}}
---
apiVersion: devices.kubeedge.io/v1beta1
kind: Device
metadata: {name: lamp, namespace: kubeedge}
spec: {deviceModelRef: {name: lamp}, nodeName: e1, protocol: {protocolName: dali}}
`); err != nil {
		t.Fatal(err)
	}
	before := i.uids()
	for _, row := range []struct {
		overlay  string
		service  []string
		host     bool
		replicas int
	}{
		{manifests.LoadBalancer, []string{
			"LoadBalancer, Local", "10000/TCP", "10001/UDP", "10002/TCP", "10004/TCP",
		}, false, 2},
		{manifests.NodePort, []string{
			"NodePort, Cluster", "10000/TCP at 30000", "10001/UDP at 30001", "10002/TCP at 30002", "10004/TCP at 30004",
		}, false, 2},
		{manifests.HostNetwork, []string{"ClusterIP, ", "10000/TCP", "10001/UDP", "10002/TCP", "10004/TCP"}, true, 1},
	} {
		t.Run(row.overlay, func(t *testing.T) {
			i := &installer{t, i.cluster, i.admin}
			i.kubectl("apply", "-k", folder(row.overlay))
			if diff := cmp.Diff(row.service, i.service()); diff != "" {
				t.Errorf("Service mismatch (-want +got):\n%s", diff)
			}
			i.pods(row.host, row.replicas)
			i.restricted(row.host)
			i.kubectl("delete", "-k", folder(row.overlay))
			if diff := cmp.Diff(before, i.uids()); diff != "" {
				t.Errorf("UIDs after delete -k mismatch (-before +after):\n%s", diff)
			}
		})
	}
	i.changed()
	i.documented()
}

// service returns the type of cloudcore's Service, and its ports.
func (i *installer) service() []string {
	i.t.Helper()
	s, err := i.admin.CoreV1().Services("kubeedge").Get(i.t.Context(), "cloudcore", metav1.GetOptions{})
	if err != nil {
		i.t.Fatal(err)
	}
	out := []string{fmt.Sprintf("%s, %s", s.Spec.Type, s.Spec.ExternalTrafficPolicy)}
	for _, p := range s.Spec.Ports {
		port := fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		if s.Spec.Type == v1.ServiceTypeNodePort {
			port += fmt.Sprintf(" at %d", p.NodePort)
		}
		out = append(out, port)
	}
	return out
}

// pods waits until PodSecurity has let the pods in, and checks whether they are in the host's network.
func (i *installer) pods(host bool, replicas int) {
	i.t.Helper()
	var list *v1.PodList
	wait.Until(i.t, fmt.Sprintf("%d pods of cloudcore to be created", replicas), func() (err error) {
		list, err = i.admin.CoreV1().Pods("kubeedge").List(i.t.Context(),
			metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=cloudcore"})
		list.Items = slices.DeleteFunc(list.Items, func(p v1.Pod) bool { return p.DeletionTimestamp != nil })
		if err == nil && len(list.Items) != replicas {
			err = fmt.Errorf("there are %d", len(list.Items))
		}
		return err
	})
	want := "10000 10001 10002 10004 9091"
	if !host {
		want = "0 0 0 0 0"
	}
	for _, p := range list.Items {
		var ports []string
		for _, port := range p.Spec.Containers[0].Ports {
			ports = append(ports, fmt.Sprint(port.HostPort))
		}
		if got := strings.Join(ports, " "); p.Spec.HostNetwork != host || got != want {
			i.t.Errorf("hostNetwork %t, hostPorts %s; want %t, %s", p.Spec.HostNetwork, got, host, want)
		}
	}
	_, err := i.admin.NetworkingV1().NetworkPolicies("kubeedge").Get(i.t.Context(), "cloudcore", metav1.GetOptions{})
	if (err == nil) == host {
		i.t.Errorf("NetworkPolicy: %v, want one unless the pods are in the host's network", err)
	}
}

// restricted checks whether the namespace could have the label enforce=restricted: all but host network meets it.
func (i *installer) restricted(host bool) {
	i.t.Helper()
	const label = "pod-security.kubernetes.io/enforce"
	labels := i.kubectl("get", "namespace", "kubeedge", "-o", "jsonpath={.metadata.labels}")
	if strings.Contains(labels, label) {
		i.t.Errorf("labels of the namespace are %s, want none of PodSecurity", labels)
	}
	i.kubectl("label", "namespace", "kubeedge", label+"=restricted")
	defer i.kubectl("label", "namespace", "kubeedge", label+"-")
	d, err := i.admin.AppsV1().Deployments("kubeedge").Get(i.t.Context(), "cloudcore", metav1.GetOptions{})
	if err != nil {
		i.t.Fatal(err)
	}
	wait.Until(i.t, "PodSecurity to know the label, and cloudcore's pod to be let in or not", func() error {
		_, err := i.admin.CoreV1().Pods("kubeedge").Create(i.t.Context(), &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "try-"},
			Spec:       d.Spec.Template.Spec,
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		switch refused := err != nil && strings.Contains(err.Error(), "violates PodSecurity"); {
		case !host || err != nil && !refused:
			return err
		case !refused:
			return fmt.Errorf("a pod in the host's network is let in, want it refused")
		}
		_, causes, _ := strings.Cut(err.Error(), "restricted:latest\": ")
		causes = regexp.MustCompile(` \([^)]*\)`).ReplaceAllString(causes, "")
		if causes != "host namespaces, hostPort, probe or lifecycle host" {
			i.t.Errorf("refused for %s, want for the host's network, its ports and probes there alone", causes)
		}
		return nil
	})
}

// changed: an operator who applies another overlay in place of one has that one, without a rest of the first.
func (i *installer) changed() {
	i.t.Helper()
	i.kubectl("apply", "-k", folder(manifests.HostNetwork))
	i.pods(true, 1)
	i.kubectl("apply", "-k", folder(manifests.LoadBalancer))
	d, err := i.admin.AppsV1().Deployments("kubeedge").Get(i.t.Context(), "cloudcore", metav1.GetOptions{})
	if err != nil {
		i.t.Fatal(err)
	}
	spec := d.Spec.Template.Spec
	if spec.HostNetwork || spec.DNSPolicy != v1.DNSClusterFirst || *d.Spec.Replicas != 2 ||
		spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		i.t.Errorf("the Deployment is %+v, want nothing of %s in it", d.Spec, manifests.HostNetwork)
	}
	for _, p := range spec.Containers[0].Ports {
		if p.HostPort != 0 {
			i.t.Errorf("the Deployment has hostPort %d, want none", p.HostPort)
		}
	}
	i.kubectl("delete", "-k", folder(manifests.LoadBalancer))
}

// documented applies the overlay of docs/cloud.md as it is there, and its changes for host network.
func (i *installer) documented() {
	i.t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "cloud.md"))
	if err != nil {
		i.t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 2 || !strings.Contains(string(text), "kubectl apply -k my-cloud\n") {
		i.t.Fatalf("docs/cloud.md has %d blocks of YAML, want an overlay and a part of one", len(blocks))
	}
	overlay := blocks[0][1]
	host := strings.Replace(overlay, "/loadbalancer", "/hostnetwork", 1)
	host = regexp.MustCompile(`(?s)- target: \{kind: NetworkPolicy.*`).ReplaceAllString(host, "") + blocks[1][1]
	host = regexp.MustCompile(`(?m)^ +commonConfig:\n +monitorServer:.*\n`).ReplaceAllString(host, "")
	dir := i.t.TempDir()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		i.t.Fatal(err)
	}
	if err := os.Symlink(root, filepath.Join(dir, "edgecore")); err != nil {
		i.t.Fatal(err)
	}
	mine := filepath.Join(dir, "my-cloud")
	if err := os.Mkdir(mine, 0o700); err != nil {
		i.t.Fatal(err)
	}
	for _, text := range []string{overlay, host} {
		if err := os.WriteFile(filepath.Join(mine, "kustomization.yaml"), []byte(text), 0o600); err != nil {
			i.t.Fatal(err)
		}
		i.kubectl("apply", "-k", mine)
		d, err := i.admin.AppsV1().Deployments("kubeedge").Get(i.t.Context(), "cloudcore", metav1.GetOptions{})
		if err != nil {
			i.t.Fatal(err)
		}
		if got := d.Spec.Template.Spec.Containers[0].Image; got != "registry.example.com/cloudcore:v1" {
			i.t.Errorf("the image is %s, want that of the overlay", got)
		}
		if got := d.Spec.Template.Spec.NodeSelector; text == host && got["cloudcore"] != "here" {
			i.t.Errorf("the nodeSelector is %v, want that of the overlay", got)
		}
		config, err := i.admin.CoreV1().ConfigMaps("kubeedge").Get(i.t.Context(), "cloudcore", metav1.GetOptions{})
		if err != nil {
			i.t.Fatal(err)
		}
		parsed, warnings, err := v1alpha1.Parse([]byte(config.Data["cloudcore.yaml"]))
		if err != nil || len(warnings) > 0 || parsed.Modules.CloudHub.AdvertiseAddress[0] != "203.0.113.10" {
			i.t.Errorf("the overlay's configuration: %v, warnings %q; want neither, and its address", err, warnings)
		}
		if text == overlay {
			policy := i.kubectl("-n", "kubeedge", "get", "networkpolicy", "cloudcore", "-o",
				"jsonpath={.spec.ingress[1].from[*].ipBlock.cidr}")
			if policy != "198.51.100.4/32" {
				i.t.Errorf("the NetworkPolicy lets %q reach devices, want kube-apiserver's address", policy)
			}
		}
	}
}

// TestOneForEachNode: with host network, the scheduler never puts two cloudcores on one node, where they would fight
// for its ports.
func TestOneForEachNode(t *testing.T) {
	t.Parallel()
	i := &installer{t: t, cluster: kube.Start(t, kube.Options{
		ControllerManager:      true,
		ControllerManagerFlags: []string{"--node-monitor-grace-period=1h"}, // nobody renews the Leases of nodes
		Scheduler:              true,
	})}
	i.admin = i.cluster.Client()
	i.kubectl("apply", "-k", folder(manifests.Setup))
	i.kubectl("apply", "-k", folder(manifests.HostNetwork))
	i.kubectl("-n", "kubeedge", "scale", "deployment/cloudcore", "--replicas=2")
	for n, want := range []string{"server-0 and not scheduled", "server-1 and server-0"} {
		i.server(fmt.Sprintf("server-%d", n))
		wait.Until(t, "the cloudcores to be on "+want, func() error {
			list, err := i.admin.CoreV1().Pods("kubeedge").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			var on []string
			for _, p := range list.Items {
				switch refused := func(c v1.PodCondition) bool {
					return c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse &&
						strings.Contains(c.Message, "free ports")
				}; {
				case p.Spec.NodeName != "":
					on = append(on, p.Spec.NodeName)
				case slices.ContainsFunc(p.Status.Conditions, refused):
					on = append(on, "not scheduled")
				}
			}
			slices.Sort(on)
			slices.Reverse(on)
			if got := strings.Join(on, " and "); got != want {
				return fmt.Errorf("they are on %q", got)
			}
			return nil
		})
	}
}

// server creates a Node that is ready.
func (i *installer) server(name string) {
	i.t.Helper()
	room := v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("4Gi"),
		v1.ResourcePods: resource.MustParse("10"),
	}
	node, err := i.admin.CoreV1().Nodes().Create(i.t.Context(), &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
	}, metav1.CreateOptions{})
	if err != nil {
		i.t.Fatal(err)
	}
	node.ResourceVersion = "" // a controller changes its taints meanwhile
	node.Status = v1.NodeStatus{Capacity: room, Allocatable: room, Conditions: []v1.NodeCondition{
		{Type: v1.NodeReady, Status: v1.ConditionTrue, LastHeartbeatTime: metav1.Now()},
	}}
	if _, err = i.admin.CoreV1().Nodes().UpdateStatus(i.t.Context(), node, metav1.UpdateOptions{}); err != nil {
		i.t.Fatal(err)
	}
}
