package adopt

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/metaclient"
	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

func meta(key, typ, value string) Row {
	return Row{Key: key, Type: typ, Value: []byte(value)}
}

const (
	webRow  = `{"metadata":{"name":"web","namespace":"default","uid":"u-web","resourceVersion":"7"},"spec":{"nodeName":"edge1","containers":[{"name":"main","image":"i:1"}]},"status":{"phase":"Pending","qosClass":"BestEffort","startTime":"2026-11-21T03:25:03Z","conditions":[{"type":"Initialized","status":"True","lastTransitionTime":"2026-11-21T03:25:03Z"},{"type":"Ready","status":"False","reason":"ContainersNotReady","message":"containers with unready status: [main]","lastTransitionTime":"2026-11-21T03:25:03Z"}]}}`
	webDiff = `{"metadata":{"uid":"u-web"},"status":{"$setElementOrder/conditions":[{"type":"Initialized"},{"type":"Ready"}],"conditions":[{"lastTransitionTime":"2026-11-21T03:25:04Z","message":null,"reason":null,"status":"True","type":"Ready"}],"containerStatuses":[{"name":"main","ready":true,"restartCount":2,"image":"i:1","imageID":"x","containerID":"containerd://c1"}],"phase":"Running","podIP":"10.0.0.7","podIPs":[{"ip":"10.0.0.7"}]}}`
)

// TestRows takes rows as KubeEdge's versions write them.
func TestRows(t *testing.T) {
	got := Rows([]Row{
		meta("default/pod/web", "pod", webRow),
		meta("default/podpatch/web", "podpatch", webDiff),
		meta("default/pod/job", "pod",
			`{"metadata":{"name":"job","namespace":"default","uid":"u-job"},"spec":{"nodeName":"edge1"},"status":{"phase":"Running"}}`),
		meta("default/podpatch/job", "podpatch", `{"metadata":{"uid":"u-job"},"status":{"phase":"Succeeded"}}`),
		meta("default/pod/again", "pod",
			`{"metadata":{"name":"again","namespace":"default","uid":"u-new"},"spec":{"nodeName":"edge1"},"status":{}}`),
		meta("default/podpatch/again", "podpatch", `{"metadata":{"uid":"u-old"},"status":{"phase":"Failed"}}`),
		meta("default/pod/there", "pod",
			`{"metadata":{"name":"there","namespace":"default","uid":"u-there"},"spec":{"nodeName":"edge2"}}`),
		meta("default/pod/static-edge1", "pod",
			`{"metadata":{"name":"static-edge1","namespace":"default","uid":"u-m","annotations":{"kubernetes.io/config.mirror":"abc"}},"spec":{"nodeName":"edge1"}}`),
		meta("default/pod/torn", "pod", `{"metadata":{"na`),
		meta("default/configmap/web-conf", "configmap",
			`{"metadata":{"name":"web-conf","namespace":"default","uid":"u-c"},"data":{"a":"b"}}`),
		meta("default/configmap/gone", "configmap", `{"ErrStatus":{"status":"Failure","reason":"NotFound"}}`),
		meta("default/secret/web-sec", "secret",
			`{"metadata":{"name":"web-sec","namespace":"default","uid":"u-s"},"data":{"a":"Yg=="}}`),
		meta("default/node/edge1", "node", `{"metadata":{"name":"edge1","uid":"u-n"}}`),
		meta("null/lease/edge1", "lease", `{}`),
		meta("null/nodestatus/edge1", "nodestatus", `{}`),
		meta(`"default"/"default"/[]string(nil)/3607/v1.BoundObjectReference{Kind:"Pod", APIVersion:"v1", Name:"web", UID:"u-web"}`, "serviceaccounttoken", `{"spec":{"audiences":null},"status":{"token":"t"}}`),
		meta("x", "serviceaccounttoken", `{}`),
		meta("default/rule/r1", "rule", `{}`),
		meta("default/rule/r2", "rule", `{}`),
	}, "edge1")

	keys := map[string]string{}
	for _, row := range got.Rows {
		keys[row.Key] = row.Type
	}
	wantKeys := map[string]string{
		"default/pod/web": "pod", "default/podpatch/web": "podpatch", "default/pod/job": "pod",
		"default/podpatch/job": "podpatch",
		"default/pod/again":    "pod", "default/pod/static-edge1": "pod", "default/configmap/web-conf": "configmap",
		"default/secret/web-sec": "secret", "null/node/edge1": "node",
		`"default"/"default"/[]string(nil)/3607/v1.BoundObjectReference{Kind:"Pod", APIVersion:"v1", Name:"web", UID:"u-web"}`: "serviceaccounttoken",
	}
	if diff := cmp.Diff(wantKeys, keys); diff != "" {
		t.Errorf("rows mismatch (-want +got):\n%s", diff)
	}
	var names []string
	for _, pod := range got.Pods {
		names = append(names, pod.Name+" "+string(pod.Status.Phase))
	}
	if diff := cmp.Diff([]string{"again ", "job Succeeded", "web Running"}, names); diff != "" {
		t.Errorf("pods mismatch (-want +got):\n%s", diff)
	}
	notes := map[string]string{}
	for _, n := range got.Notes {
		notes[n.Key] = n.Text
	}
	for key, want := range map[string]string{
		"default/pod/there": "node edge2", "default/pod/torn": "not an object",
		"default/configmap/gone": "error that came instead", "x": "not a token",
		"": `2 of the type "rule"`,
	} {
		if !strings.Contains(notes[key], want) {
			t.Errorf("note on %q: %q, want %q", key, notes[key], want)
		}
		delete(notes, key)
	}
	if len(notes) > 0 {
		t.Errorf("other notes = %v, want none", notes)
	}
}

// TestStatus: what KubeEdge had reported last is laid over what the cloud knew.
func TestStatus(t *testing.T) {
	got := Rows([]Row{meta("default/pod/web", "pod", webRow), meta("default/podpatch/web", "podpatch", webDiff)},
		"edge1")
	if len(got.Rows) != 2 {
		t.Fatalf("rows %v, want 2", got.Rows)
	}
	if string(got.Rows[0].Value) != webRow {
		t.Errorf("the pod is %s, want %s", got.Rows[0].Value, webRow)
	}
	uid, status, err := metaclient.ReadPatch(got.Rows[1].Value)
	if err != nil || uid != "u-web" {
		t.Fatalf("status of %q, %v; want u-web", uid, err)
	}
	var want v1.PodStatus
	if err :=
		json.Unmarshal(
			[]byte(`{"phase":"Running","qosClass":"BestEffort","startTime":"2026-11-21T03:25:03Z","podIP":"10.0.0.7","podIPs":[{"ip":"10.0.0.7"}],
		"conditions":[{"type":"Initialized","status":"True","lastTransitionTime":"2026-11-21T03:25:03Z"},{"type":"Ready","status":"True","lastTransitionTime":"2026-11-21T03:25:04Z"}],
		"containerStatuses":[{"name":"main","ready":true,"restartCount":2,"image":"i:1","imageID":"x","containerID":"containerd://c1"}]}`), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.Conditions, status.Conditions); diff != "" {
		t.Errorf("conditions mismatch (-want +got):\n%s", diff)
	}
	if status.Phase != want.Phase || status.PodIP != want.PodIP || len(status.PodIPs) != 1 ||
		!status.StartTime.Equal(want.StartTime) || len(status.ContainerStatuses) != 1 ||
		status.ContainerStatuses[0].RestartCount != 2 {
		t.Errorf("status %+v, want %+v", status, want)
	}
}

// FuzzRows: whatever a store holds, what is taken over is an object of its key.
func FuzzRows(f *testing.F) {
	f.Add("default/pod/web", "pod", webRow)
	f.Add("default/podpatch/web", "podpatch", webDiff)
	f.Add("default/node/edge1", "node", `{"metadata":{"name":"edge1","uid":"u"}}`)
	f.Add("a/b", "pod", `null`)
	for _, text := range membound.JSON(
		`{"metadata":{"name":"web","namespace":"default","uid":"u"},"spec":{"nodeName":"edge1","containers":`, `}}`,
		32<<10) {
		f.Add("default/pod/web", "pod", text)
	}
	for _, text := range membound.JSON(`{"Status":{"containerStatuses":`, `}}`, 32<<10) {
		f.Add("default/podpatch/web", "podpatch", text)
	}
	f.Fuzz(func(t *testing.T, key, typ, value string) {
		var stored *Stored
		// An empty container has 3 bytes and becomes a struct of a thousand, in lists that grow by a quarter, of the
		// pod and of its status. What rows of another agent's store may have is bounded by the one who reads them.
		membound.Check(t, membound.Linear(len(key)+len(typ)+len(value), 8<<10), func() {
			stored = Rows([]Row{meta(key, typ, value), meta("default/podpatch/web", "podpatch", value)}, "edge1")
		})
		for _, row := range stored.Rows {
			if !json.Valid(row.Value) {
				t.Errorf("row %s is %s, want JSON", row.Key, row.Value)
			}
		}
	})
}
