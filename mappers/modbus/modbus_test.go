package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/edgecore-io/edgecore/devicetwin"
	"github.com/edgecore-io/edgecore/eventbus/broker"
	"github.com/edgecore-io/edgecore/eventbus/topic"
	"github.com/edgecore-io/edgecore/mappers/mapper"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/modbusserver"
	"github.com/edgecore-io/edgecore/test/testenv/twins"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

const boilerModel = `{"metadata":{"name":"boiler","namespace":"shop","uid":"m1"},"spec":{"properties":[
{"name":"temp","type":"INT","accessMode":"ReadOnly"},{"name":"limit","type":"INT","accessMode":"ReadWrite"},
{"name":"flow","type":"FLOAT","accessMode":"ReadWrite"},{"name":"on","type":"BOOLEAN","accessMode":"ReadWrite"},
{"name":"none","type":"INT","accessMode":"ReadOnly"}]}}`

// boiler is a device at a place, with desired values by property.
func boiler(place string, desired map[string]string, more ...string) string {
	property := func(name, visitor string) string {
		want := ""
		if v, ok := desired[name]; ok {
			want = `"desired":{"value":"` + v + `"},`
		}
		return `{"name":"` + name + `",` + want + `"collectCycle":20,"visitors":{"protocolName":"modbus","configData":{` +
			visitor + `}}}`
	}
	properties := append([]string{
		property("temp", `"register":"HoldingRegister","offset":1,"limit":1,"scale":0.1`),
		property("limit", `"register":"HoldingRegister","offset":2`),
		property("flow", `"register":"HoldingRegister","offset":10,"limit":2,"isRegisterSwap":true`),
		property("on", `"register":"CoilRegister","offset":3`),
	}, more...)
	return `{"metadata":{"name":"one","namespace":"shop","uid":"d1"},"spec":{"deviceModelRef":{"name":"boiler"},
"protocol":{"protocolName":"modbus","configData":{` + place + `}},"properties":[` + strings.Join(properties, ",") + `]}}`
}

func tcp(s *modbusserver.Server) string { return fmt.Sprintf(`"ip":%q,"port":%d`, s.IP, s.Port) }

// loopback is where the devices of tests are.
func loopback(t *testing.T) (n mapper.Networks) {
	t.Helper()
	if err := n.Set("127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	return n
}

// local is a driver for devices on this machine.
func local(t *testing.T) *driver {
	t.Helper()
	d, err := newDriver(loopback(t), "")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// env is a node with a device and the mapper.
type env struct {
	*twins.Node
	t *testing.T
}

func start(t *testing.T, device string) *env {
	t.Helper()
	e := &env{t: t, Node: twins.Start(t, map[string]string{
		"shop/devicemodel/boiler": boilerModel, "shop/device/one": device,
	}, nil)}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := mapper.Run(ctx, mapper.Options{
			Name: "modbus", Protocol: "modbus", Agent: e.Socket, Socket: filepath.Join(t.TempDir(), "modbus.sock"),
			Driver: local(t), Brokers: loopback(t), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		}); err != nil {
			t.Errorf("Run = %v, want no error", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return e
}

func (e *env) await(property, want string) {
	e.t.Helper()
	wait.Until(e.t, property+" to be "+want, func() error {
		props, err := e.Properties("shop", "one")
		if r := props[property].Reported; err == nil && (r == nil || r.Value != want) {
			err = fmt.Errorf("it is %+v", r)
		}
		return err
	})
}

func (e *env) awaitState(want string) { e.awaitMessage(want, "") }

// awaitMessage waits for a state whose message has a part.
func (e *env) awaitMessage(state, part string) {
	e.t.Helper()
	wait.Until(e.t, "the state "+state, func() error {
		for _, d := range e.Devices() {
			if d.Twin.State != state || !strings.Contains(d.Twin.StateMessage, part) {
				return fmt.Errorf("it is %q, with the message %q; want %q", d.Twin.State, d.Twin.StateMessage, part)
			}
		}
		return nil
	})
}

// TestDevice: registers become reported values, and desired values registers.
func TestDevice(t *testing.T) {
	s := modbusserver.Start(t)
	s.Set(1, 215)
	s.Set(10, 0, 0x3fc0) // 1.5, the low register first
	e := start(t, boiler(tcp(s), map[string]string{"limit": "60"}))
	e.await("temp", "22") // 21.5, rounded to an INT
	e.await("flow", "1.5")
	e.await("on", "false")
	e.await("limit", "60")
	e.awaitState("online")
	s.Set(1, 0xffff-99) // -100
	e.await("temp", "-10")
	e.Apply("shop/device/one", boiler(tcp(s), map[string]string{"limit": "61", "flow": "-2.25", "on": "true"}))
	e.await("limit", "61")
	e.await("flow", "-2.25")
	e.await("on", "true")
	if s.Register(2) != 61 || s.Register(11) != 0xc010 || !s.Coil(3) {
		t.Errorf("registers %d, %#x and coil %v; want 61, 0xc010 and true", s.Register(2), s.Register(11), s.Coil(3))
	}
	writes := s.Writes()
	s.Set(2, 7) // by hand, at the device
	e.await("limit", "7")
	if got := s.Writes(); got != writes {
		t.Errorf("writes = %d, want %d: a value that is desired is written once", got, writes)
	}
}

// TestAway: a device that goes and comes back, and an agent that does.
func TestAway(t *testing.T) {
	s := modbusserver.Start(t)
	e := start(t, boiler(tcp(s), nil))
	e.awaitState("online")
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	e.awaitMessage("offline", fmt.Sprintf("tcp://%s:%d: ", s.IP, s.Port))
	s.Set(2, 5)
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	e.await("limit", "5")
	e.awaitState("online")
	e.Stop()
	s.Set(2, 6)
	e.Run()
	e.await("limit", "6")
}

// TestGateway: devices share a connection, unless they want different ones.
func TestGateway(t *testing.T) {
	s := modbusserver.Start(t)
	s.Set(2, 5)
	e := start(t, boiler(tcp(s), nil))
	e.awaitState("online")
	other := func(name, place string) string {
		return strings.Replace(boiler(place, nil), `"name":"one","namespace":"shop","uid":"d1"`,
			`"name":"`+name+`","namespace":"shop","uid":"`+name+`"`, 1)
	}
	e.Apply("shop/device/two", other("two", tcp(s)))
	e.Apply("shop/device/impatient", other("impatient", tcp(s)+`,"timeout":500`))
	states := map[string]string{"one": "online", "two": "online", "impatient": "offline"}
	wait.Until(t, fmt.Sprintf("the states %v", states), func() error {
		got := map[string]string{}
		for _, d := range e.Devices() {
			got[d.Name] = d.Twin.State
		}
		if !maps.Equal(got, states) {
			return fmt.Errorf("they are %v", got)
		}
		return nil
	})
}

// elsewhere is boiler in another namespace, where it has the name two.
func elsewhere(place string) string {
	return strings.Replace(boiler(place, nil), `"name":"one","namespace":"shop","uid":"d1"`,
		`"name":"two","namespace":"other","uid":"d2"`, 1)
}

// TestNamespaces: a device of another namespace that was there first, with the same address and other settings, harms
// none.
func TestNamespaces(t *testing.T) {
	s := modbusserver.Start(t)
	s.Set(2, 5)
	e := start(t, boiler(`"ip":"192.0.2.1"`, nil))
	e.Apply("other/device/two", elsewhere(tcp(s)+`,"timeout":10000`))
	online := func(name string) {
		t.Helper()
		wait.True(t, name+" to be online", func() bool {
			return slices.ContainsFunc(e.Devices(), func(d devicetwin.Device) bool {
				return d.Name == name && d.Twin.State == "online"
			})
		})
	}
	online("two")
	e.Apply("shop/device/one", boiler(tcp(s), nil))
	online("one")
	e.await("limit", "5")
}

// TestRefusedNetwork: the mapper does not connect to addresses that it may not use, whichever name they have.
func TestRefusedNetwork(t *testing.T) {
	s := modbusserver.Start(t)
	for _, test := range []struct{ networks, ip, reason string }{
		{"", "127.0.0.1", "the node itself"}, {"", "localhost", "the node itself"},
		{"", "::ffff:127.0.0.1", "the node itself"}, {"", "0.0.0.0", "the node itself"},
		{"", "169.254.1.1", "link-local"}, {"192.0.2.0/24", "127.0.0.1", "192.0.2.0/24"},
	} {
		var n mapper.Networks
		if err := n.Set(test.networks); err != nil {
			t.Fatal(err)
		}
		d, err := newDriver(n, "")
		if err != nil {
			t.Fatal(err)
		}
		c, err := d.Open(t.Context(), "shop", mapper.Config{"ip": test.ip, "port": s.Port})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Read(t.Context(), &mapper.Property{Visitor: mapper.Config{"register": holding}})
		if err == nil || !strings.Contains(err.Error(), test.reason) {
			t.Errorf("networks %q, ip %s: %v, want an error with %s", test.networks, test.ip, err, test.reason)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if got := s.Connections(); got != 0 {
		t.Errorf("connections = %d, want 0", got)
	}
	if _, err := newDriver(mapper.Networks{}, "ttyUSB0"); err == nil {
		t.Error("a serial port without a folder: nil, want an error")
	}
	d, err := newDriver(mapper.Networks{}, "/dev/ttyS1, /dev/ttyUSB*")
	if err != nil {
		t.Fatal(err)
	}
	for port, want := range map[string]bool{"/dev/ttyS1": true, "/dev/ttyUSB7": true, "/dev/ttyS10": false} {
		if _, err := d.Open(t.Context(), "shop", mapper.Config{"serialPort": port}); (err == nil) != want {
			t.Errorf("%s: %v, want it allowed: %v", port, err, want)
		}
	}
}

// TestGatewayToNowhere: a gateway that does not reach one of its devices keeps its connection for the others.
func TestGatewayToNowhere(t *testing.T) {
	s := modbusserver.Start(t)
	s.Set(2, 5)
	e := start(t, boiler(tcp(s), nil))
	e.awaitState("online")
	e.Apply("shop/device/dead", strings.Replace(boiler(tcp(s)+`,"slaveID":7`, nil),
		`"name":"one","namespace":"shop","uid":"d1"`, `"name":"dead","namespace":"shop","uid":"d2"`, 1))
	wait.True(t, "the device that the gateway does not reach to be offline", func() bool {
		return slices.ContainsFunc(e.Devices(), func(d devicetwin.Device) bool {
			return d.Name == "dead" && d.Twin.State == "offline"
		})
	})
	s.Set(2, 6)
	e.await("limit", "6")
	if got := s.Connections(); got != 1 {
		t.Errorf("connections = %d, want 1", got)
	}
}

// TestRefused: a property that the device does not have harms no other one.
func TestRefused(t *testing.T) {
	s := modbusserver.Start(t)
	none := `{"name":"none","collectCycle":20,"visitors":{"configData":{"register":"HoldingRegister","offset":5000}}}`
	e := start(t, boiler(tcp(s), nil, none))
	s.Set(2, 5)
	e.await("limit", "5")
	e.awaitMessage("unhealthy", "none: illegal data address")
	e.Apply("shop/device/one", boiler(tcp(s), nil))
	e.awaitState("online")
}

// TestPush: values are published as pushMethod says.
func TestPush(t *testing.T) {
	s := modbusserver.Start(t)
	s.Set(2, 5)
	b, err := broker.New(broker.Options{Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := b.Run(ctx); err != nil {
			t.Errorf("the broker: %v, want no error", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	pushed := make(chan []byte, 10)
	stop, err := b.Subscribe("hall/limit", func(m topic.Message) { pushed <- m.Payload })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	limit := fmt.Sprintf(`{"name":"none","collectCycle":20,"visitors":{"configData":{"register":"HoldingRegister","offset":2}},
"pushMethod":{"mqtt":{"address":"tcp://%s","topic":"hall/limit","qos":1}}}`, b.Address(t.Context()))
	e := start(t, boiler(tcp(s), nil, limit))
	for _, want := range []string{"5", "6"} {
		var got mapper.Pushed
		if err := json.Unmarshal(wait.Receive(t, "a value", pushed), &got); err != nil {
			t.Fatal(err)
		}
		if got.Value != want || got.Namespace != "shop" || got.Device != "one" || got.Property != "none" ||
			got.Timestamp == 0 {
			t.Errorf("published %+v, want %s of shop/one", got, want)
		}
		e.await("none", want)
		s.Set(2, 6)
	}
}

// TestValues: values and the registers that hold them.
func TestValues(t *testing.T) {
	for _, test := range []struct {
		kind, value string
		v           visitor
		data        string
	}{
		{"INT", "-2", visitor{Limit: 1}, "\xff\xfe"},
		{"INT", "65534", visitor{Limit: 1, Unsigned: true}, "\xff\xfe"},
		{"INT", "-32768", visitor{Limit: 1}, "\x80\x00"},
		{"INT", "32767", visitor{Limit: 1}, "\x7f\xff"},
		{"INT", "4294967295", visitor{Limit: 2, Unsigned: true}, "\xff\xff\xff\xff"},
		{"INT", "18446744073709551615", visitor{Limit: 4, Unsigned: true}, "\xff\xff\xff\xff\xff\xff\xff\xff"},
		{"INT", "-9223372036854775808", visitor{Limit: 4}, "\x80\x00\x00\x00\x00\x00\x00\x00"},
		{"INT", "305419896", visitor{Limit: 2}, "\x12\x34\x56\x78"},
		{"INT", "305419896", visitor{Limit: 2, IsSwap: true}, "\x34\x12\x78\x56"},
		{"INT", "305419896", visitor{Limit: 2, IsRegisterSwap: true}, "\x56\x78\x12\x34"},
		{"INT", "9223372036854775807", visitor{Limit: 4}, "\x7f\xff\xff\xff\xff\xff\xff\xff"},
		{"FLOAT", "0.1", visitor{Limit: 2}, "\x3d\xcc\xcc\xcd"},
		{"DOUBLE", "0.1", visitor{Limit: 4}, "\x3f\xb9\x99\x99\x99\x99\x99\x9a"},
		{"DOUBLE", "21.5", visitor{Limit: 1, Scale: 0.1}, "\x00\xd7"},
		{"STRING", "pump", visitor{Limit: 3}, "pump\x00\x00"},
		{"BYTES", "00ff", visitor{Limit: 1}, "\x00\xff"},
		{"BOOLEAN", "true", visitor{Limit: 1}, "\x00\x01"},
	} {
		if test.v.Scale == 0 {
			test.v.Scale = 1
		}
		data, err := test.v.encode(test.kind, test.value)
		if err != nil || string(data) != test.data {
			t.Errorf("%s %s %+v: encoded %x, %v; want %x", test.kind, test.value, test.v, data, err, test.data)
		}
		value, err := test.v.decode(test.kind, []byte(test.data))
		if err != nil || value != test.value {
			t.Errorf("%s %x %+v: decoded %s, %v; want %s", test.kind, test.data, test.v, value, err, test.value)
		}
	}
}

// TestHeld: what registers hold as another value is not written.
func TestHeld(t *testing.T) {
	one, two, four := visitor{Limit: 1}, visitor{Limit: 2}, visitor{Limit: 4}
	unsigned := func(v visitor) visitor { v.Unsigned = true; return v }
	scaled := func(scale float64) visitor { return visitor{Limit: 1, Scale: scale} }
	for _, test := range []struct {
		kind, value string
		v           visitor
		reason      string
	}{
		{"INT", "65536", one, "does not fit"}, {"INT", "-32769", one, "does not fit"}, {"INT", "x", one, "a number"},
		{"INT", "1e300", one, "does not fit"}, {"INT", "1/2", one, "a number"}, {"INT", "", one, "a number"},
		{"INT", "40000", one, "16 bits with a sign"}, {"INT", "32768", one, "unsigned"},
		{"INT", "-5", unsigned(one), "16 bits without a sign"}, {"INT", "65536", unsigned(one), "does not fit"},
		{"INT", "2147483648", two, "does not fit"}, {"INT", "-1", unsigned(two), "does not fit"},
		{"INT", "4294967296", unsigned(two), "does not fit"},
		{"INT", "9223372036854775808", four, "does not fit"}, {"INT", "-9223372036854775809", four, "does not fit"},
		{"INT", "18446744073709551616", unsigned(four), "does not fit"}, {"INT", "-1", unsigned(four), "does not fit"},
		{"INT", "NaN", four, "a number"}, {"INT", "Inf", four, "too large"}, {"INT", "1e999", four, "too large"},
		{"INT", "3.7", one, "whole numbers"}, {"INT", "9007199254740993.5", four, "whole numbers"},
		{"DOUBLE", "3.7", one, "whole numbers"}, {"INT", "3.7", scaled(0.1), "not that number"},
		{"INT", "25", scaled(10), "the register holds 30"}, {"INT", "327680", scaled(10), "does not fit"},
		{"FLOAT", "1e39", two, "32 bits"}, {"FLOAT", "Inf", two, "too large"}, {"FLOAT", "NaN", two, "a number"},
		{"FLOAT", "1e38", visitor{Limit: 2, Scale: 0.01}, "32 bits"}, {"DOUBLE", "-Inf", four, "too large"},
		{"DOUBLE", "1e308", visitor{Limit: 4, Scale: 0.01}, "64 bits"}, {"INT", "1", visitor{Limit: 3}, "1, 2 or 4"},
		{"STRING", "abc", one, "room for 2"}, {"BYTES", "0", one, "hexadecimal"}, {"BYTES", "000000", one, "2 bytes"},
		{"BYTES", "01", one, "2 bytes"}, {"BOOLEAN", "maybe", one, "true or false"},
	} {
		test.v.Scale = cmp.Or(test.v.Scale, 1)
		data, err := test.v.encode(test.kind, test.value)
		if err == nil || !strings.Contains(err.Error(), test.reason) {
			t.Errorf("%s %s %+v: %x, %v, want an error with %s", test.kind, test.value, test.v, data, err, test.reason)
		}
	}
}

// TestRoundings: numbers whose text is not what was written, or that only registers can have.
func TestRoundings(t *testing.T) {
	for _, test := range []struct {
		kind, value string
		v           visitor
		data, back  string
	}{
		{"DOUBLE", "21.53", visitor{Limit: 1, Scale: 0.1}, "\x00\xd7", "21.5"}, // the nearest step
		{"INT", "22", visitor{Limit: 1, Scale: 0.1}, "\x00\xdc", "22"},
		{"INT", "10", visitor{Limit: 1, Scale: 0.3}, "\x00\x21", "10"}, // 9.9
		{"INT", "60.0", visitor{Limit: 1}, "\x00\x3c", "60"},
		{"INT", "1e3", visitor{Limit: 1}, "\x03\xe8", "1000"},
		{"INT", "1e-999999999", visitor{Limit: 1}, "\x00\x00", "0"},
		{"INT", "9007199254740993.0", visitor{Limit: 4}, "\x00\x20\x00\x00\x00\x00\x00\x01", "9007199254740993"},
		{"FLOAT", "1234567.5", visitor{Limit: 2}, "\x49\x96\xb4\x3c", "1234567.5"},
		{"FLOAT", "-0", visitor{Limit: 2}, "\x00\x00\x00\x00", "0"},
		{"", "", visitor{Limit: 4, Scale: 0.1}, "\x00\x00\x01\x1f\x71\xfb\x04\xcb", "123456789012.3"},
		{"INT", "", visitor{Limit: 4, Unsigned: true, Scale: 10}, "\xff\xff\xff\xff\xff\xff\xff\xff",
			"184467440737095516150"},
		{"FLOAT", "", visitor{Limit: 2}, "\x7f\xc0\x00\x00", "NaN"},
		{"DOUBLE", "", visitor{Limit: 4, Scale: 2}, "\xff\xf0\x00\x00\x00\x00\x00\x00", "-Inf"},
		{"FLOAT", "2.15", visitor{Limit: 2, Scale: 0.1}, "\x41\xac\x00\x00", "2.15"},
	} {
		test.v.Scale = cmp.Or(test.v.Scale, 1)
		if test.value != "" {
			if data, err := test.v.encode(test.kind, test.value); err != nil || string(data) != test.data {
				t.Errorf("%s %s %+v: encoded %x, %v; want %x", test.kind, test.value, test.v, data, err, test.data)
			}
		}
		if back, err := test.v.decode(test.kind, []byte(test.data)); err != nil || back != test.back {
			t.Errorf("%s %x %+v: decoded %s, %v; want %s", test.kind, test.data, test.v, back, err, test.back)
		}
	}
	large := visitor{Limit: 4, Scale: 1e10}
	if back, err := large.decode("DOUBLE", []byte("\x7f\xef\xff\xff\xff\xff\xff\xff")); err == nil {
		t.Errorf("a number that is too large with its scale: %s, want an error", back)
	}
}

// TestBeyondTheModel: no rounding writes a number beyond the range of the model.
func TestBeyondTheModel(t *testing.T) {
	server := modbusserver.Start(t)
	c, err := local(t).Open(t.Context(), "shop", mapper.Config{"ip": server.IP, "port": server.Port})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, test := range []struct {
		kind, value, minimum, maximum, scale string
		limit                                int
		refused                              bool
	}{
		{"DOUBLE", "20.05", "", "20.05", "0.1", 1, true}, // 201 is 20.1
		{"DOUBLE", "20.04", "", "20.05", "0.1", 1, false},
		{"DOUBLE", "20.05", "", "", "0.1", 1, false},
		{"DOUBLE", "20.05", "", "20.1", "0.1", 1, false},
		{"DOUBLE", "-20.05", "-20.05", "", "0.1", 1, true},
		{"DOUBLE", "20.04", "20.01", "", "0.1", 1, true}, // 200 is 20
		{"FLOAT", "0.1", "0.1", "0.1", "1", 2, false},    // as near as can be
		{"DOUBLE", "20.05", "", "20.05", "0.1", 4, false},
		{"FLOAT", "20.05", "", "20.05", "0.3", 2, false}, // 66.833336
		{"INT", "100", "0", "100", "0.3", 1, false},      // 99.9
		{"INT", "10", "0", "10", "0.7", 1, false},        // 9.8
		{"INT", "11", "0", "11", "0.7", 1, true},         // 11.2
		{"", "20.05", "", "", "0.1", 1, false},
	} {
		err := c.Write(t.Context(), &mapper.Property{
			Type: test.kind, Minimum: test.minimum, Maximum: test.maximum,
			Visitor: mapper.Config{
				"register": holding, "offset": 1, "limit": test.limit, "scale": json.Number(test.scale),
			},
		}, test.value)
		if refused := errors.As(err, new(mapper.Refusal)); refused != test.refused || err != nil && !refused {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

// FuzzRegisters: what can be written of a number is read back as that number, or within a step of the scale.
func FuzzRegisters(f *testing.F) {
	f.Add("INT", "-5", uint16(1), true, 1.0)
	f.Add("FLOAT", "21.5", uint16(1), false, 0.1)
	f.Add("DOUBLE", "1e-400", uint16(4), false, 1e90)
	f.Fuzz(func(t *testing.T, kind, value string, limit uint16, unsigned bool, scale float64) {
		size := math.Abs(scale)
		kinds := []string{"INT", "FLOAT", "DOUBLE"}
		if !slices.Contains(kinds, kind) || limit > maxLimit || !(size > 1e-100 && size < 1e100) {
			t.Skip()
		}
		v := visitor{Limit: limit, Unsigned: unsigned, Scale: scale}
		data, err := v.encode(kind, value)
		if err != nil {
			return
		}
		back, err := v.decode(kind, data)
		if err != nil {
			return // a FLOAT that is too large with its scale
		}
		want, err := parseNumber(value)
		got, err2 := parseNumber(back)
		if err != nil || err2 != nil {
			t.Fatalf("%q is written, %v, and read as %q, %v", value, err, back, err2)
		}
		if kind == "INT" && want.Cmp(got) != 0 {
			t.Errorf("INT %s is read as %s", value, back)
		}
		if as, _ := v.layout(kind); scale != 1 && (as != whole || limit > 2) {
			return // the text may have fewer digits than the registers
		}
		again, err := v.encode(kind, back)
		if err != nil || string(again) != string(data) {
			t.Errorf("%s %s of %+v: registers %x are read as %s, whose registers are %x, %v", kind, value, v, data,
				back, again, err)
		}
	})
}

// TestConfiguration: what is wrong with a place or a visitor.
func TestConfiguration(t *testing.T) {
	d := local(t)
	open := func(c mapper.Config) error {
		_, err := d.Open(t.Context(), "shop", c)
		return err
	}
	if err := open(mapper.Config{"ip": "192.0.2.1", "port": float32(1502), "slaveID": int64(3)}); err != nil {
		t.Errorf("a gateway: %v, want no error", err)
	}
	for reason, c := range map[string]mapper.Config{
		"either ip":      {},
		"serialPort":     {"ip": "192.0.2.1", "serialPort": "/dev/ttyS0"},
		"parity":         {"serialPort": "/dev/ttyS0", "parity": "maybe"},
		"1 to 247":       {"ip": "192.0.2.1", "slaveID": 248},
		"other settings": {"ip": "192.0.2.1", "port": 1502, "timeout": 5},
		"configData":     {"ip": 5},
		"10000 ms":       {"ip": "192.0.2.1", "timeout": 10001},
		"may use /dev":   {"serialPort": "/etc/passwd"},
		"this mapper":    {"serialPort": "/dev/../etc/passwd"},
	} {
		if err := open(c); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%v: %v, want an error with %s", c, err, reason)
		}
	}
	c := &conn{driver: d, bus: &bus{driver: d}, unit: 1}
	for reason, v := range map[string]mapper.Config{
		"125": {"register": holding, "limit": 126}, "exist": {"register": holding, "offset": 65535, "limit": 2},
	} {
		_, err := c.Read(t.Context(), &mapper.Property{Visitor: v})
		if err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%v: %v, want an error with %s", v, err, reason)
		}
	}
	if err := c.Write(t.Context(), &mapper.Property{Visitor: mapper.Config{"register": input}}, "1"); err == nil {
		t.Errorf("a write to %s = nil, want an error", input)
	}
}
