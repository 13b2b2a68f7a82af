package devicecontroller

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// large returns a device with size bytes of configData, made age minutes before others.
func large(name string, size, age int) *devices.Device {
	return device(func(d *devices.Device) {
		d.Name, d.UID = name, types.UID("u-"+name)
		d.CreationTimestamp = metav1.NewTime(time.Unix(1800000000, 0).Add(-time.Duration(age) * time.Minute))
		d.Spec.Protocol.ConfigData = json.RawMessage(`{"x":"` + strings.Repeat("x", size) + `"}`)
	})
}

// TestWithoutRoom: the oldest devices have room; models count once.
func TestWithoutRoom(t *testing.T) {
	sized := func(name string, bytes, age int) *devices.Device {
		d := large(name, 0, age)
		d.Bytes = bytes
		return d
	}
	list := []*devices.Device{sized("new", 30, 0), sized("old", 50, 9), sized("small", 5, 1), sized("middle", 20, 5)}
	model := func(*devices.Device) *devices.DeviceModel { return &devices.DeviceModel{Bytes: 10} }
	for limit, want := range map[int][]types.UID{
		1000: nil,
		115:  nil,
		114:  {"u-new"},
		79:   {"u-middle", "u-new"}, // but the smaller one
		9:    {"u-middle", "u-new", "u-old", "u-small"},
	} {
		var got []types.UID
		for uid := range withoutRoom(list, model, limit) {
			got = append(got, uid)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("limit %d: %v have no room, want %v", limit, got, want)
		}
	}
}

// TestRoomOfNamespaces: devices that grow take no room from those of another namespace, however old they are.
func TestRoomOfNamespaces(t *testing.T) {
	sized := func(namespace, name string, bytes, age int) *devices.Device {
		d := large(name, 0, age)
		d.Namespace, d.Bytes = namespace, bytes
		return d
	}
	list := []*devices.Device{
		sized("a", "a-old", 60, 9), sized("a", "a-older", 60, 10), sized("b", "b", 30, 1), sized("c", "c", 10, 0),
	}
	none := func(*devices.Device) *devices.DeviceModel { return nil }
	for limit, want := range map[int][]types.UID{
		160: nil,
		159: {"u-a-old"}, // a may have what the others leave
		100: {"u-a-old"},
		99:  {"u-a-old", "u-a-older"},
		69:  {"u-a-old", "u-a-older", "u-b"}, // 10 for c, and 29 for each of the others
	} {
		got := slices.Sorted(maps.Keys(withoutRoom(list, none, limit)))
		if !slices.Equal(got, want) {
			t.Errorf("limit %d: %v have no room, want %v", limit, got, want)
		}
	}
}

// TestLargeDevices: a node gets no more than its limit, and no device that is too large; events say so. What has no
// room comes when there is some.
func TestLargeDevices(t *testing.T) {
	const size = 450 << 10
	objects := []any{lampModel(), large("huge", maxObjectBytes, 0), large("newest", size, 0)}
	for i := range maxNodeBytes / size {
		objects = append(objects, large(fmt.Sprint("old-", i), size, 1+i))
	}
	e := start(t, Options{}, objects...)
	has := func(name string) bool {
		return slices.ContainsFunc(names(e), func(n string) bool { return n == "shop/device/"+name })
	}
	e.event("Device", "NodeHasNoRoom", "more than 16 MiB together")
	e.event("Device", "DeviceTooLarge", "limit 512")
	if has("newest") || has("huge") || !has("old-0") || !has("old-35") {
		t.Errorf("the node gets %q, want all old ones alone", names(e))
	}
	for _, name := range []string{"newest", "huge"} {
		obj, err := e.Object("n1", deviceKey(large(name, 0, 0)))
		if obj != nil || err != nil {
			t.Errorf("Object of %s = %v, %v; want none", name, obj, err)
		}
	}
	e.hub.mu.Lock()
	e.hub.changed = nil
	e.hub.mu.Unlock()
	client := e.objects.Resource(devices.Devices).Namespace("shop")
	if err := client.Delete(t.Context(), "old-3", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the newest to be looked up", func() error {
		e.hub.mu.Lock()
		defer e.hub.mu.Unlock()
		if !slices.Contains(e.hub.changed, "n1 shop/device/newest") {
			return fmt.Errorf("changed: %q", e.hub.changed)
		}
		return nil
	})
	if !has("newest") {
		t.Errorf("the node gets %q, want also the newest", names(e))
	}
}

func names(e *env) (out []string) {
	for _, ref := range e.Desired("n1") {
		out = append(out, ref.Key.String())
	}
	return out
}
