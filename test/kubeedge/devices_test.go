package kubeedge

import (
	"encoding/json"
	"fmt"
	"strconv"
	"testing"
	"time"

	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/mapper"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// withDevices is the version of KubeEdge whose devices are those of today.
const withDevices = "1.23"

// TestDevicesOfTheirEdge: KubeEdge's edgecore serves devices of our cloudcore.
func TestDevicesOfTheirEdge(t *testing.T) {
	f := newFixture(t, withDevices)
	f.devices = true
	c, token := f.startCloud(nil)
	edge := f.joinTheirs(token, c.Link, c.Bootstrap)
	wait.Until(f.t, "the node is Ready", f.nodeReady)
	f.deviceLife(edge.DMI())
}

// TestDevicesOfTheirCloud: our edgecore serves devices of KubeEdge's cloudcore.
func TestDevicesOfTheirCloud(t *testing.T) {
	f := newFixture(t, withDevices)
	c, token := f.startTheirCloud()
	edge := testenv.StartAgent(t, f.ctrd, agent.Options{
		Binary:   built.Edge,
		NodeName: node,
		Kubelet:  map[string]any{"nodeStatusUpdateFrequency": "2s"},
		EdgeHub: map[string]any{
			"enable": true, "token": token, "httpServer": "https://127.0.0.1:" + strconv.Itoa(c.Bootstrap),
			"websocket": map[string]any{"enable": true, "server": "127.0.0.1:" + strconv.Itoa(c.Link)},
		},
	})
	wait.Until(f.t, "the node is Ready", f.nodeReady)
	f.deviceLife(edge.DMISocket())
}

// deviceLife is a device's: what the cluster desires reaches its mapper, what the mapper reports the cluster.
func (f *fixture) deviceLife(socket string) {
	f.t.Helper()
	m := mapper.Start(f.t, f.t.TempDir(), socket, "dali")
	m.AwaitRegister()
	f.apply(device("5"))
	m.AwaitDesired("default/one", "level", "5")
	report := func(value string) {
		f.t.Helper()
		wait.Until(f.t, "a report of "+value, func() error {
			return m.Report(f.t.Context(), "default", "one", time.Now(), "level", value)
		})
		wait.Until(f.t, "the reported level "+value, func() error { return f.reported(value) })
	}
	report("5")
	f.apply(device("7"))
	m.AwaitDesired("default/one", "level", "7")
	report("7")
	_, err := f.kube.Kubectl(f.t.Context(), "delete", "device", "one")
	env.Must(f.t, err)
	wait.Until(f.t, "the mapper to lose the device", func() error {
		if n, _ := m.Has(); n > 0 {
			return fmt.Errorf("it has %d devices; calls %q", n, m.Calls())
		}
		return nil
	})
}

// reported checks the reported level in the DeviceStatus.
func (f *fixture) reported(value string) error {
	out, err := f.kube.Kubectl(f.t.Context(), "get", "devicestatus", "one", "-o", "json")
	if err != nil {
		return err
	}
	var s devices.DeviceStatus
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		return err
	}
	for _, t := range s.Status.Twins {
		if t.PropertyName == "level" && t.Reported != nil && t.Reported.Value == value {
			return nil
		}
	}
	return fmt.Errorf("twins %+v, want level = %s", s.Status.Twins, value)
}

// device is a lamp with a desired level, and its model.
func device(level string) string {
	return `
apiVersion: devices.kubeedge.io/v1beta1
kind: DeviceModel
metadata: {name: lamp, namespace: default}
spec: {protocol: dali, properties: [{name: level, type: INT, accessMode: ReadWrite}]}
---
apiVersion: devices.kubeedge.io/v1beta1
kind: Device
metadata: {name: one, namespace: default}
spec:
  deviceModelRef: {name: lamp}
  nodeName: ` + node + `
  protocol: {protocolName: dali, configData: {bus: 3}}
  properties:
  - {name: level, reportToCloud: true, collectCycle: 1000, reportCycle: 1000, desired: {value: "` + level + `"},
     visitors: {protocolName: dali, configData: {channel: 1}}}`
}
