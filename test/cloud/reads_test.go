package cloud

import (
	"crypto/ed25519"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func configmapsAndSecrets(c *cloud) {
	c.register("c1")
	c.apply(`
{apiVersion: v1, kind: ConfigMap, metadata: {name: conf}, data: {a: "1"}}
---
{apiVersion: v1, kind: Secret, metadata: {name: key}, stringData: {p: s3cret}}
---
{apiVersion: v1, kind: Secret, metadata: {name: other}, stringData: {p: s3cret}}`)
	for _, key := range []string{"default/configmap/conf", "default/secret/key", "default/secret/none"} {
		c.refused("c1", "query", key, nil, metav1.StatusReasonForbidden)
	}
	// Not in the caches, and yet to be had.
	c.apply(`{apiVersion: v1, kind: Secret, metadata: {name: release}, type: helm.sh/release.v1, stringData: {p: big}}`)
	pod := c.pod("c1", "user", ", initContainers: [{name: i, image: example.com/c:1, env: [{name: A, valueFrom: "+
		"{configMapKeyRef: {name: conf, key: a}}}]}], imagePullSecrets: [{name: key}, {name: release}]")
	answer := c.must("c1", "query", "default/configmap/conf", nil)
	conf := object[v1.ConfigMap](c, answer)
	if conf.Kind != "ConfigMap" || conf.APIVersion != "v1" || conf.Data["a"] != "1" ||
		answer.Header.ResourceVersion != conf.ResourceVersion || conf.ManagedFields != nil {
		c.t.Errorf("answer %s, version %q, want ConfigMap conf with a=1, its version, no managed fields",
			answer.Content, answer.Header.ResourceVersion)
	}
	if secret := object[v1.Secret](c,
		c.must("c1", "query", "default/secret/key", nil)); string(secret.Data["p"]) != "s3cret" {
		c.t.Errorf("secret = %+v, want p=s3cret", secret)
	}
	c.refused("c1", "query", "default/secret/other", nil, metav1.StatusReasonForbidden)
	if o, err := c.ctl.Object("c1", key("default/secret/release")); err != nil || o == nil {
		c.t.Errorf("Object(a secret that is not in the caches) = %v, %v, want it, no error", o, err)
	}
	c.wants("c1", "default/configmap/conf")
	c.wants("c1", "default/secret/key")

	c.apply(`{apiVersion: v1, kind: ConfigMap, metadata: {name: conf}, data: {a: "2"}}`)
	key := resource.Key{Namespace: "default", Type: "configmap", Name: "conf"}
	wait.Until(c.t, "the change is to be sent", func() error {
		o, err := c.ctl.Object("c1", key)
		if err != nil || o == nil || !strings.Contains(string(o.JSON), `"a":"2"`) ||
			c.hub.count("c1", key.String()) < 2 {
			return fmt.Errorf("%v %+v, %d calls", err, o, c.hub.count("c1", key.String()))
		}
		return nil
	})
	calls := c.hub.count("c1", key.String())
	c.must("c1", "delete", "default/pod/user", deleteOptions(pod.UID))
	wait.Until(c.t, "it is forgotten with the last pod", func() error {
		o, err := c.ctl.Object("c1", key)
		if err != nil || o != nil || c.hub.count("c1", key.String()) == calls {
			return fmt.Errorf("%v %+v", err, o)
		}
		return nil
	})
	wait.Until(c.t, "it is forbidden again", func() error {
		if f := c.parse(c.ask("c1", "query", key.String(), nil)).failure(); f == nil ||
			f.Reason != metav1.StatusReasonForbidden {
			return fmt.Errorf("failure is %+v, want Forbidden", f)
		}
		return nil
	})
}

func tokens(c *cloud) {
	c.register("t1")
	c.register("t2")
	pod := c.pod("t1", "runs", "")
	ask := func(uid types.UID) *authenticationv1.TokenRequest {
		return &authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(3607)),
				BoundObjectRef: &authenticationv1.BoundObjectReference{
					Kind:       "Pod",
					APIVersion: "v1",
					Name:       "runs",
					UID:        uid,
				}},
		}
	}
	const key = "default/serviceaccounttoken/default"
	answer := c.soon("t1", "query", key, ask(pod.UID))
	got := object[authenticationv1.TokenRequest](c, answer)
	if got.Status.Token == "" || got.Kind != "TokenRequest" || got.APIVersion != "authentication.k8s.io/v1" ||
		answer.Header.ResourceVersion != "" {
		c.t.Errorf("%s %s, version %q, a token of %d bytes, want authentication.k8s.io/v1 TokenRequest, none, some",
			got.APIVersion, got.Kind, answer.Header.ResourceVersion, len(got.Status.Token))
	}
	review, err := c.admin.AuthenticationV1().TokenReviews().Create(c.t.Context(),
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: got.Status.Token}},
		metav1.CreateOptions{})
	if err != nil || !review.Status.Authenticated ||
		review.Status.User.Username != "system:serviceaccount:default:default" {
		c.t.Errorf("review of the token: %v, %+v, want system:serviceaccount:default:default", err, review.Status)
	}
	c.refused("t2", "query", key, ask(pod.UID), metav1.StatusReasonForbidden)
	c.refused("t1", "query", key, ask("another"), metav1.StatusReasonForbidden)
	c.refused("t1", "query", key, &authenticationv1.TokenRequest{}, metav1.StatusReasonForbidden)
	c.refused("t1", "query", "kubeedge/serviceaccounttoken/cloudcore", ask(pod.UID), metav1.StatusReasonForbidden)
	c.refused("t1", "query", key, nil, metav1.StatusReasonBadRequest)
	c.refused("t1", "query", key, "x", metav1.StatusReasonBadRequest)
	strange := ask(pod.UID)
	strange.Spec.Audiences = []string{"vault"} // of no volume of the pod
	c.refused("t1", "query", key, strange, metav1.StatusReasonForbidden)
}

func volumes(c *cloud) {
	c.register("v1")
	c.register("v2")
	c.apply(`
{apiVersion: v1, kind: Secret, metadata: {name: pv-secret}, stringData: {p: x}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: none
  claimRef: {namespace: default, name: claim}
  csi: {driver: d.example.com, volumeHandle: h, nodePublishSecretRef: {name: pv-secret, namespace: default}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claim}
spec: {accessModes: [ReadWriteOnce], storageClassName: none, volumeName: disk, resources: {requests: {storage: 1Gi}}}
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {name: attached}
spec: {attacher: d.example.com, nodeName: v1, source: {persistentVolumeName: disk}}`)
	for _, key := range []string{
		"default/persistentvolumeclaim/claim", "null/persistentvolume/disk", "default/secret/pv-secret",
	} {
		c.refused("v1", "query", key, nil, metav1.StatusReasonForbidden)
	}
	c.pod("v1", "with-disk", ", volumes: [{name: d, persistentVolumeClaim: {claimName: claim}}]")
	wait.Until(c.t, "the node may read the claim's volume and its secret", func() error {
		for _, key := range []string{
			"default/persistentvolumeclaim/claim", "null/persistentvolume/disk", "default/secret/pv-secret",
			"default/volumeattachment/attached",
		} {
			if f := c.parse(c.ask("v1", "query", key, nil)).failure(); f != nil {
				return errors.New(f.Message)
			}
		}
		return nil
	})
	answer := c.must("v1", "query", "null/persistentvolume/disk", nil)
	if pv := object[v1.PersistentVolume](c, answer); pv.Kind != "PersistentVolume" ||
		answer.Header.ResourceVersion != pv.ResourceVersion {
		c.t.Errorf("answer %s, version %q, want a PersistentVolume and its version",
			answer.Content, answer.Header.ResourceVersion)
	}
	for _, key := range []string{
		"null/persistentvolume/disk", "default/volumeattachment/attached", "default/secret/pv-secret",
	} {
		c.refused("v2", "query", key, nil, metav1.StatusReasonForbidden)
	}
}

// rareObjects are those of the cluster that a node reads when a pod needs them.
func rareObjects(c *cloud) {
	c.register("o1")
	c.apply(`
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: gvisor}, handler: runsc}
---
{apiVersion: storage.k8s.io/v1, kind: CSIDriver, metadata: {name: d.example.com}, spec: {podInfoOnMount: true, attachRequired: false}}`)
	if class := object[nodev1.RuntimeClass](c,
		c.must("o1", "query", "null/runtimeclass/gvisor", nil)); class.Handler != "runsc" ||
		class.Kind != "RuntimeClass" {
		c.t.Errorf("class = %+v, want RuntimeClass runsc", class)
	}
	if driver := object[storagev1.CSIDriver](c, c.must("o1", "query", "null/csidriver/d.example.com",
		nil)); driver.Spec.PodInfoOnMount == nil || !*driver.Spec.PodInfoOnMount {
		c.t.Errorf("driver = %+v, want podInfoOnMount", driver)
	}
	c.refused("o1", "query", "null/runtimeclass/none", nil, metav1.StatusReasonNotFound)
	c.refused("o1", "query", "null/csinode/o1", nil, metav1.StatusReasonNotFound)
	c.refused("o1", "query", "null/csinode/c1", nil, metav1.StatusReasonForbidden)
	node := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "o1"}}
	c.soon("o1", "insert", "null/csinode/o1", node)
	got := object[storagev1.CSINode](c, c.must("o1", "query", "null/csinode/o1", nil))
	got.Spec.Drivers = []storagev1.CSINodeDriver{{Name: "d.example.com", NodeID: "id"}}
	c.must("o1", "update", "null/csinode/o1", got)
	if got := object[storagev1.CSINode](c, c.must("o1", "query", "null/csinode/o1", nil)); len(got.Spec.Drivers) != 1 {
		c.t.Errorf("CSINode = %+v, want one driver", got)
	}
	c.apply(fmt.Sprintf("{apiVersion: %s, kind: ClusterTrustBundle, metadata: {name: roots}, spec: {trustBundle: %q}}",
		trustBundles, authority(c.t)))
	for _, key := range []string{"null/clustertrustbundle", "null/clustertrustbundle/roots"} {
		if answer := c.ask("o1", "query", key, nil); !strings.Contains(string(answer.Content), `"name":"roots"`) ||
			!strings.Contains(string(answer.Content), "BEGIN CERTIFICATE") {
			c.t.Errorf("answer to %s = %s, want the trust bundle roots", key, answer.Content)
		}
	}
}

// trustBundles is the version in which the API server has trust bundles.
const trustBundles = "certificates.k8s.io/v1beta1"

// authority is the certificate of a new authority.
func authority(t testing.TB) string {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "roots"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(nil, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func services(c *cloud) {
	c.register("s1")
	c.register("s2")
	c.apply(`
{apiVersion: v1, kind: Service, metadata: {name: db}, spec: {selector: {app: db}, ports: [{port: 5432}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: headless}, spec: {clusterIP: None, ports: [{port: 1}]}}`)
	c.pod("s1", "client", "")
	c.wants("s1", "default/service/db")
	c.wants("s1", "default/service/kubernetes")
	for _, ref := range c.ctl.Desired("s1") {
		if ref.Key.Name == "headless" {
			c.t.Errorf("Desired(s1) contains %v, want no service without an address", ref)
		}
	}
	c.ctl.Connected(c.t.Context(), "upstream", "websocket")
	defer c.ctl.Disconnected("upstream", "done")
	c.pod("upstream", "elsewhere", "")
	for _, node := range []string{"upstream", "s2"} { // a node of the upstream project, one without pods
		if refs := c.ctl.Desired(node); slices.ContainsFunc(refs, isService) {
			c.t.Errorf("Desired(%s) = %v, want no service", node, refs)
		}
	}
	if s := object[v1.Service](c, c.must("s1", "query", "default/service/db", nil)); s.Kind != "Service" ||
		s.Spec.ClusterIP == "" {
		c.t.Errorf("service = %+v, want kind Service with an address", s)
	}
	wait.Until(c.t, "the endpoints of the service", func() error {
		if f := c.parse(c.ask("s1", "query", "default/endpoints/db", nil)).failure(); f != nil {
			return errors.New(f.Message)
		}
		return nil
	})
	c.refused("s1", "query", "default/service/none", nil, metav1.StatusReasonNotFound)
}
