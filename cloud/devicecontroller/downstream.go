package devicecontroller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// confirmTimeout is the timeout for asking the API server whether an object is really gone.
const confirmTimeout = 5 * time.Second

// errNotFilled is returned by Object until both caches have synced: before that it is unknown which devices exist.
var errNotFilled = errors.New("the caches of devices and their models are not filled yet")

// Desired implements cloudhub.Downstream: the node's devices, and the models of these.
func (c *Controller) Desired(node string) []cloudhub.Ref {
	if !c.caches.filled() {
		return nil
	}
	var out []cloudhub.Ref
	seen := map[string]bool{}
	for _, d := range c.caches.devicesOn(node) {
		if !c.hasRoom(d) {
			continue
		}
		if m := c.caches.model(d.Namespace, d.Spec.DeviceModelRef.Name); m != nil && !seen[modelOf(d)] {
			seen[modelOf(d)] = true
			out = append(out, refTo(resource.TypeDeviceModel, devices.KindDeviceModel, &m.ObjectMeta))
		}
		out = append(out, refTo(resource.TypeDevice, devices.KindDevice, &d.ObjectMeta))
	}
	return out
}

// Object implements cloudhub.Downstream. What the caches lack is asked of the API server: they may be behind.
func (c *Controller) Object(node string, key resource.Key) (*cloudhub.Object, error) {
	if !c.caches.filled() {
		return nil, fmt.Errorf("%s for node %s: %w", key, node, c.notFilled(node, key))
	}
	ctx, cancel := context.WithTimeout(c.ctx, confirmTimeout)
	defer cancel()
	switch key.Type {
	case resource.TypeDevice:
		d := c.caches.device(key.Namespace, key.Name)
		if d == nil {
			var err error
			d, err = read[devices.Device](ctx, c.caches.objects, devices.Devices, key.Namespace, key.Name)
			if err != nil {
				return nil, fmt.Errorf("ask the API server whether %s is gone: %w", key, err)
			}
		}
		if d == nil || d.Spec.NodeName != node || !c.hasRoom(d) {
			return nil, nil
		}
		model, err := c.caches.currentModel(ctx, d)
		if err != nil {
			return nil, err // it is tried again; until then the node keeps what it has
		}
		o, err := toSend(key, devices.KindDevice, &d.ObjectMeta, withoutForbidden(d, model))
		if err == nil {
			o.After = modelKey(d)
		}
		return o, err
	case resource.TypeDeviceModel:
		used := slices.ContainsFunc(c.caches.devicesOf(key.Namespace, key.Name), func(d *devices.Device) bool {
			return d.Spec.NodeName == node && c.hasRoom(d)
		})
		if !used {
			return nil, nil
		}
		m := c.caches.model(key.Namespace, key.Name)
		if m == nil {
			var err error
			m, err = read[devices.DeviceModel](ctx, c.caches.objects, devices.DeviceModels, key.Namespace, key.Name)
			if err != nil {
				return nil, fmt.Errorf("ask the API server whether %s is gone: %w", key, err)
			}
		}
		if m == nil {
			return nil, nil
		}
		sent := *m
		sent.TypeMeta = metav1.TypeMeta{APIVersion: devices.APIVersion, Kind: devices.KindDeviceModel}
		return toSend(key, devices.KindDeviceModel, &m.ObjectMeta, &sent)
	}
	return nil, nil
}

// notFilled returns the error for an object that is looked up before the caches are filled: after a time, the node
// keeps it as it is, so that nothing else waits for it. It is looked up again when the caches are filled after all.
func (c *Controller) notFilled(node string, key resource.Key) error {
	if time.Now().Before(c.patient) {
		return errNotFilled
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.left) < maxLeft {
		c.left[change{node, key}] = struct{}{}
	}
	return errors.Join(errNotFilled, cloudhub.ErrNotServed)
}

// Removed is for cloudhub.Options. KubeEdge's edgecore finds the mapper of a deleted device, and of its model, by the
// protocol in the spec. There is nothing else in it: a node may claim to have had an object of another node.
func (c *Controller) Removed(key resource.Key, uid types.UID) json.RawMessage {
	gone, _ := c.gone.Get(uid)
	var object any
	switch key.Type {
	case resource.TypeDevice:
		d, _ := gone.(*devices.Device)
		if d == nil {
			d = c.caches.device(key.Namespace, key.Name)
		}
		if d == nil || d.UID != uid {
			return nil
		}
		object = removed{
			metav1.TypeMeta{APIVersion: devices.APIVersion, Kind: devices.KindDevice}, removedMeta(&d.ObjectMeta),
			map[string]any{"protocol": map[string]string{"protocolName": d.Spec.Protocol.ProtocolName}},
		}
	case resource.TypeDeviceModel:
		m, _ := gone.(*devices.DeviceModel)
		if m == nil {
			m = c.caches.model(key.Namespace, key.Name)
		}
		if m == nil || m.UID != uid {
			return nil
		}
		object = removed{
			metav1.TypeMeta{APIVersion: devices.APIVersion, Kind: devices.KindDeviceModel}, removedMeta(&m.ObjectMeta),
			map[string]any{"protocol": m.Spec.Protocol},
		}
	default:
		return nil
	}
	data, err := json.Marshal(object)
	if err != nil { // strings always encode
		panic(err)
	}
	return data
}

// removed is the content of a delete.
type removed struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        deletedMeta    `json:"metadata"`
	Spec            map[string]any `json:"spec"`
}

type deletedMeta struct {
	Name      string    `json:"name"`
	Namespace string    `json:"namespace"`
	UID       types.UID `json:"uid"`
}

func removedMeta(m *metav1.ObjectMeta) deletedMeta { return deletedMeta{m.Name, m.Namespace, m.UID} }

// withoutForbidden returns the device as it is sent: without its status, and with the desired values that its model
// forbids as withheld ones: nothing may write them to a machine, but they are decisions all the same, which a node
// compares with later ones. Without a model, nothing is known to be allowed.
func withoutForbidden(d *devices.Device, model *devices.DeviceModel) *devices.Device {
	sent := *d
	sent.TypeMeta = metav1.TypeMeta{APIVersion: devices.APIVersion, Kind: devices.KindDevice}
	sent.Status = nil
	sent.Spec.Properties = slices.Clone(d.Spec.Properties)
	for i := range sent.Spec.Properties {
		p := &sent.Spec.Properties[i]
		p.Withheld = nil
		if checkDesired(p, model) != nil {
			p.Desired, p.Withheld = nil, p.Desired
		}
	}
	return &sent
}

// forbidden returns what is wrong with the desired values of a device.
func forbidden(d *devices.Device, model *devices.DeviceModel) []error {
	var problems []error
	for i := range d.Spec.Properties {
		if err := checkDesired(&d.Spec.Properties[i], model); err != nil {
			problems = append(problems, err)
		}
	}
	return problems
}

func checkDesired(p *devices.DeviceProperty, model *devices.DeviceModel) error {
	if !desires(p) {
		return nil
	}
	return model.CheckDesired(p.Name, p.Desired.Value)
}

// desires reports whether a property has a desired value. KubeEdge writes an empty one for none.
func desires(p *devices.DeviceProperty) bool {
	return p.Desired != nil && (p.Desired.Value != "" || len(p.Desired.Metadata) > 0)
}

func refTo(typ, kind string, m *metav1.ObjectMeta) cloudhub.Ref {
	return cloudhub.Ref{
		Key:             resource.Key{Namespace: m.Namespace, Type: typ, Name: m.Name},
		UID:             m.UID,
		APIVersion:      devices.APIVersion,
		Kind:            kind,
		ResourceVersion: m.ResourceVersion,
	}
}

func toSend(key resource.Key, kind string, m *metav1.ObjectMeta, obj any) (*cloudhub.Object, error) {
	data, err := json.Marshal(obj)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", key, err)
	}
	version, err := wire.Version(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return &cloudhub.Object{
		Ref: refTo(key.Type, kind, m), Version: version, JSON: data, Deleting: m.DeletionTimestamp != nil,
	}, nil
}
