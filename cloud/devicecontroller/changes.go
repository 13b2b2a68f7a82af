package devicecontroller

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/edgecore-io/edgecore/cloud/informers"
	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// change holds the arguments of one call of Hub.Changed.
type change struct {
	node string
	key  resource.Key
}

// deviceChanges returns the changes for nodes in a device's event; old is nil for a new device, now for a deleted one.
// The model is marked with its device: it comes with the first device of a node and goes with the last.
func deviceChanges(old, now *devices.Device) []change {
	if old != nil && now != nil && sameDevice(old, now) {
		return nil
	}
	var out []change
	for _, d := range []*devices.Device{old, now} {
		if d == nil || d.Spec.NodeName == "" {
			continue
		}
		changes := []change{{d.Spec.NodeName, modelKey(d)}, {d.Spec.NodeName, deviceKey(d)}}
		if d == old { // a model goes after its device
			changes[0], changes[1] = changes[1], changes[0]
		}
		for _, ch := range changes {
			if ch.key.Name != "" && !contains(out, ch) {
				out = append(out, ch)
			}
		}
	}
	return out
}

func contains(list []change, one change) bool {
	for _, ch := range list {
		if ch == one {
			return true
		}
	}
	return false
}

// modelKey returns the key of a device's model; without a name, it has none.
func modelKey(d *devices.Device) resource.Key {
	return resource.Key{Namespace: d.Namespace, Type: resource.TypeDeviceModel, Name: d.Spec.DeviceModelRef.Name}
}

func deviceKey(d *devices.Device) resource.Key {
	return resource.Key{Namespace: d.Namespace, Type: resource.TypeDevice, Name: d.Name}
}

// sameDevice ignores the status: nodes get only changes of the spec and the metadata.
func sameDevice(a, b *devices.Device) bool {
	return sameMeta(&a.ObjectMeta, &b.ObjectMeta) && equality.Semantic.DeepEqual(&a.Spec, &b.Spec)
}

func sameModel(a, b *devices.DeviceModel) bool {
	return sameMeta(&a.ObjectMeta, &b.ObjectMeta) && equality.Semantic.DeepEqual(&a.Spec, &b.Spec)
}

// sameMeta ignores fields that change with every write.
func sameMeta(a, b *metav1.ObjectMeta) bool {
	x, y := *a, *b
	for _, m := range []*metav1.ObjectMeta{&x, &y} {
		m.ResourceVersion, m.Generation, m.ManagedFields = "", 0, nil
	}
	return equality.Semantic.DeepEqual(&x, &y)
}

// watch turns the informers' events into calls of the hub.
func (c *Controller) watch() error {
	if _, err := c.caches.devices.AddEventHandler(informers.Handler(c.deviceEvent)); err != nil {
		return err
	}
	_, err := c.caches.models.AddEventHandler(informers.Handler(c.modelEvent))
	return err
}

func (c *Controller) deviceEvent(old, now *devices.Device) {
	if old != nil && (now == nil || old.UID != now.UID) {
		c.gone.Add(old.UID, old)
	}
	changes := deviceChanges(old, now)
	for _, d := range []*devices.Device{old, now} {
		if d != nil && len(changes) > 0 {
			c.checkRoom(d.Spec.NodeName) // before the hub looks the device up
		}
	}
	for _, ch := range changes {
		c.hub.Changed(ch.node, ch.key)
	}
	c.tellMembership(old, now)
	if now == nil || old != nil && old.UID != now.UID {
		c.writer.forget(old.Namespace, old.Name)
	}
	if now != nil && (old == nil || !sameDevice(old, now)) {
		c.checkSpec(now)
	}
}

func (c *Controller) modelEvent(old, now *devices.DeviceModel) {
	if old != nil && now != nil && sameModel(old, now) {
		return
	}
	m := now
	if m == nil {
		m = old
		c.gone.Add(old.UID, old)
	}
	if now != nil {
		c.checkModel(now)
	}
	key := resource.Key{Namespace: m.Namespace, Type: resource.TypeDeviceModel, Name: m.Name}
	checked := map[string]bool{}
	for _, d := range c.caches.devicesOf(m.Namespace, m.Name) {
		if d.Spec.NodeName == "" {
			continue
		}
		if !checked[d.Spec.NodeName] {
			checked[d.Spec.NodeName] = true
			c.checkRoom(d.Spec.NodeName)
		}
		c.hub.Changed(d.Spec.NodeName, key)
		c.hub.Changed(d.Spec.NodeName, deviceKey(d)) // the model decides which desired values are sent
		c.checkSpec(d)
	}
}

// checkFirst checks all devices once both caches are filled: the events of devices and models come in any order.
func (c *Controller) checkFirst(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), c.caches.devices.HasSynced, c.caches.models.HasSynced) {
		return
	}
	c.mu.Lock()
	left := c.left
	c.left = map[change]struct{}{}
	c.mu.Unlock()
	for ch := range left {
		c.hub.Changed(ch.node, ch.key)
	}
	for _, obj := range c.caches.devices.GetStore().List() {
		if d, ok := obj.(*devices.Device); ok && d.Spec.NodeName != "" {
			c.checkSpec(d)
		}
	}
}

// checkModel records an event about a minimum or maximum that is not a number.
func (c *Controller) checkModel(m *devices.DeviceModel) {
	for i := range m.Spec.Properties {
		if err := m.Spec.Properties[i].CheckBounds(); err != nil {
			c.events.onceModel(m, v1.EventTypeWarning, "InvalidRange", fmt.Sprintf("%v. Until then no desired value "+
				"of the property is sent to a node", err))
		}
	}
}

// checkSpec records events about what is wrong with the spec of a device.
func (c *Controller) checkSpec(d *devices.Device) {
	if !c.checkSize(d) {
		return
	}
	if old := olderForm(d); old != "" {
		c.events.once(d, v1.EventTypeWarning, "ObsoleteDevice", old)
		return
	}
	if !c.caches.filled() {
		return // the model may still come; checkFirst checks the device then
	}
	model := c.caches.model(d.Namespace, d.Spec.DeviceModelRef.Name)
	if model == nil {
		c.events.once(d, v1.EventTypeWarning, "DeviceModelMissing", fmt.Sprintf("DeviceModel %q does not exist in "+
			"namespace %s: create it, or correct spec.deviceModelRef.name. Desired values are not sent",
			d.Spec.DeviceModelRef.Name, d.Namespace))
		return
	}
	for _, problem := range forbidden(d, model) {
		c.events.once(d, v1.EventTypeWarning, "InvalidDesiredValue",
			fmt.Sprintf("%v. The desired value is not sent to node %s", problem, d.Spec.NodeName))
	}
}

// olderForm returns how to convert a device that has the form of v1alpha2, and "" for any other device.
func olderForm(d *devices.Device) string {
	if d.Spec.NodeName != "" || len(d.Spec.Properties) > 0 || d.Spec.Protocol.ProtocolName != "" {
		return ""
	}
	return "This device has no nodeName, protocol and properties. If it was written as devices.kubeedge.io/v1alpha2, " +
		"write it as v1beta1: spec.nodeSelector becomes spec.nodeName; spec.protocol.modbus and the like become " +
		"spec.protocol.protocolName and configData; each of spec.propertyVisitors becomes visitors of the property " +
		"in spec.properties; desired values move from status.twins to spec.properties[].desired. In its DeviceModel, " +
		"type.int.accessMode of a property becomes type: INT and accessMode, and the same for other types"
}
