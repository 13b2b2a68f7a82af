package devicetwin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/devicetwin/twin"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/devicemsg"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/mapper"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

const lampModel = `{"metadata":{"name":"lamp","namespace":"shop","uid":"m1"},"spec":{"properties":[{"name":"level",
"type":"INT","accessMode":"ReadWrite"},{"name":"temp","type":"INT","accessMode":"ReadOnly"}]}}`

// lamp is a device with a desired level; "" is none.
func lamp(level string) string {
	desired := ""
	if level != "" {
		desired = `"desired":{"value":"` + level + `"},`
	}
	return `{"metadata":{"name":"one","namespace":"shop","uid":"d1"},"spec":{"deviceModelRef":{"name":"lamp"},
"protocol":{"protocolName":"dali","configData":{"bus":3,"ip":"192.0.2.7","deep":{"a":[1]}}},"properties":[
{"name":"level",` + desired + `"reportToCloud":true,"visitors":{"configData":{"channel":1.5}}},
{"name":"temp","reportToCloud":true},{"name":"private"}]}}`
}

// cloud is the bus, with a cloud behind it that confirms reports while it is there.
type cloud struct {
	inbox chan *model.Message

	mu      sync.Mutex
	away    bool
	theirs  bool // KubeEdge's
	refuse  string
	reports []*model.Message
	api     api
}

func (c *cloud) Receive(ctx context.Context, _ string) (*model.Message, error) {
	select {
	case m := <-c.inbox:
		return m, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *cloud) SendSync(_ context.Context, _ string, m *model.Message) (*model.Message, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.away:
		return m.RespondError(model.ModuleEdgeHub, errors.New("not connected to the cloud")), nil
	case c.refuse != "":
		return m.RespondError(devicemsg.SourceCloud, errors.New(c.refuse)), nil
	}
	c.reports = append(c.reports, m)
	if late := c.api.write(m.ContentData()); late != nil && !c.theirs {
		r := m.RespondError(devicemsg.SourceCloud, late)
		r.Content, _ = json.Marshal(late) // strings always encode
		return r, nil
	}
	return m.Respond(model.OK), nil
}

// refusing has reports refused with a text; "" accepts them.
func (c *cloud) refusing(text string) {
	c.mu.Lock()
	c.refuse = text
	c.mu.Unlock()
}

// value returns the last value of a property in the reports.
func (c *cloud) value(property string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range slices.Backward(c.reports) {
		u, err := devicemsg.DecodeTwinUpdate(m.ContentData())
		if err != nil || u.Twin[property] == nil {
			continue
		}
		if text, ok := u.Twin[property].Actual.Text(); ok {
			return text
		}
	}
	return ""
}

func (c *cloud) state() string {
	if u := c.stateUpdate(); u != nil {
		return u.Device.State
	}
	return ""
}

// stateUpdate returns the last report on a state; nil if there is none.
func (c *cloud) stateUpdate() *devicemsg.StateUpdate {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range slices.Backward(c.reports) {
		if u, err := devicemsg.DecodeStateUpdate(m.ContentData()); err == nil {
			return u
		}
	}
	return nil
}

func (c *cloud) set(away bool) {
	c.mu.Lock()
	c.away = away
	state := wire.LinkState{Connected: !away}
	if !away && !c.theirs {
		state.Features = wire.AllFeatures()
	}
	c.mu.Unlock()
	content, err := json.Marshal(state)
	if err != nil {
		panic(err)
	}
	c.inbox <- model.New(model.ModuleEdgeHub, devicemsg.Group, wire.OpConnect, wire.ResourceLink, content)
}

// env is a module with a store of its own, which outlives it.
type env struct {
	t     *testing.T
	dir   string
	store *store.Store
	disk  disk
	cloud *cloud
	*Module
	stop func()
}

func start(t *testing.T) *env {
	t.Helper()
	e := &env{t: t, dir: t.TempDir(), cloud: &cloud{inbox: make(chan *model.Message, 100)}}
	s, _, err := store.Open(t.Context(), filepath.Join(e.dir, "edgecore.db"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e.store, e.disk.Store = s, s
	t.Cleanup(func() {
		e.stop()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	e.run()
	return e
}

// run starts the module, as after a restart of the agent.
func (e *env) run() {
	e.Module = New(Options{Bus: e.cloud, Store: &e.disk, SocketDir: filepath.Join(e.dir, "dmi")})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Module.Run(ctx) }()
	e.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			e.t.Errorf("Run = %v, want no error", err)
		}
	})
}

func (e *env) mapper() *mapper.Mapper {
	return mapper.Start(e.t, e.dir, filepath.Join(e.dir, "dmi", "dmi.sock"), "dali")
}

// object is what metamanager does with an object of the cloud.
func (e *env) object(op, typ, name, content string) {
	e.t.Helper()
	key := resource.Key{Namespace: "shop", Type: typ, Name: name}.String()
	row := store.Upsert(store.Meta{Key: key, Type: typ, Value: []byte(content)})
	if op == model.OpDelete {
		row = store.Delete(key)
	}
	if err := e.store.Apply(e.t.Context(), row); err != nil {
		e.t.Fatal(err)
	}
	e.cloud.inbox <- model.New("devicecontroller", model.GroupResource, op, key, json.RawMessage(content))
}

func (e *env) lamp(level string) {
	e.t.Helper()
	e.object(model.OpInsert, resource.TypeDeviceModel, "lamp", lampModel)
	e.object(model.OpUpdate, resource.TypeDevice, "one", lamp(level))
	wait.True(e.t, "the device", func() bool { return len(e.Devices()) == 1 })
}

func (e *env) awaitValue(property, want string) {
	e.t.Helper()
	wait.Until(e.t, fmt.Sprintf("the cloud has %s = %s", property, want), func() error {
		if got := e.cloud.value(property); got != want {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
}

// TestDesiredAndReported: a mapper gets its devices, and the cloud what it reports.
func TestDesiredAndReported(t *testing.T) {
	e := start(t)
	e.cloud.set(false)
	e.lamp("5")
	m := e.mapper()
	m.AwaitRegister()
	m.AwaitDesired("shop/one", "level", "5")
	if d, models := m.Has(); d != 1 || models != 1 {
		t.Errorf("the mapper has %d devices and %d models, want one of each", d, models)
	}
	at := time.Now().Add(-time.Hour)
	if err := m.Report(t.Context(), "shop", "one", at, "level", "5", "private", "x"); err != nil {
		t.Fatal(err)
	}
	row, err := e.store.Get(t.Context(), "shop/devicetwin/one")
	if err != nil || !strings.Contains(string(row.Value), fmt.Sprint(at.UnixMilli())) {
		t.Errorf("stored when the report was acknowledged: %s, %v; want the value with its time", row.Value, err)
	}
	e.awaitValue("level", "5")
	var list DeviceList
	answer := httptest.NewRecorder()
	e.Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/devices", nil))
	if err := json.Unmarshal(answer.Body.Bytes(), &list); err != nil || len(list.Items) != 1 ||
		list.Items[0].Name != "one" || list.Items[0].Twin.Properties["level"].Reported.Value != "5" {
		t.Errorf("/devices answers %s, %v; want the device with its value", answer.Body, err)
	}
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(e.Module); err != nil {
		t.Fatal(err)
	}
	if families, err := registry.Gather(); err != nil || len(families) != 4 {
		t.Errorf("metrics %v, %v; want 4", families, err)
	}
	if got := e.cloud.value("private"); got != "" {
		t.Errorf("the cloud has private = %s, want nothing: reportToCloud is false", got)
	}
	if err := m.ReportState(t.Context(), "shop", "one", "online"); err != nil {
		t.Fatal(err)
	}
	wait.True(t, "the state", func() bool { return e.cloud.state() == "online" })
	e.object(model.OpUpdate, resource.TypeDevice, "one", lamp("7"))
	m.AwaitDesired("shop/one", "level", "7")
	e.object(model.OpUpdate, resource.TypeDevice, "one", lamp(""))
	m.AwaitDesired("shop/one", "level", "")
	e.object(model.OpDelete, resource.TypeDevice, "one", lamp(""))
	e.object(model.OpDelete, resource.TypeDeviceModel, "lamp", lampModel)
	wait.Until(t, "the mapper to lose the device and the model", func() error {
		if d, models := m.Has(); d+models > 0 {
			return fmt.Errorf("%d devices, %d models, calls %q", d, models, m.Calls())
		}
		return nil
	})
	wait.True(t, "the twin to be deleted", func() bool {
		_, err := e.store.Get(t.Context(), "shop/devicetwin/one")
		return errors.Is(err, store.ErrNotFound)
	})
}

// TestOffline: without a link, and across a restart, twins work on; then the cloud gets the newest values.
func TestOffline(t *testing.T) {
	e := start(t)
	e.cloud.set(false)
	e.lamp("5")
	m := e.mapper()
	m.AwaitRegister()
	e.cloud.set(true)
	for i := range 5 {
		if err := m.Report(t.Context(), "shop", "one", time.Now(), "temp", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	e.stop()
	calls := len(m.Calls())
	e.run()
	wait.Until(t, "a report after the restart", func() error {
		return m.Report(t.Context(), "shop", "one", time.Now(), "level", "9")
	})
	e.object(model.OpUpdate, resource.TypeDevice, "one", lamp("6"))
	m.AwaitDesired("shop/one", "level", "6") // the mapper has not registered again
	if got := m.Calls()[calls:]; len(got) != 1 || got[0] != "update shop/one" {
		t.Errorf("calls after the restart %q, want one update", got)
	}
	if e.cloud.value("temp") != "" {
		t.Error("the cloud has a value without a link")
	}
	e.cloud.set(false)
	e.awaitValue("temp", "4")
	e.awaitValue("level", "9")
}

// TestStateMessage: the message that a mapper sends with a state is in the report to the cloud and on the disk.
// Whatever the mapper sends, it is short and printable.
func TestStateMessage(t *testing.T) {
	e := start(t)
	e.cloud.set(false)
	e.lamp("")
	m := e.mapper()
	m.AwaitRegister()
	for _, tc := range []struct{ state, message, want string }{
		{"offline", "größer als 5: no answer", "größer als 5: no answer"},
		{"unhealthy", "\x1b[2J\xff\u202e" + strings.Repeat("x", 20<<10), "[2J " + strings.Repeat("x", 249) + "..."},
		{"unknown", "", ""},
		{"offline", "no answer", "no answer"},
		{"online", "no answer", ""},
	} {
		if err := m.ReportStateMessage(t.Context(), "shop", "one", tc.state, tc.message); err != nil {
			t.Fatal(err)
		}
		wait.Until(t, fmt.Sprintf("the cloud to have %s", tc.state), func() error {
			if u := e.cloud.stateUpdate(); u == nil || u.Device.State != tc.state || u.Message != tc.want {
				return fmt.Errorf("it has %+v, want the message %q", u, tc.want)
			}
			return nil
		})
		row, err := e.store.Get(t.Context(), "shop/devicetwin/one")
		var stored twin.Twin
		if err == nil {
			err = json.Unmarshal(row.Value, &stored)
		}
		if err != nil || stored.StateMessage != tc.want {
			t.Errorf("%s: stored %s, %v; want the message %q", tc.state, row.Value, err, tc.want)
		}
	}
	if err := m.ReportStateMessage(t.Context(), "shop", "one", "offline", strings.Repeat("x", 100<<10)); err == nil {
		t.Error("a message of 100 KiB is accepted, want that gRPC refuses it")
	}
}

// TestUnchanged: a value that is what it was writes nothing, and is not sent again.
func TestUnchanged(t *testing.T) {
	e := start(t)
	e.cloud.set(false)
	e.lamp("")
	m := e.mapper()
	m.AwaitRegister()
	report := func(value string) {
		t.Helper()
		if err := m.Report(t.Context(), "shop", "one", time.Now(), "temp", value); err != nil {
			t.Fatal(err)
		}
	}
	report("1")
	e.awaitValue("temp", "1")
	before, err := e.store.Get(t.Context(), "shop/devicetwin/one")
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		report("1")
	}
	report("2") // what comes after is sent after
	e.awaitValue("temp", "2")
	e.cloud.mu.Lock()
	sent := len(e.cloud.reports)
	e.cloud.mu.Unlock()
	if sent != 2 {
		t.Errorf("%d reports, want one for each value", sent)
	}
	after, err := e.store.Get(t.Context(), "shop/devicetwin/one")
	if err != nil || string(after.Value) == string(before.Value) {
		t.Errorf("the twin is %s, %v; want the new value", after.Value, err)
	}
}

// TestFirstReportTwice: KubeEdge's cloud confirms the first report on a property and loses its values.
func TestFirstReportTwice(t *testing.T) {
	e := start(t)
	e.cloud.theirs = true
	e.cloud.set(false)
	e.lamp("")
	m := e.mapper()
	m.AwaitRegister()
	sent := func(want int, value string) {
		t.Helper()
		if err := m.Report(t.Context(), "shop", "one", time.Now(), "temp", value); err != nil {
			t.Fatal(err)
		}
		wait.Until(t, fmt.Sprintf("%d reports, the last with %s", want, value), func() error {
			e.cloud.mu.Lock()
			n := len(e.cloud.reports)
			e.cloud.mu.Unlock()
			if got := e.cloud.value("temp"); n != want || got != value {
				return fmt.Errorf("%d reports, the last with %s", n, got)
			}
			return nil
		})
	}
	sent(2, "1")
	sent(3, "2")
}

// TestMapperReturns: a mapper that dies, hangs or refuses gets what it lacks when it is back.
func TestMapperReturns(t *testing.T) {
	e := start(t)
	e.lamp("5")
	m := e.mapper()
	m.AwaitRegister()
	m.Fail(status.Error(codes.Internal, "no such lamp"))
	e.object(model.OpUpdate, resource.TypeDevice, "one", lamp("6"))
	wait.True(t, "the problem to be known", func() bool {
		list := e.server.Mappers()
		return len(list) == 1 && strings.Contains(list[0].Problem, "no such lamp")
	})
	m.Fail(nil)
	m.AwaitDesired("shop/one", "level", "6")
	m.Stop()
	e.object(model.OpUpdate, resource.TypeDevice, "one", lamp("7"))
	m.Listen()
	m.AwaitRegister()
	m.AwaitDesired("shop/one", "level", "7")
	wait.True(t, "no problem any more", func() bool { return e.server.Mappers()[0].Problem == "" })
}

// TestForeignProtocol: a mapper cannot take over a protocol whose mapper answers; it can when that is gone.
func TestForeignProtocol(t *testing.T) {
	e := start(t)
	m := e.mapper()
	m.AwaitRegister()
	thief := mapper.Start(t, t.TempDir(), filepath.Join(e.dir, "dmi", "dmi.sock"), "dali")
	err := thief.Register(t.Context())
	if status.Code(err) != codes.AlreadyExists || !strings.Contains(err.Error(), "is served by mapper test-dali") {
		t.Errorf("a second mapper registers: %v, want AlreadyExists", err)
	}
	m.Stop()
	if err := thief.Register(t.Context()); err != nil {
		t.Errorf("a second mapper registers after the first has gone: %v", err)
	}
}

// TestRefused: what is invalid is refused with its cause, and changes nothing.
func TestRefused(t *testing.T) {
	e := start(t)
	e.lamp("5")
	m := e.mapper()
	m.AwaitRegister()
	now := time.Now()
	for what, tc := range map[string]struct {
		err  error
		code codes.Code
		text string
	}{
		"unknown device":   {m.Report(t.Context(), "shop", "two", now, "temp", "1"), codes.NotFound, "shop/two"},
		"unknown property": {m.Report(t.Context(), "shop", "one", now, "x", "1"), codes.InvalidArgument, `no property "x"`},
		"long value": {m.Report(t.Context(), "shop", "one", now, "temp", strings.Repeat("x", 513)),
			codes.InvalidArgument, "limit 512"},
		"large message": {m.Report(t.Context(), "shop", "one", now, "temp", strings.Repeat("x", 3<<20)),
			codes.ResourceExhausted, "larger than max"},
		"state": {m.ReportState(t.Context(), "shop", "one", "dead"), codes.InvalidArgument, "use one of"},
	} {
		if status.Code(tc.err) != tc.code || !strings.Contains(fmt.Sprint(tc.err), tc.text) {
			t.Errorf("%s: %v, want %v with %q", what, tc.err, tc.code, tc.text)
		}
	}
	many := make([]string, 0, 40000)
	for range 20000 {
		many = append(many, "temp", "1")
	}
	if err := m.Report(t.Context(), "shop", "one", now, many...); err == nil {
		t.Error("a report with 20,000 twins = nil, want an error")
	}
	if tw := e.Devices()[0].Twin; tw.Properties["temp"].Reported != nil {
		t.Errorf("twin %+v, want no value of temp", tw)
	}
}

// TestRefusedByTheCloud: what the cloud refuses is kept and sent again with a growing pause, until it accepts it.
func TestRefusedByTheCloud(t *testing.T) {
	e := start(t)
	e.cloud.refusing("the API server says no")
	e.cloud.set(false)
	e.lamp("5")
	if err := e.ReportState(t.Context(), "shop", "one", "unhealthy", ""); err != nil {
		t.Fatal(err)
	}
	wait.True(t, "the pause to grow", func() bool {
		e.Module.mu.Lock()
		defer e.Module.mu.Unlock()
		r := &e.Module.devices["shop/one"].report
		return r.pausedUntil(devicemsg.KindState).After(time.Now().Add(sendInterval))
	})
	e.cloud.refusing("")
	wait.True(t, "the state", func() bool { return e.cloud.state() == "unhealthy" })
	wait.True(t, "nothing is left to be sent", func() bool {
		e.Module.mu.Lock()
		defer e.Module.mu.Unlock()
		r := &e.Module.devices["shop/one"].report
		return !r.due() && len(r.refused) == 0
	})
}

// TestFullDisk: what cannot be stored is not acknowledged.
func TestFullDisk(t *testing.T) {
	e := start(t)
	e.lamp("5")
	m := e.mapper()
	m.AwaitRegister()
	e.disk.fill(true)
	err := m.Report(t.Context(), "shop", "one", time.Now(), "temp", "1")
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("a report on a full disk: %v, want Unavailable with the cause", err)
	}
	if err := m.Report(t.Context(), "shop", "one", time.Now(), "temp", "1"); status.Code(err) != codes.Unavailable {
		t.Errorf("the same value again: %v, want Unavailable: the first is not stored", err)
	}
	e.disk.fill(false)
	wait.True(t, "the value to be stored", func() bool {
		row, err := e.store.Get(t.Context(), "shop/devicetwin/one")
		return err == nil && strings.Contains(string(row.Value), `"temp"`)
	})
}

// disk is a store whose disk may be full.
type disk struct {
	Store
	mu   sync.Mutex
	full bool
}

func (d *disk) fill(full bool) {
	d.mu.Lock()
	d.full = full
	d.mu.Unlock()
}

func (d *disk) Apply(ctx context.Context, ops ...store.Op) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.full {
		return store.ErrFull
	}
	return d.Store.Apply(ctx, ops...)
}
