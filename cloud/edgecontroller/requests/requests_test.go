package requests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// failure reads the Status in an answer, on top or under Err.
func failure(t testing.TB, m *model.Message) (status *metav1.Status, under bool) {
	t.Helper()
	var content struct {
		Object    json.RawMessage
		Err       *statusError
		ErrStatus *metav1.Status
	}
	if m == nil {
		t.Fatal("answer = nil, want one")
	}
	if string(m.Content) == `"OK"` {
		return nil, false
	}
	if err := json.Unmarshal(m.Content, &content); err != nil {
		t.Fatalf("content %s: %v, want JSON", m.Content, err)
	}
	if content.Err != nil {
		return &content.Err.ErrStatus, true
	}
	return content.ErrStatus, false
}

// TestRefused: what cannot be understood, or is not the node's, is answered with a Status where its flow has it, before
// the API server hears of it.
func TestRefused(t *testing.T) {
	type row struct {
		op, res, content string
		reason           metav1.StatusReason
	}
	const bad, forbidden = metav1.StatusReasonBadRequest, metav1.StatusReasonForbidden
	rows := []row{
		{"insert", "null/node/e1", `null`, bad}, {"insert", "null/node/e1", `"x"`, bad},
		{"insert", "null/node/e1", `[]`, bad},
		{"insert", "null/node/e1", `{"metadata":{"name":"e2"}}`, bad},
		{"insert", "null/node/e2", `{"metadata":{"name":"e2"}}`, forbidden},
		{"query", "null/node/e2", `null`, forbidden}, {"query", "null/node", `null`, bad},
		{"dance", "null/node/e1", `null`, bad},
		{"query", "a/b/c/d", `null`, bad}, {"query", "", `null`, bad}, {"query", "ns/unicorn/x", `null`, bad},
		{"patch", "null/nodepatch/e1", `"x"`, bad}, {"patch", "null/nodepatch/e1", `"[]"`, bad},
		{"patch", "null/nodepatch/e1", `null`, bad},
		{"patch", "null/nodepatch/e2", `"{}"`, forbidden},
		{"query", "kube-node-lease/lease/e2", `null`, forbidden}, {"insert", "ns/lease/e1", `{}`, forbidden},
		{"update", "kube-node-lease/lease/e1", `{"metadata":{"name":"e2"}}`, bad},
		{"update", "kube-node-lease/lease/e1", `7`, bad},
		{"patch", "ns/podpatch/a", `"{}"`, bad}, {"patch", "ns/podpatch/a", `"{\"metadata\":7}"`, bad},
		{"patch", "ns/podpatch/a", `"{\"metadata\":{\"uid\":\"\"}}"`, bad},
		{"delete", "ns/pod/a", `{}`, bad}, {"delete", "ns/pod/a", `null`, bad}, {"delete", "ns/pod/a", `""`, bad},
		{"delete", "ns/pod/a", `{"preconditions":{"uid":""}}`, bad},
		{"delete", "ns/pod/a", `{"preconditions":7}`, bad}, {"insert", "ns/pod/a", `{}`, bad},
		{"insert", "ns/pod/a", `{"metadata":{"name":"a","namespace":"ns"}}`, forbidden},
		{"query", "ns/serviceaccounttoken/sa", `null`, bad}, {"query", "ns/serviceaccounttoken/sa", `{}`, forbidden},
		{
			"query", "ns/serviceaccounttoken/sa",
			`{"spec":{"boundObjectRef":{"kind":"Secret","apiVersion":"v1","name":"x","uid":"u"}}}`, forbidden,
		},
		{
			"query", "ns/serviceaccounttoken/sa",
			`{"spec":{"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"a","uid":"uid-a"}}}`, forbidden,
		},
		{
			"query", "ns/serviceaccounttoken/default",
			`{"spec":{"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"a","uid":"old"}}}`, forbidden,
		},
		{
			"query", "ns/serviceaccounttoken/default",
			`{"spec":{"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"b","uid":"uid-b"}}}`, forbidden,
		},
		{"insert", "default/certificatesigningrequest/c", `{"metadata":{"name":"d"}}`, bad},
		{"query", "ns/pod/b", `null`, forbidden},
		{"update", "ns/podstatus/a", `7`, bad}, {"update", "ns/podstatus", `{}`, bad},
		{"update", "null/nodestatus/e2", `{}`, forbidden},
	}
	underErr := map[string]bool{"insert": true, "patch": true}
	for _, r := range rows {
		t.Run(r.op+" "+r.res+" "+r.content, func(t *testing.T) {
			w := newFixture(t)
			w.add(fakes.Pod("e1", "ns", "a"), fakes.Pod("e2", "ns", "b"))
			answer := w.ask("e1", r.op, r.res, r.content)
			status, under := failure(t, answer)
			if status == nil || status.Reason != r.reason || status.Message == "" || status.Code == 0 {
				t.Fatalf("answer %s, want a status with reason %s", answer.Content, r.reason)
			}
			lease := strings.Contains(r.res, "/lease/")
			if known := r.res != "ns/unicorn/x"; known && under != (underErr[r.op] || lease) {
				t.Errorf("the status is under Err: %v, want %v: %s", under, underErr[r.op] || lease, answer.Content)
			}
			if calls := w.api.Seen(); calls != nil {
				t.Errorf("the API server saw %v, want nothing", calls)
			}
		})
	}
}

// TestEveryFlowSurvives: each flow, with each of many contents, against an API server that refuses all, knows nothing,
// is broken, or says nonsense, is answered with valid JSON or not at all, as its row says.
func TestEveryFlowSurvives(t *testing.T) {
	replies := map[string]func(fakes.Call) (int, any){
		"not found":   nil,
		"broken":      func(fakes.Call) (int, any) { return 500, "x" },
		"nonsense":    func(fakes.Call) (int, any) { return 200, []string{"?"} },
		"empty":       func(fakes.Call) (int, any) { return 200, map[string]string{} },
		"unavailable": func(fakes.Call) (int, any) { return 503, metav1.Status{} },
	}
	contents := []string{
		`null`, `""`, `"x"`, `7`, `[]`, `{}`, `[{}]`,
		`{"metadata":{"name":"e1","namespace":"kube-node-lease","uid":"u"}}`, `"{\"metadata\":{\"uid\":\"u\"}}"`,
		`{"event":{},"patchData":"x"}`, `{"preconditions":{"uid":"u"}}`, `{"UID":"u","Name":"e1"}`,
	}
	for name, reply := range replies {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			w.api.Answer(reply)
			w.add(fakes.Pod("e1", "ns", "e1"))
			for f, row := range w.table {
				for _, content := range contents {
					answer := w.ask("e1", f.op, "ns/"+f.kind+"/e1", content)
					if row.silent != (answer == nil) && f.kind+f.op != "nodeupdate" {
						t.Errorf("%+v %s: answered %v, want silence: %v", f, content, answer, row.silent)
					}
					if answer != nil && !json.Valid(answer.Content) {
						t.Errorf("%+v %s: answered %s, want valid JSON", f, content, answer.Content)
					}
				}
			}
		})
	}
}

// TestEventWithoutHost: an event that does not say where it comes from is recorded as the node's, so that it can be
// changed later; one that says so by its reporting instance stays as it is.
func TestEventWithoutHost(t *testing.T) {
	const about = `{"metadata":{"name":"e","namespace":"ns"},%s"involvedObject":{"kind":"Pod","namespace":"ns","name":"a","uid":"uid-a"}}`
	for from, want := range map[string]string{``: `"host":"e1"`, `"reportingInstance":"e1",`: `"source":{}`} {
		event := fmt.Sprintf(about, from)
		for op, content := range map[string]string{
			"insert": event, "patch": `{"event":` + event + `,"patchData":"{\"count\":2}"}`,
		} {
			w := newFixture(t)
			w.add(fakes.Pod("e1", "ns", "a"))
			w.Connected(t.Context(), "e1", "edgecore/websocket")
			w.api.Answer(func(c fakes.Call) (int, any) {
				if c.Method == http.MethodPatch {
					return fakes.NotFound(c.Path)
				}
				return 201, map[string]string{"kind": "Event", "apiVersion": "v1"}
			})
			w.ask("e1", op, "ns/event/e", content)
			var created string
			for _, c := range w.api.Calls {
				if c.Method == http.MethodPost {
					created = c.Body
				}
			}
			if !strings.Contains(created, want) {
				t.Errorf("%s of an event with %q created %s, want %s in it", op, from, created, want)
			}
		}
	}
}

// TestEventAnswered: edges of ours, which keep an event until then, hear what became of it; KubeEdge's await nothing.
func TestEventAnswered(t *testing.T) {
	event := `{"metadata":{"name":"e","namespace":"ns"},"source":{"host":"e1"},"involvedObject":{"kind":"Pod","namespace":"ns","name":"a","uid":"uid-a"},"reason":"Started"}`
	of := func(kind string) string {
		return `{"metadata":{"name":"e","namespace":"ns"},"involvedObject":{"kind":"` + kind + `","name":"x"}}`
	}
	created := func(fakes.Call) (int, any) { return 201, map[string]string{"kind": "Event", "apiVersion": "v1"} }
	for name, tc := range map[string]struct {
		op, content string
		reply       func(fakes.Call) (int, any)
		reason      metav1.StatusReason
	}{
		"created":  {"insert", event, created, ""},
		"updated":  {"update", event, created, ""},
		"patched":  {"patch", `{"event":` + event + `,"patchData":"{\"count\":2}"}`, created, ""},
		"not its":  {"insert", of("Deployment"), created, metav1.StatusReasonForbidden},
		"nonsense": {"update", `7`, created, metav1.StatusReasonBadRequest},
		"no API": {"insert", event, func(fakes.Call) (int, any) {
			return 503, metav1.Status{}
		}, metav1.StatusReasonServiceUnavailable},
		"no such ns": {"insert", event, nil, metav1.StatusReasonNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			for _, protocol := range []string{"websocket", "edgecore/websocket"} {
				w := newFixture(t, noAddress)
				w.add(fakes.Pod("e1", "ns", "a"))
				w.Connected(t.Context(), "e1", protocol)
				w.api.Answer(tc.reply)
				answer := w.ask("e1", tc.op, "ns/event/e", tc.content)
				if protocol == "websocket" {
					if answer != nil {
						t.Errorf("answered %s, want silence", answer.Content)
					}
					continue
				}
				if answer == nil {
					t.Fatal("answer = nil, want one")
				}
				if tc.reason == "" {
					if string(answer.Content) != `"OK"` {
						t.Errorf("answered %s, want OK", answer.Content)
					}
					continue
				}
				if status, _ := failure(t, answer); status == nil || status.Reason != tc.reason {
					t.Errorf("answered %s, want reason %s", answer.Content, tc.reason)
				}
			}
		})
	}
}

func FuzzHandle(f *testing.F) {
	requests, _ := fakes.Recorded(f, recordedFile)
	for _, m := range requests {
		f.Add(m.Route.Operation, m.Route.Resource, []byte(m.Content))
	}
	f.Add("patch", "ns/event/e", []byte(`{"event":{"metadata":{"name":"e","namespace":"ns"}},"patchData":"{}"}`))
	f.Add("update", "ns/podstatus", []byte(`[{"UID":"u","Name":"a"}]`))
	f.Fuzz(func(t *testing.T, op, res string, content []byte) {
		if !json.Valid(content) {
			return // the codec refuses it
		}
		w := newFixture(t)
		answer := w.ask("edge-1", op, res, string(content))
		if answer == nil {
			return
		}
		if !json.Valid(answer.Content) || strings.Contains(string(answer.Content), "cloudcore failed") {
			t.Errorf("answered %s, want valid JSON and no failure of cloudcore", answer.Content)
		}
		for _, c := range w.api.Calls {
			if c.User != "" && c.User != "system:node:edge-1" {
				t.Errorf("call %s, want it in the name of edge-1", c)
			}
		}
	})
}

func TestPanicIsAnswered(t *testing.T) {
	w := newFixture(t)
	w.table[requestName{resource.TypePod, model.OpQuery}] = requestType{
		serve: w.table[requestName{"none", "none"}].serve,
	}
	status, _ := failure(t, w.ask("e1", "query", "ns/pod/a", "null"))
	if status == nil || status.Reason != metav1.StatusReasonInternalError {
		t.Errorf("status %+v, want reason %s", status, metav1.StatusReasonInternalError)
	}
}

// TestRateLimit: one node that asks too much waits, and is told so; others do not notice.
func TestRateLimit(t *testing.T) {
	w := newFixture(t, noAddress, rateLimit(0.001, 2), timeout(10*time.Second))
	w.Connected(t.Context(), "e1", "websocket")
	w.Connected(t.Context(), "e2", "websocket")
	w.add(fakes.Node("e1"), fakes.Node("e2"))
	for i, want := range []metav1.StatusReason{"", "", metav1.StatusReasonTooManyRequests} {
		var got metav1.StatusReason
		if status, _ := failure(t, w.ask("e1", "query", "null/node/e1", "null")); status != nil {
			got = status.Reason
		}
		if got != want {
			t.Errorf("request %d: %q, want %q", i, got, want)
		}
	}
	if status, _ := failure(t, w.ask("e2", "query", "null/node/e2", "null")); status != nil {
		t.Errorf("another node was refused with %+v, want an answer", status)
	}
}

func TestAsStatus(t *testing.T) {
	for name, tc := range map[string]struct {
		err    error
		code   int32
		reason metav1.StatusReason
	}{
		"of the API": {
			fmt.Errorf("get: %w", apierrors.NewNotFound(gr("pod"), "a")), 404, metav1.StatusReasonNotFound,
		},
		"of a lease":   {forbidden(fakes.Key("ns/lease/a"), "no"), 403, metav1.StatusReasonForbidden},
		"of the net":   {errors.New("connection refused"), 500, metav1.StatusReasonInternalError},
		"of the clock": {fmt.Errorf("get: %w", context.DeadlineExceeded), 504, metav1.StatusReasonTimeout},
	} {
		s := asStatus(tc.err)
		if s.Code != tc.code || s.Reason != tc.reason || s.Status != "Failure" || s.Message == "" || s.Kind != "" {
			t.Errorf("%s: status %+v, want code %d and reason %s", name, s, tc.code, tc.reason)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, timeout(15*time.Second))
		done := make(chan struct{})
		w.api.Answer(func(fakes.Call) (int, any) { <-done; return 200, "late" })
		status, _ := failure(t, w.ask("e1", "query", "null/persistentvolume/x", "null"))
		close(done)
		if status == nil || status.Code != 504 || status.Reason != metav1.StatusReasonTimeout {
			t.Errorf("an API server that is slow: status %+v, want 504", status)
		}
	})
}

// TestRenew: one write; a lease is only made for a node that exists.
func TestRenew(t *testing.T) {
	const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	w := newFixture(t)
	w.api.Answer(func(fakes.Call) (int, any) {
		return 200, map[string]string{"kind": "Lease", "apiVersion": "coordination.k8s.io/v1"}
	})
	w.Heartbeat(t.Context(), "e1")
	if diff := cmp.Diff([]string{"PATCH " + leases + "/e1 as system:node:e1"}, w.api.Seen()); diff != "" {
		t.Errorf("mismatch (-want +got):\n%s", diff)
	}
	w.api.Answer(nil)
	w.Heartbeat(t.Context(), "e1")
	if n := len(w.api.Seen()); n != 1 {
		t.Errorf("a node that does not exist: calls %v, want one", w.api.Seen())
	}
	w.add(fakes.Node("e1"))
	w.api.Answer(func(c fakes.Call) (int, any) {
		if c.Method == http.MethodPost {
			return 201, map[string]string{"kind": "Lease", "apiVersion": "coordination.k8s.io/v1"}
		}
		return fakes.NotFound(c.Path)
	})
	w.Heartbeat(t.Context(), "e1")
	if diff := cmp.Diff([]string{"PATCH " + leases + "/e1 as system:node:e1", "POST " + leases + " as system:node:e1"},
		w.api.Seen()); diff != "" {
		t.Errorf("mismatch (-want +got):\n%s", diff)
	}
	if body := w.api.Calls[1].Body; !strings.Contains(body,
		`"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"e1","uid":"uid-e1"}]`) {
		t.Errorf("made %s, want the node as its owner", body)
	}
}

// TestLeaseOfNewNode: the lease of a node that has just registered is created without a patch that finds none; it is
// patched if it is there all the same, and from then on.
func TestLeaseOfNewNode(t *testing.T) {
	const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	create, patch := "POST "+leases+" as system:node:e1", "PATCH "+leases+"/e1 as system:node:e1"
	w := newFixture(t)
	w.sessions.Connected("e1", "edgecore/websocket")
	w.add(fakes.Node("e1"))
	node, err := json.Marshal(fakes.Node("e1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, exists := range []bool{false, true} {
		w.api.Answer(func(fakes.Call) (int, any) { return 201, fakes.Node("e1") })
		w.ask("e1", model.OpInsert, "null/node/e1", string(node))
		w.api.Answer(func(c fakes.Call) (int, any) {
			if exists && c.Method == http.MethodPost {
				return 409, apierrors.NewAlreadyExists(gr(resource.TypeLease), "e1").Status()
			}
			return 200, map[string]string{"kind": "Lease", "apiVersion": "coordination.k8s.io/v1"}
		})
		want := []string{create, patch}
		if exists {
			want = []string{create, patch, patch}
		}
		for range 2 {
			if err := w.Heartbeat(t.Context(), "e1"); err != nil {
				t.Errorf("renew the lease: %v", err)
			}
		}
		if diff := cmp.Diff(want, w.api.Seen()); diff != "" {
			t.Errorf("exists %v: mismatch (-want +got):\n%s", exists, diff)
		}
	}
}

// TestQueryNode: an edge of ours hears what its Node is now, or that nobody can know it.
func TestQueryNode(t *testing.T) {
	live := fakes.Node("e1")
	live.Labels["disk"] = "new"
	for name, tc := range map[string]struct {
		protocol string
		reply    func(fakes.Call) (int, any)
		calls    []string
		want     string
		code     int32
	}{
		"ours": {"edgecore/websocket", func(fakes.Call) (int, any) {
			return 200, live
		}, []string{"GET /api/v1/nodes/e1 as system:node:e1"}, `"disk":"new"`, 0},
		"ours, no API": {"edgecore/websocket", func(fakes.Call) (int, any) {
			return 503, metav1.Status{}
		}, []string{"GET /api/v1/nodes/e1 as system:node:e1"}, "", 503},
		"KubeEdge's": {"websocket", func(fakes.Call) (int, any) { return 200, live }, nil, `"disk":"old"`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, noAddress)
			cached := fakes.Node("e1")
			cached.Labels["disk"] = "old"
			w.add(cached)
			w.Connected(t.Context(), "e1", tc.protocol)
			w.api.Answer(tc.reply)
			answer := w.ask("e1", "query", "null/node/e1", "null")
			if status, _ := failure(t, answer); (status != nil) != (tc.code != 0) ||
				status != nil && status.Code != tc.code || !strings.Contains(string(answer.Content), tc.want) {
				t.Errorf("answered %s, want code %d and %q", answer.Content, tc.code, tc.want)
			}
			if diff := cmp.Diff(tc.calls, w.api.Seen()); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDeletePod: that a pod is gone is believed when the API server says so of the pod itself; its admission may not
// have heard of the pod, or of where it is bound, yet.
func TestDeletePod(t *testing.T) {
	refusal := func(code int32, reason metav1.StatusReason) func() (int, any) {
		return func() (int, any) {
			return int(code), metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
				Status:   "Failure",
				Reason:   reason,
				Code:     code,
				Details:  &metav1.StatusDetails{Name: "a", Kind: "pods"},
			}
		}
	}
	is := func(uid types.UID) func() (int, any) {
		return func() (int, any) {
			return 200, &v1.Pod{
				TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Namespace: "ns",
					Name: "a", UID: uid},
			}
		}
	}
	missing, forbidden := refusal(404, metav1.StatusReasonNotFound), refusal(403, metav1.StatusReasonForbidden)
	for name, tc := range map[string]struct {
		deletes []func() (int, any) // the last one again and again
		get     func() (int, any)
		code    int32
	}{
		"deleted":              {[]func() (int, any){is("u")}, is("u"), 0},
		"gone":                 {[]func() (int, any){missing}, missing, 0},
		"another by now":       {[]func() (int, any){refusal(409, metav1.StatusReasonConflict)}, is("v"), 0},
		"another, elsewhere":   {[]func() (int, any){forbidden}, is("v"), 0},
		"not known yet":        {[]func() (int, any){missing, missing, is("u")}, is("u"), 0},
		"not known as its yet": {[]func() (int, any){forbidden, is("u")}, is("u"), 0},
		"never known":          {[]func() (int, any){missing}, is("u"), 503},
		"not its":              {[]func() (int, any){forbidden}, is("u"), 403},
		"nobody can say":       {[]func() (int, any){missing}, refusal(500, metav1.StatusReasonInternalError), 503},
		"denied as a conflict": {[]func() (int, any){refusal(409, metav1.StatusReasonConflict)}, is("u"), 503},
		"denied as gone":       {[]func() (int, any){refusal(410, metav1.StatusReasonGone)}, is("u"), 503},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t)
				deletes := 0
				w.api.Answer(func(c fakes.Call) (int, any) {
					if c.Method == http.MethodGet {
						return tc.get()
					}
					deletes++
					return tc.deletes[min(deletes, len(tc.deletes))-1]()
				})
				answer := w.ask("e1", "delete", "ns/pod/a", `{"preconditions":{"uid":"u"}}`)
				status, _ := failure(t, answer)
				if (status != nil) != (tc.code != 0) || status != nil && status.Code != tc.code ||
					deletes < len(tc.deletes) {
					t.Errorf("after %d tries: %s, want %d tries and code %d", deletes, answer.Content,
						len(tc.deletes), tc.code)
				}
			})
		})
	}
}

func TestDeletion(t *testing.T) {
	for content, want := range map[string]types.UID{
		`{"preconditions":{"uid":"u"}}`: "u",
		`{"gracePeriodSeconds":30,"preconditions":{"uid":"u"},"propagationPolicy":"Orphan"}`: "u",
		`u-1`: "u-1",
	} {
		got, err := deletion(&request{key: fakes.Key("ns/pod/a"), content: []byte(content)})
		if err != nil || *got.Preconditions.UID != want || *got.GracePeriodSeconds != 0 ||
			got.PropagationPolicy != nil {
			t.Errorf("deletion(%s) = %+v, %v; want UID %s and no grace period", content, got, err, want)
		}
	}
}

func TestSplitLabels(t *testing.T) {
	own, granted, refused := splitLabels(map[string]string{
		"site": "a", "example.com/x": "b", "kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "arm",
		"topology.kubernetes.io/zone":      "z",
		"node.kubernetes.io/instance-type": "t", "kubelet.kubernetes.io/x": "y", "x.node.kubernetes.io/y": "z",
		marks.EdgeLabel: "", marks.AgentLabel: "",
		"node-role.kubernetes.io/master": "", "node-restriction.kubernetes.io/x": "",
		"a.node-restriction.kubernetes.io/x": "", "k8s.io/x": "", "x.k8s.io/y": "",
	})
	if diff := cmp.Diff(map[string]string{
		"site": "a", "example.com/x": "b", "kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "arm",
		"topology.kubernetes.io/zone": "z", "node.kubernetes.io/instance-type": "t", "kubelet.kubernetes.io/x": "y",
		"x.node.kubernetes.io/y": "z",
	}, own); diff != "" {
		t.Errorf("own (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{marks.EdgeLabel: "", marks.AgentLabel: ""}, granted); diff != "" {
		t.Errorf("granted (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"a.node-restriction.kubernetes.io/x", "k8s.io/x", "node-restriction.kubernetes.io/x",
		"node-role.kubernetes.io/master", "x.k8s.io/y"}, refused); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
	_, granted, refused = splitLabels(map[string]string{marks.EdgeLabel: "yes"})
	if len(granted) != 0 || len(refused) != 1 {
		t.Errorf("a label of edges with a value: granted %v, refused %v, want it refused", granted, refused)
	}
}

func TestOldStatus(t *testing.T) {
	have := v1.PodStatus{
		QOSClass: "Burstable", Phase: v1.PodPending, Conditions: []v1.PodCondition{
			{Type: "PodScheduled", Status: "True"}, {Type: "Ready", Status: "False"},
		},
	}
	told := v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: "Ready", Status: "True"}}}
	want := v1.PodStatus{
		QOSClass: "Burstable", Phase: v1.PodRunning, Conditions: []v1.PodCondition{
			{Type: "PodScheduled", Status: "True"}, {Type: "Ready", Status: "True"},
		},
	}
	if diff := cmp.Diff(want, mergeOldStatus(have, told)); diff != "" {
		t.Errorf("mismatch (-want +got):\n%s", diff)
	}
	running := v1.ContainerStatus{State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}
	dead := v1.ContainerStatus{State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}}
	for name, tc := range map[string]struct {
		status v1.PodStatus
		want   bool
	}{
		"failed": {v1.PodStatus{Phase: v1.PodFailed, ContainerStatuses: []v1.ContainerStatus{running}}, true},
		"runs":   {v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{dead, running}}, false},
		"ended":  {v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{dead, dead}}, true},
	} {
		if got := ended(&tc.status); got != tc.want {
			t.Errorf("%s: ended = %v, want %v", name, got, tc.want)
		}
	}
	got, err := extendAnnotations(nil, map[v1.ResourceName][]extendResource{"nvidia.com/gpu": {{Name: "g", Type: "t"}},
		"a.b/c": nil})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"huawei.com/gpu-status": `[{"name":"g","type":"t"}]`, "a.b/c": "null"},
		got); diff != "" {
		t.Errorf("mismatch (-want +got):\n%s", diff)
	}
}

// TestContentOf: an object may come nested, as text, and from KubeEdge 1.12 as the base64 of its text; what only looks
// like base64 is left as it is.
func TestContentOf(t *testing.T) {
	for content, want := range map[string]string{
		`{"a":1}`: `{"a":1}`, `"{\"a\":1}"`: `{"a":1}`, `"eyJhIjoxfQ=="`: `{"a":1}`, `"e30="`: `{}`,
		`"e30"`: "e30", `"52a53aab-3e6d-4d2f-a10d-145c4f8f48be"`: "52a53aab-3e6d-4d2f-a10d-145c4f8f48be",
		`"abcd"`: "abcd", `"eyJhIjox"`: "eyJhIjox",
		`"OK"`: "OK", `null`: "null", `""`: "", ``: "",
	} {
		if got := contentOf(&model.Message{Content: json.RawMessage(content)}); string(got) != want {
			t.Errorf("%s: %s, want %s", content, got, want)
		}
	}
}
