// Command mapperframework is a mapper that is made of KubeEdge's own mapper framework, so that tests see whether such
// mappers work with this agent. Its devices are in memory: a device is what it is told to be, and each property without
// a desired value counts up.
//
// It registers with data, serves the framework's gRPC server, and reports every device once per interval, as the
// framework's template does.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	dmiapi "github.com/kubeedge/api/apis/dmi/v1beta1"
	"github.com/kubeedge/mapper-framework/pkg/common"
	"github.com/kubeedge/mapper-framework/pkg/config"
	"github.com/kubeedge/mapper-framework/pkg/grpcclient"
	"github.com/kubeedge/mapper-framework/pkg/grpcserver"
	"github.com/kubeedge/mapper-framework/pkg/util/parse"
)

const interval = 200 * time.Millisecond

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	_ = flag.CommandLine // the framework has flags of its own
	cfg, err := config.Parse()
	if err != nil {
		return err
	}
	devices, models, err := grpcclient.RegisterMapper(true)
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	p := &panel{devices: map[string]*device{}, models: map[string]common.DeviceModel{}}
	if err := p.DevInit(devices, models); err != nil {
		return err
	}
	fmt.Printf("registered with %d devices and %d models\n", len(devices), len(models))
	go p.DevStart()
	server := grpcserver.NewServer(grpcserver.Config{
		SockPath: cfg.GrpcServer.SocketPath, Protocol: cfg.Common.Protocol,
	}, p)
	return server.Start()
}

// device is a device in memory.
type device struct {
	instance *common.DeviceInstance
	count    int
}

// panel implements the framework's DevPanel.
type panel struct {
	mu      sync.Mutex
	devices map[string]*device
	models  map[string]common.DeviceModel
}

// DevInit takes what the agent had at the registration.
func (p *panel) DevInit(devices []*dmiapi.Device, models []*dmiapi.DeviceModel) error {
	for _, m := range models {
		model := parse.GetDeviceModelFromGrpc(m)
		p.UpdateModel(&model)
	}
	for _, d := range devices {
		model := p.models[parse.GetResourceID(d.Namespace, d.Spec.DeviceModelReference)]
		instance, err := parse.GetDeviceFromGrpc(d, &model)
		if err != nil {
			return err
		}
		if instance.PProtocol, err = parse.BuildProtocolFromGrpc(d); err != nil {
			return err
		}
		p.UpdateDev(&model, instance)
	}
	return nil
}

// DevStart reports all devices again and again.
func (p *panel) DevStart() {
	for ; ; time.Sleep(interval) {
		for _, r := range p.reports() {
			if err := grpcclient.ReportDeviceStatus(r); err != nil {
				fmt.Println("report:", err)
				continue
			}
			err := grpcclient.ReportDeviceStates(&dmiapi.ReportDeviceStatesRequest{
				DeviceName: r.DeviceName, DeviceNamespace: r.DeviceNamespace, State: common.DeviceStatusOK,
			})
			if err != nil {
				fmt.Println("state:", err)
			}
		}
	}
}

func (p *panel) reports() []*dmiapi.ReportDeviceStatusRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []*dmiapi.ReportDeviceStatusRequest
	for _, d := range p.devices {
		var twins []common.Twin
		for _, t := range d.instance.Twins {
			value := t.ObservedDesired.Value
			if value == "" {
				d.count++
				value = strconv.Itoa(d.count)
			}
			t.Reported = common.TwinProperty{Value: value, Metadata: common.Metadata{
				Timestamp: strconv.FormatInt(time.Now().UnixMilli(), 10), Type: "int",
			}}
			twins = append(twins, t)
		}
		converted, err := parse.ConvTwinsToGrpc(twins)
		if err != nil {
			fmt.Println("convert:", err)
			continue
		}
		out = append(out, &dmiapi.ReportDeviceStatusRequest{
			DeviceName: d.instance.Name, DeviceNamespace: d.instance.Namespace,
			ReportedDevice: &dmiapi.DeviceStatus{Twins: converted},
		})
	}
	return out
}

// UpdateDev takes a new or changed device.
func (p *panel) UpdateDev(_ *common.DeviceModel, d *common.DeviceInstance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Printf("device %s, protocol %s\n", d.ID, d.PProtocol.ConfigData)
	p.devices[d.ID] = &device{instance: d}
}

// UpdateDevTwins is not called by the agent.
func (p *panel) UpdateDevTwins(string, []common.Twin) error { return errors.New("not supported") }

// DealDeviceTwinGet is not called by the agent.
func (p *panel) DealDeviceTwinGet(string, string) (any, error) {
	return nil, errors.New("not supported")
}

// GetDevice returns a device.
func (p *panel) GetDevice(id string) (any, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d := p.devices[id]; d != nil {
		return struct{ Instance common.DeviceInstance }{*d.instance}, nil
	}
	return nil, fmt.Errorf("no device %s", id)
}

// RemoveDevice drops a device.
func (p *panel) RemoveDevice(id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Println("remove", id)
	delete(p.devices, id)
	return nil
}

// WriteDevice is not called by the agent.
func (p *panel) WriteDevice(string, string, string, string) error { return errors.New("not supported") }

// GetModel returns a model.
func (p *panel) GetModel(id string) (common.DeviceModel, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m, ok := p.models[id]; ok {
		return m, nil
	}
	return common.DeviceModel{}, fmt.Errorf("no model %s", id)
}

// UpdateModel takes a model.
func (p *panel) UpdateModel(m *common.DeviceModel) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.models[m.ID] = *m
}

// RemoveModel drops a model.
func (p *panel) RemoveModel(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.models, id)
}

// GetTwinResult is not called by the agent.
func (p *panel) GetTwinResult(string, string) (string, string, error) {
	return "", "", errors.New("not supported")
}

// GetDeviceMethod is not called by the agent.
func (p *panel) GetDeviceMethod(string) (map[string][]string, map[string]string, error) {
	return nil, nil, errors.New("not supported")
}
