package requests

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

// askLate handles a message that came from its node a while ago.
func (w *fixture) askLate(node string, ago time.Duration, op, res, content string) *model.Message {
	w.t.Helper()
	ctx := cloudhub.WithArrival(w.t.Context(), time.Now().Add(-ago))
	return w.Handle(ctx, node, model.New(model.ModuleEdged, model.GroupMeta, op, res, json.RawMessage(content)))
}

// livePod is fakes.Pod as the API server has it.
func livePod(version string) *v1.Pod {
	pod := fakes.Pod("e1", "ns", "a")
	pod.APIVersion, pod.Kind, pod.ResourceVersion = "v1", "Pod", version
	return pod
}

// TestLateStatus: a status that waited in cloudcore is written only if the pod has not changed since the status came.
// The node may have reported a newer one through another cloudcore: it is told to send its newest.
func TestLateStatus(t *testing.T) {
	const patch, old = "podpatch", "podstatus"
	const unknown = ""
	for name, tc := range map[string]struct {
		kind    string
		waited  time.Duration
		cached  string // version in the cache; unknown is none
		live    string // version at the API server
		changed time.Duration
		// want is the version on which the write depends, or the code of a refusal.
		want string
	}{
		"at once":                          {patch, 0, "7", "8", 0, "any"},
		"at once, unknown pod":             {patch, 0, unknown, "8", 0, "any"},
		"after a while":                    {patch, 5 * time.Second, "7", "7", 0, "7"},
		"changed before it came":           {patch, 5 * time.Second, "7", "7", 6 * time.Second, "7"},
		"changed since it came":            {patch, 5 * time.Second, "7", "7", 3 * time.Second, "503"},
		"changed, the cache does not know": {patch, 5 * time.Second, "7", "8", 0, "503"},
		"unknown pod":                      {patch, 5 * time.Second, unknown, "8", 0, "503"},
		"old style, at once":               {old, 0, "7", "8", 0, "8"},
		"old style, after a while":         {old, 5 * time.Second, "7", "7", 0, "7"},
		"old style, changed":               {old, 5 * time.Second, "7", "7", 3 * time.Second, "503"},
		"old style, the cache is behind":   {old, 5 * time.Second, "7", "8", 0, "503"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t, noAddress)
				if tc.cached != unknown {
					w.add(livePod(tc.cached))
				}
				if tc.changed > 0 {
					w.recent.changed(livePod(tc.cached))
					time.Sleep(tc.changed)
				}
				got := "nothing written"
				w.api.Answer(func(r fakes.Call) (int, any) {
					if r.Method == http.MethodGet {
						return 200, livePod(tc.live)
					}
					var body struct{ Metadata metav1.ObjectMeta }
					if err := json.Unmarshal([]byte(r.Body), &body); err != nil || body.Metadata.UID != "uid-a" {
						t.Errorf("body %s: %v, want one with the pod's UID", r.Body, err)
					}
					if v := body.Metadata.ResourceVersion; v != "" && v != tc.live {
						return 409, metav1.Status{Status: "Failure", Reason: metav1.StatusReasonConflict, Code: 409}
					} else if got = v; v == "" {
						got = "any"
					}
					return 200, livePod("9")
				})
				content := `"{\"metadata\":{\"uid\":\"uid-a\"},\"status\":{\"phase\":\"Running\"}}"`
				if tc.kind == old {
					content = `{"UID":"uid-a","Status":{"phase":"Running"}}`
				}
				op := map[string]string{patch: "patch", old: "update"}[tc.kind]
				if status, _ := failure(t, w.askLate("e1", tc.waited, op, "ns/"+tc.kind+"/a", content)); status != nil {
					got = fmt.Sprint(status.Code)
				}
				if got != tc.want {
					t.Errorf("written for version %s, want %s", got, tc.want)
				}
				if told := w.hub.Take(); told != nil {
					t.Errorf("the hub was told of %v, want nothing: the pod exists", told)
				}
			})
		})
	}
}

// TestLateTurn: also a status that waited for the turn of its node is late.
func TestLateTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, noAddress, rateLimit(1, 1))
		w.add(livePod("7"))
		spend(w, 5*time.Second)
		go func() {
			time.Sleep(2 * time.Second)
			w.recent.changed(livePod("8"))
		}()
		w.api.Answer(func(fakes.Call) (int, any) { return 200, livePod("8") })
		status, _ := failure(t,
			w.ask("e1", "patch", "ns/podpatch/a", `"{\"metadata\":{\"uid\":\"uid-a\"},\"status\":{}}"`))
		if status == nil || status.Code != 503 {
			t.Errorf("answered with %+v, want code 503", status)
		}
	})
}

// TestRefusedStatus: of a status that is not written, the node learns whether to send it again. If the API server has
// another pod or none, the hub learns which one the node holds: it tells the node what became of that.
func TestRefusedStatus(t *testing.T) {
	refusal := func(code int32, reason metav1.StatusReason) func(fakes.Call) (int, any) {
		return func(fakes.Call) (int, any) {
			return int(code), metav1.Status{Status: "Failure", Reason: reason, Code: code}
		}
	}
	is := func(uid string) func(fakes.Call) (int, any) {
		return func(fakes.Call) (int, any) {
			pod := livePod("8")
			pod.UID = types.UID("uid-" + uid)
			return 200, pod
		}
	}
	conflict, forbidden := refusal(409, metav1.StatusReasonConflict), refusal(403, metav1.StatusReasonForbidden)
	invalid, broken := refusal(422, metav1.StatusReasonInvalid), refusal(500, metav1.StatusReasonInternalError)
	for name, tc := range map[string]struct {
		patch, get func(fakes.Call) (int, any)
		code       int32
		told       bool
	}{
		"gone":                         {nil, nil, 404, true},
		"another by now":               {conflict, is("b"), 409, true},
		"another by now, not its":      {forbidden, is("b"), 409, true},
		"another by now, other labels": {invalid, is("b"), 409, true},
		"gone meanwhile":               {forbidden, nil, 404, true},
		"gone meanwhile, a conflict":   {conflict, nil, 404, true},
		"another version":              {conflict, is("a"), 503, false},
		"denied as gone":               {refusal(410, metav1.StatusReasonGone), is("a"), 503, false},
		"not its":                      {forbidden, is("a"), 403, false},
		"not valid":                    {invalid, is("a"), 422, false},
		"broken":                       {broken, is("a"), 500, false},
		"gone, nobody can say":         {nil, broken, 503, false},
		"conflict, nobody can say":     {conflict, broken, 503, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			w.api.Answer(func(r fakes.Call) (int, any) {
				reply := tc.patch
				if r.Method == http.MethodGet {
					reply = tc.get
				}
				if reply == nil {
					return fakes.NotFound(r.Path)
				}
				return reply(r)
			})
			status, _ := failure(t,
				w.ask("e1", "patch", "ns/podpatch/a", `"{\"metadata\":{\"uid\":\"uid-a\"},\"status\":{}}"`))
			if status == nil || status.Code != tc.code {
				t.Errorf("answered with %+v, want code %d", status, tc.code)
			}
			var want []string
			if tc.told {
				want = []string{"e1 ns/pod/a"}
			}
			if diff := cmp.Diff(want, w.hub.Take()); diff != "" {
				t.Errorf("told to the hub (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRecentChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newRecentChanges()
		c.changed(nil)
		began := time.Now()
		pod := livePod("1")
		c.changed(pod)
		for range 5 { // others change meanwhile
			then, later, other := c.changedSince(pod.UID, began), c.changedSince(pod.UID, began.Add(1)),
				c.changedSince("none", began)
			if !then || later || other {
				t.Errorf("after %v: changedSince is %v, %v and %v, want true, false, false", time.Since(began),
					then, later, other)
			}
			time.Sleep(recentAge / 5)
			c.changed(fakes.Pod("e1", "ns", "b"))
		}
		for range 3 {
			time.Sleep(recentAge)
			c.changed(fakes.Pod("e1", "ns", "b"))
		}
		if n := len(c.now) + len(c.before); n != 2 {
			t.Errorf("%d changes are remembered, want 2: those of the last pod", n)
		}
	})
}
