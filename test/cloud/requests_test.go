package cloud

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// eventsOfOthers: a node that gives its event the name of an existing one does not change that one, unless it is its
// own. Only the API server knows what is stored.
func eventsOfOthers(c *cloud) {
	c.register("e5")
	c.register("e6")
	pod := c.pod("e5", "victim", "")
	const message = "one"
	ofPod, ofNode := event("e5", "of-pod", "Pod", "victim", pod.UID), event("e5", "of-node", "Node", "e5", "")
	c.send("e5", "insert", "of-pod", ofPod)
	c.send("e5", "insert", "of-node", ofNode)
	ofCluster := event("", "of-cluster", "Node", "e6", "")
	ofCluster.Source = v1.EventSource{Component: "node-controller"}
	ofCluster.InvolvedObject.Namespace = "default"
	if _, err := c.admin.CoreV1().Events("default").Create(c.t.Context(), ofCluster,
		metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	unsigned := event("", "of-cluster", "Node", "e6", "")
	unsigned.Source.Host = ""
	for _, e := range []*v1.Event{
		event("e6", "of-pod", "Node", "e6", ""), // of another node, and about another object
		event("e6", "of-pod", "Pod", "victim", "gone"),
		event("e6", "of-node", "Node", "e6", ""),
		event("e6", "of-cluster", "Node", "e6", ""), // about the same object, by another
		unsigned,
		event("e6", "of-pod", "Pod", "long-gone", ""),
	} {
		e.Message, e.Count = "forged", 7
		for op, content := range map[string]any{
			"insert": e, "update": e,
			"patch": map[string]any{"event": e, "patchData": `{"count":7,"message":"forged"}`},
		} {
			c.refused("e6", op, "default/event/"+e.Name, content, metav1.StatusReasonForbidden)
		}
		if got := c.recorded(e.Name); got == nil || got.Message != message || got.Count != 1 {
			c.t.Errorf("event %s = %+v after another node sent one of that name, want it unchanged", e.Name, got)
		}
	}
	// Its own may change, in these ways.
	series := `{"count":3,"lastTimestamp":"2030-01-01T00:00:00Z","message":"three",` +
		`"series":{"count":3,"lastObservedTime":"2030-01-01T00:00:00.000000Z"}}`
	c.send("e5", "patch", "of-node", map[string]any{"event": ofNode, "patchData": series})
	got := c.recorded("of-node")
	if got.Count != 3 || got.Message != "three" || got.Series == nil || got.Series.Count != 3 {
		c.t.Errorf("event after a patch of its own node = %+v, want count, message and series of it", got)
	}
	for _, patch := range []string{
		`{"type":"Warning"}`, `{"reason":"x"}`, `{"metadata":{"labels":{"a":"b"}}}`, `{"$patch":"delete"}`,
	} {
		c.refused("e5", "patch", "default/event/of-node", map[string]any{"event": ofNode, "patchData": patch},
			metav1.StatusReasonBadRequest)
	}
}

// lateStatuses: a status that waited in cloudcore does not overwrite what was written meanwhile, and is written if
// nothing was.
func lateStatuses(c *cloud) {
	c.register("late")
	pod := c.pod("late", "waits", "")
	report := func(phase v1.PodPhase) string {
		return fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"phase":%q}}`, pod.UID, phase)
	}
	late := func(phase v1.PodPhase) *metav1.Status {
		data, err := json.Marshal(report(phase))
		if err != nil {
			c.t.Fatal(err)
		}
		ctx := cloudhub.WithArrival(c.t.Context(), time.Now().Add(-2*time.Second))
		m := model.New(model.ModuleEdged, model.GroupMeta, "patch", "default/podpatch/waits", data)
		return c.parse(c.ctl.Handle(ctx, "late", m)).failure()
	}
	phase := func() v1.PodPhase {
		got, err := c.admin.CoreV1().Pods("default").Get(c.t.Context(), "waits", metav1.GetOptions{})
		if err != nil {
			c.t.Fatal(err)
		}
		return got.Status.Phase
	}
	c.must("late", "patch", "default/podpatch/waits", report(v1.PodRunning))
	if f := late(v1.PodPending); f == nil || f.Code != http.StatusServiceUnavailable {
		c.t.Errorf("a late status after a newer one is answered with %+v, want code 503", f)
	}
	if got := phase(); got != v1.PodRunning {
		c.t.Errorf("phase after a late status = %s, want %s", got, v1.PodRunning)
	}
	wait.Until(c.t, "a late status is accepted once the pod has not changed for longer", func() error {
		if f := late(v1.PodFailed); f != nil {
			return fmt.Errorf("%d: %s", f.Code, f.Message)
		}
		return nil
	})
	if got := phase(); got != v1.PodFailed {
		c.t.Errorf("phase = %s, want %s", got, v1.PodFailed)
	}
}

// certificateRequests: a node may ask for the certificate of its own port, with its own rights, and for no other.
func certificateRequests(c *cloud) {
	c.register("csr")
	c.must("csr", "patch", "null/nodepatch/csr",
		`{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.7"}]}}`)
	ask := func(name, signer string, usage certificatesv1.KeyUsage,
		ip string) *certificatesv1.CertificateSigningRequest {
		return &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				SignerName: signer,
				Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage},
				Request:    csrFor(c.t, "csr", ip),
			},
		}
	}
	const signer, client = certificatesv1.KubeletServingSignerName, certificatesv1.KubeAPIServerClientKubeletSignerName
	const server, at = certificatesv1.UsageServerAuth, "default/certificatesigningrequest/"
	c.must("csr", "insert", at+"csr-fine", ask("csr-fine", signer, server, "192.0.2.7"))
	got := object[certificatesv1.CertificateSigningRequest](c, c.must("csr", "query", at+"csr-fine", nil))
	if got.Spec.Username != "system:node:csr" || got.Spec.SignerName != signer {
		c.t.Errorf("request = %+v, want it made by system:node:csr for %s", got.Spec, signer)
	}
	c.refused("csr", "insert", at+"csr-client", ask("csr-client", client, certificatesv1.UsageClientAuth, "192.0.2.7"),
		metav1.StatusReasonForbidden)
	c.refused("csr", "insert", at+"csr-other", ask("csr-other", signer, server, "192.0.2.8"),
		metav1.StatusReasonServiceUnavailable)
	list, err := c.admin.CertificatesV1().CertificateSigningRequests().List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, csr := range list.Items {
		if csr.Name == "csr-client" || csr.Name == "csr-other" {
			c.t.Errorf("request %s exists, want it refused", csr.Name)
		}
	}
}

// csrFor is a signed request for a certificate of a node's port.
func csrFor(t *testing.T, node, ip string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:     pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
		DNSNames:    []string{node},
		IPAddresses: []net.IP{net.ParseIP(ip)},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}
