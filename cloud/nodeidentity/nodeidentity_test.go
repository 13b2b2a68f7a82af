package nodeidentity

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// env is a cloud of the real parts, but for the API and edgecontroller: the CA that signs, the hub and the guard.
type env struct {
	t         *testing.T
	api       *fake.Clientset
	authority *certificates.Authority
	hub       *cloudhub.Hub
	guard     *Guard
	link      string // where devices connect
	join      string // where they join

	mu      sync.Mutex
	handled []string
	fail    error // what the API fails with
}

func newEnv(t *testing.T) *env {
	e := &env{t: t, api: fake.NewClientset()}
	e.api.PrependReactor("*", "nodes", func(ktesting.Action) (bool, runtime.Object, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.fail != nil, nil, e.fail
	})
	var err error
	secrets := e.api.CoreV1().Secrets(certificates.Namespace)
	e.authority, err = certificates.New(t.Context(), secrets, certificates.Options{Addresses: []string{"127.0.0.1"},
		ProtectTaken: true})
	e.must(err)
	e.guard = New(Options{Revoked: e.authority.Check, Edge: e.edge, Nodes: e.api.CoreV1().Nodes()})
	e.hub, err = cloudhub.New(cloudhub.Options{Upstream: e.guard.Upstream(e), Downstream: e.guard.Downstream(e),
		Gate: e.guard})
	e.must(err)
	e.guard.SetHub(e.hub)

	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	t.Cleanup(func() { cancel(); all.Wait() })
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		e.must(err)
		return l
	}
	link, join := listen(), listen()
	e.link, e.join = link.Addr().String(), join.Addr().String()
	config := cloudhub.TLSConfig(e.authority.ServerTLS(tls.RequireAndVerifyClientCert).GetCertificate,
		e.authority.Pool())
	for _, run := range []func(){
		func() { _ = e.hub.Run(ctx) },
		func() { _ = e.hub.ServeWebSocket(ctx, link, config) },
		func() { _ = e.authority.Serve(ctx, join, e.api.CoreV1().Nodes()) },
		func() { _ = e.guard.Run(ctx) },
	} {
		all.Go(run)
	}
	return e
}

func (e *env) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// edge is the cache, which is never behind here.
func (e *env) edge(name string) *v1.Node {
	obj, err := e.api.Tracker().Get(v1.SchemeGroupVersion.WithResource("nodes"), "", name)
	if err != nil {
		return nil
	}
	node := obj.(*v1.Node)
	if _, edge := node.Labels[marks.EdgeLabel]; !edge {
		return nil
	}
	return node
}

// device joins with a token, for the node alone or for any.
func (e *env) device(node string, bound bool) *tls.Certificate {
	e.t.Helper()
	of := ""
	if bound {
		of = node
	}
	token, err := e.authority.NewToken(of, time.Hour)
	e.must(err)
	key, err := certs.NewKey()
	e.must(err)
	csr, err := certs.NewRequest(node, key)
	e.must(err)
	req, err := http.NewRequestWithContext(e.t.Context(), http.MethodGet, "https://"+e.join+"/edge.crt",
		strings.NewReader(string(csr)))
	e.must(err)
	req.Header.Set("NodeName", node)
	req.Header.Set("Authorization", "Bearer "+token.Bearer)
	client := &http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: e.authority.Pool()}, DisableKeepAlives: true},
	}
	return e.issued(client, req, key)
}

func (e *env) dial(node string, cert *tls.Certificate) (wire.Conn, error) {
	header := http.Header{}
	header.Set(wire.HeaderNodeID, node)
	conn, err := wire.DialWebSocket(e.t.Context(), wire.DialOptions{
		URL: "wss://" + e.link + "/", Header: header, Features: wire.AllFeatures(),
		TLS: &tls.Config{RootCAs: e.authority.Pool(), Certificates: []tls.Certificate{*cert}},
	})
	if err == nil {
		e.t.Cleanup(func() { _ = conn.Close(wire.CloseNormal, "") })
	}
	return conn, err
}

// connect expects that a device is let in.
func (e *env) connect(node string, cert *tls.Certificate) wire.Conn {
	e.t.Helper()
	conn, err := e.dial(node, cert)
	e.must(err)
	wait.True(e.t, "the session of "+node, func() bool {
		at := e.hub.Certificate(node)
		return at != nil && string(at.Raw) == string(cert.Certificate[0])
	})
	return conn
}

// refused expects that a device is turned away with words.
func (e *env) refused(what, node string, cert *tls.Certificate, words string) {
	e.t.Helper()
	_, err := e.dial(node, cert)
	var refused *wire.Refused
	if !errors.As(err, &refused) || refused.Status != http.StatusForbidden || !strings.Contains(refused.Text, words) {
		e.t.Errorf("%s: dial ended with %v, want status %d with %q", what, err, http.StatusForbidden, words)
	}
}

// register creates a Node as edgecontroller does, and tells the guard as the caches do.
func (e *env) register(name string, labels map[string]string) *v1.Node {
	e.t.Helper()
	node, err := e.api.CoreV1().Nodes().Create(e.t.Context(),
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
	e.must(err)
	if _, edge := labels[marks.EdgeLabel]; edge {
		e.guard.NodeChanged(node)
	}
	return node
}

// holder waits until a Node is labelled with the holder of a certificate.
func (e *env) holder(name string, cert *tls.Certificate) {
	e.t.Helper()
	wait.Until(e.t, "node "+name+" to be labelled with its device", func() error {
		want, got := certs.HolderOf(parsed(e.t, cert)), ""
		if node := e.edge(name); node != nil {
			got = node.Labels[HolderLabel]
		}
		if got != want || want == "" {
			return fmt.Errorf("the label is %q, want %q", got, want)
		}
		return nil
	})
}

// The rest of env is what stands behind the guard.

func (e *env) Connected(context.Context, string, string)                 {}
func (e *env) Disconnected(string, string)                               {}
func (e *env) Inventoried(context.Context, string, []wire.Held) []string { return nil }
func (e *env) Heartbeat(_ context.Context, node string) error            { e.note("lease of " + node); return nil }
func (e *env) Desired(string) []cloudhub.Ref                             { return nil }
func (e *env) Object(_ string, key resource.Key) (*cloudhub.Object, error) {
	if key.Name == "gone" {
		return nil, nil
	}
	return &cloudhub.Object{Ref: cloudhub.Ref{Key: key}}, nil
}
func (e *env) Handle(_ context.Context, node string, m *model.Message) *model.Message {
	e.note(m.Route.Resource + " of " + node)
	return m.Respond(json.RawMessage(`"OK"`))
}

func (e *env) note(what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.handled = append(e.handled, what)
}

func (e *env) noted() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.handled, ", ")
}

var edgeLabels = map[string]string{marks.EdgeLabel: ""}

// TestForeignNode: a certificate of a general token for a name that had no Node does not speak for a server that has it
// later; neither on a new connection nor on one that was there before.
func TestForeignNode(t *testing.T) {
	e := newEnv(t)
	before, after := e.device("worker-7", false), e.device("worker-8", false)
	conn := e.connect("worker-7", before)
	ask := func(what string) error {
		return conn.Write(model.New(model.ModuleEdged, model.GroupMeta, model.OpQuery, what, nil))
	}
	e.must(ask("null/node/worker-7"))
	if _, err := conn.Read(); err != nil {
		t.Fatalf("a name without a Node: %v, want an answer", err)
	}
	server := map[string]string{"kubernetes.io/os": "linux"}
	e.register("worker-7", server)
	e.register("worker-8", server)

	object, err := e.guard.Downstream(e).Object("worker-7", resource.Key{Type: resource.TypeSecret, Namespace: "ns",
		Name: "password"})
	if object != nil || err == nil {
		t.Errorf("Object for the server's Node = %v, %v; want an error", object, err)
	}
	if object, err := e.guard.Downstream(e).Object("worker-7", resource.Key{Type: resource.TypePod, Namespace: "ns",
		Name: "gone"}); object != nil || err != nil {
		t.Errorf("Object of what is gone = %v, %v; want neither", object, err)
	}
	e.must(e.guard.Upstream(e).Heartbeat(t.Context(), "worker-7"))
	e.must(ask("ns/secret/password"))
	for err = nil; err == nil; {
		_, err = conn.Read()
	}
	const words = "the cluster has a node worker-7 that did not join through cloudcore"
	var closed *wire.Closed
	if !errors.As(err, &closed) || closed.Code != wire.ClosePolicy || !strings.HasPrefix(closed.Reason, words) {
		t.Errorf("the connection ended with %v, want code %d and %q", err, wire.ClosePolicy, words)
	}
	e.refused("the connection of before", "worker-7", before, words)
	e.refused("a first connection", "worker-8", after, "edgecore join --edgenode-name")
	if got, want := e.noted(), "null/node/worker-7 of worker-7"; got != want {
		t.Errorf("done in the nodes' names: %q, want %q alone", got, want)
	}
}

// TestOneHolder: of two devices with certificates of one name, the one that registered the Node keeps it, also over
// renewals and when the Node is deleted; a device that joins with a token for the node takes its place.
func TestOneHolder(t *testing.T) {
	e := newEnv(t)
	thief, device := e.device("edge1", false), e.device("edge1", false)
	e.connect("edge1", device)
	e.register("edge1", edgeLabels)
	e.holder("edge1", device)
	const words = "node edge1 belongs to another device"
	e.refused("another certificate of the name", "edge1", thief, words)
	e.refused("the same, renewed", "edge1", e.renew("edge1", thief), words)
	device = e.renew("edge1", device)
	e.connect("edge1", device)

	e.must(e.api.CoreV1().Nodes().Delete(t.Context(), "edge1", metav1.DeleteOptions{}))
	e.connect("edge1", device)
	e.register("edge1", edgeLabels)
	e.holder("edge1", device)
	e.refused("another certificate, after the Node was registered again", "edge1", thief, words)

	wait.True(t, "a second after the first device joined", func() bool {
		replacement := e.device("edge1", true)
		return certs.Supersedes(certs.HolderOf(parsed(t, replacement)), certs.HolderOf(parsed(t, device)))
	})
	replacement := e.device("edge1", true)
	old := e.connect("edge1", device)
	e.connect("edge1", replacement)
	e.holder("edge1", replacement)
	for err := error(nil); err == nil; {
		_, err = old.Read()
	}
	e.refused("the replaced device", "edge1", device, "`cloudcore gettoken --node edge1 --replace`")
	e.connect("edge1", e.renew("edge1", replacement))
}

// TestFirstConnection: a Node without a holder, which is from an older version, belongs to the first device that
// connects with one; certificates without a holder, of KubeEdge's cloudcore or of an older version, are good until
// then.
func TestFirstConnection(t *testing.T) {
	e := newEnv(t)
	device, other := e.device("edge1", false), e.device("edge1", false)
	e.register("edge1", edgeLabels)
	plain := e.plain("edge1")
	e.connect("edge1", plain)
	if label, ok := e.edge("edge1").Labels[HolderLabel]; ok {
		t.Errorf("the Node is labelled with %q after a certificate without a holder, want no label", label)
	}
	e.connect("edge1", device)
	e.holder("edge1", device)
	e.refused("another device", "edge1", other, "belongs to another device")
	e.refused("a certificate without a holder", "edge1", plain, "a certificate that names no device")
}

// TestNoAPI: without the API server devices come back, and who is not known is asked to try again.
func TestNoAPI(t *testing.T) {
	e := newEnv(t)
	known, unknown, unbound := e.device("edge1", false), e.device("edge2", false), e.device("edge3", false)
	e.register("edge1", edgeLabels)
	e.connect("edge1", known)
	e.holder("edge1", known)
	e.register("edge3", edgeLabels)
	e.mu.Lock()
	e.fail = apierrors.NewInternalError(errors.New("no API server"))
	e.mu.Unlock()
	e.connect("edge1", known)
	e.connect("edge3", unbound)
	_, err := e.dial("edge2", unknown)
	var refused *wire.Refused
	if !errors.As(err, &refused) || refused.Status != http.StatusServiceUnavailable {
		t.Errorf("a device without a Node: %v, want status %d", err, http.StatusServiceUnavailable)
	}
}

// TestBindRace: of two cloudcores that label a Node at the same time, one finds that the other was faster.
func TestBindRace(t *testing.T) {
	e := newEnv(t)
	device, other := e.device("edge1", false), e.device("edge1", false)
	stale := e.register("edge1", edgeLabels)
	conflicts := 0
	e.api.PrependReactor("patch", "nodes", func(ktesting.Action) (bool, runtime.Object, error) {
		if conflicts++; conflicts > 1 {
			return false, nil, nil
		}
		node := e.edge("edge1").DeepCopy()
		node.Labels[HolderLabel] = certs.HolderOf(parsed(t, other))
		if err := e.api.Tracker().Update(v1.SchemeGroupVersion.WithResource("nodes"), node, ""); err != nil {
			t.Error(err)
		}
		return true, nil, apierrors.NewConflict(v1.Resource("nodes"), "edge1", nil)
	})
	if err := e.guard.bind(t.Context(), stale, parsed(t, device)); err == nil ||
		!strings.Contains(err.Error(), "belongs to another device") {
		t.Errorf("bind = %v, want that the other device has the node", err)
	}
	if conflicts != 1 {
		t.Errorf("%d patches, want 1", conflicts)
	}
}
