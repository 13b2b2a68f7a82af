package devicecontroller

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
)

// Limits of the objects that nodes get, in bytes of JSON. A node keeps them in memory and in its store. A device with
// the largest number of properties takes about 300 KiB.
const (
	maxObjectBytes = 512 << 10
	maxNodeBytes   = 16 << 20
)

// withoutRoom returns the devices of a node, by UID, that have no room. If all exceed limit, namespaces have equal
// shares, and what one does not need is for the others: no tenant can have those of another one taken from the node. In
// a namespace older devices come first, so that a new one never takes the place of another. Models count with the first
// device that uses them.
func withoutRoom(
	list []*devices.Device, model func(d *devices.Device) *devices.DeviceModel, limit int,
) map[types.UID]bool {
	taken, seen := map[string]int{}, map[string]bool{}
	size := func(d *devices.Device) int {
		n := d.Bytes
		if m := model(d); m != nil && !seen[modelOf(d)] {
			n += m.Bytes
		}
		return n
	}
	for _, d := range list {
		taken[d.Namespace] += size(d)
		seen[modelOf(d)] = true
	}
	share, enough := shareOf(slices.Collect(maps.Values(taken)), limit)
	if enough { // as usual: this is called at each event of a device, and sorting takes long
		return nil
	}
	clear(taken)
	clear(seen)
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b *devices.Device) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name, b.Name))
	})
	out := map[types.UID]bool{}
	for _, d := range list {
		n := size(d)
		if taken[d.Namespace]+n > share {
			out[d.UID] = true
			continue
		}
		taken[d.Namespace] += n
		seen[modelOf(d)] = true
	}
	return out
}

// shareOf divides an amount between those that need some of it. What is left of an equal share goes to those that need
// more. enough is set if all get what they need; otherwise nobody gets more than share.
func shareOf(needs []int, amount int) (share int, enough bool) {
	slices.Sort(needs)
	for i, need := range needs {
		if share = amount / (len(needs) - i); need > share {
			return share, false
		}
		amount -= need
	}
	return share, true
}

// checkRoom finds out which devices of a node exceed its limit, and tells the hub about those for which that changed.
func (c *Controller) checkRoom(node string) {
	if node == "" {
		return
	}
	list := c.caches.devicesOn(node)
	now := withoutRoom(list, func(d *devices.Device) *devices.DeviceModel {
		return c.caches.model(d.Namespace, d.Spec.DeviceModelRef.Name)
	}, maxNodeBytes)
	c.mu.Lock()
	before := c.excluded[node]
	if c.excluded[node] = now; now == nil {
		delete(c.excluded, node)
	}
	c.mu.Unlock()
	for _, d := range list {
		if before[d.UID] != now[d.UID] {
			c.hub.Changed(node, deviceKey(d))
		}
		if now[d.UID] {
			c.events.once(d, v1.EventTypeWarning, "NodeHasNoRoom", fmt.Sprintf("The devices and models of node %s "+
				"have more than %d MiB together, and those of this namespace more than its share, so it does not "+
				"get this one: make them smaller, or bind them to other nodes", node, maxNodeBytes>>20))
		}
	}
}

// hasRoom reports whether a device is among those that its node gets.
func (c *Controller) hasRoom(d *devices.Device) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.excluded[d.Spec.NodeName][d.UID]
}

// checkSize records an event about an object that is too large to be sent to a node.
func (c *Controller) checkSize(d *devices.Device) (ok bool) {
	if d.Bytes <= maxObjectBytes {
		return true
	}
	c.events.once(d, v1.EventTypeWarning, "DeviceTooLarge", fmt.Sprintf("This device has %d KiB, limit %d: no node "+
		"gets it. Make it smaller", d.Bytes>>10, maxObjectBytes>>10))
	return false
}
