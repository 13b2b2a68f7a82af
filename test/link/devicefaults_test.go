package link

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/edgecore-io/edgecore/devicetwin"
	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/mapper"
	"github.com/edgecore-io/edgecore/test/testenv/mosquitto"
	"github.com/edgecore-io/edgecore/test/testenv/proxy"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// A meter has a count, which its mapper reports, an alarm, which a program on the device reports over MQTT, and a
// limit, which is set in the cluster. Numbers only grow.
const (
	meterModel = `
apiVersion: devices.kubeedge.io/v1beta1
kind: DeviceModel
metadata: {name: meter}
spec:
  properties:
  - {name: count, type: INT, accessMode: ReadOnly}
  - {name: alarm, type: INT, accessMode: ReadOnly}
  - {name: limit, type: INT, accessMode: ReadWrite}`
	meter = `
apiVersion: devices.kubeedge.io/v1beta1
kind: Device
metadata: {name: one}
spec:
  deviceModelRef: {name: meter}
  nodeName: NODE
  protocol: {protocolName: pulse}
  properties:
  - {name: limit, reportToCloud: true, desired: {value: "0"}}
  - {name: count, reportToCloud: true}
  - {name: alarm, reportToCloud: true}`
)

// deviceWeights say how often each fault comes, relative to the others.
var deviceWeights = []struct {
	name   string
	weight int
}{
	{"cut", 3}, {"cut in a message", 3}, {"silence", 2}, {"kill edgecore", 4}, {"kill cloudcore", 2},
	{"broker dies", 3}, {"mapper dies", 3}, {"mapper refuses", 2}, {"mapper hangs", 2},
}

// metered is a meter on an edge, with everything that may fail between its mapper and the cluster.
type metered struct {
	*edge
	mapper *mapper.Mapper
	broker *mosquitto.Broker
	rand   *rand.Rand
	// sent is the last number that was reported, of any property; limit the last that was set in the cluster.
	sent, limit int
	// acknowledged has the last number of each property that the agent has acknowledged.
	acknowledged map[string]int
}

// TestDeviceFaults: link, agent, cloudcore, MQTT broker and mapper of a device fail at random. A value that the agent
// has acknowledged is there after it was killed, and the cluster never replaces a value by an older one. In the end
// mapper, MQTT clients and cluster have the same newest values.
func TestDeviceFaults(t *testing.T) {
	t.Parallel()
	broker := mosquitto.Start(t)
	m := &metered{
		edge: startEdgeWith(t, startCluster(t, kube.Options{}), map[string]any{"heartbeat": 1}, map[string]any{
			"enable": true, "mqttMode": 2, "mqttServerExternal": broker.Server(),
		}),
		broker:       broker,
		rand:         rand.New(rand.NewPCG(*seed, 0)),
		acknowledged: map[string]int{},
	}
	m.apply(meterModel, strings.Replace(meter, "NODE", m.NodeName, 1))
	m.mapper = mapper.Start(t, t.TempDir(), m.DMISocket(), "pulse")
	m.mapper.AwaitRegister()
	m.mapper.AwaitDesired(m.NodeName+"/one", "limit", "0")
	stopWatch := m.watchStatus()
	t.Logf("%d faults, seed %d", *faults, *seed)
	count := map[string]int{}
	for made := range *faults {
		for range m.rand.IntN(4) {
			m.reportSomething()
		}
		what := m.choose()
		m.fault(what)
		count[what]++
		if (made+1)%100 == 0 {
			t.Logf("%d faults: %v", made+1, count)
		}
	}
	m.mapper.Fail(nil)
	m.mapper.Hang(false)
	for _, w := range deviceWeights {
		if *faults >= 60 && count[w.name] == 0 {
			t.Errorf("%q has happened 0 times in %d faults with seed %d, want at least 1", w.name, *faults, *seed)
		}
	}
	m.agreeInTheEnd()
	stopWatch()
}

// choose chooses the next fault.
func (m *metered) choose() string {
	total := 0
	for _, w := range deviceWeights {
		total += w.weight
	}
	n := m.rand.IntN(total)
	for _, w := range deviceWeights {
		if n -= w.weight; n < 0 {
			return w.name
		}
	}
	panic("unreachable")
}

// pause lasts up to a number of milliseconds.
func (m *metered) pause(max int) { time.Sleep(time.Duration(m.rand.IntN(max)) * time.Millisecond) }

// reportSomething reports a number, or sets the limit in the cluster. Each may fail.
func (m *metered) reportSomething() {
	m.T.Helper()
	switch m.rand.IntN(4) {
	case 0:
		m.limit++
		m.setLimit()
	case 1:
		m.sent++
		if m.reportAlarm() == nil {
			m.acknowledged["alarm"] = m.sent
		}
	default:
		m.sent++
		if m.reportCount() == nil {
			m.acknowledged["count"] = m.sent
		}
	}
}

func (m *metered) reportCount() error {
	ctx, cancel := context.WithTimeout(m.T.Context(), 10*time.Second)
	defer cancel()
	return m.mapper.Report(ctx, m.NodeName, "one", time.Now(), "count", strconv.Itoa(m.sent))
}

func (m *metered) topic() string { return "$hw/events/device/" + m.NodeName + "/one/twin/" }

// ask publishes an MQTT request and returns its result; no result within a second is an error.
func (m *metered) ask(topic, payload string) (string, error) {
	out, err := exec.CommandContext(m.T.Context(), "mosquitto_rr", "-p", m.broker.Port, "-q", "1", "-W", "1", "-t",
		topic, "-e", topic+"/result", "-m", payload).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return string(out), nil
}

func (m *metered) reportAlarm() error {
	out, err := m.ask(m.topic()+"update",
		fmt.Sprintf(`{"event_id":"%[1]d","twin":{"alarm":{"actual":{"value":"%[1]d"}}}}`, m.sent))
	// All requests share one topic for results, so the result of an earlier request may come first.
	if err == nil && (!strings.Contains(out, fmt.Sprintf(`"event_id":"%d"`, m.sent)) || strings.Contains(out, "reason")) {
		err = errors.New(out)
	}
	return err
}

func (m *metered) setLimit() {
	m.T.Helper()
	_, err := m.cluster.Kube.Kubectl(m.T.Context(), "-n", m.NodeName, "patch", "device", "one", "--type=json", "-p",
		fmt.Sprintf(`[{"op":"replace","path":"/spec/properties/0/desired/value","value":"%d"}]`, m.limit))
	env.Must(m.T, err)
}

// fault makes one fault.
func (m *metered) fault(what string) {
	m.T.Helper()
	ctx := m.T.Context()
	switch what {
	case "cut":
		m.cable.Set(proxy.Cut)
		m.reportSomething()
		m.pause(300)
		m.cable.Set(proxy.Passing)
	case "cut in a message":
		m.cable.CutAfter(int64(m.rand.IntN(2000)))
		m.reportSomething()
	case "silence":
		m.cable.Set(proxy.Silent)
		m.reportSomething()
		m.pause(300)
		m.cable.Set(proxy.Passing)
	case "kill edgecore":
		env.Must(m.T, m.Kill9(ctx))
		env.Must(m.T, m.Start(ctx))
		m.checkAcknowledged()
	case "kill cloudcore":
		env.Must(m.T, m.cluster.Cloud.Kill9(ctx))
		env.Must(m.T, m.cluster.Cloud.Start(ctx))
	case "broker dies":
		m.broker.Kill()
		m.reportSomething()
		m.broker.Restart()
	case "mapper dies":
		m.mapper.Stop()
		m.mapper.Hang(false)
		m.pause(100)
		m.mapper.Listen()
		m.mapper.AwaitRegister()
	case "mapper refuses": // until the next refusal
		m.mapper.Fail([]error{nil, errors.New("refused by the test")}[m.rand.IntN(2)])
	case "mapper hangs": // until the next time
		m.mapper.Hang(m.rand.IntN(2) == 0)
	}
	m.pause(100)
}

// reported returns what the device itself has as the number of a property; -1 is none.
func (m *metered) reported(property string) (int, error) {
	text, err := m.Get(m.T.Context(), "/devices")
	if err != nil {
		return 0, err
	}
	var list struct {
		Items []devicetwin.Device `json:"items"`
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return 0, err
	}
	if len(list.Items) != 1 {
		return 0, fmt.Errorf("%d devices, want 1", len(list.Items))
	}
	p := list.Items[0].Twin.Properties[property].Reported
	if p == nil {
		return -1, nil
	}
	return strconv.Atoi(p.Value)
}

// checkAcknowledged checks that a restarted agent has all that it has acknowledged.
func (m *metered) checkAcknowledged() {
	m.T.Helper()
	for property, want := range m.acknowledged {
		var got int
		wait.Until(m.T, "the device", func() (err error) {
			got, err = m.reported(property)
			return err
		})
		if got < want {
			m.T.Errorf("%s after a kill = %d, want at least %d, which was acknowledged", property, got, want)
		}
	}
}

// watchStatus watches the DeviceStatus, whose numbers may only grow, until the returned function is called.
func (m *metered) watchStatus() (stop func()) {
	m.T.Helper()
	config, err := m.cluster.Kube.ConfigFor(kube.AdminUser)
	env.Must(m.T, err)
	client, err := dynamic.NewForConfig(config)
	env.Must(m.T, err)
	w, err := client.Resource(devices.DeviceStatuses).Namespace(m.NodeName).Watch(m.T.Context(), metav1.ListOptions{})
	env.Must(m.T, err)
	var watching sync.WaitGroup
	var stopping atomic.Bool
	watching.Go(func() {
		last := map[string]int{}
		seen := 0
		for event := range w.ResultChan() {
			u, ok := event.Object.(*unstructured.Unstructured)
			if stopping.Load() {
				continue
			}
			if !ok {
				m.T.Errorf("the watch of DeviceStatuses sent %+v, want a DeviceStatus", event.Object)
				continue
			}
			seen++
			for property, n := range numbersOf(m.T, u) {
				if n < last[property] {
					m.T.Errorf("%s in the cluster went from %d back to %d", property, last[property], n)
				}
				last[property] = n
			}
		}
		if !stopping.Load() || seen == 0 {
			m.T.Errorf("the watch of DeviceStatuses ended after %d events, want it to last as long as the test", seen)
		}
	})
	return func() {
		stopping.Store(true)
		w.Stop()
		watching.Wait()
	}
}

// numbersOf returns the reported numbers of a DeviceStatus.
func numbersOf(t testing.TB, u *unstructured.Unstructured) map[string]int {
	text, err := json.Marshal(u.Object)
	var s devices.DeviceStatus
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		t.Error(err)
	}
	numbers := map[string]int{}
	for _, twin := range s.Status.Twins {
		if twin.Reported == nil {
			continue
		}
		n, err := strconv.Atoi(twin.Reported.Value)
		if err != nil {
			t.Errorf("%s in the cluster: %v", twin.PropertyName, err)
		}
		numbers[twin.PropertyName] = n
	}
	return numbers
}

// agreeInTheEnd reports once more, and checks that all have the newest values.
func (m *metered) agreeInTheEnd() {
	m.T.Helper()
	m.sent++
	count := strconv.Itoa(m.sent)
	wait.Until(m.T, "a report of the mapper", m.reportCount)
	m.sent++
	alarm := strconv.Itoa(m.sent)
	wait.Until(m.T, "a report over MQTT", m.reportAlarm)
	m.limit++
	limit := strconv.Itoa(m.limit)
	m.setLimit()
	m.mapper.AwaitDesired(m.NodeName+"/one", "limit", limit)
	env.Must(m.T, m.mapper.Report(m.T.Context(), m.NodeName, "one", time.Now(), "limit", limit))
	for property, want := range map[string]string{"count": count, "alarm": alarm, "limit": limit} {
		m.statusUntil("one", property+" "+want, reports(property, want))
		wait.Until(m.T, "MQTT clients to get "+property+" "+want, func() error {
			out, err := m.ask(m.topic()+"get", `{"event_id":"last"}`)
			if err == nil && !strings.Contains(out, `"actual":{"value":"`+want+`"`) {
				err = errors.New(out)
			}
			return err
		})
	}
	out, err := m.ask(m.topic()+"get", `{"event_id":"last"}`)
	if err != nil || !strings.Contains(out, `"expected":{"value":"`+limit+`"`) {
		m.T.Errorf("the limit for MQTT clients: %s, %v, want %s", out, err, limit)
	}
}
