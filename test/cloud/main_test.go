// Package cloud tests the cloud's parts against a real Kubernetes: kube-apiserver with the node authorizer and the
// NodeRestriction admission, and kube-controller-manager.
package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// cloud is a cluster with a controller that has the rights that deploy/cloudcore gives it.
type cloud struct {
	t       *testing.T
	cluster *kube.Cluster
	admin   kubernetes.Interface
	config  *rest.Config
	how     impersonate.Mode
	ctl     *edgecontroller.Controller
	hub     *hub

	beforeRequest *atomic.Pointer[func(*http.Request)] // called before a request of the controller leaves, if set
}

// hooked calls beforeRequest.
type hooked struct {
	c    *cloud
	base http.RoundTripper
}

func (h hooked) RoundTrip(r *http.Request) (*http.Response, error) {
	if before := h.c.beforeRequest.Load(); before != nil {
		(*before)(r)
	}
	return h.base.RoundTrip(r)
}

// WrappedRoundTripper lets client-go reach the transport below.
func (h hooked) WrappedRoundTripper() http.RoundTripper { return h.base }

// meanwhile calls change once, just before the next request of the controller that puts to a path.
func (c *cloud) meanwhile(path string, change func() error) {
	var once sync.Once
	before := func(r *http.Request) {
		if r.Method == http.MethodPut && r.URL.Path == path {
			once.Do(func() {
				if err := change(); err != nil {
					c.t.Errorf("change what %s writes: %v, want no error", path, err)
				}
			})
		}
	}
	c.beforeRequest.Store(&before)
}

// hub notes what the controller tells it.
type hub struct {
	mu           sync.Mutex
	changed      map[string]int
	disconnected map[string]string
}

func newHub() *hub { return &hub{changed: map[string]int{}, disconnected: map[string]string{}} }

func (h *hub) Changed(node string, key resource.Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changed[node+" "+key.String()]++
}

func (h *hub) StatusChanged(string, resource.Key) {}

func (h *hub) Holds(node string, key resource.Key, _ types.UID) { h.Changed(node, key) }

func (h *hub) RequestStatus(string, resource.Key, types.UID) bool { return false }

func (h *hub) Recorded(string, cloudhub.Record) {}

func (h *hub) ToRecord(string, cloudhub.Record) (next cloudhub.Record, wait time.Duration, ok bool) {
	return
}

func (h *hub) Disconnect(node, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.disconnected[node] = reason
}

func (h *hub) count(node, key string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed[node+" "+key]
}

func (h *hub) reason(node string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.disconnected[node]
}

func manifest(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "deploy", "cloudcore", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// start starts a cluster and applies the manifests; the controller is not there yet.
func start(t *testing.T, opts kube.Options, manifests ...string) *cloud {
	t.Helper()
	cluster := kube.Start(t, opts)
	c := &cloud{t: t, cluster: cluster, admin: cluster.Client(), hub: newHub(),
		beforeRequest: new(atomic.Pointer[func(*http.Request)])}
	for _, name := range append([]string{"setup/namespace.yaml"}, manifests...) {
		if err := cluster.Apply(t.Context(), manifest(t, name)); err != nil {
			t.Fatalf("%s: %v, want no error", name, err)
		}
	}
	c.apply("{apiVersion: v1, kind: ServiceAccount, metadata: {name: cloudcore, namespace: kubeedge}}")
	path, err := cluster.AddServiceAccount(t.Context(), "kubeedge", "cloudcore")
	if err != nil {
		t.Fatal(err)
	}
	if c.config, err = clientcmd.BuildConfigFromFlags("", path); err != nil {
		t.Fatal(err)
	}
	c.config.QPS = -1
	c.config.Wrap(func(base http.RoundTripper) http.RoundTripper { return hooked{c, base} })
	return c
}

// control starts the controller, which runs until the test ends.
func (c *cloud) control() {
	c.t.Helper()
	c.t.Cleanup(c.startController())
}

// startController starts the controller, and returns what stops it.
func (c *cloud) startController() (stop func()) {
	c.t.Helper()
	var err error
	wait.Until(c.t, "cloudcore may act for nodes", func() error {
		c.how, err = impersonate.Choose(c.t.Context(), c.config)
		return err
	})
	clients, err := impersonate.New(c.config, c.how)
	if err != nil {
		c.t.Fatal(err)
	}
	ctl, err := edgecontroller.New(edgecontroller.Options{Clients: clients, LocalIP: "192.0.2.2"})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stop = sync.OnceFunc(func() {
		cancel()
		ctl.Wait()
		clients.Close()
	})
	if err := ctl.Start(ctx, c.hub); err != nil {
		stop()
		c.t.Fatal(err)
	}
	c.ctl = ctl
	return stop
}

func (c *cloud) apply(text string) {
	c.t.Helper()
	if err := c.cluster.Apply(c.t.Context(), text); err != nil {
		c.t.Fatal(err)
	}
}

// reply is what an answer can hold.
type reply struct {
	Object    json.RawMessage
	Err       *struct{ ErrStatus metav1.Status }
	ErrStatus *metav1.Status
}

// failure is the Status in an answer, on top or under Err; nil for a success.
func (r *reply) failure() *metav1.Status {
	if r.Err != nil {
		return &r.Err.ErrStatus
	}
	return r.ErrStatus
}

// ask is what the hub does with a message of a node. The answer's route is checked; the answer is returned.
func (c *cloud) ask(node, op, res string, content any) *model.Message {
	c.t.Helper()
	data, err := json.Marshal(content)
	if err != nil {
		c.t.Fatal(err)
	}
	m := model.New(model.ModuleEdged, model.GroupMeta, op, res, data)
	answer := c.ctl.Handle(c.t.Context(), node, m)
	if answer == nil {
		return nil
	}
	if answer.Header.ParentID != m.Header.ID || answer.Route.Source != "edgecontroller" ||
		answer.Route.Group != "resource" ||
		answer.Route.Operation != "response" || answer.Route.Resource != res {
		c.t.Errorf("%s %s: answer's header %+v, route %+v, want parent %s, edgecontroller, resource, response, %s",
			op, res, answer.Header, answer.Route, m.Header.ID, res)
	}
	return answer
}

// oldAsk is ask for messages whose answer has another resource.
func (c *cloud) oldAsk(node, op, res string, content any) *model.Message {
	c.t.Helper()
	data, err := json.Marshal(content)
	if err != nil {
		c.t.Fatal(err)
	}
	answer := c.ctl.Handle(c.t.Context(), node, model.New(model.ModuleEdged, model.GroupMeta, op, res, data))
	if answer == nil {
		c.t.Fatalf("%s %s by %s: answer = nil, want one", op, res, node)
	}
	return answer
}

func key(text string) resource.Key {
	k, err := resource.Parse(text)
	if err != nil {
		panic(err)
	}
	return k
}

func decode[T any](t *testing.T, data []byte) *T {
	t.Helper()
	out := new(T)
	if err := json.Unmarshal(data, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func isService(ref cloudhub.Ref) bool { return ref.Key.Type == resource.TypeService }

func (c *cloud) parse(m *model.Message) *reply {
	c.t.Helper()
	out := &reply{}
	if m == nil {
		c.t.Fatal("answer = nil, want one")
	}
	if string(m.Content) == `"OK"` {
		return out
	}
	if err := json.Unmarshal(m.Content, out); err != nil {
		c.t.Fatalf("answer %s: %v, want no error", m.Content, err)
	}
	return out
}

// must asks for what must succeed.
func (c *cloud) must(node, op, res string, content any) *model.Message {
	c.t.Helper()
	m := c.ask(node, op, res, content)
	if f := c.parse(m).failure(); f != nil {
		c.t.Fatalf("%s %s by %s: %s: %s, want success", op, res, node, f.Reason, f.Message)
	}
	return m
}

// soon asks for what must succeed once the API server's own authorizer and admission have heard of what was made just
// now.
func (c *cloud) soon(node, op, res string, content any) *model.Message {
	c.t.Helper()
	var m *model.Message
	wait.Until(c.t, op+" "+res, func() error {
		m = c.ask(node, op, res, content)
		if f := c.parse(m).failure(); f != nil {
			return fmt.Errorf("%s: %s", f.Reason, f.Message)
		}
		return nil
	})
	return m
}

// refused asks for what must fail, and how.
func (c *cloud) refused(node, op, res string, content any, reason metav1.StatusReason) {
	c.t.Helper()
	m := c.ask(node, op, res, content)
	f := c.parse(m).failure()
	if f == nil {
		c.t.Fatalf("%s %s by %s: answer %s, want a failure for %s", op, res, node, m.Content, reason)
	}
	if f.Reason != reason {
		c.t.Fatalf("%s %s by %s: %s (%s), want %s", op, res, node, f.Reason, f.Message, reason)
	}
}

func object[T any](c *cloud, m *model.Message) *T {
	c.t.Helper()
	data := []byte(m.Content)
	if r := c.parse(m); r.Object != nil {
		data = r.Object
	}
	out := new(T)
	if err := json.Unmarshal(data, out); err != nil {
		c.t.Fatal(err)
	}
	return out
}

func edgeNode(name string) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64",
			"site":                         "pump-7",
			"node-role.kubernetes.io/edge": "", "node-role.kubernetes.io/agent": "",
			"node-role.kubernetes.io/control-plane": "", "node-restriction.kubernetes.io/vault": "yes",
		}},
		Status: v1.NodeStatus{Capacity: v1.ResourceList{}},
	}
}

// register makes a node of an edge that is connected.
func (c *cloud) register(name string) *v1.Node {
	c.t.Helper()
	c.ctl.Connected(c.t.Context(), name, "edgecore/websocket")
	c.t.Cleanup(func() { c.ctl.Disconnected(name, "the test ended") })
	return object[v1.Node](c, c.must(name, "insert", "null/node/"+name, edgeNode(name)))
}

// pod makes a pod that is bound to an edge node, and waits until the controller wants it there.
func (c *cloud) pod(node, name, extra string) *v1.Pod {
	c.t.Helper()
	pod := c.bound(node, name, extra)
	c.wants(node, "default/pod/"+name)
	return pod
}

// bound makes a pod that is bound to a node.
func (c *cloud) bound(node, name, extra string) *v1.Pod {
	c.t.Helper()
	c.apply(fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {nodeName: %s, containers: [{name: "+
		"c, image: example.com/c:1}]%s}}", name, node, extra))
	pod, err := c.admin.CoreV1().Pods("default").Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return pod
}

// wants waits until a node is to have an object. Its Node it is to have where it asks for it: edges of ours are sent
// none.
func (c *cloud) wants(node, key string) cloudhub.Ref {
	c.t.Helper()
	var found cloudhub.Ref
	wait.Until(c.t, node+" is to have "+key, func() error {
		if own := (resource.Key{
			Namespace: resource.NullNamespace, Type: resource.TypeNode, Name: node,
		}); own.String() == key {
			o, err := c.ctl.Object(node, own)
			if err == nil && o == nil {
				err = errors.New("there is none")
			}
			return err
		}
		for _, ref := range c.ctl.Desired(node) {
			if ref.Key.String() == key {
				found = ref
				return nil
			}
		}
		return errors.New("it is not in the list")
	})
	return found
}

func (c *cloud) defaultAccount() {
	c.t.Helper()
	wait.Until(c.t, "the default service account", func() error {
		_, err := c.admin.CoreV1().ServiceAccounts("default").Get(c.t.Context(), "default", metav1.GetOptions{})
		return err
	})
}
