package mapper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/edgecore-io/edgecore/metamanager/store"
	dmi "github.com/edgecore-io/edgecore/pkg/dmi/v1beta1"
	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/twins"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// values is a driver and a device with the values of its properties.
type values map[string]string

func (v values) Open(context.Context, string, Config) (Conn, error) { return v, nil }
func (v values) Close() error                                       { return nil }
func (v values) Read(_ context.Context, p *Property) (string, error) {
	return v[p.Name], nil
}
func (v values) Write(context.Context, *Property, string) error { return nil }

// startMapper runs a mapper of a driver on a node until the test ends.
func startMapper(t *testing.T, n *twins.Node, driver Driver) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := Run(ctx, Options{
			Name: "files", Protocol: "files", Agent: n.Socket, Socket: filepath.Join(t.TempDir(), "files.sock"),
			Driver: driver, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		}); err != nil {
			t.Errorf("Run = %v, want no error", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

// configs is a driver that passes on the configurations of its devices.
type configs chan Config

func (c configs) Open(_ context.Context, _ string, config Config) (Conn, error) {
	c <- config
	return values{}, nil
}

// TestDigits: numbers of a configuration have the digits that they have in the cluster.
func TestDigits(t *testing.T) {
	n := twins.Start(t, map[string]string{"shop/device/one": `{"metadata":{"name":"one","namespace":"shop","uid":"d1"},
"spec":{"protocol":{"protocolName":"files","configData":{"scale":0.1234567891,"serial":18446744073709551615,"tenth":0.1,
"nested":{"id":9007199254740993}}}}}`}, nil)
	opened := make(configs, 1)
	startMapper(t, n, opened)
	var got struct {
		Scale, Tenth float64
		Serial       uint64
		Nested       struct{ ID int64 }
	}
	if err := wait.Receive(t, "the configuration", opened).Decode(&got); err != nil {
		t.Fatal(err)
	}
	if got.Scale != 0.1234567891 || got.Tenth != 0.1 || got.Serial != math.MaxUint64 || got.Nested.ID != 1<<53+1 {
		t.Errorf("the driver gets %+v", got)
	}
}

// TestForeignKeys: a key that only encoding/json takes for the name of a setting is refused, not used: a policy of the
// cluster that forbids the setting does not see it.
func TestForeignKeys(t *testing.T) {
	type place struct{ SerialPort, Kind string }
	var got struct {
		place
		Nested place
		List   []place
	}
	for _, c := range []Config{
		{"\u017ferialPort": "/dev/ttyUSB0"},
		{"\u212aind": "x"},
		{"nested": map[string]any{"\u017ferialPort": "/dev/ttyUSB0"}},
		{"list": json.RawMessage(`[{"\u017ferialPort":"/dev/ttyUSB0"}]`)},
		{"größe": 1},
	} {
		if err := c.Decode(&got); err == nil || !strings.Contains(err.Error(), "is not ASCII") {
			t.Errorf("%v: decoded to %+v, %v; want an error: the key is not ASCII", c, got, err)
		}
	}
	ok := Config{"serialPort": "/dev/größe", "nested": json.RawMessage(`{"KIND":"\u017f","other":[1,null]}`)}
	if err := ok.Decode(&got); err != nil || got.SerialPort != "/dev/größe" || got.Nested.Kind != "\u017f" {
		t.Errorf("%v: decoded to %+v, %v; want both settings: their values may have any letter", ok, got, err)
	}
}

// TestRefusedValue: a value that edgecore refuses does not hold up those of other properties.
func TestRefusedValue(t *testing.T) {
	n := twins.Start(t, map[string]string{"shop/device/one": `{"metadata":{"name":"one","namespace":"shop","uid":"d1"},
"spec":{"protocol":{"protocolName":"files"},"properties":[{"name":"long","collectCycle":20},{"name":"temp",
"collectCycle":20}]}}`}, nil)
	startMapper(t, n, values{"long": strings.Repeat("x", 10_000), "temp": "21"})
	wait.True(t, "temp to be reported", func() bool {
		props, err := n.Properties("shop", "one")
		return err == nil && props["temp"].Reported != nil && props["temp"].Reported.Value == "21"
	})
}

// TestCycles: a cycle that is too long for a duration is a long one, not one of 10 ms.
func TestCycles(t *testing.T) {
	w := newWorker(&mapper{}, "shop", "one", nil)
	for ms, want := range map[int64][2]time.Duration{
		0: {defaultCycle, 0}, -1: {defaultCycle, 0}, 1: {leastCycle, time.Millisecond}, 1500: {1.5e9, 1.5e9},
		9_300_000_000_000: {mostCycle, mostCycle}, math.MaxInt64: {mostCycle, mostCycle},
	} {
		w.configure(&dmi.Device{Spec: &dmi.DeviceSpec{Properties: []*dmi.DeviceProperty{
			{Name: "a", CollectCycle: ms, ReportCycle: ms},
		}}}, nil)
		if p := w.points["a"]; p.collect != want[0] || p.report != want[1] {
			t.Errorf("%d ms: read every %v and reported every %v, want %v", ms, p.collect, p.report, want)
		}
	}
}

// TestIgnoredPush: a pushMethod that the mapper does not have is logged, once.
func TestIgnoredPush(t *testing.T) {
	var log strings.Builder
	m := &mapper{opts: Options{Log: slog.New(slog.NewTextHandler(&log, nil))}}
	w := newWorker(m, "shop", "one", nil)
	for _, push := range []*dmi.PushMethod{
		{Mqtt: &dmi.PushMethodMQTT{}},
		{Http: &dmi.PushMethodHTTP{}},
		{Http: &dmi.PushMethodHTTP{Port: 1}},
		{DbMethod: &dmi.DBMethod{}},
	} {
		w.configure(&dmi.Device{Spec: &dmi.DeviceSpec{Properties: []*dmi.DeviceProperty{
			{Name: "a", PushMethod: push},
		}}}, nil)
	}
	for _, method := range []string{"http", "dbMethod"} {
		if n := strings.Count(log.String(), "property=a pushMethod="+method); n != 1 {
			t.Errorf("%s is logged %d times, want once:\n%s", method, n, &log)
		}
	}
	if strings.Contains(log.String(), "pushMethod=mqtt") {
		t.Errorf("mqtt is logged, want nothing:\n%s", &log)
	}
}

// TestLargeDevices: the devices of a namespace that are too large, or too many, keep no device of another away.
func TestLargeDevices(t *testing.T) {
	objects := map[string]string{"shop/device/one": `{"metadata":{"name":"one","namespace":"shop","uid":"d1"},
"spec":{"protocol":{"protocolName":"files"},"properties":[{"name":"temp","collectCycle":20}]}}`}
	for i := range 9 { // the first three are too large for every mapper
		text := strings.Repeat("x", 900_000)
		if i < 3 {
			text = strings.Repeat("x", 1_400_000)
		}
		name := fmt.Sprint("d", i)
		objects["evil/device/"+name] = `{"metadata":{"name":"` + name + `","namespace":"evil","uid":"` + name + `"},
"spec":{"protocol":{"protocolName":"files","configData":{"x":"` + text + `"}}}}`
	}
	n := twins.Start(t, objects, nil)
	startMapper(t, n, values{"temp": "21"})
	wait.True(t, "temp to be reported", func() bool {
		props, err := n.Properties("shop", "one")
		return err == nil && props["temp"].Reported != nil && props["temp"].Reported.Value == "21"
	})
	wait.Until(t, "as many devices of the other namespace as it may have", func() error {
		var served []string
		for _, d := range n.Devices() {
			if d.Namespace == "evil" && d.Twin.State == online {
				served = append(served, d.Name)
			}
		}
		slices.Sort(served)
		if want := []string{"d3", "d4", "d5", "d6"}; !slices.Equal(served, want) {
			return fmt.Errorf("%v are served, want %v", served, want)
		}
		return nil
	})
}

// TestBudget: what a mapper keeps is bounded for each object, each namespace and altogether.
func TestBudget(t *testing.T) {
	b := newBudget()
	if err := b.reserve("a", "x", maxObject); err == nil {
		t.Error("an object that is too large is taken")
	}
	fill := func(namespace string) (n int) {
		for b.reserve(namespace, fmt.Sprint(namespace, n), maxObject/2) == nil {
			n++
		}
		return n
	}
	if got := fill("a"); got != 7 {
		t.Errorf("a namespace has %d objects of half the size, want 7", got)
	}
	if err := b.reserve("a", "a0", 5); err != nil {
		t.Errorf("an object that becomes smaller: %v, want no error", err)
	}
	all := 7 + fill("b") + fill("c") + fill("d")
	if err := b.reserve("e", "e", maxObject/2); err == nil || all > 24 {
		t.Errorf("%d objects and one more are taken, want 24 at most", all)
	}
	for object := range b.sizes {
		b.drop(object[:1], object)
	}
	if b.total != 0 || len(b.namespaces) != 0 {
		t.Errorf("%d bytes of %v are left, want none", b.total, b.namespaces)
	}
}

// closing is a driver whose connections say when they are closed.
type closing chan string

type closingConn struct {
	values
	name   string
	closed chan string
}

func (c closing) Open(_ context.Context, _ string, config Config) (Conn, error) {
	return closingConn{values{}, config["name"].(string), c}, nil
}

func (c closingConn) Close() error {
	c.closed <- c.name
	return nil
}

// TestRemovedWhileAway: a device that is removed while edgecore does not run, and the mapper does, is served no more.
func TestRemovedWhileAway(t *testing.T) {
	object := func(name string) string {
		return `{"metadata":{"name":"` + name + `","namespace":"shop","uid":"` + name + `"},"spec":{"protocol":{
"protocolName":"files","configData":{"name":"` + name + `"}},"properties":[{"name":"temp","collectCycle":20}]}}`
	}
	n := twins.Start(t, map[string]string{"shop/device/one": object("one"), "shop/device/two": object("two")}, nil)
	closed := make(closing, 10)
	startMapper(t, n, closed)
	served := func() {
		t.Helper()
		wait.True(t, "the devices to be online", func() bool {
			for _, d := range n.Devices() {
				if d.Twin.State != online {
					return false
				}
			}
			return true
		})
	}
	served()
	n.Stop()
	if err := n.Store.Apply(t.Context(), store.Delete("shop/device/two")); err != nil {
		t.Fatal(err)
	}
	n.Run()
	if got := wait.Receive(t, "the removal", closed); got != "two" {
		t.Errorf("device %s is served no more, want two", got)
	}
	served()
}

// refusing is an edgecore that refuses reports.
type refusing struct {
	dmi.DeviceManagerServiceClient
	calls int
	err   error
}

func (r *refusing) ReportDeviceStatus(
	context.Context, *dmi.ReportDeviceStatusRequest, ...grpc.CallOption,
) (*dmi.ReportDeviceStatusResponse, error) {
	r.calls++
	return nil, r.err
}

func (r *refusing) ReportDeviceStates(
	context.Context, *dmi.ReportDeviceStatesRequest, ...grpc.CallOption,
) (*dmi.ReportDeviceStatesResponse, error) {
	return nil, r.err
}

// TestRefusedReports: a report that edgecore cannot take now is sent again with a growing pause, and has the mapper
// register again only if edgecore does not know it.
func TestRefusedReports(t *testing.T) {
	for code, again := range map[codes.Code]bool{
		codes.ResourceExhausted: false, codes.Unavailable: false, codes.NotFound: false, codes.FailedPrecondition: true,
		codes.PermissionDenied: true,
	} {
		synctest.Test(t, func(t *testing.T) {
			agent := &refusing{err: status.Error(code, "no")}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			o := Options{Driver: values{"temp": "21"}, Log: slog.New(slog.DiscardHandler)}
			m := &mapper{opts: o, agent: agent, lost: notify.NewSignal(), push: newPusher(ctx, o)}
			w := newWorker(m, "shop", "one", cancel)
			w.set(&dmi.Device{Spec: &dmi.DeviceSpec{Properties: []*dmi.DeviceProperty{
				{Name: "temp", CollectCycle: 20, ReportCycle: 20},
			}}}, nil)
			var running sync.WaitGroup
			running.Go(func() { w.run(ctx) })
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			if agent.calls < 10 || agent.calls > 20 {
				t.Errorf("%v: %d reports in 10 minutes, want 10 to 20: pauses from a second to a minute", code,
					agent.calls)
			}
			if got := len(m.lost) > 0; got != again {
				t.Errorf("%v: the mapper registers again: %v, want %v", code, got, again)
			}
			before := agent.calls
			w.registered()
			synctest.Wait()
			if agent.calls != before+1 {
				t.Errorf("%v: %d reports after a registration, want one", code, agent.calls-before)
			}
			cancel()
			running.Wait()
		})
	}
}

// slow is a driver and a device whose reads and writes wait for the test.
type slow struct {
	reads, writes chan struct{} // each waits to receive from it
	began         chan string   // gets "read", "write VALUE", "wrote VALUE" and "close"
}

func (s slow) Open(context.Context, string, Config) (Conn, error) { return s, nil }

func (s slow) Close() error {
	s.began <- "close"
	return nil
}

func (s slow) Read(context.Context, *Property) (string, error) {
	s.began <- "read"
	<-s.reads
	return "1", nil
}

func (s slow) Write(ctx context.Context, _ *Property, value string) error {
	s.began <- "write " + value
	<-s.writes
	if err := ctx.Err(); err != nil {
		return Refusal{err}
	}
	s.began <- "wrote " + value
	return nil
}

// TestOutdatedDesired: a desired value that edgecore has replaced, withdrawn or removed with its device is not written
// after edgecore has the answer, and a device that is registered again is served after its former worker has ended.
func TestOutdatedDesired(t *testing.T) {
	device := func(desired string) *dmi.Device {
		d := &dmi.Device{Name: "one", Namespace: "shop", Spec: &dmi.DeviceSpec{Properties: []*dmi.DeviceProperty{
			{Name: "level", CollectCycle: 1000},
		}}}
		if desired != "" {
			d.Spec.Properties[0].Desired = &dmi.TwinProperty{Value: desired}
		}
		return d
	}
	for name, tc := range map[string]struct {
		change  func(context.Context, *mapper) error
		waiting bool   // the write has begun, and waits for its turn
		want    string // what the driver does next
	}{
		"replaced": {func(ctx context.Context, m *mapper) error {
			_, err := m.UpdateDevice(ctx, &dmi.UpdateDeviceRequest{Device: device("60")})
			return err
		}, false, "read,write 60,wrote 60"},
		"replaced while it waits": {func(ctx context.Context, m *mapper) error {
			_, err := m.UpdateDevice(ctx, &dmi.UpdateDeviceRequest{Device: device("60")})
			return err
		}, true, "read,write 60,wrote 60"},
		"withdrawn": {func(ctx context.Context, m *mapper) error {
			_, err := m.UpdateDevice(ctx, &dmi.UpdateDeviceRequest{Device: device("")})
			return err
		}, false, "read,read"},
		"removed": {func(ctx context.Context, m *mapper) error {
			_, err := m.RemoveDevice(ctx, &dmi.RemoveDeviceRequest{DeviceName: "one", DeviceNamespace: "shop"})
			return err
		}, false, "close"},
		"removed while it waits": {func(ctx context.Context, m *mapper) error {
			_, err := m.RemoveDevice(ctx, &dmi.RemoveDeviceRequest{DeviceName: "one", DeviceNamespace: "shop"})
			return err
		}, true, "close"},
		"registered again": {func(ctx context.Context, m *mapper) error {
			_, err := m.RemoveDevice(ctx, &dmi.RemoveDeviceRequest{DeviceName: "one", DeviceNamespace: "shop"})
			if err == nil {
				_, err = m.RegisterDevice(ctx, &dmi.RegisterDeviceRequest{Device: device("60")})
			}
			return err
		}, false, "close,read,write 60,wrote 60"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				driver := slow{make(chan struct{}, 100), make(chan struct{}, 100), make(chan string, 100)}
				ctx, cancel := context.WithCancel(t.Context())
				o := Options{Driver: driver, Log: slog.New(slog.DiscardHandler)}
				m := &mapper{
					opts:    o,
					ctx:     ctx,
					agent:   &refusing{},
					lost:    notify.NewSignal(),
					push:    newPusher(ctx, o),
					budget:  newBudget(),
					workers: map[string]*worker{},
					ending:  map[string]*worker{},
					models:  map[string]*dmi.DeviceModel{},
				}
				if _, err := m.RegisterDevice(ctx, &dmi.RegisterDeviceRequest{Device: device("50")}); err != nil {
					t.Fatal(err)
				}
				if tc.waiting {
					driver.reads <- struct{}{}
				}
				synctest.Wait()
				for len(driver.began) > 0 {
					<-driver.began
				}
				if err := tc.change(ctx, m); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if len(driver.began) > 0 {
					t.Errorf("the driver is asked to %s while it is busy", <-driver.began)
				}
				close(driver.reads)
				close(driver.writes)
				time.Sleep(2500 * time.Millisecond)
				synctest.Wait()
				cancel()
				var got []string
				for len(driver.began) > 0 {
					if event := <-driver.began; len(got) <= strings.Count(tc.want, ",") {
						got = append(got, event)
					}
				}
				if text := strings.Join(got, ","); text != tc.want {
					t.Errorf("the driver is asked to %s, want %s", text, tc.want)
				}
				m.running.Wait()
				if len(m.ending) > 0 {
					t.Errorf("%d workers are remembered that have ended", len(m.ending))
				}
			})
		})
	}
}

// busy is a device that refuses writes until it is free, and an edgecore that hears of its state.
type busy struct {
	refusing

	mu     sync.Mutex
	value  string
	free   bool
	writes int
	state  string
	// messages are those of all reports of a state.
	messages []string
}

func (b *busy) Open(context.Context, string, Config) (Conn, error) { return b, nil }
func (b *busy) Close() error                                       { return nil }

func (b *busy) Read(context.Context, *Property) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.value, nil
}

func (b *busy) Write(_ context.Context, _ *Property, value string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writes++
	if !b.free {
		return Refusal{errors.New("the device is busy")}
	}
	b.value = value
	return nil
}

func (b *busy) ReportDeviceStates(
	ctx context.Context, r *dmi.ReportDeviceStatesRequest, _ ...grpc.CallOption,
) (*dmi.ReportDeviceStatesResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state = r.GetState()
	sent, _ := metadata.FromOutgoingContext(ctx)
	b.messages = append(b.messages, b.state+": "+dmi.StateMessage(metadata.NewIncomingContext(ctx, sent)))
	return nil, nil
}

// set changes what the device does and has.
func (b *busy) set(value string, free bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.value, b.free = value, free
}

// now returns what the device has and edgecore has heard.
func (b *busy) now() (value, state string, writes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.value, b.state, b.writes
}

// TestRefusedWrite: a desired value that the device refuses is written again with a growing pause, and the device is
// unhealthy until it has the value or the value is desired no more.
func TestRefusedWrite(t *testing.T) {
	device := func(desired string) *dmi.Device {
		return &dmi.Device{Spec: &dmi.DeviceSpec{Properties: []*dmi.DeviceProperty{
			{Name: "level", CollectCycle: 1000, Desired: &dmi.TwinProperty{Value: desired}},
		}}}
	}
	for name, tc := range map[string]struct {
		end  func(*busy, *worker)
		want string // of the device in the end
	}{
		"the device is free":        {func(b *busy, _ *worker) { b.set("1", true) }, "50"},
		"somebody else has set it":  {func(b *busy, _ *worker) { b.set("50", false) }, "50"},
		"the value is withdrawn":    {func(_ *busy, w *worker) { w.set(device(""), nil) }, "1"},
		"another value replaces it": {func(b *busy, w *worker) { b.set("1", true); w.set(device("60"), nil) }, "60"},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			b := &busy{value: "1"}
			o := Options{Driver: b, Log: slog.New(slog.DiscardHandler)}
			m := &mapper{opts: o, agent: b, lost: notify.NewSignal(), push: newPusher(ctx, o)}
			w := newWorker(m, "shop", "one", cancel)
			w.set(device("50"), nil)
			var running sync.WaitGroup
			running.Go(func() { w.run(ctx) })
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			if !slices.Equal(b.messages, []string{"unhealthy: level: the device is busy"}) {
				t.Errorf("%s: states %q, want unhealthy once, with what the device said", name, b.messages)
			}
			if _, state, writes := b.now(); writes < 10 || writes > 20 || state != unhealthy {
				t.Errorf("%s: %d writes in 10 minutes, and state %s; want 10 to 20, with pauses from a second to a "+
					"minute, and %s", name, writes, state, unhealthy)
			}
			tc.end(b, w)
			time.Sleep(2 * lastRetry)
			synctest.Wait()
			value, state, writes := b.now()
			if value != tc.want || state != online {
				t.Errorf("%s: the device has %s, and is %s; want %s, and %s", name, value, state, tc.want, online)
			}
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			if _, _, after := b.now(); after != writes {
				t.Errorf("%s: %d more writes in the end, want none", name, after-writes)
			}
			cancel()
			running.Wait()
		})
	}
}

// flaky is a device with an error for each read, and an edgecore that hears of its state.
type flaky struct {
	busy
	err func() error
}

func (f *flaky) Open(context.Context, string, Config) (Conn, error) { return f, nil }
func (f *flaky) Read(context.Context, *Property) (string, error)    { return "", f.err() }
func (f *flaky) Write(context.Context, *Property, string) error     { return nil }

// TestStateMessages: edgecore hears why a device is offline or unhealthy, and at most once a minute that it is for
// another reason now. The same trouble is the same text, whatever port the mapper used.
func TestStateMessages(t *testing.T) {
	tries := 0
	local := func() *net.OpError {
		return &net.OpError{
			Op:     "read",
			Net:    "tcp",
			Source: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 40000 + tries},
			Addr:   &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 502},
			Err:    errors.New("i/o timeout"),
		}
	}
	for name, tc := range map[string]struct {
		err         func() error
		least, most int // reports in 10 minutes
		first       string
	}{
		"the same error": {func() error { return errors.New("no answer") }, 1, 1, "offline: no answer"},
		"another port": {func() error { return fmt.Errorf("unit 1: %w", local()) }, 1, 1,
			"offline: unit 1: read tcp 192.0.2.7:502: i/o timeout"},
		"another error each time": {func() error { return fmt.Errorf("try %d", tries) }, 5, 11, "offline: try 1"},
		"refusals": {func() error { return Refusal{errors.New("no\nregister")} }, 1, 1,
			"unhealthy: 2 properties; a: no register"},
		"another refusal each time": {func() error { return Refusal{fmt.Errorf("refusal %d", tries)} }, 9, 11,
			"unhealthy: 2 properties; a: refusal 1"},
	} {
		synctest.Test(t, func(t *testing.T) {
			tries = 0
			ctx, cancel := context.WithCancel(t.Context())
			f := &flaky{err: func() error { tries++; return tc.err() }}
			o := Options{Driver: f, Log: slog.New(slog.DiscardHandler)}
			m := &mapper{opts: o, agent: f, lost: notify.NewSignal(), push: newPusher(ctx, o)}
			w := newWorker(m, "shop", "one", cancel)
			w.set(&dmi.Device{Spec: &dmi.DeviceSpec{Properties: []*dmi.DeviceProperty{
				{Name: "b", CollectCycle: 700}, {Name: "a", CollectCycle: 700},
			}}}, nil)
			var running sync.WaitGroup
			running.Go(func() { w.run(ctx) })
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			if n := len(f.messages); n < tc.least || n > tc.most || f.messages[0] != tc.first {
				t.Errorf("%s: %d reports of a state in 10 minutes: %q; want %d to %d, the first %q", name, n,
					f.messages, tc.least, tc.most, tc.first)
			}
			before := len(f.messages)
			w.registered()
			synctest.Wait()
			if n := len(f.messages) - before; n != 1 {
				t.Errorf("%s: %d reports of a state after a registration, want one", name, n)
			}
			cancel()
			running.Wait()
		})
	}
}
