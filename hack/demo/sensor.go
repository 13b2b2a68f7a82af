package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/mapper"
	"github.com/edgecore-io/edgecore/test/testenv/modbusserver"
)

const (
	sensorManifest = "hack/demo/sensor.yaml"
	// sensorPort is the port of the sensor in the manifest; the demo's sensor has a free one.
	sensorPort = "5020"
	// Registers of the sensor, as in the manifest.
	tempRegister  = 1
	limitRegister = 2
)

func (d *demo) readSensor(ctx context.Context) error {
	d.title("Read a sensor, and set its limit")
	d.say("Beside the device is a sensor, which speaks Modbus. In the cluster it is a Device. A mapper on the device " +
		"reads and\nwrites its registers: here a process, elsewhere a pod (deploy/mappers/modbus.yaml).")
	if err := d.startSensor(ctx); err != nil {
		return err
	}
	apply := fmt.Sprintf("sed s/%s/%d/ %s | kubectl apply -f -", sensorPort, d.sensor.Port, sensorManifest)
	if _, err := d.sh(ctx, apply); err != nil {
		return err
	}
	if err := d.until(ctx, patience, "the cluster has what the sensor measures", func() error {
		if err := d.cloudHas(ctx, "temp = 21", "limit = 60"); err != nil {
			return err
		}
		out, err := d.quiet(ctx, "kubectl get devices")
		if err == nil && !strings.Contains(out, "online") {
			err = errors.New(out)
		}
		return err
	}); err != nil {
		return err
	}
	if _, err := d.sh(ctx, "kubectl get devices"); err != nil {
		return err
	}
	if err := d.showSensor(ctx, "21"); err != nil {
		return err
	}
	d.say("A desired value is written to the sensor.")
	if _, err := d.sh(ctx, `kubectl patch device hall --type=json -p `+
		`'[{"op":"replace","path":"/spec/properties/1/desired/value","value":"55"}]'`); err != nil {
		return err
	}
	patched := time.Now()
	if err := d.until(ctx, patience, "the limit is in the sensor", func() error {
		if got := d.sensor.Register(limitRegister); got != 55 {
			return fmt.Errorf("register %d is %d", limitRegister, got)
		}
		return nil
	}); err != nil {
		return err
	}
	d.say("%s after kubectl returned it was in the sensor's register.", seconds(time.Since(patched)))
	if err := d.until(ctx, patience, "the cluster has the new limit", func() error {
		return d.cloudHas(ctx, "limit = 55")
	}); err != nil {
		return err
	}
	_, err := d.sh(ctx, valuesInCloud)
	return err
}

// startSensor starts the sensor and the mapper.
func (d *demo) startSensor(ctx context.Context) (err error) {
	if d.sensor, err = modbusserver.New(); err != nil {
		return err
	}
	d.sensor.Set(tempRegister, 21)
	if err := d.network.Do(d.sensor.Listen); err != nil {
		return err
	}
	d.later(func(context.Context) error { return d.sensor.Stop() })
	dir := filepath.Join(d.dir, "mapper")
	d.show(fmt.Sprintf("device modbus --agent %s --socket %s --networks 127.0.0.0/8 &", shown(d.edge.DMISocket()),
		shown(filepath.Join(dir, "modbus.sock"))))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	m, err := mapper.LaunchModbus(ctx, dir, d.edge.DMISocket(), d.onDevice())
	if err != nil {
		return err
	}
	d.mapperLog = mapper.LogFile(dir)
	d.later(func(ctx context.Context) error { return m.End(ctx, syscall.SIGTERM) })
	return nil
}

// valuesInCloud prints what the cluster has from the sensor, a line for each property.
const valuesInCloud = `kubectl get devicestatus hall -o jsonpath=` +
	`'{range .status.twins[*]}{.propertyName} = {.reported.value}{"\n"}{end}'`

// cloudHas checks lines of what the cluster has from the sensor.
func (d *demo) cloudHas(ctx context.Context, lines ...string) error {
	out, err := d.quiet(ctx, valuesInCloud)
	for _, line := range lines {
		if err == nil && !strings.Contains(out, line+"\n") {
			err = errors.New(out)
		}
	}
	return err
}

// showSensor prints what the device has from the sensor, once its temperature is temp.
func (d *demo) showSensor(ctx context.Context, temp string) error {
	command := "device edgecore get devices --config " + shown(d.edge.Config())
	if err := d.until(ctx, patience, "the device has temperature "+temp, func() error {
		out, err := d.quiet(ctx, command)
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) > 4 && f[3] == "temp" && f[4] == temp {
				return nil
			}
		}
		return errors.Join(err, errors.New(out))
	}); err != nil {
		return err
	}
	_, err := d.sh(ctx, command)
	return err
}
