package adopt

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/deploy/cloudcore"
	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

const image = "registry.example.com/cloudcore:1"

// chart returns the objects of KubeEdge's chart in a file of testdata.
func chart(t *testing.T, file string) map[Ref]*unstructured.Unstructured {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	objects := map[Ref]*unstructured.Unstructured{}
	for _, text := range strings.Split(string(data), "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			t.Fatal(err)
		}
		objects[refOf(o)] = o
	}
	return objects
}

// newCA returns the data of a Secret casecret.
func newCA(t *testing.T) map[string][]byte {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "KubeEdge"},
		NotAfter:              time.Now().Add(time.Hour),
		KeyUsage:              x509.KeyUsageCertSign,
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := certs.EncodeKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{"cadata": cert, "cakeydata": der}
}

// find makes what is found in a cluster with these objects, after KubeEdge's cloudcore has run.
func find(t *testing.T, objects map[Ref]*unstructured.Unstructured) *Found {
	t.Helper()
	f := &Found{
		Secrets:    map[string]*v1.Secret{caSecret: {Data: newCA(t)}},
		Now:        time.Now(),
		Namespace:  &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}},
		APIServers: []string{"198.51.100.7", "2001:db8::7"},
		Minor:      36,
	}
	f.Roles = map[string]map[string]any{"ClusterRole": objects[Ref{rbacAPI, "ClusterRole", "", name}].Object}
	for ref, o := range objects {
		if ref.Name == name {
			if err := f.set(ref, o); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, l := range leftObjects() {
		if objects[l.ref] != nil {
			f.Left = append(f.Left, l.ref)
		}
	}
	return f
}

// TestPlan: the plan of each chart, with what it writes. UPDATE_GOLDEN=1 writes the texts again.
func TestPlan(t *testing.T) {
	for _, kind := range []string{"hostnetwork", "nodeport"} {
		t.Run(kind, func(t *testing.T) {
			objects := chart(t, "kubeedge-"+kind+".yaml")
			p := Decide(find(t, objects), image)
			written, err := render(cloudcore.Files(), p)
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			for _, o := range written {
				p.add(o, objects[refOf(o)], true)
			}
			p.Print(&out)
			if err := p.Err(); err != nil {
				t.Errorf("Err = %v, want none", err)
			}
			out.WriteString("\n")
			for _, o := range written {
				if o.GetName() != name || o.GetKind() == "ClusterRole" || o.GetKind() == "Role" {
					continue
				}
				if o.GetAnnotations()[adoptedAnnotation] == "" {
					t.Errorf("%s has no annotation %s", refOf(o), adoptedAnnotation)
				}
				unstructured.RemoveNestedField(o.Object, "metadata", "annotations", adoptedAnnotation)
				text, err := yaml.Marshal(o.Object)
				if err != nil {
					t.Fatal(err)
				}
				out.WriteString("---\n" + string(text))
			}
			golden(t, "plan-"+kind+".txt", out.String())
			checkConfig(t, written)
		})
	}
}

// checkConfig checks that cloudcore accepts the configuration, and acts on all of it.
func checkConfig(t *testing.T, written []*unstructured.Unstructured) {
	t.Helper()
	for _, o := range written {
		if o.GetKind() != "ConfigMap" {
			continue
		}
		text, _, _ := unstructured.NestedString(o.Object, "data", configKey)
		if _, warnings, err := v1alpha1.Parse([]byte(text)); err != nil || len(warnings) > 0 {
			t.Errorf("the written configuration: %v, warnings %q; want neither", err, warnings)
		}
		return
	}
	t.Error("no ConfigMap is written")
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	file = filepath.Join("testdata", file)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s mismatch (-want +got):\n%s", file, diff)
	}
}

// edit changes KubeEdge's configuration.
func edit(old, next string) func(*Found) {
	return func(f *Found) {
		text := f.ConfigMap.Data[configKey]
		if !strings.Contains(text, old) {
			panic(fmt.Sprintf("the configuration has no %q", old))
		}
		f.ConfigMap.Data[configKey] = strings.Replace(text, old, next, 1)
	}
}

// TestDecide: what is refused, and what is said, for clusters that differ from what the chart makes by default.
func TestDecide(t *testing.T) {
	pod := func(change func(*v1.PodSpec)) func(*Found) {
		return func(f *Found) { change(&f.Deployment.Spec.Template.Spec) }
	}
	mount := func(v v1.Volume) func(*Found) {
		return pod(func(p *v1.PodSpec) {
			v.Name = "more"
			p.Volumes = append(p.Volumes, v)
			m := v1.VolumeMount{Name: v.Name, MountPath: "/etc/kubeedge/ca"}
			p.Containers[0].VolumeMounts = append(p.Containers[0].VolumeMounts, m)
		})
	}
	clusterRole := rbacv1.RoleRef{Kind: "ClusterRole", Name: name}
	for what, tc := range map[string]struct {
		change func(*Found)
		// refused, noted and warned are in a text of that kind; without refused there is no refusal
		refused, noted, warned string
	}{
		"the chart's defaults": {func(*Found) {}, "", "unixsocket", ""},
		"a controller of the Deployment": {func(f *Found) {
			f.Deployment.OwnerReferences = []metav1.OwnerReference{{Kind: "Cloud", Name: "c"}}
		}, "belongs to Cloud c", "", ""},
		"Argo CD": {func(f *Found) {
			f.Deployment.Annotations = map[string]string{"argocd.argoproj.io/tracking-id": "x"}
		}, "applied from a repository", "", ""},
		"Helm": {func(f *Found) {
			f.Deployment.Annotations = map[string]string{"meta.helm.sh/release-name": "kubeedge"}
		}, "", "", "Helm's release kubeedge"},
		"no ConfigMap":   {func(f *Found) { f.ConfigMap = nil }, "has no key cloudcore.yaml", "", ""},
		"an unknown key": {edit("nodeLimit", "nodeLimits"), "no such key", "", ""},
		"no WebSocket": {
			edit("enable: true\n      port: 10000", "enable: false\n      port: 10000"), "without one of them", "", "",
		},
		"QUIC as well": {
			edit("quic:\n      address: 0.0.0.0\n      enable: false", "quic:\n      enable: true"), "", "", "QUIC",
		},
		"QUIC only": {func(f *Found) {
			edit("enable: true\n      port: 10000", "enable: false\n      port: 10000")(f)
			edit("quic:\n      address: 0.0.0.0\n      enable: false", "quic:\n      enable: true")(f)
		}, "over QUIC only", "", ""},
		"a kubeconfig":      {edit(`kubeConfig: ""`, "kubeConfig: /root/.kube/config"), "/root/.kube/config", "", ""},
		"a privileged port": {edit("port: 10000", "port: 443"), "port 443 on the host's network needs root", "", ""},
		"no address":        {edit("- 192.0.2.20", "-"), "neither configmap/cloudcore", "", ""},
		"no CA":             {func(f *Found) { delete(f.Secrets, caSecret) }, "secret/casecret", "", ""},
		"a damaged CA": {func(f *Found) {
			f.Secrets[caSecret].Data["cadata"] = []byte("PEM")
		}, "cannot be used: cadata is not a certificate", "", ""},
		"another CA's key": {func(f *Found) {
			f.Secrets[caSecret].Data["cakeydata"] = newCA(t)["cakeydata"]
		}, "cadata does not belong to cakeydata", "", ""},
		"an expired CA": {func(f *Found) { f.Now = f.Now.Add(2 * time.Hour) }, "cannot be used", "", ""},
		"a CA of files": {mount(v1.Volume{VolumeSource: v1.VolumeSource{
			HostPath: &v1.HostPathVolumeSource{Path: "/etc/kubeedge/ca"},
		}}), "tlsCAFile", "", ""},
		"a Secret with other files": {mount(v1.Volume{VolumeSource: v1.VolumeSource{
			Secret: &v1.SecretVolumeSource{Items: []v1.KeyToPath{{Key: "a", Path: "a.crt"}}},
		}}), "", "", ""},
		"a host port without host network": {pod(func(p *v1.PodSpec) {
			p.HostNetwork = false
			p.Containers[0].Ports[0].HostPort = 10000
		}), "host port 10000", "", "devices need another way"},
		"a second container": {pod(func(p *v1.PodSpec) {
			p.Containers = append(p.Containers, v1.Container{Name: "proxy"})
		}), "", "container proxy", ""},
		"an environment": {pod(func(p *v1.PodSpec) {
			p.Containers[0].Env = []v1.EnvVar{{Name: "HTTPS_PROXY"}}
		}), "", "HTTPS_PROXY", ""},
		"pod security": {func(f *Found) {
			f.Namespace.Labels = map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}
		}, "no pod may use the host's network", "", ""},
		"rules":           {edit("router:\n    enable: false", "router:\n    enable: true"), "", "modules.router", ""},
		"another Service": {func(f *Found) { f.Selecting = []string{"cloudcore-lb"} }, "", "cloudcore-lb", ""},
		"no way in":       {pod(func(p *v1.PodSpec) { p.HostNetwork = false }), "", "", "devices need another way"},
		"webhooks without their server": {func(f *Found) { f.FailingWebhooks = []string{"rules"} }, "", "",
			"while their Deployment kubeedge-admission is missing"},
		"a label that Argo CD tracks": {func(f *Found) {
			f.Deployment.Labels[instanceLabel] = "cloud"
		}, "", "", "Argo CD tracks what it applies"},
		"Helm's release with that label": {func(f *Found) {
			f.Deployment.Labels[instanceLabel] = "cloud"
			f.Deployment.Annotations = map[string]string{"meta.helm.sh/release-name": "kubeedge"}
		}, "", "", "Helm's release kubeedge"},
		"aliases without end": {
			edit("featureGates:", "a: &a [*a]\nfeatureGates:"), "contains itself", "", "",
		},
		"Devices": {func(f *Found) {
			f.Devices = []DeviceNodes{{"site-a", "b-*", []string{"edge-1", "x'; rm"}}}
		}, "", "part of view", "kubectl annotate namespace site-a --overwrite edgecore.io/device-nodes='b-*,edge-1'"},
		"KubeEdge's binding": {func(f *Found) {
			f.Bindings = []Binding{{Ref{"", "ClusterRoleBinding", "", name}, clusterRole,
				[]rbacv1.Subject{{Kind: "ServiceAccount", Name: name, Namespace: Namespace}}}}
		}, "", "", ""},
		"fields of the Deployment": {func(f *Found) {
			f.Deployment.Spec.MinReadySeconds = 5
			f.Deployment.Spec.Template.Annotations = map[string]string{"sidecar": "yes"}
			class, pod := "kata", &f.Deployment.Spec.Template.Spec
			pod.RuntimeClassName, pod.SchedulerName, pod.RestartPolicy = &class, "mine", "Always"
			pod.HostAliases = []v1.HostAlias{{IP: "192.0.2.1"}}
			pod.InitContainers = []v1.Container{{Name: "wait"}}
			pod.Volumes = append(pod.Volumes, v1.Volume{Name: "more"})
			pod.Containers[0].Command = []string{"sh"}
		}, "", "deployment/cloudcore: left out, or as in edgecore's manifests: annotation of pods sidecar, " +
			"container cloudcore: command, container cloudcore: resources, init container wait, " +
			"spec.minReadySeconds, spec.template.spec.hostAliases, spec.template.spec.runtimeClassName, " +
			"spec.template.spec.schedulerName, volume more\n", ""},
		"annotations of the ServiceAccount": {func(f *Found) {
			f.ServiceAccount.Annotations = map[string]string{"role.example.com/arn": "x"}
		}, "", "serviceaccount/cloudcore: left out: annotation role.example.com/arn", ""},
		"another subject": {func(f *Found) {
			f.Bindings = []Binding{{Ref{"", "ClusterRoleBinding", "", name}, clusterRole,
				[]rbacv1.Subject{{Kind: "ServiceAccount", Name: "x", Namespace: "y"}}}}
		}, "", "", "no longer gives rights to ServiceAccount y/x. This command keeps their rights, as long as"},
		"another binding": {func(f *Found) {
			f.Bindings = []Binding{{Ref{"", "RoleBinding", "y", "b"}, clusterRole,
				[]rbacv1.Subject{{Kind: "User", Name: "u"}}}}
		}, "", "", "rolebinding/b in the namespace y gives User u the ClusterRole cloudcore"},
		"a binding of another role": {func(f *Found) {
			f.Bindings = []Binding{{Ref{"", "RoleBinding", "y", "b"}, rbacv1.RoleRef{Kind: "Role", Name: name},
				[]rbacv1.Subject{{Kind: "User", Name: "u"}}}}
		}, "", "", ""},
		"webhooks": {func(f *Found) {
			f.FailingWebhooks, f.Left = []string{"rules"}, []Ref{deployment("kubeedge-admission")}
		}, "", "", "before its Deployment"},
	} {
		t.Run(what, func(t *testing.T) {
			f := find(t, chart(t, "kubeedge-hostnetwork.yaml"))
			tc.change(f)
			p := Decide(f, image)
			var refused []string
			for _, r := range p.Refusals {
				refused = append(refused, r.Reason)
				if r.Remedy == "" {
					t.Errorf("%q has no remedy", r.Reason)
				}
			}
			got := strings.Join(refused, "\n")
			if (tc.refused == "") != (got == "") || !strings.Contains(got, tc.refused) {
				t.Errorf("refused %q, want %q", got, tc.refused)
			}
			if got := strings.Join(p.Notes, "\n"); !strings.Contains(got, tc.noted) {
				t.Errorf("noted %q, want %q in it", got, tc.noted)
			}
			if got := strings.Join(p.Warnings, "\n"); !strings.Contains(got, tc.warned) ||
				tc.warned == "" && got != "" {
				t.Errorf("warned %q, want %q", got, tc.warned)
			}
		})
	}
	if p := Decide(&Found{}, image); p.Err() != ErrNothing {
		t.Errorf("Err of an empty cluster = %v, want %v", p.Err(), ErrNothing)
	}
	if p := Decide(find(t, chart(t, "kubeedge-nodeport.yaml")), ""); p.Err() != ErrRefused {
		t.Errorf("Err without an image = %v, want %v", p.Err(), ErrRefused)
	}
}

// TestCarried: the Deployment and Service have what KubeEdge's have.
func TestCarried(t *testing.T) {
	f := find(t, chart(t, "kubeedge-nodeport.yaml"))
	replicas := int32(3)
	f.Deployment.Spec.Replicas = &replicas
	pod := &f.Deployment.Spec.Template.Spec
	pod.NodeSelector = map[string]string{"cloud": "yes"}
	pod.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
	pod.ImagePullSecrets = []v1.LocalObjectReference{{Name: "registry"}}
	f.Selecting = []string{"cloudcore-lb"}
	f.Service.Spec.Type = v1.ServiceTypeLoadBalancer
	f.Service.Spec.LoadBalancerIP = "192.0.2.20"
	f.Service.Annotations = map[string]string{"lb.example.com/pool": "edge", "meta.helm.sh/release-name": "r"}
	f.Service.Spec.Ports[0].Port = 443
	edit("port: 10000", "port: 11000")(f)
	f.Service.Spec.Ports[0].TargetPort.IntVal = 11000
	https := v1.ServicePort{Name: "https", Port: 8443, NodePort: 30443, TargetPort: intstr.FromInt32(11000)}
	metrics := v1.ServicePort{Name: "metrics", Port: 9091}
	f.Service.Spec.Ports = append(f.Service.Spec.Ports, https, metrics)
	f.Service.Labels["team"], f.Service.Labels["app.kubernetes.io/managed-by"] = "edge", "Helm"
	f.ConfigMap.Data[configKey] += "\n  deviceController:\n    enable: false\n"
	p := Decide(f, image)
	if err := p.Err(); err != nil {
		t.Fatalf("%v: %v, want no refusal", err, p.Refusals)
	}
	for _, want := range []string{
		"port 10003 of the Service (cloudstream, node port 30003) leads nowhere",
		"port 9091 of the Service (metrics) is left out",
	} {
		if got := strings.Join(p.Notes, "\n"); !strings.Contains(got, want) {
			t.Errorf("noted %s\nwant %q", got, want)
		}
	}
	written, err := render(cloudcore.Files(), p)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range written {
		switch {
		case o.GetKind() == "Deployment":
			var d appsv1.Deployment
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d); err != nil {
				t.Fatal(err)
			}
			got := &d.Spec.Template
			if *d.Spec.Replicas != 3 || !cmp.Equal(got.Spec.NodeSelector, pod.NodeSelector) ||
				!cmp.Equal(got.Spec.Tolerations, pod.Tolerations) ||
				!cmp.Equal(got.Spec.ImagePullSecrets, pod.ImagePullSecrets) ||
				got.Labels["kubeedge"] != "cloudcore" || got.Spec.Containers[0].Ports[0].ContainerPort != 11000 ||
				got.Spec.Containers[0].Image != image {
				t.Errorf("Deployment %+v, want KubeEdge's values", d.Spec)
			}
		case o.GetKind() == "Service":
			var s v1.Service
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &s); err != nil {
				t.Fatal(err)
			}
			if s.Spec.LoadBalancerIP != "192.0.2.20" || s.Annotations["lb.example.com/pool"] != "edge" ||
				s.Annotations["meta.helm.sh/release-name"] != "" || s.Labels["team"] != "edge" ||
				s.Labels["app.kubernetes.io/part-of"] != "edgecore" || s.Labels["app.kubernetes.io/managed-by"] != "" {
				t.Errorf("Service %+v, %v, %v; want KubeEdge's values", s.Spec, s.Annotations, s.Labels)
			}
			var ports []string
			for _, at := range s.Spec.Ports {
				ports = append(ports, fmt.Sprintf("%s %d/%s %d %s", at.Name, at.Port, protocolOf(&at), at.NodePort,
					at.TargetPort.String()))
			}
			if diff := cmp.Diff([]string{
				"cloudhub 443/TCP 30000 hub", "cloudhub-quic 10001/UDP 30001 hub-quic",
				"cloudhub-https 10002/TCP 30002 join", "cloudstream 10003/TCP 30003 unserved",
				"tunnelport 10004/TCP 30004 stream", "https 8443/TCP 30443 hub",
			}, ports); diff != "" {
				t.Errorf("ports of the Service mismatch (-want +got):\n%s", diff)
			}
		case o.GetKind() == "ConfigMap":
			text, _, _ := unstructured.NestedString(o.Object, "data", configKey)
			c, _, err := v1alpha1.Parse([]byte(text))
			if err != nil || c.Modules.DeviceController.Enable || c.Modules.CloudHub.WebSocket.Port != 11000 {
				t.Errorf("configuration: %v\n%s\nwant KubeEdge's values", err, text)
			}
		}
	}
}

// TestRewrittenConfig: what KubeEdge's cloudcore makes of its file at its first start is accepted, and its empty
// addresses are left out.
func TestRewrittenConfig(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "cloudcore-rewritten.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	f := find(t, chart(t, "kubeedge-nodeport.yaml"))
	f.ConfigMap.Data[configKey] = string(text)
	p := Decide(f, image)
	if len(p.Refusals) > 0 || len(p.Addresses) > 0 || !cmp.Equal(p.DNSNames, []string{"cloud.example.com"}) {
		t.Fatalf("refused %v, addresses %v, names %v; want the name alone", p.Refusals, p.Addresses, p.DNSNames)
	}
	written, err := render(cloudcore.Files(), p)
	if err != nil {
		t.Fatal(err)
	}
	checkConfig(t, written)
}

// TestDisallowed: Devices are found that the policy device-tenants would refuse.
func TestDisallowed(t *testing.T) {
	object := func(namespace, name string, annotations map[string]any, node string) unstructured.Unstructured {
		return unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{"namespace": namespace, "name": name, "annotations": annotations},
			"spec":     map[string]any{"nodeName": node},
		}}
	}
	devices := []unstructured.Unstructured{
		object("a", "1", nil, "edge-2"), object("a", "2", nil, "edge-1"), object("a", "3", nil, "edge-1"),
		object("a", "4", nil, ""), object("b", "1", nil, "b-1"), object("b", "2", nil, "b.1"),
		object("c", "1", nil, "n"),
	}
	namespaces := []unstructured.Unstructured{
		object("", "a", nil, ""), object("", "b", map[string]any{nodesAnnotation: "x, b-*"}, ""),
		object("", "c", map[string]any{nodesAnnotation: "*"}, ""), object("", "d", nil, ""),
	}
	want := []DeviceNodes{{"a", "", []string{"edge-1", "edge-2"}}, {"b", "x, b-*", []string{"b.1"}}}
	if diff := cmp.Diff(want, disallowed(devices, namespaces)); diff != "" {
		t.Errorf("disallowed mismatch (-want +got):\n%s", diff)
	}
}

// TestUnknownPolicies: a Kubernetes without admission policies is a warning.
func TestUnknownPolicies(t *testing.T) {
	p := &Plan{}
	p.add(&unstructured.Unstructured{Object: map[string]any{
		"kind": "ValidatingAdmissionPolicy", "metadata": map[string]any{"name": "device-tenants"},
	}}, nil, false)
	p.decideUnknownPolicies()
	if len(p.Warnings) != 1 || !strings.Contains(p.Warnings[0], "1.30 or newer has them: device-tenants") {
		t.Errorf("warned %q, want the policy", p.Warnings)
	}
}

// TestPrintable: what was read of a cluster does not control the terminal, and begins no line.
func TestPrintable(t *testing.T) {
	var out bytes.Buffer
	(&Plan{Found: &Found{
		Server: "https://192.0.2.1:6443", Deployment: &appsv1.Deployment{},
	}, Notes: []string{"key \x1b[2J\u202e é\nREFUSED: x"}}).Print(&out)
	got := out.String()
	if !strings.HasPrefix(got, "kube-apiserver: https://192.0.2.1:6443\n") ||
		!strings.Contains(got, `  key \x1b[2J\u202e é`+"\n    REFUSED: x\n") {
		t.Errorf("printed %q, want the server first, and escapes", got)
	}
}

// TestNoPortServed: if no port of a Service leads to cloudcore, it gets the ports of the manifests that do not collide.
func TestNoPortServed(t *testing.T) {
	f := find(t, chart(t, "kubeedge-nodeport.yaml"))
	f.Service.Spec.Ports = []v1.ServicePort{{Port: 10002, NodePort: 30000, TargetPort: intstr.FromInt32(8080)}}
	p := Decide(f, image)
	ours := []v1.ServicePort{
		{Name: "hub", Port: 10000, NodePort: 30000}, {Name: "join", Port: 10002, NodePort: 30002},
		{Name: "stream", Port: 10004, NodePort: 30004},
	}
	var got []string
	for _, at := range p.servicePorts(ours) {
		got = append(got, at.Name)
	}
	if diff := cmp.Diff([]string{"unserved", "stream"}, got); diff != "" {
		t.Errorf("ports mismatch (-want +got):\n%s", diff)
	}
}

// crdWith returns a CRD with these versions; objects are written in the first.
func crdWith(stored []any, versions ...string) *unstructured.Unstructured {
	var list []any
	for i, v := range versions {
		list = append(list, map[string]any{"name": v, "served": true, "storage": i == 0})
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"kind": crdKind, "metadata": map[string]any{"name": "devices.devices.kubeedge.io"},
		"spec": map[string]any{"versions": list}, "status": map[string]any{"storedVersions": stored},
	}}
}

// TestStoredVersions: a CRD is not replaced by one that reads and writes another version than existing objects have,
// or lacks one in which objects may be stored; and is not restored where the API server would refuse it.
func TestStoredVersions(t *testing.T) {
	for _, tc := range []struct {
		now     *unstructured.Unstructured
		exist   bool
		refused string
	}{
		{crdWith([]any{"v1beta1"}, "v1beta1"), true, ""},
		{crdWith([]any{"v1beta1"}, "v1beta1", "v1alpha2"), true, ""},
		{crdWith([]any{"v1alpha2"}, "v1alpha2"), true, "would lose"},
		{crdWith([]any{"v1alpha2"}, "v1alpha2"), false, ""},
		{crdWith([]any{"v1alpha2", "v1beta1"}, "v1beta1", "v1alpha2"), true, "would lose"},
		{crdWith(nil, "v1alpha2"), true, "would lose"},
		{crdWith([]any{"v1alpha1"}, "v1alpha1"), false, "does not have"},
	} {
		p := &Plan{}
		p.refuseStored(crdWith(nil, "v1beta1", "v1alpha2"), tc.now, tc.exist)
		got := ""
		for _, r := range p.Refusals {
			got += r.Reason
		}
		if (got == "") != (tc.refused == "") || !strings.Contains(got, tc.refused) {
			t.Errorf("%v, objects %v: refused %q, want %q", tc.now.Object, tc.exist, got, tc.refused)
		}
	}
	now := crdWith([]any{"v1alpha2", "v1beta1"}, "v1beta1", "v1alpha2")
	if got := leftCRD(now, crdWith(nil, "v1alpha2")); !cmp.Equal(got, []string{"v1beta1"}) {
		t.Errorf("versions that the saved CRD lacks: %v, want v1beta1", got)
	}
	if got := leftCRD(now, crdWith(nil, "v1beta1", "v1alpha2")); len(got) > 0 {
		t.Errorf("versions that the saved CRD lacks: %v, want none", got)
	}
}

// TestWaiting: what is said of a Deployment and its pods while they are not ready.
func TestWaiting(t *testing.T) {
	two := int32(2)
	ready := appsv1.DeploymentStatus{
		ObservedGeneration: 3, Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 2,
	}
	for what, tc := range map[string]struct {
		change func(*appsv1.DeploymentStatus)
		want   string
	}{
		"ready":         {func(*appsv1.DeploymentStatus) {}, ""},
		"an old status": {func(s *appsv1.DeploymentStatus) { s.ObservedGeneration = 2 }, "2 of 2 pods"},
		"an old pod":    {func(s *appsv1.DeploymentStatus) { s.Replicas = 3 }, "2 of 2 pods"},
		"a pod is missing": {func(s *appsv1.DeploymentStatus) {
			s.ReadyReplicas, s.AvailableReplicas = 1, 1
		}, "1 of 2 pods"},
		"refused pods": {func(s *appsv1.DeploymentStatus) {
			*s = appsv1.DeploymentStatus{ObservedGeneration: 3, Conditions: []appsv1.DeploymentCondition{{
				Type: appsv1.DeploymentReplicaFailure, Status: v1.ConditionTrue, Message: "violates PodSecurity",
			}}}
		}, "violates PodSecurity"},
	} {
		d := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 3}, Spec: appsv1.DeploymentSpec{Replicas: &two},
			Status: ready,
		}
		tc.change(&d.Status)
		if got := unready(d); (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", what, got, tc.want)
		}
	}
	waiting := v1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}
	for want, status := range map[string]v1.PodStatus{
		"": {},
		"Unschedulable: no node": {Conditions: []v1.PodCondition{{
			Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: "Unschedulable", Message: "no node",
		}}},
		"ImagePullBackOff: no such image": {ContainerStatuses: []v1.ContainerStatus{{
			State: v1.ContainerState{Waiting: &waiting},
		}}},
	} {
		if got := stuck(&v1.Pod{Status: status}); got != want {
			t.Errorf("stuck = %q, want %q", got, want)
		}
	}
}

// TestRefusal: a refusal says that nothing was changed only where it is so.
func TestRefusal(t *testing.T) {
	var none *journal
	if err := none.refusal(ErrRefused); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "nothing was") {
		t.Errorf("refusal at the start: %v, want that nothing was changed", err)
	}
	err := (&journal{}).refusal(ErrRefused)
	if !errors.Is(err, ErrRefused) || strings.Contains(err.Error(), "nothing was") ||
		!strings.Contains(err.Error(), "adopt undo") {
		t.Errorf("refusal of an apply that goes on: %v, want that undo goes back", err)
	}
	if err := none.refusal(nil); err != nil {
		t.Errorf("no refusal: %v, want nil", err)
	}
}

// TestPoll: waiting goes on after a request that failed for now, and ends at the deadline or at a lasting error.
func TestPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		a := &Adoption{Options: Options{Wait: time.Minute, Out: &out}}
		busy := fmt.Errorf("read: %w", apierrors.NewTooManyRequests("busy", 1))
		answers := []error{
			busy, &url.Error{Op: "Get", URL: "https://cluster", Err: io.EOF}, apierrors.NewTimeoutError("slow", 1), nil,
		}
		err := a.poll(t.Context(), func() (string, error) {
			err := answers[0]
			answers = answers[1:]
			return "", err
		})
		if err != nil || len(answers) > 0 {
			t.Errorf("poll = %v with %d answers left, want that it goes on until an answer is good", err, len(answers))
		}
		err = a.poll(t.Context(), func() (string, error) { return "", busy })
		if err == nil || !strings.Contains(err.Error(), "after 1m0s: read: busy") {
			t.Errorf("poll of what always fails = %v, want the last error after a minute", err)
		}
		denied := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", nil)
		if err := a.poll(t.Context(), func() (string, error) { return "", denied }); !apierrors.IsForbidden(err) {
			t.Errorf("poll of what is forbidden = %v, want %v", err, denied)
		}
	})
}

// TestRunningPods: the stop waits only for pods of the Deployment that have not ended.
func TestRunningPods(t *testing.T) {
	set := func(uid, owner types.UID) unstructured.Unstructured {
		var u unstructured.Unstructured
		u.SetUID(uid)
		u.SetOwnerReferences([]metav1.OwnerReference{{Kind: "Deployment", UID: owner, Controller: new(true)}})
		return u
	}
	pod := func(name, kind string, owner types.UID, phase v1.PodPhase) v1.Pod {
		p := v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.PodStatus{Phase: phase}}
		if kind != "" {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, UID: owner, Controller: new(true)}}
		}
		return p
	}
	got := runningPods("d", []unstructured.Unstructured{set("own", "d"), set("other", "e")}, []v1.Pod{
		pod("running", "ReplicaSet", "own", v1.PodRunning), pod("pending", "ReplicaSet", "own", v1.PodPending),
		pod("of a deleted ReplicaSet", "ReplicaSet", "gone", v1.PodRunning),
		pod("evicted", "ReplicaSet", "own", v1.PodFailed), pod("ended", "ReplicaSet", "own", v1.PodSucceeded),
		pod("another Deployment's", "ReplicaSet", "other", v1.PodRunning),
		pod("a DaemonSet's", "DaemonSet", "x", v1.PodRunning), pod("nobody's", "", "", v1.PodRunning),
	})
	var names []string
	for i := range got {
		names = append(names, got[i].Name)
	}
	if want := []string{"running", "pending", "of a deleted ReplicaSet"}; !cmp.Equal(names, want) {
		t.Errorf("running pods %q, want %q", names, want)
	}
}

// TestReturned: a value of KubeEdge's that edgecore's object should not have is found, and what others changed is not.
func TestReturned(t *testing.T) {
	tree := func(text string) map[string]any {
		var out map[string]any
		if err := yaml.Unmarshal([]byte(text), &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	before := tree("{spec: {image: theirs, type: A, selector: {a: b}, ports: [1, 2]}}")
	want := tree("{spec: {image: ours, type: A, selector: {c: d}, ports: [3]}}")
	for now, path := range map[string]string{
		"{spec: {image: ours, type: A, selector: {c: d}, ports: [3]}}":         "",
		"{spec: {image: newer, type: B, selector: {c: e}, ports: [4]}}":        "",
		"{spec: {image: theirs, type: A, selector: {c: d}, ports: [3]}}":       ".spec.image",
		"{spec: {image: ours, type: A, selector: {a: b, c: d}, ports: [3]}}":   ".spec.selector.a",
		"{spec: {image: ours, type: A, selector: {c: d}, ports: [1, 2]}}":      ".spec.ports",
		"{spec: {image: theirs, type: A, selector: {a: b}, ports: [1, 2, 3]}}": ".spec.image",
	} {
		if got := returned(before, want, tree(now), ""); got != path {
			t.Errorf("%s: %q has returned, want %q", now, got, path)
		}
	}
}

// TestJournal: what is saved is read again, and what is too large is refused.
func TestJournal(t *testing.T) {
	small := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a", "namespace": "b"},
	}}
	packed, err := pack([]*unstructured.Unstructured{small})
	if err != nil {
		t.Fatal(err)
	}
	got, err := unpack(packed)
	if err != nil || len(got) != 1 || !cmp.Equal(small.Object, got[0].Object) {
		t.Errorf("unpack = %v, %v; want %v", got, err, small)
	}
	large := small.DeepCopy()
	large.Object["data"] = map[string]any{"a": strings.Repeat("x", maxPlainOriginals)}
	if _, err := pack([]*unstructured.Unstructured{large}); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("pack of %d MiB: %v, want an error", maxPlainOriginals>>20, err)
	}
	for _, bad := range []string{"", "x", string(packed[:len(packed)-9])} {
		if _, err := unpack([]byte(bad)); err == nil {
			t.Errorf("unpack(%q): no error, want one", bad)
		}
	}
}
