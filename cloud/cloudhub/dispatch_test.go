package cloudhub

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub/queue"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

func TestClassify(t *testing.T) {
	ours := wire.Features{Inventory: true}
	for _, tt := range []struct {
		name     string
		header   model.Header
		route    model.Route
		features wire.Features
		want     arrival
		why      string
	}{
		{"keepalive", model.Header{ID: "a"}, model.Route{
			Source:    "websocket",
			Group:     "resource",
			Operation: "keepalive",
			Resource:  "node",
		}, wire.Features{}, keepalive, ""},
		{"CSI answer", model.Header{ID: "a", ParentID: "b"}, model.Route{
			Source:    "edged",
			Group:     "resource",
			Operation: "response",
			Resource:  "default/volume/pvc-1",
		}, wire.Features{}, volume, ""},
		{"ack", model.Header{ID: "a", ParentID: "b"}, model.Route{
			Source:    "edgecontroller",
			Group:     "resource",
			Operation: "response",
			Resource:  "default/pod/x",
		}, wire.Features{}, ack, ""},
		{"ack in another group", model.Header{ID: "a", ParentID: "b"}, model.Route{
			Source:    "meta",
			Group:     "twin",
			Operation: "response",
			Resource:  "default/pod/x",
		}, wire.Features{}, dropped, "it answers for a group that has no objects"},
		{"ack of a device", model.Header{ID: "a", ParentID: "b"}, model.Route{
			Source:    "meta",
			Group:     "twin",
			Operation: "response",
			Resource:  "default/device/x",
		}, wire.Features{}, ack, ""},
		{
			"ack of nothing", model.Header{
				ID: "a",
			}, model.Route{Group: "resource", Operation: "response", Resource: "default/pod/x"}, wire.Features{},
			dropped, "it names no message that it answers",
		},
		{"refusal", model.Header{ID: "a", ParentID: "b"}, model.Route{
			Source:    "metamanager",
			Group:     "resource",
			Operation: "error",
			Resource:  "default/pod/x",
		}, wire.Features{}, nack, ""},
		{"refusal of nothing", model.Header{ID: "a"}, model.Route{
			Source:    "metamanager",
			Group:     "resource",
			Operation: "error",
			Resource:  "default/pod/x",
		}, wire.Features{}, dropped, "it names no message that it answers"},
		{"MQTT upload", model.Header{ID: "a"}, model.Route{
			Source:    "bus",
			Group:     "user",
			Operation: "upload",
			Resource:  "topic",
		}, wire.Features{}, dropped, "there is no router"},
		{"task", model.Header{ID: "a"}, model.Route{
			Source:    "websocket",
			Group:     "hub",
			Operation: "UpdateNodeActionStatus",
			Resource:  "operations.kubeedge.io/v1alpha2/nodeupgradejob/j/node/n",
		}, wire.Features{}, dropped, "there is no task manager"},
		{"CA", model.Header{ID: "a"}, model.Route{
			Source:    "metamanager",
			Group:     "meta",
			Operation: "query",
			Resource:  "k8s/ca.crt",
		}, wire.Features{}, kubeCA, ""},
		{"inventory", model.Header{ID: "a"}, model.Route{
			Source:    "metamanager",
			Group:     "resource",
			Operation: "inventory",
			Resource:  "null/inventory",
		}, ours, inventory, ""},
		{"inventory of an upstream peer", model.Header{ID: "a"}, model.Route{
			Source:    "metamanager",
			Group:     "resource",
			Operation: "inventory",
			Resource:  "null/inventory",
		}, wire.Features{}, dropped, "an inventory was not agreed"},
		{"a module of the cloud", model.Header{ID: "a"}, model.Route{
			Source:    "edgecontroller",
			Group:     "resource",
			Operation: "delete",
			Resource:  "default/pod/x",
		}, wire.Features{}, dropped, "its source is a module of the cloud"},
		{"metaserver", model.Header{ID: "a"}, model.Route{
			Source:    "metaserver",
			Group:     "dynamiccontroller",
			Operation: "null",
			Resource:  "null",
		}, wire.Features{}, dropped, "there is no dynamic controller"},
		{"twin", model.Header{ID: "a"}, model.Route{
			Source:    "twin",
			Group:     "twin",
			Operation: "get",
			Resource:  "membership/detail",
		}, wire.Features{}, request, ""},
		{"report on a device", model.Header{ID: "a"}, model.Route{
			Source:    "twin",
			Group:     "resource",
			Operation: "update",
			Resource:  "device/default/x/twin/edge_updated",
		}, wire.Features{}, request, ""},
		{"twin, about a pod", model.Header{ID: "a"}, model.Route{
			Source:    "twin",
			Group:     "resource",
			Operation: "update",
			Resource:  "default/pod/x",
		}, wire.Features{}, dropped, "its resource names no report on a device"},
		{"without an id", model.Header{}, model.Route{
			Source:    "edged",
			Group:     "meta",
			Operation: "query",
			Resource:  "default/pod/x",
		}, wire.Features{}, dropped, "it has no id"},
		{"nonsense", model.Header{ID: "a"}, model.Route{
			Source:    "edged",
			Group:     "meta",
			Operation: "query",
			Resource:  "../../etc//passwd",
		}, wire.Features{}, dropped, "its resource names no object"},
		{
			"without anything", model.Header{ID: "a"}, model.Route{}, wire.Features{}, dropped,
			"its resource names no object",
		},
		{"long", model.Header{ID: "a"}, model.Route{Operation: "query", Resource: "a/b/" + strings.Repeat("c", 2000)},
			wire.Features{}, dropped, "its resource is too long"},
		{"old pod statuses", model.Header{ID: "a"}, model.Route{
			Source:    "edged",
			Group:     "meta",
			Operation: "update",
			Resource:  "default/podstatus",
		}, wire.Features{}, request, ""},
		{"request", model.Header{ID: "a"}, model.Route{
			Source:    "edged",
			Group:     "meta",
			Operation: "patch",
			Resource:  "null/nodepatch/n",
		}, wire.Features{}, request, ""},
	} {
		got, why := classify(&model.Message{Header: tt.header, Route: tt.route}, tt.features)
		if got != tt.want || why != tt.why {
			t.Errorf("%s: %v %q, want %v %q", tt.name, got, why, tt.want, tt.why)
		}
	}
}

func TestObjectOf(t *testing.T) {
	for name, want := range map[string]string{
		"default/pod/web": "default/pod/web", "default/podpatch/web": "default/pod/web",
		"default/podstatus/web": "default/pod/web",
		"default/node/n1":       "null/node/n1", "null/node/n1": "null/node/n1", "default/nodepatch/n1": "null/node/n1",
		"null/nodestatus/n1":    "null/node/n1",
		"default/configmap/web": "default/configmap/web", "kube-node-lease/lease/n1": "kube-node-lease/lease/n1",
		"default/podstatus": "default/pod",
		"k8s/ca.crt":        "k8s/ca.crt", "": "", "a/b/c/d": "a/b/c/d",
	} {
		if got := objectOf(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

// TestRecorded: what was recorded between an upstream edge and cloud is made, and understood, in the same form.
func TestRecorded(t *testing.T) {
	f, err := os.Open("../../pkg/wire/testdata/recorded.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	pushes, arrivals := 0, map[arrival]int{}
	for lines.Scan() {
		var line struct {
			Dir     string
			Message model.Message
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		m := &line.Message
		switch {
		case line.Dir == "edge->cloud":
			what, why := classify(m, wire.Features{})
			if what == dropped {
				t.Errorf("%s %s is dropped: %s; want no message of %s dropped",
					m.Route.Operation, m.Route.Resource, why, m.Route.Source)
			}
			arrivals[what]++
		case !m.IsResponse():
			samePush(t, m)
			pushes++
		}
	}
	if pushes < 5 || arrivals[ack] < 5 || arrivals[request] < 5 || arrivals[keepalive] == 0 {
		t.Errorf("%d pushes and %v were recorded, want 5 or more of each that is tested", pushes, arrivals)
	}
}

// samePush makes the push that was recorded.
func samePush(t *testing.T, m *model.Message) {
	t.Helper()
	var o struct {
		APIVersion, Kind string
		Metadata         struct{ UID types.UID }
	}
	if err := json.Unmarshal(m.Content, &o); err != nil {
		t.Fatal(err)
	}
	key, err := resource.Parse(m.Route.Resource)
	if err != nil {
		t.Fatal(err)
	}
	op := map[string]queue.Op{"insert": queue.Insert, "update": queue.Update, "delete": queue.Delete}[m.Route.Operation]
	act := queue.Action{
		Op: op, ID: m.Header.ID, State: queue.State{UID: o.Metadata.UID, ResourceVersion: m.Header.ResourceVersion},
	}
	object := m.ContentData()
	if op == queue.Delete {
		object = nil
	}
	got := pushMessage(key, act, object, o.APIVersion, o.Kind)
	if op == queue.Delete { // of a deleted object the names and the UID are enough (docs/wire.md, Delivery)
		want := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","namespace":"default","uid":"` +
			string(o.Metadata.UID) + `"}}`
		if string(got.Content) != want {
			t.Errorf("delete %s, want %s", got.Content, want)
		}
		got.Content = m.Content
	}
	got.Header.Timestamp = m.Header.Timestamp
	if diff := cmp.Diff(m, got); diff != "" {
		t.Errorf("%s mismatch (-want +got):\n%s", m.Route.Resource, diff)
	}
}

func TestTombstoneWithoutNamespace(t *testing.T) {
	got := string(tombstone(resource.Key{Namespace: "null", Type: "persistentvolume", Name: "pv"}, "u", "v1",
		"PersistentVolume"))
	if want := `{"apiVersion":"v1","kind":"PersistentVolume","metadata":{"name":"pv","uid":"u"}}`; got != want {
		t.Errorf("tombstone is %s, want %s", got, want)
	}
}

func TestKinds(t *testing.T) {
	var k kinds
	if v, kind := k.ofType("lamp"); v != "" || kind != "" {
		t.Errorf("a lamp is %q %q before one was seen, want both empty", v, kind)
	}
	k.saw(Ref{Key: resource.Key{Type: "lamp"}, APIVersion: "example.com/v1", Kind: "Lamp"})
	if v, kind := k.ofType("lamp"); v != "example.com/v1" || kind != "Lamp" {
		t.Errorf("a lamp is %s %s, want example.com/v1 Lamp", v, kind)
	}
	k.saw(Ref{Key: resource.Key{Type: "pod"}, APIVersion: "v9", Kind: "Nonsense"})
	if v, kind := k.ofType("device"); v != "devices.kubeedge.io/v1beta1" || kind != "Device" {
		t.Errorf("a device is %s %s, want devices.kubeedge.io/v1beta1 Device", v, kind)
	}
	if v, kind := k.ofType("pod"); v != "v1" || kind != "Pod" {
		t.Errorf("a pod is %s %s, want v1 Pod", v, kind)
	}
}

// FuzzClassify: whatever a node sends is something, and what goes on to Upstream names an object.
func FuzzClassify(f *testing.F) {
	f.Add("edged", "meta", "query", "default/pod/web", "", true)
	f.Add("metamanager", "resource", "inventory", "null/inventory", "", true)
	f.Add("x", "resource", "response", "a/volume/b", "parent", false)
	f.Fuzz(func(t *testing.T, source, group, operation, name, parent string, ours bool) {
		m := &model.Message{Header: model.Header{ID: "a", ParentID: parent}, Route: model.Route{
			Source:    source,
			Group:     group,
			Operation: operation,
			Resource:  name,
		}}
		what, why := classify(m, wire.Features{Inventory: ours})
		if (what == dropped) != (why != "") {
			t.Errorf("classified as %v with the reason %q, want a reason if and only if it is dropped", what, why)
		}
		if what == request {
			if _, err := resource.Parse(objectOf(name)); err != nil {
				t.Errorf("a request about %q: %v", name, err)
			}
		}
		if (what == ack || what == nack) && parent == "" {
			t.Errorf("classify = %v without a parent, want no answer", what)
		}
	})
}
