package metamanager

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/beehive/model"
)

// quote is text as a JSON string, as patches travel.
func quote(t testing.TB, text string) string {
	t.Helper()
	out, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func patch(uid, phase string) string {
	return fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"phase":%q}}`, uid, phase)
}

// outbox returns the reports that wait: "operation resource", and content of the message.
func (e *edge) outbox() (keys, contents []string, seqs []int64) {
	e.t.Helper()
	reports, err := e.store.Outbox(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	for _, r := range reports {
		var m model.Message
		if err := json.Unmarshal(r.Value, &m); err != nil || m.Header.ID == "" || m.Route.Source != model.ModuleEdged {
			e.t.Errorf("report %s = %s, %v; want a message of edged", r.Key, r.Value, err)
		}
		keys, contents, seqs = append(keys, m.Route.Operation+" "+m.Route.Resource),
			append(contents, string(m.ContentData())), append(seqs, r.Seq)
	}
	return keys, contents, seqs
}

// waiting are the keys of the outbox.
func (e *edge) waiting() []string {
	keys, _, _ := e.outbox()
	return keys
}

// TestReports: the newest counts, the same again is nothing, and each is stored with its place in the outbox.
func TestReports(t *testing.T) {
	e := newEdge(t, nil)
	const res = "default/podpatch/one"
	pending, running := patch("u1", "Pending"), patch("u1", "Running")
	e.ok(e.edged("patch", res, quote(t, pending)))
	e.ok(e.edged("patch", "default/podpatch/two", quote(t, pending)))
	e.ok(e.edged("patch", res, quote(t, running)))
	check := func() []int64 {
		t.Helper()
		keys, contents, seqs := e.outbox()
		if diff := cmp.Diff([]string{"patch default/podpatch/two", "patch " + res}, keys); diff != "" {
			t.Errorf("outbox (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{pending, running}, contents); diff != "" {
			t.Errorf("outbox (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[string]string{res: running, "default/podpatch/two": pending},
			e.rows("podpatch")); diff != "" {
			t.Errorf("rows (-want +got):\n%s", diff)
		}
		return seqs
	}
	before := check()
	for range 3 {
		e.ok(e.edged("patch", res, quote(t, running)))
	}
	if diff := cmp.Diff(before, check()); diff != "" {
		t.Errorf("outbox after an unchanged report (-want +got):\n%s", diff)
	}
	if f := e.forwarded(); f != nil {
		t.Errorf("forwarded reports = %v, want none", f)
	}

	// What edged asks for at its start.
	want := `[{"key":"default/podpatch/one","value":` + quote(t, running) + `},{"key":"default/podpatch/two","value":` +
		quote(t, pending) + `}]`
	if got := string(e.edged("query", "null/podpatchlist", "null").Content); got != want {
		t.Errorf("reports: %s, want %s", got, want)
	}
}

// TestUnchangedReportWritesNothing: not even the store is asked to.
func TestUnchangedReportWritesNothing(t *testing.T) {
	var s *gated
	e := newEdge(t, func(inner Store) Store { s = &gated{Store: inner}; return s })
	for range 5 {
		e.ok(e.edged("patch", "default/podpatch/one", quote(t, patch("u1", "Running"))))
	}
	if n := s.applies(); n != 1 {
		t.Errorf("%d writes, want 1", n)
	}
}

// TestEndOfAPod: edged reports it; the cloud's delete takes the reports and the tokens along, and those of others stay.
func TestEndOfAPod(t *testing.T) {
	e := newEdge(t, nil)
	e.ok(e.cloud("insert", "default/pod/one", object("default", "one", "u1", "1")))
	e.ok(e.cloud("insert", "default/pod/two", object("default", "two", "u2", "1")))
	e.ok(e.edged("patch", "default/podpatch/one", quote(t, patch("u1", "Failed"))))
	e.ok(e.edged("patch", "default/podpatch/two", quote(t, patch("u2", "Running"))))
	for _, uid := range []string{"u1", "u2"} {
		e.ok(e.edged("insert", "default/serviceaccounttoken/default", tokenRequest(t, 3607, uid)))
	}
	options := `{"gracePeriodSeconds":0,"preconditions":{"uid":"u1"}}`
	e.ok(e.edged("delete", "default/pod/one", options))
	keys, contents, _ := e.outbox()
	if diff := cmp.Diff([]string{"patch default/podpatch/one", "patch default/podpatch/two", "delete default/pod/one"},
		keys); diff != "" {
		t.Errorf("outbox (-want +got):\n%s", diff)
	}
	if contents[2] != options {
		t.Errorf("delete report = %s, want %s", contents[2], options)
	}
	if rows := e.rows("pod"); len(rows) != 2 {
		t.Errorf("pods before the cloud deletes one = %v, want 2", rows)
	}

	e.ok(e.cloud("delete", "default/pod/one", object("default", "one", "u0", "2"))) // of an earlier one
	pods, patches, tokens := e.rows("pod"), e.rows("podpatch"), e.rows("serviceaccounttoken")
	if len(pods) != 2 || len(patches) != 2 || len(tokens) != 2 {
		t.Errorf("after the delete of another UID: pods %v, patches %v, tokens %v; want 2 each", pods, patches, tokens)
	}
	e.ok(e.cloud("delete", "default/pod/one", object("default", "one", "u1", "2")))
	for typ, want := range map[string]string{"pod": "default/pod/two", "podpatch": "default/podpatch/two"} {
		if rows := e.rows(typ); len(rows) != 1 || rows[want] == "" {
			t.Errorf("%s: %v, want %s alone", typ, rows, want)
		}
	}
	if tokens := e.rows("serviceaccounttoken"); len(tokens) != 1 {
		t.Errorf("tokens: %v, want that of u2", tokens)
	}
}

// TestKeptStatus: what is reported on a pod that the cloud does not know stays on the device.
func TestKeptStatus(t *testing.T) {
	e := newEdge(t, nil)
	e.ok(e.edged("update", "default/podstatus/static", quote(t, patch("s1", "Succeeded"))))
	if diff := cmp.Diff(map[string]string{"default/podpatch/static": patch("s1", "Succeeded")},
		e.rows("podpatch")); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if keys, _, _ := e.outbox(); keys != nil {
		t.Errorf("outbox = %v, want none", keys)
	}
	// What its mirror pod is told stays beside it, and only goes to the cloud.
	e.ok(e.edged("update", "default/podpatch/static", quote(t, patch("m1", "Running"))))
	if diff := cmp.Diff(map[string]string{"default/podpatch/static": patch("s1", "Succeeded")},
		e.rows("podpatch")); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if keys, contents, _ := e.outbox(); len(keys) != 1 || keys[0] != "patch default/podpatch/static" ||
		contents[0] != patch("m1", "Running") {
		t.Errorf("outbox = %v %v, want the patch of the mirror pod, %s", keys, contents, patch("m1", "Running"))
	}
	e.ok(e.edged("delete", "default/podstatus/static", "null"))
	if rows := e.rows("podpatch"); len(rows) != 0 {
		t.Errorf("rows after the deletion = %v, want none", rows)
	}
}

// TestForgottenStatus: the status of a pod that was deleted by force and reported once more is removed when the pod has
// ended, but never that of another pod of the name.
func TestForgottenStatus(t *testing.T) {
	e := newEdge(t, nil)
	e.ok(e.cloud("insert", "default/pod/one", object("default", "one", "u1", "1")))
	e.ok(e.edged("patch", "default/podpatch/one", quote(t, patch("u1", "Running"))))
	e.ok(e.cloud("delete", "default/pod/one", object("default", "one", "u1", "1")))
	e.ok(e.edged("patch", "default/podpatch/one", quote(t, patch("u1", "Failed")))) // while its containers end
	if rows := e.rows("podpatch"); len(rows) != 1 {
		t.Fatalf("statuses = %v, want that of the pod which ends", rows)
	}
	e.ok(e.edged("delete", "default/podstatus/one", `{"uid":"another"}`))
	if rows := e.rows("podpatch"); len(rows) != 1 {
		t.Errorf("statuses after the end of another pod of the name = %v, want still one", rows)
	}
	e.ok(e.edged("delete", "default/podstatus/one", `{"uid":"u1"}`))
	if rows := e.rows("podpatch"); len(rows) != 0 {
		t.Errorf("statuses after the end of the pod = %v, want none", rows)
	}
	e.ok(e.edged("delete", "default/podstatus/one", `{"uid":"u1"}`))
}

func tokenRequest(t testing.TB, seconds int64, uid string, audiences ...string) string {
	t.Helper()
	out, err := json.Marshal(authenticationv1.TokenRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "default"},
		Spec: authenticationv1.TokenRequestSpec{
			Audiences: audiences, ExpirationSeconds: &seconds,
			BoundObjectRef: &authenticationv1.BoundObjectReference{
				Kind:       "Pod",
				APIVersion: "v1",
				Name:       "one",
				UID:        "u",
			},
		},
		Status: authenticationv1.TokenRequestStatus{Token: "secret of " + uid},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(replaceUID(out, uid))
}

func replaceUID(data []byte, uid string) []byte {
	var all map[string]any
	if json.Unmarshal(data, &all) != nil {
		return data
	}
	all["spec"].(map[string]any)["boundObjectRef"].(map[string]any)["uid"] = uid
	out, _ := json.Marshal(all)
	return out
}

// TestTokens: one is found by what it was asked for, and by nothing else.
func TestTokens(t *testing.T) {
	e := newEdge(t, nil)
	const res = "default/serviceaccounttoken/default"
	token := tokenRequest(t, 3607, "u1", "vault")
	e.ok(e.edged("insert", res, token))
	if got := string(e.edged("query", res, token).Content); got != token {
		t.Errorf("query: %s, want %s", got, token)
	}
	for name, other := range map[string]string{
		"seconds":   tokenRequest(t, 600, "u1", "vault"),
		"pod":       tokenRequest(t, 3607, "u2", "vault"),
		"audiences": tokenRequest(t, 3607, "u1"),
	} {
		var got struct{ ErrStatus *metav1.Status }
		if err := json.Unmarshal(e.edged("query", res, other).Content, &got); err != nil || got.ErrStatus == nil ||
			got.ErrStatus.Code != 404 {
			t.Errorf("other %s: %+v, %v; want not found", name, got, err)
		}
	}
	e.ok(e.edged("delete", res, token))
	if rows := e.rows("serviceaccounttoken"); len(rows) != 0 {
		t.Errorf("tokens after the deletion = %v, want none", rows)
	}
}

// TestRecordedMessages: what an upstream cloud pushed is taken as it is.
func TestRecordedMessages(t *testing.T) {
	f, err := os.Open("../beehive/model/testdata/recorded.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	e := newEdge(t, nil)
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	last := map[string]string{}
	for lines.Scan() {
		var line struct {
			Dir     string        `json:"dir"`
			Message model.Message `json:"message"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		if line.Dir == "cloud->edge" && !line.Message.IsResponse() {
			e.ok(e.send(&line.Message))
			last[line.Message.Route.Resource] = string(line.Message.Content)
		}
	}
	for _, want := range []string{"null/node/edge-1", "default/pod/web", "default/configmap/web-conf"} {
		row, err := e.store.Get(t.Context(), want)
		if err != nil || string(row.Value) != last[want] || last[want] == "" {
			t.Errorf("%s: %v, %s; want %s", want, err, row.Value, last[want])
		}
	}
	want := []string{"insert default/pod/web", "update default/pod/web", "update default/configmap/web-conf"}
	if diff := cmp.Diff(want, e.forwarded()); diff != "" {
		t.Errorf("forwarded (-want +got):\n%s", diff)
	}
}

func FuzzMessages(f *testing.F) {
	f.Add("update", "default/pod/one", []byte(`{"metadata":{"name":"one","uid":"u"}}`), false)
	f.Add("delete", "default/pod/one", []byte(`"{\"metadata\":{\"uid\":\"u\"}}"`), false)
	f.Add("patch", "default/podpatch/one", []byte(`"{}"`), true)
	f.Add("query", "default/serviceaccounttoken/default", []byte(`{"spec":{"audiences":null}}`), true)
	s := openStore(f)
	f.Fuzz(func(t *testing.T, operation, res string, content []byte, fromEdged bool) {
		source := "edgecontroller"
		if fromEdged {
			source = model.ModuleEdged
		}
		m := New(dropping{}, s, Options{})
		answer, err := m.executeOnce(t.Context(), model.New(source, model.GroupResource, operation, res, content))
		if err == nil && !json.Valid(answer) {
			t.Errorf("answer = %s, want JSON", answer)
		}
		// Whatever was stored must not break what is asked for at the start.
		for _, list := range []string{"null/podlist", "null/podpatchlist"} {
			answer, err := m.executeOnce(t.Context(), model.New(model.ModuleEdged, model.GroupMeta, model.OpQuery, list,
				nil))
			var rows []json.RawMessage
			if err != nil || json.Unmarshal(answer, &rows) != nil {
				t.Errorf("%s = %s, %v; want a list", list, answer, err)
			}
		}
	})
}
