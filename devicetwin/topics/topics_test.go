package topics

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/edgecore-io/edgecore/devicetwin"
	"github.com/edgecore-io/edgecore/devicetwin/twin"
	"github.com/edgecore-io/edgecore/eventbus"
	"github.com/edgecore-io/edgecore/eventbus/topic"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/devicemsg"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/twins"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

const (
	lampModel = `{"metadata":{"name":"lamp","namespace":"shop","uid":"m1"},"spec":{"properties":[{"name":"level",
"type":"INT","accessMode":"ReadWrite","maximum":"100"},{"name":"temp","type":"INT","accessMode":"ReadOnly"}]}}`
	lamp = `{"metadata":{"name":"one","namespace":"shop","uid":"d1"},"spec":{"deviceModelRef":{"name":"lamp"},
"protocol":{"protocolName":"dali"},"properties":[{"name":"level"},{"name":"temp"}]}}`
	ofLamp = "$hw/events/device/shop/one/"
)

// env is a node with a lamp, the broker in the agent, and a client of it.
type env struct {
	t     *testing.T
	twins *twins.Node
	mqtt.Client
}

func start(t *testing.T) *env {
	t.Helper()
	e := &env{t: t}
	address, err := daemon.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	m := New(Options{Node: "edge-1", NewMQTT: func() (eventbus.MQTT, error) {
		config := v1alpha2.Default().Modules.EventBus
		config.MqttMode, config.MqttServerInternal = eventbus.ModeInternal, "tcp://"+address
		return eventbus.New(&config, eventbus.Options{MayPublish: MayPublish})
	}})
	e.twins = twins.Start(t, map[string]string{"shop/devicemodel/lamp": lampModel, "shop/device/one": lamp}, m.Changed)
	m.Serve(e.twins)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := m.Run(ctx); err != nil {
			t.Errorf("Run = %v, want no error", err)
		}
	})
	o := mqtt.NewClientOptions().AddBroker("tcp://" + address).SetClientID(uuid.NewString()).SetOrderMatters(true)
	e.Client = mqtt.NewClient(o)
	wait.Until(t, "the broker", func() error {
		token := e.Connect()
		token.Wait()
		return token.Error()
	})
	t.Cleanup(func() {
		e.Disconnect(0)
		cancel()
		running.Wait()
	})
	return e
}

// listen returns the messages of a topic from now on.
func (e *env) listen(topic string) <-chan string {
	e.t.Helper()
	out := make(chan string, 100)
	token := e.Subscribe(topic, 1, func(_ mqtt.Client, m mqtt.Message) { out <- string(m.Payload()) })
	token.Wait()
	if err := token.Error(); err != nil {
		e.t.Fatal(err)
	}
	return out
}

func (e *env) publish(topic, payload string) {
	e.t.Helper()
	token := e.Publish(topic, 1, false, payload)
	token.Wait()
	if err := token.Error(); err != nil {
		e.t.Fatal(err)
	}
}

func decode[T any](t *testing.T, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

// TestUpdate: what a client reports is on the disk when it gets the result, and all clients hear of it.
func TestUpdate(t *testing.T) {
	e := start(t)
	results, documents := e.listen(ofLamp+"twin/update/result"), e.listen(ofLamp+"twin/update/document")
	e.publish(ofLamp+"twin/update", `{"event_id":"e1","timestamp":5,"twin":{"temp":{"actual":{"value":"21",
"metadata":{"timestamp":1700000000123}},"metadata":{"type":"int"}}}}`)
	result := decode[devicemsg.TwinResult](t, wait.Receive(t, "the result", results))
	if text, _ := result.Twin["temp"].Actual.Text(); result.EventID != "e1" || len(result.Twin) != 1 || text != "21" {
		t.Errorf("result = %+v, want e1 with temp = 21 and no other property", result)
	}
	row, err := e.twins.Store.Get(t.Context(), "shop/"+resource.TypeDeviceTwin+"/one")
	if err != nil || !strings.Contains(string(row.Value), `"value":"21","type":"int","at":1700000000123`) {
		t.Errorf("stored with the result: %s, %v; want the value", row.Value, err)
	}
	document := decode[devicemsg.Document](t, wait.Receive(t, "the document", documents))
	if s := document.Twin["temp"]; len(document.Twin) != 1 || s == nil || s.Last != nil || s.Current == nil {
		t.Errorf("document = %+v, want temp with no last and a current state", document)
	}
}

// TestDesired: a client sets a desired value, which stays in the delta until it is reported.
func TestDesired(t *testing.T) {
	e := start(t)
	results, deltas := e.listen(ofLamp+"twin/update/result"), e.listen(ofLamp+"twin/update/delta")
	e.publish(ofLamp+"twin/update", `{"event_id":"e1","twin":{"level":{"expected":{"value":"40"}}}}`)
	delta := decode[devicemsg.Delta](t, wait.Receive(t, "the delta", deltas))
	if diff := cmp.Diff(map[string]string{"level": "40"}, delta.Delta); diff != "" {
		t.Errorf("delta (-want +got):\n%s", diff)
	}
	if _, list := e.twins.Served("dali"); len(list) != 1 || list[0].Spec.Properties[0].Desired.Value != "40" {
		t.Errorf("the mapper has %+v, want a desired level of 40", list)
	}
	wait.Receive(t, "the result", results)
	documents := e.listen(ofLamp + "twin/update/document")
	e.publish(ofLamp+"twin/update", `{"event_id":"e2","twin":{"level":{"actual":{"value":"40"}}}}`)
	wait.Receive(t, "the result", results)
	wait.Receive(t, "the document", documents)
	gets := e.listen(ofLamp + "twin/get/result")
	e.publish(ofLamp+"twin/get", `{"event_id":"e3"}`)
	got := decode[devicemsg.TwinResult](t, wait.Receive(t, "the twin", gets))
	actual, _ := got.Twin["level"].Actual.Text()
	expected, _ := got.Twin["level"].Expected.Text()
	if got.EventID != "e3" || actual != "40" || expected != "40" {
		t.Errorf("the twin is %+v, want e3 and 40 twice", got)
	}
	if len(deltas) > 0 {
		t.Errorf("delta = %s, want none once the value is reported", <-deltas)
	}
}

// TestRefused: what is wrong is answered with its cause, and changes nothing.
func TestRefused(t *testing.T) {
	e := start(t)
	for _, test := range []struct {
		device, payload string
		code            int
		reason          string
	}{
		{"one", `{"event_id":"e","twin":{"temp":{"expected":{"value":"5"}}}}`, 400, "temp"},
		{"one", `{"event_id":"e","twin":{"level":{"expected":{"value":"101"}}}}`, 400, "100"},
		{"one", `{"event_id":"e","twin":{"temp":{"actual":{"value":"5"}},"level":{"expected":{"value":"101"}}}}`, 400, "100"},
		{"one", `{"event_id":"e","twin":{"none":{"actual":{"value":"5"}}}}`, 400, "spec.properties"},
		{"one", `{"event_id":"e","twin":{"temp":null}}`, 400, "spec.properties"},
		{"one", `{"event_id":"e","twin":{"temp":{"metadata":{"type":"deleted"}}}}`, 400, "spec.properties"},
		{"one", `{"event_id":"e","twin":{"temp":{}}}`, 400, `"actual"`},
		{"one", `{"event_id":"e","twin":{"temp":{"actual":{"value":"` + strings.Repeat("x", 513) + `"}}}}`, 400, "512"},
		{"one", `{"event_id":"e"`, 400, "unexpected end"},
		{"one", `{"event_id":"e","twin":[]}`, 400, "array"},
		{"one", `{"event_id":"e","twin":{}}`, 400, "no properties"},
		{"one", "", 400, "unexpected end"},
		{"two", `{"event_id":"e","twin":{"temp":{"actual":{"value":"5"}}}}`, 404, "shop/two"},
	} {
		results := e.listen("$hw/events/device/shop/" + test.device + "/twin/update/result")
		e.publish("$hw/events/device/shop/"+test.device+"/twin/update", test.payload)
		got := decode[devicemsg.Refusal](t, wait.Receive(t, "the result", results))
		if got.Code != test.code || !strings.Contains(got.Reason, test.reason) {
			t.Errorf("%.80s: %d %s, want %d and %s", test.payload, got.Code, got.Reason, test.code, test.reason)
		}
		if test.payload != "" && got.EventID != "e" {
			t.Errorf("%.80s: refused with the event id %q, want its own, e", test.payload, got.EventID)
		}
	}
	props, err := e.twins.Properties("shop", "one")
	if err != nil || len(props) > 0 && (props["temp"].Reported != nil || props["level"].Desired != nil) {
		t.Errorf("twin = %+v, %v; want nothing reported or desired", props, err)
	}
	states := e.listen(ofLamp + "state/update/result")
	for _, payload := range []string{`{"event_id":"e","state":"burning"}`, `{"event_id":"e"}`, `{"event_id":"e","state":1}`} {
		e.publish(ofLamp+"state/update", payload)
		got := decode[devicemsg.Refusal](t, wait.Receive(t, "the result", states))
		if got.Code != devicemsg.CodeInvalid || got.EventID != "e" {
			t.Errorf("%s: %+v, want 400 and the event id e", payload, got)
		}
	}
	for _, topic := range []string{ofLamp + "twin/get", "$hw/events/node/edge-1/membership/get"} {
		results := e.listen(topic + "/result")
		e.publish(topic, `{"event_id":"e","timestamp":"now"}`)
		got := decode[devicemsg.Refusal](t, wait.Receive(t, "the result", results))
		if got.Code != devicemsg.CodeInvalid || got.EventID != "e" {
			t.Errorf("%s: %+v, want 400 and the event id e", topic, got)
		}
	}
}

// TestStateAndMembership: clients report a state, list the devices, and hear when one goes.
func TestStateAndMembership(t *testing.T) {
	e := start(t)
	states, lists := e.listen(ofLamp+"state/update/result"), e.listen("$hw/events/node/edge-1/membership/get/result")
	updates := e.listen("$hw/events/node/edge-1/membership/updated")
	e.publish(ofLamp+"state/update", `{"event_id":"s","state":"online"}`)
	if r := decode[devicemsg.StateResult](t, wait.Receive(t, "the result", states)); r.Device.State != "online" {
		t.Errorf("result = %+v, want online", r)
	}
	e.publish("$hw/events/node/edge-1/membership/get", "")
	list := decode[devicemsg.Members](t, wait.Receive(t, "the list", lists))
	if diff := cmp.Diff([]devicemsg.Member{{ID: "shop/one", Name: "one", State: "online"}}, list.Devices); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	e.publish(ofLamp+"state/update", `{"event_id":"s","state":"offline","message":"no\u0007 answer"}`)
	wait.Receive(t, "the result", states)
	if d := e.twins.Devices()[0].Twin; d.State != "offline" || d.StateMessage != "no answer" {
		t.Errorf("twin = %+v, want offline with the message no answer", d)
	}
	e.twins.Delete("shop/device/one", lamp)
	update := decode[devicemsg.Membership](t, wait.Receive(t, "the membership", updates))
	if len(update.Removed) != 1 || update.Removed[0].ID != "shop/one" || update.Added != nil {
		t.Errorf("membership = %+v, want shop/one removed", update)
	}
}

// TestForged: what a client publishes in the agent's name reaches nobody, and is not retained. Its requests and its own
// topics work on.
func TestForged(t *testing.T) {
	e := start(t)
	all := e.listen("$hw/#")
	own := e.listen("own")
	e.publish(ofLamp+"twin/update/document", "forged")
	for _, name := range []string{"twin/update/delta", "twin/update/result", "twin/get/result", "state/update/result"} {
		e.publish(ofLamp+name, "forged")
	}
	for _, name := range []string{"membership/updated", "membership/get/result"} {
		e.publish("$hw/events/node/edge-1/"+name, "forged")
	}
	for qos := range byte(3) {
		token := e.Publish(ofLamp+"twin/update/document", qos, true, "forged")
		token.Wait()
		if err := token.Error(); err != nil {
			t.Errorf("publish with QoS %d = %v, want that it is confirmed and dropped", qos, err)
		}
	}
	e.publish("own", "1")
	if got := wait.Receive(t, "the client's own message", own); got != "1" {
		t.Errorf("own message = %q, want 1", got)
	}
	e.publish(ofLamp+"twin/get", `{"event_id":"e"}`)
	got := []string{wait.Receive(t, "the request", all), wait.Receive(t, "its answer", all)}
	slices.SortFunc(got, func(a, b string) int { return len(a) - len(b) }) // they may come in either order
	if got[0] != `{"event_id":"e"}` || !strings.Contains(got[1], `"event_id":"e"`) {
		t.Errorf("messages = %s, want the request and its answer, and nothing that is forged", got)
	}
	retained := e.listen(ofLamp + "twin/update/#")
	e.publish(ofLamp+"twin/update", `{"event_id":"u","twin":{"temp":{"actual":{"value":"1"}}}}`)
	// What is retained would come first. The request, its answer and the new twin may come in any order.
	if got := wait.Receive(t, "the request or what follows", retained); !strings.Contains(got, "temp") {
		t.Errorf("message = %s, want one about the request: nothing is retained", got)
	}
}

func TestMayPublish(t *testing.T) {
	for name, want := range map[string]bool{
		"own/topic": true, "$share": true, ofLamp + "twin/get": true, ofLamp + "twin/update": true,
		ofLamp + "twin/cloud_updated": true, ofLamp + "state/update": true, "$hw/events/node/n/membership/get": true,
		ofLamp + "twin/update/result": false, ofLamp + "twin/update/document": false,
		ofLamp + "state/update/result": false,
		ofLamp + "twin/other":          false, "$hw/events/device/one/twin/update": false,
		"$hw/events/node/n/membership/updated":    false,
		"$hw/events/node/n/membership/get/result": false, "$hw/x": false,
	} {
		if got := MayPublish(name); got != want {
			t.Errorf("MayPublish(%s) = %v, want %v", name, got, want)
		}
	}
}

// TestAdd: changes that come before they are published are joined.
func TestAdd(t *testing.T) {
	value := func(v string) twin.Property { return twin.Property{Reported: &twin.Value{Value: v}} }
	props := func(list ...string) map[string]twin.Property {
		out := map[string]twin.Property{}
		for pair := range slices.Chunk(list, 2) {
			out[pair[0]] = value(pair[1])
		}
		return out
	}
	c := changes{devicetwin.Change{Before: props("a", "1"), After: props("a", "2"), Bound: true}}
	c.add(devicetwin.Change{Before: props("a", "2", "b", "7"), After: props("a", "3", "b", "8")})
	want := devicetwin.Change{Before: props("a", "1", "b", "7"), After: props("a", "3", "b", "8"), Bound: true}
	if diff := cmp.Diff(want, c.Change); diff != "" {
		t.Errorf("joined (-want +got):\n%s", diff)
	}
	c.add(devicetwin.Change{Gone: true})
	if diff := cmp.Diff(devicetwin.Change{Before: props(), After: props(), Gone: true}, c.Change); diff != "" {
		t.Errorf("gone (-want +got):\n%s", diff)
	}
	c.add(devicetwin.Change{Bound: true, Before: map[string]twin.Property{"a": {}}, After: props("a", "9")})
	if !c.Bound || !c.Gone || c.After["a"].Reported.Value != "9" {
		t.Errorf("bound again = %+v, want that it has gone and is bound, and a = 9", c.Change)
	}
	c.add(devicetwin.Change{Before: props("a", "9"), After: props("a", "10")})
	if !c.Bound || !c.Gone {
		t.Errorf("a value later = %+v, want that it has gone and is bound", c.Change)
	}
	c.add(devicetwin.Change{Gone: true})
	if c.Bound || !c.Gone {
		t.Errorf("gone for good = %+v, want Gone only", c.Change)
	}
}

// TestReplaced: clients hear that a device has gone before they hear of another one of its name, also if the node saw
// no deletion.
func TestReplaced(t *testing.T) {
	e := start(t)
	updates := e.listen("$hw/events/node/edge-1/membership/updated")
	e.twins.Apply("shop/device/one", strings.Replace(lamp, `"uid":"d1"`, `"uid":"d2"`, 1))
	gone := decode[devicemsg.Membership](t, wait.Receive(t, "the removal", updates))
	if len(gone.Removed) != 1 || gone.Added != nil {
		t.Errorf("first membership = %+v, want shop/one removed", gone)
	}
	came := decode[devicemsg.Membership](t, wait.Receive(t, "the device", updates))
	if len(came.Added) != 1 || came.Removed != nil {
		t.Errorf("second membership = %+v, want shop/one added", came)
	}
}

// TestFlood: requests beyond what is answered do not block, and keep no memory.
func TestFlood(t *testing.T) {
	m := &Module{answers: make(chan answer, 2), dropped: newLogLimit()}
	m.onTwin(topic.Message{Topic: ofLamp + "twin/update", Payload: []byte("{")})
	m.onTwin(topic.Message{Topic: ofLamp + "twin/update", Payload: []byte("{")})
	m.onTwin(topic.Message{Topic: ofLamp + "twin/update", Payload: []byte("{")})
	for _, name := range []string{
		ofLamp + "twin/other", "$hw/events/device/a", "$hw/events/device///twin/update", "x",
	} {
		m.onTwin(topic.Message{Topic: name, Payload: []byte("{}")})
	}
	if len(m.answers) != 2 {
		t.Errorf("answers = %d, want 2", len(m.answers))
	}
}

// failing is a bus that ends at once. Messages may wait in its session.
type failing struct{ eventbus.MQTT }

func (failing) Watch(behind func(time.Time), _ func()) { behind(time.Time{}) }
func (failing) Subscribe(string, func(topic.Message)) (func(), error) {
	return func() {}, nil
}
func (failing) Run(context.Context) error                    { return errors.New("it fails") }
func (failing) Notify(context.Context, string, []byte) error { return nil }

// changing are twins. One of them changes during the call of MQTTBehind.
type changing struct {
	Twins
	module *Module
	told   chan struct{}
}

func (c *changing) MQTTBehind(time.Time) {
	go func() {
		c.module.Changed(devicetwin.Change{Namespace: "shop", Name: "one", Gone: true})
		c.told <- struct{}{}
	}()
	<-c.told // devicetwin holds its lock while it tells of a change
}

func (c *changing) MQTTCaughtUp() {}

// TestChangeDuringRestart: a twin can change while the module takes a new bus.
func TestChangeDuringRestart(t *testing.T) {
	m := New(Options{Node: "edge-1", NewMQTT: func() (eventbus.MQTT, error) { return failing{}, nil }})
	m.Serve(&changing{module: m, told: make(chan struct{})})
	runs := make(chan error, 2)
	go func() {
		runs <- m.Run(t.Context())
		runs <- m.Run(t.Context())
	}()
	for range cap(runs) {
		if err := wait.Receive(t, "Run to return", runs); err == nil {
			t.Error("Run = nil, want the error of the bus")
		}
	}
}
