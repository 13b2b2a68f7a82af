package devicecontroller

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
)

// TestUnserved: a device without a state says whether its node or its mapper is missing.
func TestUnserved(t *testing.T) {
	made := metav1.NewTime(time.Now().Add(-2 * unservedAfter))
	named := func(name, node string, change func(d *devices.Device)) *devices.Device {
		return device(func(d *devices.Device) {
			d.Name, d.UID, d.Spec.NodeName, d.CreationTimestamp = name, types.UID("u-"+name), node, made
			change(d)
		})
	}
	nothing := func(*devices.Device) {}
	e := start(t, Options{}, lampModel(),
		named("lost", "n9", nothing),
		named("waits", "n1", nothing),
		named("works", "n1", func(d *devices.Device) { d.Status = &devices.Status{State: "online"} }),
		named("offline-node", "n2", nothing),
		named("unbound", "", nothing),
		named("fresh", "n9", func(d *devices.Device) { d.CreationTimestamp = metav1.Now() }))
	for _, name := range []string{"n1", "n2"} {
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := e.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	e.Connected(t.Context(), "n1", "edgecore/websocket")
	e.unserved(t.Context())
	e.event("Device", "NodeMissing", "Node n9 does not exist")
	e.event("Device", "MapperMissing", `a mapper for the protocol "modbus"`)
	e.unserved(t.Context()) // says nothing again
	list, err := e.client.CoreV1().Events("shop").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, event := range list.Items {
		got[event.InvolvedObject.Name] += event.Reason
	}
	if len(got) != 2 || got["lost"] != "NodeMissing" || got["waits"] != "MapperMissing" {
		t.Errorf("events %v, want NodeMissing of lost and MapperMissing of waits", got)
	}
}
