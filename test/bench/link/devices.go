package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	"github.com/edgecore-io/edgecore/test/bench/load"
	"github.com/edgecore-io/edgecore/test/bench/process"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/mapper"
	"github.com/edgecore-io/edgecore/test/testenv/modbusserver"
)

const (
	// changes is how many values are timed in each direction.
	changes = 20
	// fastCycle is how often the mapper reads the properties of the device whose values are timed.
	fastCycle = 100 * time.Millisecond

	sensors          = 100
	sensorProperties = 10
	// sensorTime is how long the traffic of sensors is counted.
	sensorTime = time.Minute

	twinTime = time.Minute

	// The registers of the device whose values are timed; those of sensors begin at 0.
	levelRegister = sensors * sensorProperties
	tempRegister  = levelRegister + 1
)

// plant is a Modbus server with a mapper on the node.
type plant struct {
	*edgeSite
	server  *modbusserver.Server
	objects dynamic.Interface
}

// devices measures how fast values of devices are in the cluster and back, and what many of them cost.
func (e *edgeSite) devices(ctx context.Context) error {
	p := &plant{edgeSite: e}
	config, err := e.kube.ConfigFor(kube.AdminUser)
	if err != nil {
		return err
	}
	if p.objects, err = dynamic.NewForConfig(config); err != nil {
		return err
	}
	if p.server, err = modbusserver.New(); err != nil {
		return err
	}
	if err := p.server.Listen(); err != nil {
		return err
	}
	e.stops.add(func(context.Context) error { return p.server.Stop() })
	dir := filepath.Join(e.dir, "mapper")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	say("starting a mapper")
	proc, err := mapper.LaunchModbus(ctx, dir, e.edge.DMISocket())
	if err != nil {
		return err
	}
	e.stops.add(func(ctx context.Context) error { return proc.End(ctx, syscall.SIGTERM) })
	err = p.timeValues(ctx)
	if err == nil {
		err = p.countSensors(ctx)
	}
	if err != nil {
		say("the end of the mapper's log:\n%s", daemon.Tail(filepath.Join(dir, "mapper.log"), 20))
	}
	return err
}

// property is a property of a device, and the register where it is.
type property struct {
	name     string
	register int
	desired  string // "" for none
}

// manifest is a Modbus device and its model.
func (p *plant) manifest(name string, cycle time.Duration, properties ...property) string {
	var m, d strings.Builder
	fmt.Fprintf(&m, `
apiVersion: devices.kubeedge.io/v1beta1
kind: DeviceModel
metadata: {name: %s}
spec:
  properties:
`, name)
	fmt.Fprintf(&d, `
apiVersion: devices.kubeedge.io/v1beta1
kind: Device
metadata: {name: %s}
spec:
  deviceModelRef: {name: %s}
  nodeName: %s
  protocol: {protocolName: modbus, configData: {ip: %s, port: %d}}
  properties:
`, name, name, node, p.server.IP, p.server.Port)
	for _, x := range properties {
		fmt.Fprintf(&m, "  - {name: %s, type: INT, accessMode: ReadWrite}\n", x.name)
		fmt.Fprintf(&d, `  - name: %s
    reportToCloud: true
    collectCycle: %d
    visitors: {protocolName: modbus, configData: {register: HoldingRegister, offset: %d}}
`, x.name, cycle.Milliseconds(), x.register)
		if x.desired != "" {
			fmt.Fprintf(&d, "    desired: {value: %q}\n", x.desired)
		}
	}
	return m.String() + "---" + d.String()
}

// timeValues takes the times of single values, with pauses in between: a report on a device goes out at once if there
// was none in the second before.
func (p *plant) timeValues(ctx context.Context) error {
	say("one value, %d times in each direction", changes)
	const name = "timed"
	if err := p.kube.Apply(ctx, p.manifest(name, fastCycle, property{"level", levelRegister, "1"},
		property{"temp", tempRegister, ""})); err != nil {
		return err
	}
	w, err := p.objects.Resource(devices.DeviceStatuses).Namespace("default").
		Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return err
	}
	defer w.Stop()
	if err := reported(ctx, w, "level", "1"); err != nil {
		return err
	}
	var written, back, read []time.Duration
	for i := range changes + 1 {
		value := i + 2
		if err := pause(ctx); err != nil {
			return err
		}
		began := time.Now()
		if err := p.desire(ctx, name, value); err != nil {
			return err
		}
		err = until(ctx, "the register has the desired value", twinTime, func() (bool, error) {
			return p.server.Register(levelRegister) == uint16(value), nil
		})
		if err != nil {
			return err
		}
		inRegister := time.Since(began)
		if err := reported(ctx, w, "level", fmt.Sprint(value)); err != nil {
			return err
		}
		inStatus := time.Since(began)

		if err := pause(ctx); err != nil {
			return err
		}
		began = time.Now()
		p.server.Set(tempRegister, uint16(value))
		if err := reported(ctx, w, "temp", fmt.Sprint(value)); err != nil {
			return err
		}
		if i > 0 { // the device's first state and values are reported before
			written, back, read = append(written, inRegister), append(back, inStatus), append(read, time.Since(began))
		}
	}
	limit := fmt.Sprintf("<= 0.3 s + %v, the collect cycle", fastCycle)
	for _, row := range []struct {
		what  string
		times []time.Duration
		limit string
	}{
		{"desired value, API -> register", written, ""},
		{"desired value, API -> register -> reported in the DeviceStatus", back, limit},
		{"value in the register -> DeviceStatus", read, limit},
	} {
		median, worst := load.Median(row.times), load.Percentile(row.times, 100)
		p.t.row(fmt.Sprintf("%s, median (worst) of %d", row.what, changes),
			fmt.Sprintf("%s (%s)", millis(median), millis(worst)), "", row.limit)
	}
	return nil
}

// desire changes the first desired value of a device.
func (p *plant) desire(ctx context.Context, name string, value int) error {
	patch := fmt.Appendf(nil, `[{"op":"replace","path":"/spec/properties/0/desired/value","value":"%d"}]`, value)
	_, err := p.objects.Resource(devices.Devices).Namespace("default").
		Patch(ctx, name, types.JSONPatchType, patch, metav1.PatchOptions{})
	return err
}

// pause waits until a report on the device may go out at once, and on to any moment of the collect cycle.
func pause(ctx context.Context) error { return wait(ctx, 1200*time.Millisecond+rand.N(fastCycle)) }

// reported reads a watch until a property has a reported value.
func reported(ctx context.Context, w watch.Interface, property, value string) error {
	deadline := time.After(twinTime)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			return fmt.Errorf("%s = %s is not in the DeviceStatus after %v", property, value, twinTime)
		case event := <-w.ResultChan():
			object, ok := event.Object.(*unstructured.Unstructured)
			if !ok {
				return fmt.Errorf("the watch of the DeviceStatus ended: %v", event.Object)
			}
			var s devices.DeviceStatus
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &s); err != nil {
				return err
			}
			for _, t := range s.Status.Twins {
				if t.PropertyName == property && t.Reported != nil && t.Reported.Value == value {
					return nil
				}
			}
		}
	}
}

// countSensors counts what many devices cost. Every second one property of each of them changes.
func (p *plant) countSensors(ctx context.Context) error {
	say("%d devices with %d properties", sensors, sensorProperties)
	var manifests []string
	for i := range sensors {
		var properties []property
		for j := range sensorProperties {
			properties = append(properties, property{fmt.Sprintf("p%d", j), i*sensorProperties + j, ""})
		}
		manifests = append(manifests, p.manifest(fmt.Sprintf("sensor-%d", i), time.Second, properties...))
	}
	if err := p.kube.Apply(ctx, strings.Join(manifests, "---")); err != nil {
		return err
	}
	if err := p.allReported(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	changing := make(chan error, 1)
	go func() { changing <- p.change(ctx) }()
	err := p.count(ctx)
	cancel()
	if changed := <-changing; !errors.Is(changed, context.Canceled) {
		err = errors.Join(err, changed)
	}
	return err
}

// allReported waits until all devices have values in the cluster.
func (p *plant) allReported(ctx context.Context) error {
	return until(ctx, "all devices have reported", edgeTime, func() (bool, error) {
		if err := wait(ctx, time.Second); err != nil {
			return false, err
		}
		list, err := p.objects.Resource(devices.DeviceStatuses).Namespace("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		n := 0
		for i := range list.Items {
			if twins, _, _ := unstructured.NestedSlice(list.Items[i].Object, "status", "twins"); len(twins) > 0 {
				n++
			}
		}
		return n == sensors+1, nil
	})
}

// change changes one property of each sensor in a second, one sensor after another, until ctx ends.
func (p *plant) change(ctx context.Context) error {
	for round := 0; ; round++ {
		for i := range sensors {
			p.server.Set(i*sensorProperties+round%sensorProperties, uint16(round+1))
			if err := wait(ctx, time.Second/sensors); err != nil {
				return err
			}
		}
	}
}

// sensorCost is what was used until now.
type sensorCost struct {
	cpu     time.Duration
	written int64
	writes  float64
	link    traffic
}

func (p *plant) sensorCost(ctx context.Context) (c sensorCost, err error) {
	if c.cpu, c.written, err = process.Usage(p.edge.PID()); err != nil {
		return c, err
	}
	c.writes, err = p.deviceWrites(ctx)
	c.link = p.counted()
	return c, err
}

func (p *plant) count(ctx context.Context) error {
	if err := wait(ctx, 10*time.Second); err != nil { // the burst that the rate limit of writes allows is over
		return err
	}
	before, err := p.sensorCost(ctx)
	if err != nil {
		return err
	}
	if err := wait(ctx, sensorTime); err != nil {
		return err
	}
	after, err := p.sensorCost(ctx)
	if err != nil {
		return err
	}
	rss, anon, err := process.Memory(p.edge.PID())
	if err != nil {
		return err
	}
	perSecond := func(n float64) float64 { return n / sensorTime.Seconds() }
	link := after.link.since(before.link)
	p.t.row(fmt.Sprintf("%d devices x %d properties at 1 Hz, one of each changes: API writes a second", sensors,
		sensorProperties), fmt.Sprintf("%.0f", perSecond(after.writes-before.writes)), "", "<= 20")
	p.t.row("the same: on the link in a second ("+layer+")", fmt.Sprintf("%s up, %s down",
		kilobytes(perSecond(float64(link.up))), kilobytes(perSecond(float64(link.down)))), "", "")
	p.t.row("the same: edgecore: % of a core; written to disk in a second; RSS (anonymous)",
		fmt.Sprintf("%.1f; %s; %.1f (%.1f) MB", 100*perSecond((after.cpu-before.cpu).Seconds()),
			kilobytes(perSecond(float64(after.written-before.written))), float64(rss)/1e6, float64(anon)/1e6), "", "")
	return nil
}

// deviceWrites is how many requests to change an object of devices kube-apiserver has had.
func (p *plant) deviceWrites(ctx context.Context) (float64, error) {
	data, err := p.api.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(data))
	if err != nil {
		return 0, fmt.Errorf("read the metrics of kube-apiserver: %w", err)
	}
	var n float64
	for _, m := range families["apiserver_request_total"].GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		switch labels["verb"] {
		case "POST", "PUT", "PATCH", "APPLY", "DELETE":
			if labels["group"] == devices.Group {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n, nil
}
