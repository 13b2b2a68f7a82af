package devicecontroller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clientgotesting "k8s.io/client-go/testing"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	"github.com/edgecore-io/edgecore/pkg/devicemsg"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// hub records what the controller tells it.
type hub struct {
	mu      sync.Mutex
	changed []string
	sent    []string // NODE OPERATION RESOURCE CONTENT
}

func (h *hub) Changed(node string, key resource.Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changed = append(h.changed, node+" "+key.String())
}

func (h *hub) Send(node string, m *model.Message) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sent = append(h.sent, strings.Join([]string{node, m.Route.Operation, m.Route.Resource, string(m.Content)}, " "))
	return true
}

func (h *hub) has(t *testing.T, parts ...string) {
	t.Helper()
	wait.Until(t, fmt.Sprintf("a message with %q", parts), func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, s := range h.sent {
			if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(s, p) }) {
				return nil
			}
		}
		return fmt.Errorf("sent: %q", h.sent)
	})
}

// env is a controller with a fake API server. What only a real one can show is in test/cloud.
type env struct {
	*Controller
	t       *testing.T
	hub     *hub
	objects *dynamicfake.FakeDynamicClient
	client  *fake.Clientset
}

func start(t *testing.T, o Options, objects ...any) *env {
	t.Helper()
	e := prepare(t, o, objects...)
	e.run()
	wait.True(t, "the caches to be filled", e.caches.filled)
	wait.True(t, "the watches to be open", e.watching)
	return e
}

// watching reports whether devices and models are watched. The fake API server loses what changes between a list and
// the watch that follows it.
func (e *env) watching() bool {
	watched := map[schema.GroupVersionResource]bool{}
	for _, a := range e.objects.Actions() {
		if a.GetVerb() == "watch" {
			watched[a.GetResource()] = true
		}
	}
	return watched[devices.Devices] && watched[devices.DeviceModels]
}

// prepare makes the controller that run starts.
func prepare(t *testing.T, o Options, objects ...any) *env {
	t.Helper()
	e := &env{t: t, hub: &hub{}, client: fake.NewClientset()}
	e.objects = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{
			devices.Devices: "DeviceList", devices.DeviceModels: "DeviceModelList",
			devices.DeviceStatuses: "DeviceStatusList",
		})
	for _, obj := range objects {
		e.create(obj)
	}
	o.Objects, o.Client = e.objects, e.client
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	e.Controller = c
	return e
}

func (e *env) run() {
	e.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	e.t.Cleanup(func() {
		cancel()
		e.Wait()
	})
	if err := e.Start(ctx, e.hub); err != nil {
		e.t.Fatal(err)
	}
}

func (e *env) create(obj any) {
	e.t.Helper()
	gvr := devices.Devices
	if _, is := obj.(*devices.DeviceModel); is {
		gvr = devices.DeviceModels
	}
	u, err := toUnstructured(obj)
	if err == nil {
		_, err = e.objects.Resource(gvr).Namespace(u.GetNamespace()).Create(e.t.Context(), u, metav1.CreateOptions{})
	}
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *env) update(d *devices.Device) {
	e.t.Helper()
	u, err := toUnstructured(d)
	if err == nil {
		client := e.objects.Resource(devices.Devices).Namespace(d.Namespace)
		_, err = client.Update(e.t.Context(), u, metav1.UpdateOptions{})
	}
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *env) status() devices.Status {
	e.t.Helper()
	s, err := read[devices.DeviceStatus](e.t.Context(), e.objects, devices.DeviceStatuses, "shop", "sensor")
	if err != nil {
		e.t.Fatal(err)
	}
	if s == nil {
		return devices.Status{}
	}
	return s.Status
}

// report sends a report of a node.
func (e *env) report(node, resource, content string) {
	e.t.Helper()
	m := model.New(devicemsg.Source, model.GroupResource, model.OpUpdate, resource, json.RawMessage(content))
	if r := e.Handle(e.t.Context(), node, m); r != nil {
		e.hub.Send(node, r)
	}
}

func device(change ...func(d *devices.Device)) *devices.Device {
	d := sensor()
	d.APIVersion, d.Kind, d.ResourceVersion = devices.APIVersion, devices.KindDevice, "1"
	for _, f := range change {
		f(d)
	}
	return d
}

func lampModel() *devices.DeviceModel {
	m := &devices.DeviceModel{Spec: devices.DeviceModelSpec{Properties: []devices.ModelProperty{
		{Name: "temp", Type: devices.TypeInt, AccessMode: devices.ReadOnly},
		{Name: "fan", Type: devices.TypeInt, Maximum: "9", AccessMode: devices.ReadWrite},
	}}}
	m.APIVersion, m.Kind, m.Namespace, m.Name, m.UID = devices.APIVersion, devices.KindDeviceModel, "shop", "m", "um"
	return m
}

const (
	twinResource  = "device/shop/sensor/twin/edge_updated"
	stateResource = "device/shop/sensor/state/update"
)

func twinContent(value string, version int) string {
	return fmt.Sprintf(`{"twin":{"temp":{"actual":{"value":"%s"},"actual_version":{"edge":%d}}},"epoch":"e"}`, value,
		version)
}

// TestDownstream: a node gets its devices and their models alone; forbidden desired values are left out.
func TestDownstream(t *testing.T) {
	e := start(t, Options{}, lampModel(), device(func(d *devices.Device) {
		d.Spec.Properties[0].Desired = &devices.TwinProperty{Value: "1"}
		d.Spec.Properties[1].Desired = &devices.TwinProperty{Value: "5"}
		d.Status = &devices.Status{State: "online"}
	}))
	var keys []string
	for _, ref := range e.Desired("n1") {
		keys = append(keys, ref.Key.String()+" "+ref.Kind+" "+string(ref.UID))
	}
	want := []string{"shop/devicemodel/m DeviceModel um", "shop/device/sensor Device u1"}
	if diff := cmp.Diff(want, keys); diff != "" {
		t.Errorf("objects of n1 (-want +got):\n%s", diff)
	}
	if refs := e.Desired("n2"); len(refs) > 0 {
		t.Errorf("objects of n2 = %v, want none", refs)
	}
	obj, err := e.Object("n1", resource.Key{Namespace: "shop", Type: "device", Name: "sensor"})
	if err != nil || obj == nil {
		t.Fatalf("Object = %v, %v; want the device", obj, err)
	}
	if got := obj.After.String(); got != "shop/devicemodel/m" {
		t.Errorf("the device comes after %q, want its model", got)
	}
	var sent devices.Device
	if err := json.Unmarshal(obj.JSON, &sent); err != nil {
		t.Fatal(err)
	}
	if sent.Kind != "Device" || sent.Status != nil || sent.Spec.Properties[0].Desired != nil ||
		sent.Spec.Properties[1].Desired.Value != "5" {
		t.Errorf("sent %s; want no status, no desired value of the read-only temp, and 5 of fan", obj.JSON)
	}
	for node, typ := range map[string]string{"n2": "device", "n3": "devicemodel"} {
		obj, err := e.Object(node, resource.Key{Namespace: "shop", Type: typ, Name: "sensor"})
		if obj != nil || err != nil {
			t.Errorf("Object of %s for %s = %v, %v; want none", typ, node, obj, err)
		}
	}
	e.event("Device", "InvalidDesiredValue", "temp is read-only")
}

// TestModelNotCached: desired values are checked with the model that the API has, however far the cache is behind.
// Without one, none is sent.
func TestModelNotCached(t *testing.T) {
	desired := func(d *devices.Device) {
		d.Spec.Properties[1].Desired, d.ResourceVersion = &devices.TwinProperty{Value: "99"}, "5"
	}
	older := lampModel()
	older.Spec.Properties[1].Maximum = "100"
	for name, tc := range map[string]struct {
		model  *devices.DeviceModel
		cached any
	}{
		"not cached":          {lampModel(), nil},
		"cached as it was":    {lampModel(), older},
		"does not exist":      {nil, nil},
		"cached, but deleted": {nil, older},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []any{device(desired)}
			if tc.model != nil {
				objects = append(objects, tc.model)
			}
			e := start(t, Options{}, objects...)
			store := e.caches.models.GetStore()
			err := store.Delete(lampModel())
			if tc.cached != nil {
				err = store.Add(tc.cached)
			}
			if err != nil {
				t.Fatal(err)
			}
			obj, err := e.Object("n1", resource.Key{Namespace: "shop", Type: "device", Name: "sensor"})
			if err != nil || obj == nil {
				t.Fatalf("Object = %v, %v; want the device", obj, err)
			}
			var sent devices.Device
			if err := json.Unmarshal(obj.JSON, &sent); err != nil {
				t.Fatal(err)
			}
			p := sent.Spec.Properties[1]
			if p.Desired != nil || p.Withheld == nil || p.Withheld.Value != "99" {
				t.Errorf("sent %s; want 99 as withheld, as the model does not allow it", obj.JSON)
			}
		})
	}
}

// TestModelCannotBeRead: a device whose model cannot be read is not sent, and tried again: without its desired values
// it would withdraw from its node what still stands.
func TestModelCannotBeRead(t *testing.T) {
	e := start(t, Options{}, lampModel(), device(func(d *devices.Device) {
		d.Spec.Properties[1].Desired, d.ResourceVersion = &devices.TwinProperty{Value: "5"}, "5"
	}))
	if err := e.caches.models.GetStore().Delete(lampModel()); err != nil {
		t.Fatal(err)
	}
	var fail atomic.Bool
	fail.Store(true)
	e.objects.PrependReactor("get", "devicemodels", func(clientgotesting.Action) (bool, runtime.Object, error) {
		return fail.Load(), nil, apierrors.NewInternalError(errors.New("etcd is away"))
	})
	key := resource.Key{Namespace: "shop", Type: "device", Name: "sensor"}
	obj, err := e.Object("n1", key)
	if obj != nil || err == nil || !strings.Contains(err.Error(), "etcd is away") ||
		errors.Is(err, cloudhub.ErrNotServed) {
		t.Errorf("Object = %v, %v; want an error, so that it is tried again", obj, err)
	}
	fail.Store(false)
	if obj, err = e.Object("n1", key); err != nil || !strings.Contains(string(obj.JSON), `"desired":{"value":"5"}`) {
		t.Errorf("Object = %v, %v; want the device with its desired value", obj, err)
	}
}

// TestInvalidRange: a model whose limit is not a number gets an event that says so.
func TestInvalidRange(t *testing.T) {
	m := lampModel()
	m.Spec.Properties[1].Maximum = "80 C"
	e := start(t, Options{}, m)
	e.event("DeviceModel", "InvalidRange", `the maximum "80 C" is not a number`)
}

// event waits for an event.
func (e *env) event(kind, reason, text string) {
	e.t.Helper()
	wait.Until(e.t, "the event "+reason, func() error {
		list, err := e.client.CoreV1().Events("shop").List(e.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, event := range list.Items {
			if event.InvolvedObject.Kind == kind && event.Reason == reason && strings.Contains(event.Message, text) {
				return nil
			}
		}
		return fmt.Errorf("events %+v", list.Items)
	})
}

// TestNeverFilled: without the CRDs or the rights, nodes keep their devices after a time, and nothing waits for them.
// They are looked up when devices can be read after all.
func TestNeverFilled(t *testing.T) {
	var refuse atomic.Bool
	refuse.Store(true)
	e := prepare(t, Options{}, device())
	e.objects.PrependReactor("list", "devices", func(clientgotesting.Action) (bool, runtime.Object, error) {
		return refuse.Load(), nil, apierrors.NewForbidden(devices.Devices.GroupResource(), "", errors.New("no role"))
	})
	e.run()
	key := resource.Key{Namespace: "shop", Type: "device", Name: "deleted"}
	if _, err := e.Object("n1", key); !errors.Is(err, errNotFilled) || errors.Is(err, cloudhub.ErrNotServed) {
		t.Errorf("Object at first: %v, want that the caches are not filled", err)
	}
	e.patient = time.Now().Add(-time.Second)
	if _, err := e.Object("n1", key); !errors.Is(err, cloudhub.ErrNotServed) {
		t.Errorf("Object after a time: %v, want that it is not served", err)
	}
	refuse.Store(false)
	wait.Until(t, "the object to be looked up again", func() error {
		e.hub.mu.Lock()
		defer e.hub.mu.Unlock()
		if !slices.Contains(e.hub.changed, "n1 shop/device/deleted") {
			return fmt.Errorf("changed: %q", e.hub.changed)
		}
		return nil
	})
}

// TestDeviceChanges: nodes learn of new specs and of moves, and not of statuses.
func TestDeviceChanges(t *testing.T) {
	moved := device(func(d *devices.Device) { d.Spec.NodeName = "n2" })
	for name, tc := range map[string]struct {
		old, now *devices.Device
		want     []string
	}{
		"new":     {nil, device(), []string{"n1 shop/devicemodel/m", "n1 shop/device/sensor"}},
		"deleted": {device(), nil, []string{"n1 shop/device/sensor", "n1 shop/devicemodel/m"}},
		"moved": {device(), moved, []string{
			"n1 shop/device/sensor", "n1 shop/devicemodel/m", "n2 shop/devicemodel/m", "n2 shop/device/sensor",
		}},
		"status": {device(), device(func(d *devices.Device) {
			d.Status, d.ResourceVersion = &devices.Status{State: "ok"}, "2"
		}), nil},
		"value": {device(), device(func(d *devices.Device) {
			d.Spec.Properties[1].Desired = &devices.TwinProperty{Value: "2"}
		}), []string{"n1 shop/device/sensor", "n1 shop/devicemodel/m"}},
		"unbound": {nil, device(func(d *devices.Device) { d.Spec.NodeName = "" }), nil},
	} {
		var got []string
		for _, ch := range deviceChanges(tc.old, tc.now) {
			got = append(got, ch.node+" "+ch.key.String())
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestReportIsWritten: a report is in the DeviceStatus, which the Device owns, when it is answered; a state is also in
// the Device.
func TestReportIsWritten(t *testing.T) {
	e := start(t, Options{WriteInterval: time.Millisecond}, lampModel(), device())
	e.Connected(t.Context(), "n1", "edgecore/websocket")
	e.report("n1", twinResource, twinContent("21", 1))
	e.hub.has(t, "n1 response twin")
	s := e.status()
	if len(s.Twins) != 1 || s.Twins[0].Reported.Value != "21" || s.Twins[0].Reported.Metadata["version"] != "e.1" {
		t.Errorf("status %+v, want temp 21 as e.1", s)
	}
	u, err := read[devices.DeviceStatus](t.Context(), e.objects, devices.DeviceStatuses, "shop", "sensor")
	if err != nil || len(u.OwnerReferences) != 1 || u.OwnerReferences[0].UID != "u1" {
		t.Errorf("owners %+v, %v; want the device", u.OwnerReferences, err)
	}
	e.report("n1", stateResource, `{"device":{"state":"offline"},"epoch":"e","version":2}`)
	wait.Until(t, "the state in the Device", func() error {
		d, err := read[devices.Device](t.Context(), e.objects, devices.Devices, "shop", "sensor")
		if err == nil && (d.Status == nil || d.Status.State != "offline") {
			err = fmt.Errorf("status %+v", d.Status)
		}
		return err
	})
	wait.Until(t, "an event", func() error {
		list, err := e.client.CoreV1().Events("shop").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 || list.Items[0].Reason != "DeviceOffline" {
			return fmt.Errorf("%v, %v", list, err)
		}
		return nil
	})
}

// TestStateNotShown: a state that could not be written into the Device at first is written there later, with its event,
// although the DeviceStatus has it already.
func TestStateNotShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, Options{WriteInterval: time.Millisecond}, lampModel(), device())
		var failures atomic.Int32
		e.objects.PrependReactor("patch", "devices", func(clientgotesting.Action) (bool, runtime.Object, error) {
			return failures.Add(1) <= 2, nil, apierrors.NewInternalError(errors.New("etcd is away"))
		})
		e.Connected(t.Context(), "n1", "edgecore/websocket")
		e.report("n1", stateResource, `{"device":{"state":"offline"},"epoch":"e","version":2}`)
		time.Sleep(time.Minute)
		d, err := read[devices.Device](t.Context(), e.objects, devices.Devices, "shop", "sensor")
		if err != nil || d.Status == nil || d.Status.State != "offline" {
			t.Errorf("Device %+v, %v; want its state offline", d, err)
		}
		list, err := e.client.CoreV1().Events("shop").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 || list.Items[0].Reason != "DeviceOffline" {
			t.Errorf("events %+v, %v; want DeviceOffline once", list.Items, err)
		}
	})
}

// stateReport is a report on a state with a message.
func stateReport(state, message string, version int) string {
	return fmt.Sprintf(`{"device":{"state":%q},"message":%s,"epoch":"e","version":%d}`, state, mustEncode(message),
		version)
}

// TestStateMessage: why a device is offline is in the extensions of its DeviceStatus and its Device as long as it is,
// and in an event. Another message of the same state is in one event an hour.
func TestStateMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, Options{WriteInterval: time.Millisecond}, lampModel(), device())
		e.Connected(t.Context(), "n1", "edgecore/websocket")
		for i, tc := range []struct {
			state, message string
			want           string // the extension of the Device
			events         []string
		}{
			{"offline", "connect to 192.0.2.7: \x1bconnection refused", "connect to 192.0.2.7: connection refused",
				[]string{"DeviceOffline: Device is offline on node n1: connect to 192.0.2.7: connection refused"}},
			{"offline", "try 2", "try 2", []string{"DeviceOffline: Device is offline on node n1: try 2"}},
			{"offline", "try 3", "try 3", nil},
			{"offline", "try 3", "try 3", nil},
			{"unhealthy", "level: busy", "level: busy",
				[]string{"DeviceUnhealthy: Device is unhealthy on node n1: level: busy"}},
			{"online", "works", "", []string{"DeviceOnline: Device is online on node n1"}},
			{"offline", "", "", []string{"DeviceOffline: Device is offline on node n1"}},
		} {
			before := len(e.listEvents())
			e.report("n1", stateResource, stateReport(tc.state, tc.message, i+1))
			time.Sleep(time.Minute)
			if diff := cmp.Diff(tc.events, e.listEvents()[before:], cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%d: events (-want +got):\n%s", i, diff)
			}
			d, err := read[devices.Device](t.Context(), e.objects, devices.Devices, "shop", "sensor")
			if err != nil || d.Status == nil || d.Status.State != tc.state || shownOf(d.Status).message != tc.want {
				t.Errorf("%d: Device %+v, %v; want %s and %q", i, d, err, tc.state, tc.want)
			}
			s := e.status()
			if got := decodeExtensions(s.Extensions); shownOf(&s).message != tc.want ||
				(got[extensionStateMessage] != nil) != (tc.want != "") {
				t.Errorf("%d: extensions of the DeviceStatus %s, want the message %q", i, s.Extensions, tc.want)
			}
		}
	})
}

// listEvents returns reasons and messages of the events in the order in which they were recorded.
func (e *env) listEvents() (out []string) {
	e.t.Helper()
	list, err := e.client.CoreV1().Events("shop").List(e.t.Context(), metav1.ListOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b v1.Event) int { return strings.Compare(a.Name, b.Name) })
	for i := range list.Items {
		out = append(out, list.Items[i].Reason+": "+list.Items[i].Message)
	}
	return out
}

// TestLongEvent: the end of a message that is too long for an event is cut off between two characters.
func TestLongEvent(t *testing.T) {
	e := start(t, Options{}, lampModel(), device())
	for i := range 3 {
		e.events.add(device(), v1.EventTypeWarning, "Long", strings.Repeat("x", i)+strings.Repeat("ü€", messageMax))
	}
	wait.Until(t, "the events", func() error {
		list := e.listEvents()
		if len(list) != 3 {
			return fmt.Errorf("%d events", len(list))
		}
		return nil
	})
	for _, text := range e.listEvents() {
		message := strings.TrimPrefix(text, "Long: ")
		if !utf8.ValidString(message) || len(message) > messageMax || !strings.HasSuffix(message, "...") {
			t.Errorf("message of %d bytes: %q; want at most %d in UTF-8", len(message), message, messageMax)
		}
	}
}

// TestForeignDevice: a node cannot report on a device of another node.
func TestForeignDevice(t *testing.T) {
	e := start(t, Options{}, device())
	e.Connected(t.Context(), "n2", "edgecore/websocket")
	e.report("n2", twinResource, twinContent("21", 1))
	e.hub.has(t, "n2 error twin", "is not bound to node n2")
	e.report("n2", "device/shop/none/state/update", `{"device":{"state":"ok"}}`)
	e.hub.has(t, "n2 error twin", "device shop/none is not bound")
	if s := e.status(); len(s.Twins) > 0 {
		t.Errorf("status %+v, want none", s)
	}
}

// TestKubeEdge: KubeEdge's edgecores get the membership of their devices, and a response to every report, as they
// repeat it until they get one.
func TestKubeEdge(t *testing.T) {
	e := start(t, Options{WriteInterval: time.Millisecond}, device())
	e.Connected(t.Context(), "n1", "websocket")
	e.report("n1", devicemsg.ResourceDetail, `{}`)
	e.hub.has(t, `n1 response twin "OK"`)
	e.hub.has(t, "n1 update membership", `"added_devices":[{"id":"shop/sensor","name":"sensor"}]`)
	e.report("n1", "device/sensor/twin/edge_updated", `{"twin":{"temp":{"actual":{"value":"3"}}}}`)
	wait.Until(t, "the value", func() error {
		if s := e.status(); len(s.Twins) != 1 || s.Twins[0].Reported.Value != "3" {
			return fmt.Errorf("status %+v", s)
		}
		return nil
	})
	e.report("n1", "device/shop/none/twin/edge_updated", twinContent("3", 1))
	e.hub.has(t, "n1 response twin", "device shop/none is not bound")
	e.update(device(func(d *devices.Device) { d.Spec.NodeName, d.ResourceVersion = "n2", "2" }))
	e.hub.has(t, "n1 update membership", `"removed_devices":[{"id":"shop/sensor"`)
}

// TestReportsAreMerged: however fast a node reports, a device is written once per interval, and the newest value is
// written last.
func TestReportsAreMerged(t *testing.T) {
	e := start(t, Options{WriteInterval: 300 * time.Millisecond}, device())
	e.Connected(t.Context(), "n1", "edgecore/websocket")
	const reports = 500
	for i := range reports {
		e.report("n1", twinResource, twinContent(fmt.Sprint(i), i))
	}
	wait.Until(t, "the newest value", func() error {
		if s := e.status(); len(s.Twins) != 1 || s.Twins[0].Reported.Value != fmt.Sprint(reports-1) {
			return fmt.Errorf("status %+v", s)
		}
		return nil
	})
	writes := 0
	for _, a := range e.objects.Actions() {
		if a.GetResource() == devices.DeviceStatuses && (a.GetVerb() == "create" || a.GetVerb() == "patch") {
			writes++
		}
	}
	if writes > reports/50 {
		t.Errorf("%d writes for %d reports, want few", writes, reports)
	}
}

// TestNoDeviceStatus: a cluster of KubeEdge before v1.23 has no DeviceStatus; the Device has the values then.
func TestNoDeviceStatus(t *testing.T) {
	e := start(t, Options{WriteInterval: time.Millisecond}, device())
	e.objects.PrependReactor("*", "devicestatuses", func(a clientgotesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewGenericServerResponse(404, a.GetVerb(), schema.GroupResource{}, "", "", 0, true)
	})
	e.Connected(t.Context(), "n1", "edgecore/websocket")
	e.report("n1", twinResource, twinContent("21", 1))
	e.hub.has(t, "n1 response twin")
	d, err := read[devices.Device](t.Context(), e.objects, devices.Devices, "shop", "sensor")
	if err != nil || d.Status == nil || len(d.Status.Twins) != 1 || d.Status.Twins[0].Reported.Value != "21" {
		t.Errorf("status of the Device %+v, %v; want temp 21", d.Status, err)
	}
}

func count(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

// TestOutdated: a report that is older than what the API has is answered with the version in the API, and counted.
func TestOutdated(t *testing.T) {
	e := start(t, Options{WriteInterval: time.Millisecond}, device())
	e.Connected(t.Context(), "n1", "edgecore/websocket")
	e.report("n1", twinResource, twinContent("21", 7))
	e.hub.has(t, "n1 response twin")
	e.report("n1", twinResource, twinContent("22", 6))
	e.hub.has(t, "n1 error twin", `"values":{"temp":"e.7"}`)
	if n := count(t, e.metrics.older); n != 1 {
		t.Errorf("%v older reports are counted, want 1", n)
	}
	e.report("n1", stateResource, `{"device":{"state":"online"},"epoch":"e","version":9}`)
	e.hub.has(t, "n1 response twin")
	e.report("n1", stateResource, `{"device":{"state":"offline"},"epoch":"e","version":8}`)
	e.hub.has(t, "n1 error twin", `"state":"e.9"`)
	if s := e.status(); s.Twins[0].Reported.Value != "21" || s.State != "online" {
		t.Errorf("status %+v, want temp 21 and online", s)
	}
}

// TestConflict: a write that meets someone else's is done again on top of it.
func TestConflict(t *testing.T) {
	e := start(t, Options{WriteInterval: time.Millisecond}, device())
	e.Connected(t.Context(), "n1", "edgecore/websocket")
	e.report("n1", twinResource, twinContent("21", 1))
	e.hub.has(t, "n1 response twin")
	failed := false
	e.objects.PrependReactor("patch", "devicestatuses", func(clientgotesting.Action) (bool, runtime.Object, error) {
		if failed {
			return false, nil, nil
		}
		failed = true
		return true, nil, apierrors.NewConflict(devices.DeviceStatuses.GroupResource(), "sensor", nil)
	})
	e.report("n1", twinResource, twinContent("22", 2))
	wait.Until(t, "the value", func() error {
		if s := e.status(); s.Twins[0].Reported.Value != "22" {
			return fmt.Errorf("status %+v", s)
		}
		return nil
	})
	if !failed {
		t.Error("no conflict was met")
	}
}

// TestRefusedForGood: what the API server finds invalid is answered with its error, and an event says so.
func TestRefusedForGood(t *testing.T) {
	e := start(t, Options{WriteInterval: time.Millisecond}, device())
	e.objects.PrependReactor("create", "devicestatuses", func(clientgotesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewInvalid(schema.GroupKind{Kind: "DeviceStatus"}, "sensor", nil)
	})
	e.Connected(t.Context(), "n1", "edgecore/websocket")
	e.report("n1", twinResource, twinContent("21", 1))
	e.hub.has(t, "n1 error twin", "is invalid")
	e.event("Device", "StatusNotWritten", "is invalid")
}

// TestRefusedForNow: a report that the API server refuses for now is answered with the error, so that the node sends
// other reports meanwhile. It is written when the API server no longer refuses it. An event tells of it.
func TestRefusedForNow(t *testing.T) {
	for name, refusal := range map[string]error{
		"forbidden":   apierrors.NewForbidden(devices.DeviceStatuses.GroupResource(), "sensor", errors.New("roles")),
		"bad request": apierrors.NewBadRequest("a webhook"),
	} {
		t.Run(name, func(t *testing.T) {
			e := start(t, Options{WriteInterval: time.Millisecond}, device())
			var refuse atomic.Bool
			refuse.Store(true)
			e.objects.PrependReactor("create", "devicestatuses",
				func(clientgotesting.Action) (bool, runtime.Object, error) { return refuse.Load(), nil, refusal })
			e.Connected(t.Context(), "n1", "edgecore/websocket")
			e.report("n1", twinResource, twinContent("21", 1))
			e.event("Device", "StatusNotWritten", refusal.Error())
			e.hub.has(t, "n1 error twin")
			refuse.Store(false)
			wait.Until(t, "the value", func() error {
				if s := e.status(); len(s.Twins) != 1 || s.Twins[0].Reported.Value != "21" {
					return fmt.Errorf("status %+v, want temp 21", s)
				}
				return nil
			})
		})
	}
}

// TestRefusedAgain: while the API server refuses a device's status, more reports are answered at once, and the newest
// is written later. KubeEdge's nodes, which take any answer for a success, get none.
func TestRefusedAgain(t *testing.T) {
	for protocol, answers := range map[string]int{"edgecore/websocket": 2, "websocket": 0} {
		t.Run(protocol, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := start(t, Options{WriteInterval: time.Millisecond}, device())
				var refuse atomic.Bool
				refuse.Store(true)
				e.objects.PrependReactor("create", "devicestatuses",
					func(clientgotesting.Action) (bool, runtime.Object, error) {
						err := errors.New("no role")
						return refuse.Load(), nil, apierrors.NewForbidden(schema.GroupResource{}, "sensor", err)
					})
				e.Connected(t.Context(), "n1", protocol)
				answered := func(part string) (n int) {
					synctest.Wait()
					e.hub.mu.Lock()
					defer e.hub.mu.Unlock()
					for _, s := range e.hub.sent {
						if strings.Contains(s, part) {
							n++
						}
					}
					return n
				}
				e.report("n1", twinResource, twinContent("21", 1))
				time.Sleep(10 * time.Second)
				e.report("n1", twinResource, twinContent("22", 2))
				if n := answered("no role"); n != answers {
					t.Errorf("%d of 2 reports are answered with the error, want %d", n, answers)
				}
				refuse.Store(false)
				time.Sleep(2 * maxRetry)
				if s := e.status(); len(s.Twins) != 1 || s.Twins[0].Reported.Value != "22" {
					t.Errorf("status %+v, want temp 22", s)
				}
				e.report("n1", twinResource, twinContent("23", 3))
				time.Sleep(time.Second)
				if n := answered("n1 response twin"); n != 3-answers {
					t.Errorf("%d reports are confirmed, want %d", n, 3-answers)
				}
			})
		})
	}
}

// TestPauseOfFailedWrites: a device whose write fails waits for its pause, however much its node reports meanwhile.
func TestPauseOfFailedWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, Options{WriteInterval: time.Millisecond}, device())
		var writes atomic.Int32
		e.objects.PrependReactor("create", "devicestatuses",
			func(clientgotesting.Action) (bool, runtime.Object, error) {
				writes.Add(1)
				return true, nil, apierrors.NewInternalError(errors.New("down"))
			})
		e.Connected(t.Context(), "n1", "edgecore/websocket")
		for i := range 1000 { // 10 seconds of reports
			e.report("n1", twinResource, twinContent(fmt.Sprint(i), i))
			time.Sleep(10 * time.Millisecond)
		}
		if n := writes.Load(); n < 4 || n > 8 { // after 0, 0.2, 0.6, 1.4, 3, 6.2 s
			t.Errorf("%d writes in 10 s while the API server fails, want about 6", n)
		}
	})
}

// TestCacheBehind: a report on a device that the API has bound to the node, but the cache does not, has no answer: the
// node sends it again.
func TestCacheBehind(t *testing.T) {
	e := start(t, Options{WriteInterval: time.Millisecond}, device())
	e.Connected(t.Context(), "n1", "edgecore/websocket")
	for what, change := range map[string]func() error{
		"not cached": func() error { return e.caches.devices.GetStore().Delete(device()) },
		"cached for another node": func() error {
			return e.caches.devices.GetStore().Add(device(func(d *devices.Device) { d.Spec.NodeName = "n2" }))
		},
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		m := model.New(devicemsg.Source, model.GroupResource, model.OpUpdate, twinResource,
			json.RawMessage(twinContent("21", 1)))
		if r := e.Handle(t.Context(), "n1", m); r != nil {
			t.Errorf("%s: answer %s %s, want none", what, r.Route.Operation, r.Content)
		}
	}
}
