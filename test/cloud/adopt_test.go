package cloud

import (
	"bytes"
	"context"
	cryptorand "crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/big"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/adopt"
	"github.com/edgecore-io/edgecore/deploy/cloudcore"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

var (
	long = flag.Bool("long", false, "kill an adoption and its undo at each of their writes, not only at two of them")
	seed = flag.Uint64("seed", 1, "the seed of the writes at which TestAdopt kills")
)

// theirSecrets are what KubeEdge's cloudcore makes as it runs, and what else lives in its namespace.
const theirSecrets = `
{apiVersion: v1, kind: Secret, metadata: {name: cloudcoresecret, namespace: kubeedge}, stringData: {cloudcoredata: c}}
---
{apiVersion: v1, kind: Secret, metadata: {name: tokensecret, namespace: kubeedge}, stringData: {tokendata: t}}
---
{apiVersion: v1, kind: Secret, metadata: {name: cloudcore, namespace: kubeedge}, stringData: {stream.crt: s}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: tunnelport, namespace: kubeedge}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: edgemesh-agent-cfg, namespace: kubeedge}, data: {a: b}}
---
{apiVersion: devices.kubeedge.io/v1beta1, kind: Device, metadata: {name: pump, namespace: default},
  spec: {nodeName: edge-1, deviceModelRef: {name: pump}, protocol: {protocolName: modbus}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: kubeedge-controller-manager, namespace: kubeedge}
spec:
  replicas: 0
  selector: {matchLabels: {kubeedge: controller-manager}}
  template:
    metadata: {labels: {kubeedge: controller-manager}}
    spec: {containers: [{name: controller-manager, image: kubeedge/controller-manager:v1.23.0}]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: kubeedge-crds-validate-webhook-configuration}
webhooks:
- name: validatedrule.kubeedge.io
  failurePolicy: Fail
  sideEffects: None
  admissionReviewVersions: [v1]
  clientConfig: {service: {name: kubeedge-admission-service, namespace: kubeedge}}
  rules: [{apiGroups: [rules.kubeedge.io], apiVersions: [v1], operations: [CREATE], resources: [rules]}]
- name: validatedevice.kubeedge.io
  failurePolicy: Ignore
  sideEffects: None
  admissionReviewVersions: [v1]
  clientConfig: {service: {name: kubeedge-admission-service, namespace: kubeedge}}
  rules: [{apiGroups: [rules.kubeedge.io], apiVersions: [v1], operations: [CREATE], resources: [ruleendpoints]}]
`

// adoption is a cluster with a cloud of KubeEdge's.
type adoption struct {
	t       *testing.T
	cluster *kube.Cluster
	// wait is how long a command waits for pods.
	wait time.Duration
	// user runs the commands; "" is the administrator.
	user string
	// fresh says that kubectl asks for the API's versions each time: they change.
	fresh bool
	// wrote is called after each write of a command, if it is set.
	wrote func(*http.Request)
}

// startAdoption starts a cluster with the objects of KubeEdge's chart. Their pods are ready.
func startAdoption(t *testing.T, chart string) *adoption {
	t.Helper()
	a := &adoption{t: t, cluster: kube.Start(t, kube.Options{ControllerManager: true}), wait: time.Minute}
	theirs, err := os.ReadFile(filepath.Join("..", "..", "cloud", "adopt", "testdata", "kubeedge-"+chart+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	a.kubectl("create", "namespace", "kubeedge")
	a.kubectl("label", "namespace", "kubeedge", "team=edge")
	a.kubectl("apply", "-k", filepath.Join("..", "..", "deploy", "cloudcore", "crds"))
	a.kubectl("label", "crd", "devices.devices.kubeedge.io", "objectsyncs.reliablesyncs.kubeedge.io", "from=kubeedge")
	a.kubectl("wait", "--for=condition=Established", "crd", "--all")
	for _, text := range []string{string(theirs), theirSecrets, newCASecret(t)} {
		if err := a.cluster.Apply(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	if chart == "nodeport" {
		a.kubectl("patch", "service", "-n", "kubeedge", "cloudcore", "--type=json", "-p",
			`[{"op": "add", "path": "/spec/ports/-",
				"value": {"name": "https", "port": 443, "targetPort": 10000, "nodePort": 30443}}]`)
	}
	a.cluster.ReadyPods(t, "kubeedge")
	wait.Until(t, "KubeEdge's Deployment is available", func() error {
		d, err := a.cluster.Client().AppsV1().Deployments("kubeedge").Get(t.Context(), "cloudcore", metav1.GetOptions{})
		if err == nil && d.Status.AvailableReplicas != 1 {
			err = fmt.Errorf("%+v", d.Status)
		}
		return err
	})
	wait.Until(t, "the rules of KubeEdge's role are aggregated", func() error {
		if out := a.kubectl("get", "clusterrole", "cloudcore", "-o", "jsonpath={.rules}"); len(out) < 10 {
			return errors.New("they are " + out)
		}
		return nil
	})
	return a
}

// newCASecret returns the Secret in which KubeEdge's cloudcore keeps its CA.
func newCASecret(t *testing.T) string {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "KubeEdge"},
		NotAfter:              time.Now().Add(24 * time.Hour),
		KeyUsage:              x509.KeyUsageCertSign,
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(cryptorand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := certs.EncodeKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: casecret, namespace: kubeedge}, "+
		"data: {cadata: %s, cakeydata: %s}}", base64.StdEncoding.EncodeToString(cert),
		base64.StdEncoding.EncodeToString(der))
}

func (a *adoption) kubectl(args ...string) string {
	a.t.Helper()
	if a.fresh {
		args = append(args, "--cache-dir="+a.t.TempDir())
	}
	out, err := a.cluster.Kubectl(a.t.Context(), args...)
	if err != nil {
		a.t.Fatal(err)
	}
	return out
}

// errKilled is what an adoption gets in place of an answer after its death.
var errKilled = errors.New("killed")

// command is one of an adoption's.
type command func(*adopt.Adoption, context.Context) error

// run calls one of an adoption's commands. Unless kill is 0, it is killed at that write: before the write, or after it
// and before its answer. writes is how many there were.
func (a *adoption) run(do command, kill int, after bool) (out string, writes int, err error) {
	a.t.Helper()
	config, err := a.cluster.ConfigFor(kube.AdminUser)
	if err != nil {
		a.t.Fatal(err)
	}
	config.Impersonate.UserName = a.user
	var count atomic.Int64
	config.Wrap(func(base http.RoundTripper) http.RoundTripper {
		return killer{base, func(r *http.Request) (*http.Response, error) {
			n := count.Load()
			if r.URL.Query().Has("dryRun") || strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews") {
				return base.RoundTrip(r)
			}
			if r.Method != http.MethodGet {
				n = count.Add(1)
			}
			switch {
			case kill == 0 || n < int64(kill):
				resp, err := base.RoundTrip(r)
				if r.Method != http.MethodGet && a.wrote != nil {
					a.wrote(r)
				}
				return resp, err
			case n == int64(kill) && after && r.Method != http.MethodGet:
				resp, err := base.RoundTrip(r)
				if err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
			}
			return nil, errKilled
		}}
	})
	var text bytes.Buffer
	ad, err := adopt.New(config, adopt.Options{
		Manifests: cloudcore.Files(), Image: "registry.example.com/cloudcore:1", Wait: a.wait, Out: &text,
	})
	if err != nil {
		a.t.Fatal(err)
	}
	err = do(ad, a.t.Context())
	return text.String(), int(count.Load()), err
}

// killer is a transport that a test can end.
type killer struct {
	base http.RoundTripper
	do   func(*http.Request) (*http.Response, error)
}

func (k killer) RoundTrip(r *http.Request) (*http.Response, error) { return k.do(r) }

// WrappedRoundTripper lets client-go reach the transport below.
func (k killer) WrappedRoundTripper() http.RoundTripper { return k.base }

func (a *adoption) must(do command) (out string, writes int) {
	a.t.Helper()
	out, writes, err := a.run(do, 0, false)
	if err != nil {
		a.t.Fatalf("%v, want no error\n%s", err, out)
	}
	return out, writes
}

// state returns all objects that an adoption may concern, as text, without what the API server sets; and their resource
// versions.
func (a *adoption) state() (objects, versions map[string]string) {
	a.t.Helper()
	objects, versions = map[string]string{}, map[string]string{}
	out := a.kubectl("get", "-A", "-o", "json",
		"deployments,services,configmaps,secrets,serviceaccounts,roles,rolebindings,networkpolicies,"+
			"poddisruptionbudgets,daemonsets,clusterroles,clusterrolebindings,crds,namespaces,devices,"+
			"validatingadmissionpolicies,validatingadmissionpolicybindings")
	var list struct{ Items []map[string]any }
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		a.t.Fatal(err)
	}
	for _, o := range list.Items {
		meta := o["metadata"].(map[string]any)
		name := fmt.Sprint(o["kind"], " ", meta["name"])
		if namespace, ok := meta["namespace"]; ok {
			if namespace != "kubeedge" && o["kind"] != "Device" {
				continue
			}
		}
		labels, _ := meta["labels"].(map[string]any)
		// Kubernetes' own roles: the rules of some are aggregated a moment later.
		if labels["kubernetes.io/bootstrapping"] != nil || strings.HasSuffix(name, " cloudcore-adopt") {
			continue
		}
		versions[name] = fmt.Sprint(meta["resourceVersion"])
		for _, field := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"} {
			delete(meta, field)
		}
		if annotations, ok := meta["annotations"].(map[string]any); ok {
			delete(annotations, "deployment.kubernetes.io/revision")
		}
		if _, ok := o["webhooks"]; !ok {
			delete(o, "status")
		}
		text, err := json.Marshal(o)
		if err != nil {
			a.t.Fatal(err)
		}
		objects[name] = string(text)
	}
	return objects, versions
}

func same(t *testing.T, what string, want, got map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("%s: objects mismatch (-want +got):\n%s", what, diff)
	}
}

// settled returns the resource versions, once the controllers have written what follows from a command.
func (a *adoption) settled() map[string]string {
	a.t.Helper()
	var versions map[string]string
	wait.Until(a.t, "the objects no longer change", func() error {
		before := versions
		if _, versions = a.state(); !maps.Equal(before, versions) {
			return errors.New(cmp.Diff(before, versions))
		}
		return nil
	})
	return versions
}

// TestAdopt: the objects of KubeEdge's chart are replaced by edgecore's, with the addresses, ports and network of
// KubeEdge's, and are restored. Neither touches the CA, Devices, or what others have in the namespace, neither changes
// anything the second time, and either can be killed at any write.
func TestAdopt(t *testing.T) {
	for _, chart := range []string{"hostnetwork", "nodeport"} {
		t.Run(chart, func(t *testing.T) {
			t.Parallel()
			a := startAdoption(t, chart)
			theirs, before := a.state()
			out, writes := a.must((*adopt.Adoption).Plan)
			for _, want := range []string{
				"192.0.2.20", "daemonset/cloud-iptables-manager is no longer needed", "configmap/tunnelport",
				"deployment/kubeedge-controller-manager", "(failurePolicy Fail): validatedrule.kubeedge.io\n",
				"kube-apiserver: https://", "edgecore's manifests: container cloudcore: resources\n",
				"kubectl annotate namespace default --overwrite edgecore.io/device-nodes='edge-1'",
			} {
				if writes != 0 || !strings.Contains(out, want) {
					t.Errorf("Plan writes %d times, want never, and to print %q:\n%s", writes, want, out)
				}
			}
			_, writes = a.must((*adopt.Adoption).Apply)
			ours, after := a.state()
			a.adopted(chart)
			for _, kept := range []string{
				"Secret casecret", "Namespace kubeedge", "ConfigMap edgemesh-agent-cfg", "Device pump",
				"Deployment kubeedge-controller-manager", "ClusterRole cloudcore-common",
				"DaemonSet edge-eclipse-mosquitto", "ConfigMap tunnelport", "DaemonSet cloud-iptables-manager",
			} {
				// a DaemonSet without nodes has no news of its own
				if after[kept] != before[kept] || after[kept] == "" {
					t.Errorf("%s: resource version %q after apply, want %q", kept, after[kept], before[kept])
				}
			}
			versions := a.settled()
			a.must((*adopt.Adoption).Apply)
			_, again := a.state()
			same(t, "a second apply", versions, again)

			a.runs()
			_, writesBack := a.must((*adopt.Adoption).Undo)
			restored, _ := a.state()
			same(t, "undo", theirs, restored)
			const kept = "lease.coordination.k8s.io/cloudcore-backup"
			if left := a.kubectl("get", "leases", "-n", "kubeedge", "-o", "name"); strings.TrimSpace(left) != kept {
				t.Errorf("after undo there are the leases %q, want the one that is not edgecore's", left)
			}
			if n := a.kubectl("get", "nodes", "-l", holderLabel, "-o", "name"); n != "" {
				t.Errorf("after undo %q has a holder, want none", n)
			}
			versions = a.settled()
			a.must((*adopt.Adoption).Undo)
			_, again = a.state()
			same(t, "a second undo", versions, again)

			random := rand.New(rand.NewPCG(*seed, uint64(len(chart))))
			kills := random.Perm(max(writes, writesBack))
			if !*long {
				kills = kills[:2]
			}
			for _, kill := range kills {
				a.killedAt((*adopt.Adoption).Apply, 1+kill%writes, writes, random)
				now, _ := a.state()
				same(t, "apply after it was killed", ours, now)
				a.killedAt((*adopt.Adoption).Undo, 1+kill%writesBack, writesBack, random)
				now, _ = a.state()
				same(t, "undo after it was killed", theirs, now)
			}
			a.wait = time.Nanosecond
			_, _, err := a.run((*adopt.Adoption).Apply, 0, false)
			for _, want := range []string{
				"after 1ns: ", "`cloudcore adopt undo` goes back",
			} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("apply without time: %v, want %q in the error", err, want)
				}
			}
			a.wait = time.Minute
			a.must((*adopt.Adoption).Undo)

			if chart == "nodeport" {
				a.undoWithTakenPort(theirs)
			}

			// Undo at any step of an apply.
			kill := 1 + random.IntN(writes)
			if out, _, err := a.run((*adopt.Adoption).Apply, kill, true); !errors.Is(err, errKilled) {
				t.Fatalf("apply killed at write %d of %d: %v, want %v\n%s", kill, writes, err, errKilled, out)
			}
			a.must((*adopt.Adoption).Undo)
			now, _ := a.state()
			same(t, fmt.Sprintf("undo after an apply killed at write %d", kill), theirs, now)
		})
	}
}

// undoWithTakenPort takes a node port of KubeEdge's Service, which is not possible before ours lets go of it, and goes
// back. theirs is the state before the adoption.
func (a *adoption) undoWithTakenPort(theirs map[string]string) {
	a.t.Helper()
	const service = "{apiVersion: v1, kind: Service, metadata: {name: taker, namespace: default}, " +
		"spec: {type: NodePort, ports: [{port: 80, nodePort: 30003}]}}"
	get := func(path string) string {
		return a.kubectl("get", "service", "-n", "kubeedge", "cloudcore", "-o", "jsonpath="+path)
	}
	patch := func(text string) {
		a.kubectl("patch", "service", "-n", "kubeedge", "cloudcore", "--type=json", "-p", text)
	}
	const nodePorts = "{.spec.ports[*].nodePort}"
	before := get(nodePorts)
	a.must((*adopt.Adoption).Apply)
	if err := a.cluster.Apply(a.t.Context(), service); err == nil {
		a.t.Fatal("another Service gets the node port 30003, want it reserved")
	}
	patch(`[{"op": "remove", "path": "/spec/ports/3"}]`)
	if err := a.cluster.Apply(a.t.Context(), service); err != nil {
		a.t.Fatal(err)
	}
	uid := get("{.metadata.uid}")
	out, _ := a.must((*adopt.Adoption).Undo)
	if want := "warning: node port 30003 is not free any more"; !strings.Contains(out, want) {
		a.t.Errorf("undo prints no %q:\n%s", want, out)
	}
	got := strings.Fields(get(nodePorts))
	if len(got) != 6 || got[3] == "30003" || got[3] == "0" {
		a.t.Errorf("node ports after undo %q, want those of %q, but for 30003", got, before)
	}
	if now := get("{.metadata.uid}"); now != uid {
		a.t.Errorf("the Service has the uid %s after undo, want %s: it was deleted", now, uid)
	}
	a.kubectl("delete", "service", "taker")
	patch(`[{"op": "replace", "path": "/spec/ports/3/nodePort", "value": 30003}]`)
	now, _ := a.state()
	same(a.t, "undo with a node port that was taken", theirs, now)
}

const holderLabel = "edgecore.io.node-restriction.kubernetes.io/holder"

// runs does what edgecore's cloudcore does as it runs, as far as KubeEdge's would notice.
func (a *adoption) runs() {
	a.t.Helper()
	a.kubectl("patch", "secret", "-n", "kubeedge", "cloudcoresecret", "-p", `{"data": {"cloudcoredata": "bw=="}}`)
	a.kubectl("delete", "secret", "-n", "kubeedge", "tokensecret")
	for _, text := range []string{
		"{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: cloudcore-192-0-2-2, " +
			"namespace: kubeedge, labels: {edgecore.io/cloudcore: endpoint}}}",
		"{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: cloudcore-backup, namespace: kubeedge}}",
		"{apiVersion: v1, kind: Node, metadata: {name: edge-1, labels: {" + holderLabel + ": a}}}",
	} {
		if err := a.cluster.Apply(a.t.Context(), text); err != nil {
			a.t.Fatal(err)
		}
	}
}

// killedAt kills a command at one of its writes, then at a later one, and then lets it finish.
func (a *adoption) killedAt(do command, first, writes int, random *rand.Rand) {
	a.t.Helper()
	for _, kill := range []int{first, 1 + random.IntN(max(1, writes-first))} {
		after := random.IntN(2) == 1
		out, n, err := a.run(do, kill, after)
		a.t.Logf("killed at write %d of %d, after it: %v: %v", kill, writes, after, err)
		if n >= kill && !errors.Is(err, errKilled) {
			a.t.Fatalf("killed at write %d: %v, want %v\n%s", kill, err, errKilled, out)
		}
	}
	a.must(do)
}

// adopted checks what an apply has written.
func (a *adoption) adopted(chart string) {
	a.t.Helper()
	get := func(path string, args ...string) string {
		return a.kubectl(append(append([]string{"-n", "kubeedge", "get"}, args...), "-o", "jsonpath="+path)...)
	}
	config := get(`{.data.cloudcore\.yaml}`, "configmap", "cloudcore")
	want := map[string][]string{
		"hostnetwork": {"- 192.0.2.20", "nodeLimit: 1000", "port: 10000"},
		"nodeport":    {"- 192.0.2.20", "- cloud.example.com", "bindAddress: 0.0.0.0:9091"},
	}[chart]
	for _, line := range want {
		if !strings.Contains(config, line) {
			a.t.Errorf("the configuration has no %q:\n%s", line, config)
		}
	}
	ports := get("{range .spec.ports[*]}{.name} {.port} {.nodePort} {.targetPort},{end}", "service", "cloudcore")
	wantPorts := map[string]string{
		"hostnetwork": "cloudhub 10000  hub,cloudhub-quic 10001  hub-quic,cloudhub-https 10002  join," +
			"tunnelport 10004  stream,",
		"nodeport": "cloudhub 10000 30000 hub,cloudhub-quic 10001 30001 hub-quic,cloudhub-https 10002 30002 join," +
			"cloudstream 10003 30003 unserved,tunnelport 10004 30004 stream,https 443 30443 hub,",
	}[chart]
	if ports != wantPorts {
		a.t.Errorf("ports of the Service %q, want %q", ports, wantPorts)
	}
	selector := get("{.spec.selector}", "service", "cloudcore")
	if selector != `{"app.kubernetes.io/name":"cloudcore"}` {
		a.t.Errorf("selector of the Service %s, want edgecore's alone", selector)
	}
	pods, err := a.cluster.Client().CoreV1().Pods("kubeedge").List(a.t.Context(), metav1.ListOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	for _, p := range pods.Items {
		// a DaemonSet's have no such label
		if p.Labels["kubeedge"] == "cloudcore" || p.Labels["app.kubernetes.io/name"] != "cloudcore" {
			a.t.Errorf("pod %s has the labels %v, want those that the Service selects", p.Name, p.Labels)
		}
	}
	if len(pods.Items) != 1 {
		a.t.Errorf("there are %d pods, want edgecore's cloudcore alone", len(pods.Items))
	}
	host := get("{.spec.template.spec.hostNetwork}", "deployment", "cloudcore")
	if (host == "true") != (chart == "hostnetwork") {
		a.t.Errorf("host network %q with %s", host, chart)
	}
	if rule := a.kubectl("get", "clusterrole", "cloudcore", "-o", "jsonpath={.aggregationRule}"); rule != "" {
		a.t.Errorf("the role has the aggregation rule %s, want none", rule)
	}
	for _, question := range [][]string{
		{"yes", "patch", "pods"}, {"yes", "list", "secrets"}, {"yes", "update", "secrets/casecret", "-n", "kubeedge"},
		{"no", "delete", "pods"},
	} {
		wait.Until(a.t, strings.Join(question[1:], " ")+": "+question[0], func() error {
			args := append([]string{"auth", "can-i", "--as=system:serviceaccount:kubeedge:cloudcore"}, question[1:]...)
			out, _ := a.cluster.Kubectl(a.t.Context(), args...) // it fails where the answer is no
			if strings.TrimSpace(out) != question[0] {
				return fmt.Errorf("the answer is %q", out)
			}
			return nil
		})
	}
	labels := a.kubectl("get", "namespace", "kubeedge", "-o", "jsonpath={.metadata.labels}")
	if strings.Contains(labels, "pod-security") {
		a.t.Errorf("the namespace has the labels %s, want none of pod security", labels)
	}
}
