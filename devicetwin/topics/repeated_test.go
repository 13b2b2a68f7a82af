package topics

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"

	"github.com/edgecore-io/edgecore/devicetwin"
	"github.com/edgecore-io/edgecore/devicetwin/twin"
	"github.com/edgecore-io/edgecore/eventbus"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/devicemsg"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/test/testenv/mosquitto"
	"github.com/edgecore-io/edgecore/test/testenv/proxy"
	"github.com/edgecore-io/edgecore/test/testenv/twins"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

const (
	nodeTopic = "$hw/events/node/edge-1/"
	barrier   = ofLamp + "twin/get"
)

// bridged is a node with a lamp whose agent is a client of mosquitto, over a cable, and another client of mosquitto.
type bridged struct {
	*env
	broker *mosquitto.Broker
	cable  *proxy.Proxy
	module *Module
	spool  string
	// end stops the agent.
	end func()
	// asked numbers the barriers.
	asked int
}

func startBridged(t *testing.T) *bridged {
	t.Helper()
	b := &bridged{env: &env{t: t}, broker: mosquitto.Start(t), spool: filepath.Join(t.TempDir(), "queue")}
	cable, err := proxy.Start("127.0.0.1:" + b.broker.Port)
	if err != nil {
		t.Fatal(err)
	}
	b.cable = cable
	t.Cleanup(func() { _ = cable.Close() })
	o := mqtt.NewClientOptions().AddBroker(b.broker.Server()).SetClientID("program").SetOrderMatters(true)
	b.Client = mqtt.NewClient(o)
	if token := b.Connect(); token.Wait() && token.Error() != nil {
		t.Fatal(token.Error())
	}
	b.module = b.newModule()
	b.twins = twins.Start(t, map[string]string{"shop/devicemodel/lamp": lampModel, "shop/device/one": lamp},
		func(c devicetwin.Change) { b.module.Changed(c) })
	b.module.Serve(b.twins)
	b.twins.Prepare = func(m *devicetwin.Module) { b.module.Serve(m) }
	b.run()
	t.Cleanup(func() {
		b.Disconnect(0)
		b.end()
	})
	return b
}

func (b *bridged) newModule() *Module {
	b.t.Helper()
	m := New(Options{Node: "edge-1", NewMQTT: func() (eventbus.MQTT, error) {
		config := v1alpha2.Default().Modules.EventBus
		config.MqttMode, config.MqttServerExternal = eventbus.ModeExternal, "tcp://"+b.cable.Addr()
		return eventbus.New(&config, eventbus.Options{ClientID: "agent", SpoolPath: b.spool})
	}})
	return m
}

// run runs the agent's module for MQTT, and waits for its session.
func (b *bridged) run() {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := b.module.Run(ctx); err != nil {
			b.t.Errorf("Run = %v, want no error", err)
		}
	})
	b.end = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	b.connected()
}

// isConnected reports whether the module has a connection to the broker; it has none before it runs.
func (b *bridged) isConnected() bool {
	b.module.mu.Lock()
	bus := b.module.bus
	b.module.mu.Unlock()
	return bus != nil && bus.Connected()
}

func (b *bridged) connected() {
	b.t.Helper()
	wait.True(b.t, "the agent's connection", func() bool { return b.isConnected() })
}

// restart stops the agent, and starts it with the same store: its devices first, its connection to mosquitto later.
func (b *bridged) restart(stopped, started func()) {
	b.t.Helper()
	b.end()
	b.twins.Stop()
	stopped()
	b.module = b.newModule()
	b.twins.Run()
	started()
	b.run()
}

// cut cuts the agent's connection, runs meanwhile, and lets it connect again.
func (b *bridged) cut(meanwhile func()) {
	b.t.Helper()
	b.cable.Set(proxy.Cut)
	wait.True(b.t, "the agent to lose its connection", func() bool { return !b.isConnected() })
	meanwhile()
	b.cable.Set(proxy.Passing)
	b.connected()
}

// handled waits until the agent has handled what was published before.
func (b *bridged) handled() {
	b.t.Helper()
	b.asked++
	id := fmt.Sprint("barrier ", b.asked)
	results := b.listen(ofLamp + "twin/get/result")
	b.publish(barrier, `{"event_id":"`+id+`"}`)
	for decode[devicemsg.TwinResult](b.t, wait.Receive(b.t, "the answer to "+id, results)).EventID != id {
	}
	b.Unsubscribe(ofLamp + "twin/get/result").Wait()
}

func (b *bridged) retain(topic, payload string) {
	b.t.Helper()
	token := b.Publish(topic, 1, true, payload)
	token.Wait()
	if err := token.Error(); err != nil {
		b.t.Fatal(err)
	}
}

// expect checks a property and the state: desired and reported value, and state.
func (b *bridged) expect(when, property, desired, reported, state string) {
	b.t.Helper()
	props, err := b.twins.Properties("shop", "one")
	if err != nil {
		b.t.Fatal(err)
	}
	text := func(v *twin.Value) string {
		if v == nil {
			return ""
		}
		return v.Value
	}
	p := props[property]
	if got := text(p.Desired); got != desired {
		b.t.Errorf("%s: desired %s = %q, want %q", when, property, got, desired)
	}
	if got := text(p.Reported); got != reported {
		b.t.Errorf("%s: reported %s = %q, want %q", when, property, got, reported)
	}
	if got := b.twins.Devices()[0].Twin.State; got != state {
		b.t.Errorf("%s: state %q, want %q", when, got, state)
	}
}

func (b *bridged) report(property, value string, at time.Time) {
	b.t.Helper()
	r := twin.Report{Name: property, Value: value, At: at.UnixMilli()}
	if err := b.twins.Report(b.t.Context(), "shop", "one", []twin.Report{r}); err != nil {
		b.t.Fatal(err)
	}
}

func update(property, kind, value string, at time.Time) string {
	metadata := ""
	if !at.IsZero() {
		metadata = fmt.Sprintf(`,"metadata":{"timestamp":%d}`, at.UnixMilli())
	}
	return fmt.Sprintf(`{"event_id":"e","twin":{%q:{%q:{"value":%q%s}}}}`, property, kind, value, metadata)
}

// TestRetained: what mosquitto retains is an event when it is published, and not again at each connection. A copy gives
// a property only its first value, or a newer one by the message's own time.
func TestRetained(t *testing.T) {
	b := startBridged(t)
	now := time.Now()
	b.retain(ofLamp+"twin/update", update("level", "expected", "5", time.Time{}))
	b.handled()
	b.expect("published with the retain flag", "level", "5", "", "")
	b.publish(ofLamp+"twin/update", update("level", "expected", "7", time.Time{}))
	b.retain(ofLamp+"state/update", `{"event_id":"3","state":"online"}`)
	b.publish(ofLamp+"state/update", `{"event_id":"4","state":"offline"}`)
	b.handled()
	b.cut(func() {})
	b.handled()
	b.expect("after the connection broke once", "level", "7", "", "offline")
	b.restart(func() {}, func() {})
	b.handled()
	b.expect("after a restart of the agent", "level", "7", "", "offline")

	b.retain(ofLamp+"twin/update", update("temp", "actual", "20", now.Add(-time.Hour)))
	b.handled()
	b.expect("reported with the retain flag", "temp", "", "20", "offline")
	b.report("temp", "21", now)
	b.cut(func() {})
	b.handled()
	b.expect("reported by a mapper since", "temp", "", "21", "offline")
	b.restart(func() {}, func() {})
	b.handled()
	b.expect("reported by a mapper since, and a restart", "temp", "", "21", "offline")

	// What was retained while the agent had no session is all that it gets.
	fresh := func(what, payload string) {
		t.Helper()
		b.end()
		b.dropSession()
		b.retain(ofLamp+"twin/update", payload)
		b.module = b.newModule()
		b.module.Serve(b.twins)
		b.run()
		b.handled()
	}
	fresh("newer", update("temp", "actual", "22", now.Add(time.Second)))
	wait.True(t, "the time of the message to have passed", func() bool {
		return time.Now().After(now.Add(time.Second))
	})
	b.cut(func() {})
	b.handled()
	b.expect("a copy that is newer by its own time", "temp", "", "22", "offline")
	fresh("without a time", update("temp", "actual", "23", time.Time{}))
	b.expect("a copy without a time", "temp", "", "22", "offline")
	fresh("of the future", update("temp", "actual", "24", now.Add(time.Hour)))
	b.expect("a copy of the future", "temp", "", "22", "offline")
	fresh("first value", update("level", "actual", "3", time.Time{}))
	b.expect("a copy for a property without a value", "level", "7", "3", "offline")
}

// dropSession removes the agent's session from mosquitto.
func (b *bridged) dropSession() {
	b.t.Helper()
	o := mqtt.NewClientOptions().AddBroker(b.broker.Server()).SetClientID("agent").SetCleanSession(true)
	c := mqtt.NewClient(o)
	if token := c.Connect(); token.Wait() && token.Error() != nil {
		b.t.Fatal(token.Error())
	}
	c.Disconnect(250)
}

// TestRetainedRequests: a request that mosquitto retains is answered once, not at each connection.
func TestRetainedRequests(t *testing.T) {
	b := startBridged(t)
	lists, gets := b.listen(nodeTopic+"membership/get/result"), b.listen(ofLamp+"twin/get/result")
	b.retain(nodeTopic+"membership/get", `{"event_id":"list"}`)
	b.retain(barrier, `{"event_id":"get"}`)
	wait.Receive(t, "the list", lists)
	wait.Receive(t, "the twin", gets)
	b.cut(func() {})
	b.publish(nodeTopic+"membership/get", `{"event_id":"next"}`)
	if got := decode[devicemsg.Members](t, wait.Receive(t, "the list", lists)).EventID; got != "next" {
		t.Errorf("answer to the request %q, want one to next only: the other one was answered before", got)
	}
	b.publish(barrier, `{"event_id":"next"}`)
	if got := decode[devicemsg.TwinResult](t, wait.Receive(t, "the twin", gets)).EventID; got != "next" {
		t.Errorf("answer to the request %q, want one to next only: the other one was answered before", got)
	}
}

// TestWaiting: what waited in the agent's session is taken, unless the twin has got something since that may be newer.
func TestWaiting(t *testing.T) {
	b := startBridged(t)
	expected := func(value string) string { return update("level", "expected", value, time.Time{}) }
	actual := func(value string) string { return update("temp", "actual", value, time.Time{}) }
	state := func(s string) string { return `{"event_id":"s","state":"` + s + `"}` }
	b.cut(func() {
		b.publish(ofLamp+"twin/update", expected("40"))
		b.publish(ofLamp+"twin/update", actual("30"))
		b.publish(ofLamp+"state/update", state("online"))
	})
	b.handled()
	b.expect("nothing has come since", "level", "40", "", "online")
	b.expect("nothing has come since", "temp", "", "30", "online")

	b.cut(func() {
		b.publish(ofLamp+"twin/update", actual("31"))
		b.publish(ofLamp+"twin/update", expected("41"))
		b.publish(ofLamp+"state/update", state("online"))
		b.report("temp", "35", time.Now())
		b.twins.Apply("shop/device/one", lampWith("60"))
		wait.True(t, "the desired value of the cloud", func() bool {
			_, list := b.twins.Served("dali")
			return list[0].Spec.Properties[0].Desired.Value == "60"
		})
		if err := b.twins.ReportState(t.Context(), "shop", "one", "offline", ""); err != nil {
			t.Fatal(err)
		}
	})
	b.handled()
	b.expect("a mapper and the cloud were faster", "level", "60", "", "offline")
	b.expect("a mapper and the cloud were faster", "temp", "", "35", "offline")

	b.cut(func() {
		b.report("temp", "36", time.Now().Add(-time.Minute))
		b.publish(ofLamp+"twin/update", update("temp", "actual", "37", time.Now()))
		b.publish(ofLamp+"twin/update", update("temp", "actual", "34", time.Now().Add(-time.Hour)))
	})
	b.handled()
	b.expect("newer by its own time, and then one that the same session has after it", "temp", "", "34", "offline")

	b.cable.Set(proxy.Silent)
	b.publish(ofLamp+"twin/update", actual("38"))
	b.report("temp", "39", time.Now())
	b.cut(func() {})
	b.handled()
	b.expect("the loss of the connection was found late", "temp", "", "39", "offline")
}

// lampWith is the lamp with a desired level.
func lampWith(level string) string {
	return strings.Replace(lamp, `{"name":"level"}`, `{"name":"level","desired":{"value":"`+level+`"}}`, 1)
}

// TestWaitingRestart: the same, over restarts of the agent.
func TestWaitingRestart(t *testing.T) {
	b := startBridged(t)
	actual := func(value string) string { return update("temp", "actual", value, time.Time{}) }
	b.restart(func() { b.publish(ofLamp+"twin/update", actual("30")) }, func() {})
	b.handled()
	b.expect("nothing has come since", "temp", "", "30", "")
	b.restart(func() { b.publish(ofLamp+"twin/update", actual("31")) }, func() { b.report("temp", "35", time.Now()) })
	b.handled()
	b.expect("a mapper was faster than the broker", "temp", "", "35", "")

	b.cable.Set(proxy.Cut)
	wait.True(t, "the agent to lose its connection", func() bool { return !b.isConnected() })
	b.publish(ofLamp+"twin/update", actual("36"))
	b.report("temp", "37", time.Now())
	b.cable.Set(proxy.Passing)
	b.restart(func() {}, func() {})
	b.handled()
	b.expect("a mapper was faster, before the restart", "temp", "", "37", "")
	wait.True(t, "the marks to be gone from the disk", func() bool {
		row, err := b.twins.Store.Get(t.Context(), "shop/"+resource.TypeDeviceTwin+"/one")
		return err == nil && !strings.Contains(string(row.Value), "ahead")
	})
	b.restart(func() { b.publish(ofLamp+"twin/update", actual("38")) }, func() {})
	b.handled()
	b.expect("the mapper's value is old by now", "temp", "", "38", "")
}
