package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/devicecontroller"
	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	"github.com/edgecore-io/edgecore/pkg/devicemsg"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

const (
	thermometer = `
apiVersion: devices.kubeedge.io/v1beta1
kind: DeviceModel
metadata: {name: thermometer, namespace: default}
spec:
  protocol: modbus
  properties:
  - {name: temp, type: INT, accessMode: ReadOnly}
  - {name: limit, type: INT, accessMode: ReadWrite, minimum: "10", maximum: "30"}
  - {name: gain, type: DOUBLE, accessMode: ReadWrite, minimum: "0.5"}
  - {name: power, type: BOOLEAN, accessMode: ReadWrite}
  - {name: label, type: STRING, accessMode: ReadWrite}
  - {name: speed, type: FLOAT, accessMode: ReadWrite, maximum: "4e38"}
---
apiVersion: devices.kubeedge.io/v1beta1
kind: DeviceModel
metadata: {name: other, namespace: default}
spec: {properties: [{name: limit, type: STRING}]}
`
	hall = `
apiVersion: devices.kubeedge.io/v1beta1
kind: Device
metadata: {name: hall, namespace: default}
spec:
  deviceModelRef: {name: thermometer}
  nodeName: edge-1
  protocol: {protocolName: modbus, configData: {ip: 192.0.2.9}}
  properties:
  - {name: temp, collectCycle: 1000, reportToCloud: true}
  - {name: limit, desired: {value: "20"}}
  - {name: gain}
  - {name: power}
  - {name: label}
  - {name: speed}
`
	// people gives a viewer and an operator their roles.
	people = `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: viewer, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edgecore-devices-viewer}
subjects: [{kind: User, name: vera}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: operator, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edgecore-devices-operator}
subjects: [{kind: User, name: otto}]
`
)

// startWithDevices starts a cluster with the manifests that devices need.
func startWithDevices(t *testing.T) *cloud {
	t.Helper()
	c := start(t, kube.Options{ControllerManager: true}, "base/rbac.yaml", "base/devices.yaml")
	for _, name := range []string{"devices", "devicemodels", "devicestatuses"} {
		if err := c.cluster.Apply(t.Context(), manifest(t, filepath.Join("crds", name+".yaml"))); err != nil {
			t.Fatal(err)
		}
	}
	wait.Until(t, "devices are served", func() error {
		return c.cluster.Apply(t.Context(), thermometer+"---\n"+hall)
	})
	return c
}

// TestDevicePolicies: desired values fit the model; operators change desired values alone, viewers nothing.
func TestDevicePolicies(t *testing.T) {
	t.Parallel()
	c := startWithDevices(t)
	c.apply(people)
	if _, err := c.cluster.Kubectl(t.Context(), "annotate", "namespace", "default", "edgecore.io/device-nodes=*",
		"edgecore.io/device-addresses=*"); err != nil {
		t.Fatal(err)
	}
	patch := func(who, text string) error {
		args := []string{"patch", "device", "hall", "--type=json", "-p", text}
		if who != "" {
			args = append(args, "--as="+who)
		}
		out, err := c.cluster.Kubectl(t.Context(), args...)
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	desired := func(i int, value string) string {
		return fmt.Sprintf(`[{"op":"add","path":"/spec/properties/%d/desired","value":{"value":%q}}]`, i, value)
	}
	wait.Until(t, "the policies are in force", func() error {
		if patch("", desired(1, "31")) == nil {
			return errors.New("a value above the maximum is accepted")
		}
		if patch("otto", `[{"op":"add","path":"/spec/nodeName","value":"edge-2"}]`) == nil {
			return errors.New("an operator may move a device")
		}
		return patch("otto", desired(1, "21"))
	})
	for _, tc := range []struct {
		who, patch string
		refused    string // a part of the error; empty is none
	}{
		{"", desired(1, "10"), ""},
		{"", desired(1, "30"), ""},
		{"", desired(1, "9"), "below the minimum"},
		{"", desired(1, "31"), "above the maximum"},
		{"", desired(1, "20.5"), "does not have the type"},
		{"", desired(1, "warm"), "does not have the type"},
		{"", desired(0, "20"), "read-only property: temp"},
		{"", desired(2, "0.5"), ""},
		{"", desired(2, "0.4"), "below the minimum"},
		{"", desired(2, "1e3"), ""},
		{"", desired(5, "1e38"), ""},
		{"", desired(5, "3.9e38"), "does not fit into 32 bits"},
		{"", desired(2, "Inf"), "does not have the type"},
		{"", desired(3, "true"), ""},
		{"", desired(3, "maybe"), "does not have the type"},
		{"", desired(4, "anything"), ""},
		{"", desired(4, strings.Repeat("x", 513)), "Too long"},
		{"", `[{"op":"add","path":"/spec/properties/6","value":{"name":"none","desired":{"value":"1"}}}]`,
			"does not have: none"},
		{"", `[{"op":"replace","path":"/spec/properties/4/name","value":"a b"}]`, "should match"},
		{"", `[{"op":"add","path":"/spec/deviceModelRef/name","value":"other"}]`, "does not have: gain, power, label"},
		{"otto", desired(1, "22"), ""},
		{"otto", desired(1, "99"), "above the maximum"},
		{"otto", `[{"op":"add","path":"/spec/nodeName","value":"edge-2"}]`, "only desired values"},
		{"otto", `[{"op":"add","path":"/spec/properties/0/collectCycle","value":1}]`, "only the desired value"},
		{"otto", `[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`, "metadata"},
		{"otto", `[{"op":"add","path":"/status","value":{"state":"ok"}}]`, "status"},
		{"otto", `[{"op":"remove","path":"/spec/properties/4"}]`, "only the desired value"},
		{"vera", desired(1, "23"), "cannot patch"},
		{"system:serviceaccount:kubeedge:cloudcore", desired(1, "23"), "cloudcore may change nothing"},
		{"system:serviceaccount:kubeedge:cloudcore",
			`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`, "metadata"},
		{"system:serviceaccount:kubeedge:cloudcore", `[{"op":"add","path":"/status","value":{"state":"ok"}}]`, ""},
	} {
		err := patch(tc.who, tc.patch)
		if (err == nil) != (tc.refused == "") || err != nil && !strings.Contains(err.Error(), tc.refused) {
			t.Errorf("patch by %q: %s: %v, want %q", tc.who, tc.patch, err, tc.refused)
		}
	}
	config := func(size int, format string) string {
		return fmt.Sprintf(`[{"op":"add","path":"/spec/protocol/configData/x","value":`+format+`}]`,
			strings.Repeat("x", size))
	}
	for i, tc := range []struct {
		patch   string
		refused bool
	}{
		{config(60<<10, `"%s"`), false},
		{config(65<<10, `"%s"`), true},
		{config(65<<10, `{"a":"%s"}`), true},
		{config(65<<10, `["%s"]`), true},
		{config(10, `{"a":[{"b":"%s"}],"c":1,"d":true}`), false},
		{`[{"op":"add","path":"/spec/properties/0/visitors","value":{"configData":{"x":"` +
			strings.Repeat("x", 17<<10) + `"}}}]`, true},
		{`[{"op":"add","path":"/spec/properties/0/visitors","value":{"configData":{"offset":2,"scale":0.5}}}]`, false},
	} {
		err := patch("", tc.patch)
		if (err != nil) != tc.refused || err != nil && !strings.Contains(err.Error(), "KiB") {
			t.Errorf("size %d: %.300v, want it refused: %v", i, err, tc.refused)
		}
	}
	for limit, accepted := range map[string]bool{"80 C": false, "low": false, "80.0": true, "1e2": true, "": true} {
		model := fmt.Sprintf(`
apiVersion: devices.kubeedge.io/v1beta1
kind: DeviceModel
metadata: {name: limits, namespace: default}
spec: {properties: [{name: limit, type: INT, maximum: %q}]}
`, limit)
		if err := c.cluster.Apply(t.Context(), model); (err == nil) != accepted ||
			err != nil && !strings.Contains(err.Error(), "must be numbers") {
			t.Errorf("a model with the maximum %q: %v, want it accepted: %v", limit, err, accepted)
		}
	}
	for who, want := range map[string]string{"vera": "get list watch", "otto": "get list patch update watch"} {
		out, err := c.cluster.Kubectl(t.Context(), "auth", "can-i", "--list", "--as="+who)
		if err != nil {
			t.Fatal(err)
		}
		for _, verb := range strings.Fields("get list watch patch update create delete") {
			has := strings.Contains(lineOf(out, "devices.devices.kubeedge.io"), verb)
			if has != strings.Contains(want, verb) {
				t.Errorf("%s may %s devices: %v, want %s\n%s", who, verb, has, want, out)
			}
		}
	}
}

// TestManyProperties: the policies accept changes of a device that has as many properties as it may, also by operators.
func TestManyProperties(t *testing.T) {
	t.Parallel()
	c := startWithDevices(t)
	c.apply(people)
	var rules, properties, all strings.Builder
	for i := range devices.MaxProperties {
		fmt.Fprintf(&rules, "  - {name: p%d, type: INT, accessMode: ReadWrite, maximum: \"9\"}\n", i)
		fmt.Fprintf(&properties, "  - {name: p%d, reportToCloud: true}\n", i)
		fmt.Fprintf(&all, "  - {name: p%d, reportToCloud: true, desired: {value: \"5\"}}\n", i)
	}
	device := "apiVersion: devices.kubeedge.io/v1beta1\nkind: Device\nmetadata: {name: wide, namespace: default}\n" +
		"spec:\n  deviceModelRef: {name: wide}\n  properties:\n"
	c.apply("apiVersion: devices.kubeedge.io/v1beta1\nkind: DeviceModel\nmetadata: {name: wide, namespace: default}\n" +
		"spec:\n  properties:\n" + rules.String())
	c.apply(device + properties.String())
	patch := func(text string) error {
		out, err := c.cluster.Kubectl(t.Context(), "patch", "device", "wide", "--type=json", "--as=otto", "-p", text)
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	wait.Until(t, "the policies are in force", func() error {
		err := patch(`[{"op":"add","path":"/spec/properties/999/collectCycle","value":1}]`)
		if err == nil || !strings.Contains(err.Error(), "only the desired value") {
			return fmt.Errorf("an operator changes a cycle: %w", err)
		}
		err = patch(`[{"op":"add","path":"/spec/properties/998/desired","value":{"value":"10"}}]`)
		if err == nil || !strings.Contains(err.Error(), "above the maximum") {
			return fmt.Errorf("a value above the maximum: %w", err)
		}
		return nil
	})
	if err := patch(`[{"op":"add","path":"/spec/properties/999/desired","value":{"value":"5"}}]`); err != nil {
		t.Errorf("an operator sets one value: %.500v", err)
	}
	if err := c.cluster.Apply(t.Context(), device+all.String()); err != nil {
		t.Errorf("all values are set: %.500v", err)
	}
}

// lineOf returns the verbs in all lines of `kubectl auth can-i --list` about a resource.
func lineOf(out, resource string) string {
	all := ""
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, resource+" ") {
			all += line[strings.LastIndex(line, "["):]
		}
	}
	return all
}

// deviceHub notes the answers to reports.
type deviceHub struct {
	mu   sync.Mutex
	sent []string
}

func (h *deviceHub) Changed(string, resource.Key) {}
func (h *deviceHub) Send(node string, m *model.Message) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sent = append(h.sent, node+" "+m.Route.Operation+" "+string(m.Content))
	return true
}

// startDeviceController starts a devicecontroller with cloudcore's rights until the test ends.
func (c *cloud) startDeviceController() (*devicecontroller.Controller, dynamic.Interface) {
	c.t.Helper()
	objects, err := dynamic.NewForConfig(c.config)
	if err != nil {
		c.t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(c.config)
	if err != nil {
		c.t.Fatal(err)
	}
	ctl, err := devicecontroller.New(devicecontroller.Options{Objects: objects, Client: client})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.t.Cleanup(func() {
		cancel()
		ctl.Wait()
	})
	if err := ctl.Start(ctx, &deviceHub{}); err != nil {
		c.t.Fatal(err)
	}
	return ctl, objects
}

// TestDeviceController: with the rights of deploy/cloudcore, what a node reports is in the DeviceStatus and in the
// columns of kubectl; the DeviceStatus goes with its Device.
func TestDeviceController(t *testing.T) {
	t.Parallel()
	c := startWithDevices(t)
	ctl, objects := c.startDeviceController()
	wait.Until(t, "the node has the device and its model", func() error {
		if n := len(ctl.Desired("edge-1")); n != 2 {
			return fmt.Errorf("it has %d objects", n)
		}
		return nil
	})
	ctl.Connected(t.Context(), "edge-1", "edgecore/websocket")
	report := func(kind devicemsg.Kind, content string) {
		m := model.New(devicemsg.Source, model.GroupResource, model.OpUpdate,
			devicemsg.Report{Kind: kind, Namespace: "default", Name: "hall"}.Resource(), json.RawMessage(content))
		if answer := ctl.Handle(t.Context(), "edge-1", m); answer != nil {
			t.Errorf("answer to %s: %s", kind, answer.Content)
		}
	}
	for i := range 20 {
		report(devicemsg.KindTwin, fmt.Sprintf(`{"twin":{"temp":{"actual":{"value":"%d","metadata":{"timestamp":%d}},
"metadata":{"type":"INT"},"actual_version":{"edge":%d}}},"epoch":"e"}`, i, 1760000000000+i, i))
	}
	report(devicemsg.KindState, `{"device":{"state":"online","lastOnlineTime":"2026-01-01T00:00:00Z"},"epoch":"e",
"version":1}`)
	statuses := objects.Resource(devices.DeviceStatuses).Namespace("default")
	wait.Until(t, "the value and the state", func() error {
		u, err := statuses.Get(t.Context(), "hall", metav1.GetOptions{})
		if err != nil {
			return err
		}
		text, err := json.Marshal(u.Object["status"])
		if err != nil {
			return err
		}
		for _, part := range []string{`"value":"19"`, `"state":"online"`, `"version":"e.19"`} {
			if !strings.Contains(string(text), part) {
				return fmt.Errorf("%s, which lacks %s", text, part)
			}
		}
		return nil
	})
	wait.Until(t, "kubectl's columns", func() error {
		out, err := c.cluster.Kubectl(t.Context(), "get", "devices,devicemodels,devicestatuses")
		for _, part := range []string{"edge-1   modbus     online", "LAST ONLINE", "thermometer"} {
			if err == nil && !strings.Contains(out, part) {
				err = fmt.Errorf("%s\nlacks %q", out, part)
			}
		}
		return err
	})
	report(devicemsg.KindState, `{"device":{"state":"offline"},"epoch":"e","version":2,"message":"no\u0007 answer"}`)
	describes := func(what string, has bool, parts ...string) {
		t.Helper()
		wait.Until(t, what, func() error {
			for _, args := range [][]string{{"describe", "device", "hall"}, {"get", "device", "hall", "-o", "wide"},
				{"get", "devicestatus", "hall", "-o", "wide"}} {
				out, err := c.cluster.Kubectl(t.Context(), args...)
				if err != nil {
					return err
				}
				for _, part := range parts {
					if strings.Contains(out, part) != has {
						return fmt.Errorf("kubectl %s: want %q: %v\n%s", strings.Join(args, " "), part, has, out)
					}
				}
			}
			return nil
		})
	}
	describes("why the device is offline", true, "no answer")
	wait.Until(t, "the event of the device", func() error {
		out, err := c.cluster.Kubectl(t.Context(), "get", "events")
		for _, part := range []string{"DeviceOffline", "Device is offline on node edge-1; it was last online at " +
			"2026-01-01T00:00:00Z: no answer"} {
			if err == nil && !strings.Contains(out, part) {
				err = fmt.Errorf("%s\nlacks %q", out, part)
			}
		}
		return err
	})
	report(devicemsg.KindState, `{"device":{"state":"unhealthy"},"epoch":"e","version":3,"message":"level: busy"}`)
	describes("why the device is unhealthy", true, "level: busy")
	report(devicemsg.KindState, `{"device":{"state":"online"},"epoch":"e","version":4}`)
	wait.Until(t, "a device that works to have no message", func() error {
		out, err := c.cluster.Kubectl(t.Context(), "get", "devices,devicestatuses", "-o", "json")
		if err == nil && (strings.Contains(out, "state-message") || strings.Count(out, `"online"`) != 2) {
			err = errors.New(out)
		}
		return err
	})
	if _, err := c.cluster.Kubectl(t.Context(), "delete", "device", "hall"); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the DeviceStatus is gone", func() error {
		if _, err := statuses.Get(t.Context(), "hall", metav1.GetOptions{}); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
}

// obsoleteCRD returns a CRD of a KubeEdge before v1.15.
func obsoleteCRD(kind string) string {
	name := strings.ToLower(kind)
	return fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[2]ss.devices.kubeedge.io}
spec:
  group: devices.kubeedge.io
  names: {kind: %[1]s, listKind: %[1]sList, plural: %[2]ss, singular: %[2]s}
  scope: Namespaced
  versions:
  - name: v1alpha2
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, kind, name)
}

// obsoleteObjects are objects of such a KubeEdge.
const obsoleteObjects = `
apiVersion: devices.kubeedge.io/v1alpha2
kind: DeviceModel
metadata: {name: old, namespace: default}
spec:
  properties:
  - {name: temp, description: in the hall, type: {int: {accessMode: ReadWrite, maximum: 100}}}
---
apiVersion: devices.kubeedge.io/v1alpha2
kind: Device
metadata: {name: yard, namespace: default}
spec:
  deviceModelRef: {name: old}
  protocol: {modbus: {slaveID: 1}, common: {com: {serialPort: /dev/ttyS0, baudRate: 9600}}}
  nodeSelector: {nodeSelectorTerms: [{matchExpressions: [{key: "", operator: In, values: [edge-1]}]}]}
  propertyVisitors:
  - {propertyName: temp, modbus: {register: CoilRegister, offset: 2, limit: 1}}
status:
  twins: [{propertyName: temp, desired: {value: "7", metadata: {type: int}}}]
`

// converted are the same objects, written again as the event about them says.
const converted = `
apiVersion: devices.kubeedge.io/v1beta1
kind: DeviceModel
metadata: {name: old, namespace: default}
spec: {properties: [{name: temp, type: INT, accessMode: ReadWrite, maximum: "100"}]}
---
apiVersion: devices.kubeedge.io/v1beta1
kind: Device
metadata: {name: yard, namespace: default}
spec:
  deviceModelRef: {name: old}
  nodeName: edge-1
  protocol: {protocolName: modbus, configData: {serialPort: /dev/ttyS0, baudRate: 9600, slaveID: 1}}
  properties:
  - name: temp
    desired: {value: "7"}
    visitors: {protocolName: modbus, configData: {register: CoilRegister, offset: 2, limit: 1}}
`

// TestObsoleteDevices: objects of v1alpha2 that are in the cluster stop nothing. An event of the device says how to
// convert it, and the object works once it is converted.
func TestObsoleteDevices(t *testing.T) {
	t.Parallel()
	c := start(t, kube.Options{}, "base/rbac.yaml")
	c.apply(obsoleteCRD("Device") + "---" + obsoleteCRD("DeviceModel"))
	wait.Until(t, "devices of v1alpha2 are served", func() error {
		return c.cluster.Apply(t.Context(), obsoleteObjects)
	})
	for _, name := range []string{"devices", "devicemodels", "devicestatuses"} {
		c.apply(manifest(t, filepath.Join("crds", name+".yaml")))
	}
	wait.Until(t, "devices of v1beta1 are served", func() error {
		return c.cluster.Apply(t.Context(), thermometer+"---\n"+hall)
	})
	ctl, _ := c.startDeviceController()
	desired := func(n int) func() error {
		return func() error {
			if got := len(ctl.Desired("edge-1")); got != n {
				return fmt.Errorf("it has %d objects, want %d", got, n)
			}
			return nil
		}
	}
	wait.Until(t, "the node has the device of v1beta1 and its model", desired(2))
	wait.Until(t, "the event of the other device", func() error {
		out, err := c.cluster.Kubectl(t.Context(), "events", "--for=device/yard", "-o", "json")
		for _, part := range []string{"ObsoleteDevice", "spec.nodeSelector becomes spec.nodeName", "type: INT"} {
			if err == nil && !strings.Contains(out, part) {
				err = fmt.Errorf("%s\nlacks %q", out, part)
			}
		}
		return err
	})
	c.apply(converted)
	wait.Until(t, "the node has both devices and both models", desired(4))
}

// tenants are two namespaces; tina manages the devices of one of them.
const tenants = `
apiVersion: v1
kind: Namespace
metadata:
  name: site-a
  annotations:
    edgecore.io/device-nodes: edge-1, a-*
    edgecore.io/device-addresses: "192.0.2.*, plc.site-a.example, /dev/ttyS*"
---
apiVersion: v1
kind: Namespace
metadata: {name: site-b}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: devices, namespace: site-a}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edgecore-devices-admin}
subjects: [{kind: User, name: tina}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: devices, namespace: site-b}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edgecore-devices-admin}
subjects: [{kind: User, name: tina}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: admin, namespace: site-a}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: admin}
subjects: [{kind: User, name: adam}]
`

// TestDeviceTenants: a namespace uses only nodes, addresses and serial ports that its Namespace allows; its admin has
// no right to devices unless he is given one.
func TestDeviceTenants(t *testing.T) {
	t.Parallel()
	c := startWithDevices(t)
	c.apply(tenants)
	file := filepath.Join(t.TempDir(), "device.yaml")
	create := func(who, namespace, node, config, push string) error {
		text := fmt.Sprintf(`
apiVersion: devices.kubeedge.io/v1beta1
kind: Device
metadata: {generateName: d-, namespace: %s}
spec:
  deviceModelRef: {name: m}
  nodeName: %q
  protocol: {protocolName: modbus, configData: {%s}}
  properties: [{name: temp, pushMethod: {%s}}]
`, namespace, node, config, push)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
		out, err := c.cluster.Kubectl(t.Context(), "create", "--as="+who, "-f", file)
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	wait.Until(t, "the policy is in force", func() error {
		if create("tina", "site-a", "edge-2", "", "") == nil {
			return errors.New("a node that is not allowed is accepted")
		}
		return create("tina", "site-a", "edge-1", "", "")
	})
	for _, tc := range []struct {
		who, namespace, node, config, push string
		refused                            string // a part of the error; empty is none
	}{
		{"tina", "site-a", "edge-1", "ip: 192.0.2.7, slaveID: 3", "", ""},
		{"tina", "site-a", "a-17", "serialPort: /dev/ttyS0", "", ""},
		{"tina", "site-a", "", "ip: 198.51.100.7", "", ""}, // it is on no node
		{"tina", "site-a", "b-17", "", "", "may not use node b-17"},
		{"tina", "site-a", "edge-10", "", "", "may not use node edge-10"},
		{"tina", "site-a", "edge-1", "ip: 198.51.100.7", "", "may not use 198.51.100.7"},
		{"tina", "site-a", "edge-1", "IP: 198.51.100.7", "", "may not use 198.51.100.7"},
		{"tina", "site-a", "edge-1", "ip: 192.0.2.7.example", "", "may not use 192.0.2.7.example"},
		{"tina", "site-a", "edge-1", "ip: [192.0.2.7]", "", "may not use not a text"},
		{"tina", "site-a", "edge-1", "serialPort: /dev/ttyUSB0", "", "may not use /dev/ttyUSB0"},
		{"tina", "site-a", "edge-1", `"\u017ferialPort": /dev/ttyUSB0`, "", "may not use /dev/ttyUSB0"},
		{"tina", "site-a", "edge-1", "serialPort: /dev/ttyS0/../ttyUSB0", "", "may not use"},
		{"tina", "site-a", "edge-1", "", `mqtt: {address: "tcp://192.0.2.9:1883"}`, ""},
		{"tina", "site-a", "edge-1", "", `mqtt: {address: "tcp://127.0.0.1:1884"}`, "may not use 127.0.0.1"},
		{"tina", "site-a", "edge-1", "", `mqtt: {address: "tcp://evil.example/192.0.2.9:1883"}`, "may not use"},
		{"tina", "site-a", "edge-1", "", `http: {hostName: evil.example}`, "may not use evil.example"},
		{"tina", "site-a", "edge-1", "", `dbMethod: {influxdb2: {influxdb2ClientConfig: {url: "http://plc.site-a.example:8086"}}}`, ""},
		{"tina", "site-b", "edge-1", "", "", "may not use node edge-1"},
		{"tina", "site-b", "", "", "", ""},
		{"adam", "site-a", "edge-1", "", "", "cannot create"},
	} {
		err := create(tc.who, tc.namespace, tc.node, tc.config, tc.push)
		if (err == nil) != (tc.refused == "") || err != nil && !strings.Contains(err.Error(), tc.refused) {
			t.Errorf("%+v: %v, want %q", tc, err, tc.refused)
		}
	}
	// A cluster admin may bind any device; its tenant may set values then, but not move it.
	out, err := c.cluster.Kubectl(t.Context(), "create", "-f", file, "-o", "name")
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimSpace(out)
	for patch, refused := range map[string]string{
		`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`:                  "",
		`[{"op":"replace","path":"/spec/nodeName","value":"b-17"}]`:                   "may not use node b-17",
		`[{"op":"add","path":"/spec/protocol/configData/ip","value":"198.51.100.7"}]`: "may not use 198.51.100.7",
	} {
		out, err := c.cluster.Kubectl(t.Context(), "patch", "-n", "site-a", name, "--type=json", "--as=tina", "-p",
			patch)
		if (err == nil) != (refused == "") || err != nil && !strings.Contains(out+err.Error(), refused) {
			t.Errorf("%s: %v %s, want %q", patch, err, out, refused)
		}
	}
}
