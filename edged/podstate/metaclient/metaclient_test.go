package metaclient

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// bus answers as a test wants, and keeps what was asked.
type bus struct {
	answer string
	bad    error
	asked  *model.Message
}

func (b *bus) SendSync(_ context.Context, module string, m *model.Message) (*model.Message, error) {
	b.asked = m
	switch {
	case module != model.ModuleMetaManager:
		return nil, errors.New("asked the wrong module")
	case b.bad != nil:
		return m.RespondError("metamanager", b.bad), nil
	}
	return m.Respond(json.RawMessage(b.answer)), nil
}

func TestPods(t *testing.T) {
	b := &bus{
		answer: `[{"metadata":{"name":"a","namespace":"n","uid":"1"}},{"metadata":{"name":"no-uid","namespace":"n"}},{"spec":3}]`,
	}
	pods, err := New(b).Pods(t.Context())
	if len(pods) != 1 || pods[0].Name != "a" || pods[0].Kind != "Pod" {
		t.Errorf("pods %v: want the good one", pods)
	}
	if err == nil || !strings.Contains(err.Error(), `"no-uid"`) {
		t.Errorf("err = %v: want one that names the bad ones", err)
	}
	if b.asked.Route.Resource != "null/podlist" || b.asked.Route.Operation != model.OpQuery ||
		b.asked.Route.Group != "meta" {
		t.Errorf("asked %+v, want a query of null/podlist to meta", b.asked.Route)
	}
}

func TestObjects(t *testing.T) {
	c := New(&bus{answer: `{"metadata":{"name":"c"},"data":{"k":"v"}}`})
	if cm, err := c.ConfigMap(t.Context(), "n", "c"); err != nil || cm.Data["k"] != "v" {
		t.Errorf("ConfigMap = %v, %v; want k=v", cm, err)
	}
	// The text of an object that speaks of an ErrStatus is no error.
	c = New(&bus{answer: `{"metadata":{"name":"c"},"data":{"k":"ErrStatus"}}`})
	if cm, err := c.ConfigMap(t.Context(), "n", "c"); err != nil || cm.Data["k"] != "ErrStatus" {
		t.Errorf("ConfigMap = %v, %v; want k=ErrStatus", cm, err)
	}
	c = New(&bus{
		answer: `{"ErrStatus":{"status":"Failure","reason":"NotFound","code":404,"message":"secret \"s\" not found"}}`,
	})
	if _, err := c.Secret(t.Context(), "n", "s"); !apierrors.IsNotFound(err) || err.Error() != `secret "s" not found` {
		t.Errorf("Secret: %v, want not found", err)
	}
	c = New(&bus{bad: errors.New("the disk is full")})
	if _, err := c.Secret(t.Context(), "n", "s"); err == nil ||
		!strings.Contains(err.Error(), "query n/secret/s: the disk is full") {
		t.Errorf("Secret: %v, want query n/secret/s: the disk is full", err)
	}
	c = New(&bus{answer: `[1]`})
	if _, err := c.Secret(t.Context(), "n", "s"); err == nil || !strings.Contains(err.Error(), "decode n/secret/s") {
		t.Errorf("Secret: %v, want decode n/secret/s", err)
	}
}

func TestReports(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "1"}}
	b := &bus{answer: `"OK"`}
	c := New(b)
	if err := c.ReportStatus(t.Context(), pod, v1.PodStatus{Phase: v1.PodRunning}); err != nil {
		t.Fatal(err)
	}
	// On the wire a patch is a string that holds JSON.
	if r := b.asked.Route; r.Resource != "n/podpatch/p" || r.Operation != model.OpPatch || b.asked.Content[0] != '"' ||
		!strings.HasPrefix(string(b.asked.ContentData()), `{"metadata":{"uid":"1"},"status":{`) ||
		!strings.Contains(string(b.asked.ContentData()), `"phase":"Running"`) {
		t.Errorf("ReportStatus asked %+v %s, want a patch of n/podpatch/p that says Running", r, b.asked.Content)
	}
	row, err := json.Marshal([]map[string]string{{"key": "n/podpatch/p", "value": string(b.asked.ContentData())},
		{"key": "x", "value": "garbage"}})
	if err != nil {
		t.Fatal(err)
	}
	statuses, err := New(&bus{answer: string(row)}).PodStatuses(t.Context())
	if err != nil || len(statuses) != 1 || statuses["1"].Phase != v1.PodRunning {
		t.Errorf("%v, %v: want what was reported", statuses, err)
	}
	owners, err := New(&bus{answer: string(row)}).StatusOwners(t.Context())
	if err != nil || len(owners) != 1 || owners[0].Namespace != "n" || owners[0].Name != "p" || owners[0].UID != "1" {
		t.Errorf("%v, %v: want whose status was reported", owners, err)
	}
	if err := c.KeepStatus(t.Context(), pod, v1.PodStatus{}); err != nil || b.asked.Route.Resource != "n/podstatus/p" {
		t.Errorf("KeepStatus: %v, asked %+v; want n/podstatus/p", err, b.asked.Route)
	}
	if err := c.ReportMirrorStatus(t.Context(), pod, v1.PodStatus{Phase: v1.PodRunning}); err != nil ||
		b.asked.Route.Resource != "n/podpatch/p" ||
		b.asked.Route.Operation != model.OpUpdate || !strings.HasPrefix(string(b.asked.ContentData()),
		`{"metadata":{"uid":"1"}`) {
		t.Errorf("ReportMirrorStatus: %v, asked %+v; want an update of n/podpatch/p", err, b.asked.Route)
	}
	made := New(&bus{answer: `{"Object":{"metadata":{"name":"p","uid":"made"}},"Err":null}`})
	if got, err := made.CreatePod(t.Context(), pod); err != nil || got.UID != "made" {
		t.Errorf("CreatePod = %v, %v; want UID made", got, err)
	}
	if err := c.ForgetStatus(t.Context(), pod); err != nil || b.asked.Route.Operation != model.OpDelete ||
		string(b.asked.Content) != `{"uid":"1"}` {
		t.Errorf("ForgetStatus: %v, asked %+v %s; want a delete of UID 1", err, b.asked.Route, b.asked.Content)
	}
	if err := c.ReportDeleted(t.Context(), pod); err != nil || b.asked.Route.Resource != "n/pod/p" ||
		string(b.asked.Content) != `{"gracePeriodSeconds":0,"preconditions":{"uid":"1"}}` {
		t.Errorf("ReportDeleted: %v, asked %s; want n/pod/p with UID 1 as precondition", err, b.asked.Content)
	}
}

func TestRareObjects(t *testing.T) {
	b := &bus{answer: `{"metadata":{"name":"gvisor"},"handler":"runsc"}`}
	key := resource.Key{Namespace: resource.NullNamespace, Type: resource.TypeRuntimeClass, Name: "gvisor"}
	class, err := Get[nodev1.RuntimeClass](t.Context(), New(b), key)
	if err != nil || class.Handler != "runsc" || b.asked.Route.Resource != "null/runtimeclass/gvisor" ||
		b.asked.Route.Operation != model.OpQuery {
		t.Errorf("%+v, %v, asked %+v; want runsc from null/runtimeclass/gvisor", class, err, b.asked.Route)
	}
	c := New(&bus{
		answer: `{"ErrStatus":{"status":"Failure","reason":"ServiceUnavailable","code":503,"message":"unknown here"}}`,
	})
	if _, err := Get[nodev1.RuntimeClass](t.Context(), c, key); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("RuntimeClass: %v, want ServiceUnavailable", err)
	}
	b = &bus{answer: `{"Object":{"metadata":{"name":"n","resourceVersion":"7"}},"Err":null}`}
	node := &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{
			Name: "n",
		}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "d", NodeID: "id"}}},
	}
	for operation, do := range map[string]func(context.Context, *storagev1.CSINode) (*storagev1.CSINode, error){
		model.OpInsert: New(b).CreateCSINode, model.OpUpdate: New(b).UpdateCSINode} {
		got, err := do(t.Context(), node)
		if err != nil || got.ResourceVersion != "7" || b.asked.Route.Resource != "null/csinode/n" ||
			b.asked.Route.Operation != operation ||
			!strings.Contains(string(b.asked.Content), `"nodeID":"id"`) {
			t.Errorf("%s: %+v, %v, asked %+v %s; want version 7 of null/csinode/n",
				operation, got, err, b.asked.Route, b.asked.Content)
		}
	}
	c = New(&bus{answer: `{"Object":null,"Err":{"ErrStatus":{"status":"Failure","reason":"Conflict","code":409}}}`})
	if _, err := c.UpdateCSINode(t.Context(), node); !apierrors.IsConflict(err) {
		t.Errorf("UpdateCSINode: %v, want Conflict", err)
	}
	c = New(&bus{answer: `{"metadata":{"name":"n"},"spec":{"drivers":[{"name":"d","nodeID":"id"}]}}`})
	if got, err := c.CSINode(t.Context(), "n"); err != nil || len(got.Spec.Drivers) != 1 {
		t.Errorf("CSINode = %+v, %v; want one driver", got, err)
	}
}
