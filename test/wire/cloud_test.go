package wire

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clientgotesting "k8s.io/client-go/testing"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/cloudhub/objectsync"
	"github.com/edgecore-io/edgecore/cloud/controllers"
	"github.com/edgecore-io/edgecore/cloud/devicecontroller"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	reliablesyncs "github.com/edgecore-io/edgecore/pkg/apis/reliablesyncs/v1alpha1"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/fakemeta"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

const node = "edge-1"

// TestCloud: what our cloud sends to an edge of KubeEdge, and takes from one. A file whose name begins with "ours" is
// about an edge of ours.
func TestCloud(t *testing.T) {
	for _, file := range files(t, "cloud") {
		t.Run(nameOf(file), func(t *testing.T) {
			t.Parallel()
			c := newCloud(t)
			c.connect(strings.HasPrefix(nameOf(file), "ours"))
			converse(t, file, c)
		})
	}
}

// cloudEnd is cloudhub with edgecontroller and the records, on an API server that holds objects and no more.
type cloudEnd struct {
	t       *testing.T
	ca      *wiretest.CA
	api     *fake.Clientset
	records *dynamicfake.FakeDynamicClient
	addr    string
	ws      *websocket.Conn
	came    chan string
}

// dryRun answers a dry run as the API server does: the fake would store the object.
func dryRun(action clientgotesting.Action) (handled bool, _ runtime.Object, _ error) {
	create, ok := action.(clientgotesting.CreateActionImpl)
	if !ok || len(create.CreateOptions.DryRun) == 0 {
		return false, nil, nil
	}
	return true, create.Object, nil
}

func newCloud(t *testing.T) *cloudEnd {
	t.Helper()
	c := &cloudEnd{
		t:    t,
		ca:   wiretest.NewCA(t),
		came: make(chan string, 100),
		api:  fake.NewClientset(),
		records: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
			map[schema.GroupVersionResource]string{
				reliablesyncs.ObjectSyncs:        "ObjectSyncList",
				reliablesyncs.ClusterObjectSyncs: "ClusterObjectSyncList",
				devices.Devices:                  "DeviceList",
				devices.DeviceModels:             "DeviceModelList",
				devices.DeviceStatuses:           "DeviceStatusList"}),
	}
	c.api.PrependReactor("create", "serviceaccounts", giveToken)
	c.api.PrependReactor("create", "nodes", dryRun)
	c.api.PrependWatchReactor("nodes", c.watchEdges)
	controller, err := edgecontroller.New(edgecontroller.Options{
		Clients: impersonate.Clients{Own: c.api, AsNode: c.api, Metadata: fakemeta.Of(c.api)},
	})
	c.must(err)
	records, err := objectsync.New(c.records)
	c.must(err)
	ofDevices, err := devicecontroller.New(devicecontroller.Options{Objects: c.records, Client: c.api})
	c.must(err)
	joined := controllers.Join(controller, ofDevices)
	hub, err := cloudhub.New(cloudhub.Options{
		Downstream: joined,
		Upstream:   joined,
		Removed:    ofDevices.Removed,
		Records:    records,
		Features:   wire.AllFeatures(),
		KubeCA:     []byte("-----BEGIN CERTIFICATE-----\n"),
	})
	c.must(err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	c.must(err)
	c.addr = l.Addr().String()
	server := c.ca.Server(t)
	config := cloudhub.TLSConfig(func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return &server, nil
	}, c.ca.Pool())
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		controller.Wait()
		ofDevices.Wait()
	})
	c.must(ofDevices.Start(ctx, hub))
	wait.Until(t, "the caches of devices", func() error {
		key := resource.Key{Namespace: "default", Type: resource.TypeDeviceModel, Name: "none"}
		_, err := ofDevices.Object(node, key)
		return err
	})
	c.must(controller.Start(ctx, hub))
	wg.Go(func() { _ = records.Run(ctx) })
	wg.Go(func() { _ = hub.Run(ctx) })
	wg.Go(func() { _ = hub.ServeWebSocket(ctx, l, config) })
	return c
}

func (c *cloudEnd) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// giveToken answers the request for a token.
func giveToken(action clientgotesting.Action) (bool, runtime.Object, error) {
	create, ok := action.(clientgotesting.CreateAction)
	if !ok || action.GetSubresource() != "token" {
		return false, nil, nil
	}
	request := create.GetObject().(*authenticationv1.TokenRequest).DeepCopy()
	request.Status = authenticationv1.TokenRequestStatus{
		Token: "a.b.c", ExpirationTimestamp: metav1.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	return true, request, nil
}

// watchEdges shows edge nodes only, as the API server does to clients that ask for them.
func (c *cloudEnd) watchEdges(action clientgotesting.Action) (bool, watch.Interface, error) {
	var opts metav1.ListOptions
	if impl, ok := action.(clientgotesting.WatchActionImpl); ok {
		opts = impl.ListOptions
	}
	w, err := c.api.Tracker().Watch(action.GetResource(), action.GetNamespace(), opts)
	if err != nil {
		return true, nil, err
	}
	return true, watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		n, is := e.Object.(*v1.Node)
		if !is {
			return e, true
		}
		_, edge := n.Labels[marks.EdgeLabel]
		return e, edge
	}), nil
}

// connect connects an edge, with the headers of KubeEdge's.
func (c *cloudEnd) connect(ours bool) {
	c.t.Helper()
	header := http.Header{wire.HeaderNodeID: {node}, wire.HeaderProjectID: {"e632aba927ea4ac2b575ec1603d56f10"},
		"ConnectionUse": {"msg"}}
	if ours {
		header[wire.HeaderFeatures] = []string{"inventory,report,batch"} // and no compression: it would hide the text
	}
	dialer := websocket.Dialer{TLSClientConfig: c.ca.ClientTLS(c.t, node)}
	ws, _, err := dialer.Dial("wss://"+c.addr+"/e632aba927ea4ac2b575ec1603d56f10/"+node+"/events", header)
	c.must(err)
	c.ws = ws
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			kind, data, err := ws.ReadMessage()
			if err != nil {
				return
			}
			if kind != websocket.TextMessage {
				c.t.Errorf("type of a frame = %d, want %d", kind, websocket.TextMessage)
			}
			c.came <- string(data)
		}
	}()
	c.t.Cleanup(func() {
		_ = ws.Close()
		<-done
	})
}

func (c *cloudEnd) peerMark() byte        { return '>' }
func (c *cloudEnd) frames() <-chan string { return c.came }
func (c *cloudEnd) send(text string) error {
	return c.ws.WriteMessage(websocket.TextMessage, []byte(text))
}

func (c *cloudEnd) do(kind byte, text, want string) (string, error) {
	if kind == '@' {
		return c.look(text, want)
	}
	tracker, decoder := c.api.Tracker(), scheme.Codecs.UniversalDeserializer()
	isDevice := strings.Contains(text, `"apiVersion":"`+devices.APIVersion+`"`)
	if isDevice {
		tracker, decoder = c.records.Tracker(), unstructured.UnstructuredJSONScheme
	}
	obj, _, err := decoder.Decode([]byte(text), nil, nil)
	if err != nil {
		return "", err
	}
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return "", err
	}
	gvr, _ := meta.UnsafeGuessKindToResource(obj.GetObjectKind().GroupVersionKind())
	if !isDevice {
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
	switch kind {
	case '+':
		return "", tracker.Create(gvr, obj, accessor.GetNamespace())
	case '~':
		return "", tracker.Update(gvr, obj, accessor.GetNamespace())
	case '-':
		return "", tracker.Delete(gvr, accessor.GetNamespace(), accessor.GetName())
	}
	return "", fmt.Errorf("a line of kind %q", kind)
}

// look waits until an object, "group/version/resource/namespace/name", is as wanted, or "gone".
func (c *cloudEnd) look(text, want string) (string, error) {
	parts := strings.Split(text, "/")
	if len(parts) != 5 {
		return "", fmt.Errorf("%q: want group/version/resource/namespace/name", text)
	}
	gvr := schema.GroupVersionResource{Group: parts[0], Version: parts[1], Resource: parts[2]}
	tracker := c.api.Tracker()
	if gvr.Group == reliablesyncs.ObjectSyncs.Group || gvr.Group == devices.Group {
		tracker = c.records.Tracker()
	}
	return waitSteady(c.t, want, func() (string, error) {
		obj, err := tracker.Get(gvr, parts[3], parts[4])
		if apierrors.IsNotFound(err) {
			return "gone", nil
		}
		if err != nil {
			return "", err
		}
		obj = obj.DeepCopyObject()
		accessor, err := meta.Accessor(obj)
		if err != nil {
			return "", err
		}
		accessor.SetManagedFields(nil)
		data, err := json.Marshal(obj)
		return strings.TrimSpace(string(data)), err
	})
}
