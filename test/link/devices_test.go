package link

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/mapper"
	"github.com/edgecore-io/edgecore/test/testenv/modbusserver"
	"github.com/edgecore-io/edgecore/test/testenv/proxy"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

const deviceModel = `
apiVersion: devices.kubeedge.io/v1beta1
kind: DeviceModel
metadata: {name: lamp}
spec:
  properties:
  - {name: level, type: INT, accessMode: ReadWrite, maximum: "100"}
  - {name: temp, type: INT, accessMode: ReadOnly}`

// device is a lamp on the edge.
func (e *edge) device(name string) string {
	return `
apiVersion: devices.kubeedge.io/v1beta1
kind: Device
metadata: {name: ` + name + `}
spec:
  deviceModelRef: {name: lamp}
  nodeName: ` + e.NodeName + `
  protocol: {protocolName: dali, configData: {bus: 3}}
  properties:
  - {name: level, reportToCloud: true, desired: {value: "5"}}
  - {name: temp, reportToCloud: true}`
}

// statusUntil waits until the DeviceStatus of a device in the cluster is as wanted.
func (e *edge) statusUntil(name, what string, ok func(s *devices.Status) error) {
	e.T.Helper()
	wait.Until(e.T, "the status of device "+name+" to have "+what, func() error {
		out, err := e.cluster.Kube.Kubectl(e.T.Context(), "-n", e.NodeName, "get", "devicestatus", name, "-o", "json")
		var s devices.DeviceStatus
		if err == nil {
			err = json.Unmarshal([]byte(out), &s)
		}
		if err == nil {
			err = ok(&s.Status)
		}
		return err
	})
}

// describedUntil waits until kubectl shows a text in the event and in the status of a device. event is how the event
// begins.
func (e *edge) describedUntil(name, text, event string) {
	e.T.Helper()
	wait.Until(e.T, "kubectl describe device "+name+" to have "+text, func() error {
		out, err := e.cluster.Kube.Kubectl(e.T.Context(), "-n", e.NodeName, "describe", "device", name)
		status, events, _ := strings.Cut(out, "\nEvents:")
		if err == nil && (!strings.Contains(status, text) || !strings.Contains(events, event) ||
			!strings.Contains(events, text)) {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
}

// reports returns a condition: a property has a reported value.
func reports(property, value string) func(s *devices.Status) error {
	return func(s *devices.Status) error {
		for _, t := range s.Twins {
			if t.PropertyName == property && t.Reported != nil && t.Reported.Value == value {
				return nil
			}
		}
		return fmt.Errorf("twins %+v, want %s = %s", s.Twins, property, value)
	}
}

// testDevices: what kubectl desires reaches the mapper, and what the mapper reads reaches the cluster. Without a link,
// and after a kill of the agent, the twin works on; then cluster and device agree on the newest values.
func testDevices(t *testing.T, c *env.Cluster) {
	free, err := daemon.FreePort()
	env.Must(t, err)
	port := fmt.Sprint(free)
	e := startEdgeWith(t, c, nil, map[string]any{
		"enable": true, "mqttMode": 0, "mqttServerInternal": "tcp://127.0.0.1:" + port,
	})
	e.apply(deviceModel, e.device("one"))
	m := mapper.Start(t, t.TempDir(), e.DMISocket(), "dali")
	m.AwaitRegister()
	one := e.NodeName + "/one"
	m.AwaitDesired(one, "level", "5")
	report := func(values ...string) {
		t.Helper()
		env.Must(t, m.Report(t.Context(), e.NodeName, "one", time.Now(), values...))
	}
	desire := func(value string) {
		t.Helper()
		_, err := e.cluster.Kube.Kubectl(t.Context(), "-n", e.NodeName, "patch", "device", "one", "--type=json", "-p",
			`[{"op":"add","path":"/spec/properties/0/desired","value":{"value":"`+value+`"}}]`)
		env.Must(t, err)
	}
	report("level", "5", "temp", "20")
	e.statusUntil("one", "level 5", reports("level", "5"))
	env.Must(t, m.ReportState(t.Context(), e.NodeName, "one", "online"))
	wait.Until(t, "kubectl get devices to show the state", func() error {
		out, err := e.cluster.Kube.Kubectl(t.Context(), "-n", e.NodeName, "get", "devices")
		if err == nil && !strings.Contains(out, "online") {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
	env.Must(t, m.ReportStateMessage(t.Context(), e.NodeName, "one", "unhealthy", "level: the lamp is \x1b[31mhot"))
	e.describedUntil("one", "level: the lamp is [31mhot", "Device is unhealthy on node "+e.NodeName)
	env.Must(t, m.ReportState(t.Context(), e.NodeName, "one", "online"))
	desire("7")
	m.AwaitDesired(one, "level", "7")
	report("level", "7")
	e.statusUntil("one", "level 7", reports("level", "7"))

	e.cable.Set(proxy.Cut)
	for i := range 3 {
		report("temp", fmt.Sprint(30+i))
	}
	env.Must(t, e.Kill9(t.Context()))
	desire("9")
	env.Must(t, e.Start(t.Context()))
	wait.Until(t, "a report without a link, after a kill", func() error {
		return m.Report(t.Context(), e.NodeName, "one", time.Now(), "level", "8")
	})
	topic := "$hw/events/device/" + one + "/twin/"
	e.request(port, topic+"get", `{"event_id":"1"}`, `"expected":{"value":"7"`, `"actual":{"value":"8"`,
		`"actual":{"value":"32"`)
	e.request(port, topic+"update", `{"event_id":"2","twin":{"level":{"expected":{"value":"6"}}}}`, `"value":"6"`)
	m.AwaitDesired(one, "level", "6") // a rule on the device works without the cloud
	e.cable.Set(proxy.Passing)
	m.AwaitDesired(one, "level", "9") // the mapper has not registered again
	e.statusUntil("one", "temp 32", reports("temp", "32"))
	e.statusUntil("one", "level 8", reports("level", "8"))

	_, err = e.cluster.Kube.Kubectl(t.Context(), "-n", e.NodeName, "delete", "device", "one")
	env.Must(t, err)
	wait.Until(t, "the mapper to lose device and model", func() error {
		if d, models := m.Has(); d+models > 0 {
			return fmt.Errorf("it has %d devices and %d models", d, models)
		}
		return nil
	})
}

// request is a request of a program on the device, which waits for a result with the texts.
func (e *edge) request(port, topic, payload string, want ...string) {
	e.T.Helper()
	out, err := exec.CommandContext(e.T.Context(), "mosquitto_rr", "-p", port, "-q", "1", "-W", "60", "-t", topic, "-e",
		topic+"/result", "-m", payload).CombinedOutput()
	for _, text := range want {
		if err != nil || !strings.Contains(string(out), text) {
			e.T.Errorf("%s %s: %s, %v; want %s", topic, payload, out, err, text)
		}
	}
}

// testMapperFramework: a mapper that is made of KubeEdge's mapper framework gets its devices, reports their values and
// states, and takes desired values. It is unchanged, and learns of devices that come and go while it runs.
func testMapperFramework(t *testing.T, c *env.Cluster) {
	e := startEdge(t, c, nil)
	mapper.StartFramework(t, e.DMISocket(), "dali")
	e.apply(deviceModel, e.device("one"), e.device("two"))
	e.statusUntil("one", "the desired level 5", reports("level", "5"))
	e.statusUntil("two", "the desired level 5", reports("level", "5"))
	e.statusUntil("one", "the state", func(s *devices.Status) error {
		if s.State != devices.StateOK {
			return fmt.Errorf("state %q", s.State)
		}
		return nil
	})
	_, err := e.cluster.Kube.Kubectl(t.Context(), "-n", e.NodeName, "patch", "device", "two", "--type=json", "-p",
		`[{"op":"replace","path":"/spec/properties/0/desired/value","value":"33"}]`)
	env.Must(t, err)
	e.statusUntil("two", "the desired level 33", reports("level", "33"))
	_, err = e.cluster.Kube.Kubectl(t.Context(), "-n", e.NodeName, "delete", "device", "one")
	env.Must(t, err)
	e.apply(e.device("three"))
	e.statusUntil("three", "the desired level 5", reports("level", "5"))
}

// testModbus: what kubectl desires is in the register of a Modbus device and back as reported, and what the device has
// is in the cluster, within 0.3 s and the collect cycle on a machine that does nothing else. Here both are logged.
func testModbus(t *testing.T, c *env.Cluster) {
	e := startEdge(t, c, nil)
	s := modbusserver.Start(t)
	mapper.StartModbus(t, e.DMISocket())
	e.apply(deviceModel, `
apiVersion: devices.kubeedge.io/v1beta1
kind: Device
metadata: {name: pump}
spec:
  deviceModelRef: {name: lamp}
  nodeName: `+e.NodeName+`
  protocol: {protocolName: modbus, configData: {ip: `+s.IP+`, port: `+fmt.Sprint(s.Port)+`}}
  properties:
  - name: level
    reportToCloud: true
    collectCycle: 100
    desired: {value: "5"}
    visitors: {protocolName: modbus, configData: {register: HoldingRegister, offset: 2}}
  - name: temp
    reportToCloud: true
    collectCycle: 100
    visitors: {protocolName: modbus, configData: {register: HoldingRegister, offset: 1}}`)
	e.statusUntil("pump", "level 5", reports("level", "5"))
	if got := s.Register(2); got != 5 {
		t.Errorf("register = %d, want 5", got)
	}
	began := time.Now()
	_, err := e.cluster.Kube.Kubectl(t.Context(), "-n", e.NodeName, "patch", "device", "pump", "--type=json", "-p",
		`[{"op":"replace","path":"/spec/properties/0/desired/value","value":"33"}]`)
	env.Must(t, err)
	wait.True(t, "the register to have 33", func() bool { return s.Register(2) == 33 })
	t.Logf("a desired value was in the register after %v, with kubectl", time.Since(began))
	e.statusUntil("pump", "level 33", reports("level", "33"))
	s.Set(1, 21)
	began = time.Now()
	e.statusUntil("pump", "temp 21", reports("temp", "21"))
	t.Logf("a register was in the DeviceStatus after %v, with kubectl", time.Since(began))
	env.Must(t, s.Stop())
	e.describedUntil("pump", fmt.Sprintf("tcp://%s:%d: ", s.IP, s.Port), "Device is offline on node "+e.NodeName)
	e.statusUntil("pump", "the state", func(s *devices.Status) error {
		if s.State != devices.StateOffline {
			return fmt.Errorf("state %q", s.State)
		}
		return nil
	})
}
