package requests

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

// TestEventPatchIsOwned: an event that exists is changed by a JSON patch whose tests let the API server refuse others.
// It changes how often the event happened and nothing else. That the API server does refuse is shown in test/cloud.
func TestEventPatchIsOwned(t *testing.T) {
	const head = `{"metadata":{"name":"e","namespace":"ns"},"count":2,"message":"m",`
	const about = `"involvedObject":{"kind":"Pod","namespace":"ns","name":"a","uid":"uid-a"}`
	const aboutTests = "/involvedObject/kind Pod,/involvedObject/name a,/involvedObject/namespace ns," +
		"/involvedObject/uid uid-a"
	host, instance := `"source":{"host":"e1"},`, `"reportingInstance":"e1",`
	for name, tc := range map[string]struct {
		op, content string
		tests, adds string // of the patch; none is a refusal
	}{
		"insert": {"insert", head + host + about + `}`,
			"/source/host e1," + aboutTests, "/count,/lastTimestamp,/message,/series"},
		"update by instance": {"update", head + instance + about + `}`,
			"/reportingInstance e1," + aboutTests, "/count,/lastTimestamp,/message,/series"},
		"patch": {"patch", `{"event":` + head + host + about + `},"patchData":"{\"count\":3,\"lastTimestamp\":null}"}`,
			"/source/host e1," + aboutTests, "/count,/lastTimestamp"},
		"of a node": {
			"insert", head + host + `"involvedObject":{"kind":"Node","name":"e1"}}`,
			"/source/host e1,/involvedObject/kind Node,/involvedObject/name e1",
			"/count,/lastTimestamp,/message,/series",
		},
		"names no host": {"update", head + about + `}`,
			"/source/host e1," + aboutTests, "/count,/lastTimestamp,/message,/series"},
		"patch of other fields": {"patch", `{"event":` + head + host + about + `},"patchData":"{\"reason\":\"x\"}"}`,
			"", ""},
		"patch of no object": {"patch", `{"event":` + head + host + about + `},"patchData":"[]"}`, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, noAddress)
			w.add(fakes.Pod("e1", "ns", "a"))
			w.Connected(t.Context(), "e1", "edgecore/websocket")
			var tests, adds []string
			w.api.Answer(func(r fakes.Call) (int, any) {
				if r.Method == http.MethodPost {
					return 409, metav1.Status{Status: "Failure", Reason: metav1.StatusReasonAlreadyExists, Code: 409}
				}
				var operations []struct {
					Op, Path string
					Value    json.RawMessage
				}
				if err := json.Unmarshal([]byte(r.Body), &operations); err != nil ||
					r.Type != "application/json-patch+json" {
					t.Errorf("patch %s of type %s: %v, want a JSON patch", r.Body, r.Type, err)
				}
				for _, o := range operations {
					if o.Op == "test" {
						tests = append(tests, o.Path+" "+strings.Trim(string(o.Value), `"`))
					} else {
						adds = append(adds, o.Path)
					}
				}
				return 200, map[string]string{"kind": "Event", "apiVersion": "v1"}
			})
			answer := w.ask("e1", tc.op, "ns/event/e", tc.content)
			if status, _ := failure(t, answer); (status != nil) != (tc.tests == "") {
				t.Errorf("answered %s, want it refused: %v", answer.Content, tc.tests == "")
			}
			got := []string{strings.Join(tests, ","), strings.Join(adds, ",")}
			if diff := cmp.Diff([]string{tc.tests, tc.adds}, got); diff != "" {
				t.Errorf("patch (-want +got):\n%s", diff)
			}
		})
	}
}
