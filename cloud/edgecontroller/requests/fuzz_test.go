package requests

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// repeats is a content that is mostly repetition, which is how a few bytes on a compressed link become many: head, then
// part many times with commas between, then tail.
type repeats struct {
	head, part, tail string
	times            uint32
}

// text is the content, within the size of a message.
func (r repeats) text() string {
	const size = 8 << 20
	part := r.part + ","
	times := min(int(r.times), max(size-len(r.head)-len(r.tail), 0)/len(part))
	if times == 0 {
		return r.head + r.tail
	}
	return r.head + strings.TrimSuffix(strings.Repeat(part, times), ",") + r.tail
}

// sortedFlows are the rows of the table of requests in the order of their names.
func sortedFlows(r *Requests) []requestName {
	var names []requestName
	for name := range r.table {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b requestName) int { return strings.Compare(a.kind+" "+a.op, b.kind+" "+b.op) })
	return names
}

// nowhere is an API server that accepts everything and keeps nothing: what is allocated is cloudcore's.
type nowhere struct{}

func (nowhere) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", "application/json")
	if r.Method == http.MethodGet {
		w.WriteHeader(http.StatusNotFound)
	}
	_, err := w.WriteString(`{}`)
	return w.Result(), err
}

// FuzzRequestMemory gives each kind of request contents that repeat a part up to the size of a message. It fails when
// one allocates more than its share, is not answered, or makes cloudcore fail.
func FuzzRequestMemory(f *testing.F) {
	config := &rest.Config{Host: "http://api", Transport: nowhere{}, QPS: -1}
	clients, err := impersonate.New(config, impersonate.UserAndGroup)
	if err != nil {
		f.Fatal(err)
	}
	w := newFixture(f, func(o *Options) { o.AsNode, o.Own = clients.AsNode, clients.Own })
	w.add(fakes.Pod("edge-1", "default", "web"), fakes.Node("edge-1"))
	w.connectAs("edge-1", "edgecore/websocket")
	flows := sortedFlows(w.Requests)
	index := func(kind, op string) uint8 {
		return uint8(slices.Index(flows, requestName{kind, op}))
	}
	requests, _ := fakes.Recorded(f, recordedFile)
	for _, m := range requests {
		row := index(fakes.Key(m.Route.Resource).Type, m.Route.Operation)
		f.Add(row, false, string(m.ContentData()), "", "", uint32(0))
	}
	const many = 1 << 24
	for _, seed := range []struct{ kind, op, head, part, tail string }{
		{"pod", "insert", `{"metadata":{"name":"edge-1","namespace":"default"},"spec":{"containers":[`, `{}`, `]}}`},
		{"node", "insert", `{"metadata":{"name":"edge-1"},"status":{"capacity":{`, `"a":"1e9"`, `}}}`},
		{"node", "update", `{"metadata":{"name":"edge-1","labels":{`, `"a":"b"`, `}}}`},
		{"podpatch", "patch", `{"metadata":{"uid":"u"},"status":{"conditions":[`, `{}`, `]}}`},
		{"podpatch", "patch", ``, `{"metadata":{"uid":"u"}}`, ``},
		{"nodepatch", "patch", `{"status":{"images":[`, `{"names":[""]}`, `]}}`},
		{"podstatus", "update", `[`, `{"UID":"u","Name":"web","Status":{"containerStatuses":[{}]}}`, `]`},
		{"nodestatus", "update", `{"ExtendResources":{"a":[`, `{"capacity":{}}`, `]}}`},
		{"event", "insert", `{"metadata":{"name":"edge-1","namespace":"default","ownerReferences":[`, `{}`, `]}}`},
		{"event", "patch", `{"event":{"metadata":{"name":"edge-1","namespace":"default"}},"patchData":"[`, `{}`, `]"}`},
		{"pod", "delete", `{"preconditions":{"uid":"u"},"dryRun":[`, `""`, `]}`},
		{"csinode", "insert", `{"metadata":{"name":"edge-1"},"spec":{"drivers":[`, `{}`, `]}}`},
		{"serviceaccounttoken", "query", `{"spec":{"audiences":[`, `""`, `]}}`},
		{"certificatesigningrequest", "insert", `{"metadata":{"name":"edge-1"},"spec":{"usages":[`, `""`, `]}}`},
		{"subjectaccessreview", "insert", `{"spec":{"groups":[`, `""`, `]}}`},
		{"lease", "update", `{"metadata":{"name":"edge-1","namespace":"kube-node-lease","finalizers":[`, `""`, `]}}`},
		{"persistentvolumeclaim", "patch", `{"status":{"conditions":[`, `{}`, `]}}`},
	} {
		for _, times := range []uint32{1, largeItems - 1} {
			f.Add(index(seed.kind, seed.op), seed.op == "patch" && seed.kind != "event", seed.head, seed.part,
				seed.tail, times)
		}
	}
	f.Add(index("pod", "insert"), false, `{"spec":{"containers":[`, `{}`, `]}}`, uint32(many))
	f.Add(index("podpatch", "patch"), true, `{"status":{"conditions":[`, `{}`, `]}}`, uint32(many))
	limit := debug.SetMemoryLimit(1 << 30)
	f.Cleanup(func() { debug.SetMemoryLimit(limit) })
	f.Fuzz(func(t *testing.T, row uint8, asString bool, head, part, tail string, times uint32) {
		flow := flows[int(row)%len(flows)]
		content := json.RawMessage(repeats{head, part, tail, times}.text())
		if asString {
			var err error
			if content, err = json.Marshal(string(content)); err != nil {
				t.Fatal(err)
			}
		}
		if !json.Valid(content) {
			return // the codec refuses it
		}
		m := model.New(model.ModuleEdged, model.GroupMeta, flow.op, "default/"+flow.kind+"/edge-1", content)
		if flow.kind == "lease" {
			m.Route.Resource = "kube-node-lease/lease/edge-1"
		}
		var answer *model.Message
		n := membound.Allocated(func() { answer = w.Handle(t.Context(), "edge-1", m) })
		if n > maxAllocated {
			t.Errorf("%s %s of %d bytes allocated %d bytes, want at most %d", flow.op, flow.kind, len(content), n,
				maxAllocated)
		}
		if answer == nil {
			t.Fatalf("answer to %s %s = nil, want one", flow.op, flow.kind)
		}
		if !json.Valid(answer.Content) || strings.Contains(string(answer.Content), "cloudcore failed") {
			t.Errorf("answered %.200s, want valid JSON and no failure of cloudcore", answer.Content)
		}
		w.hub.Take()
	})
}

// connectAs notes that a node is connected.
func (w *fixture) connectAs(node, protocol string) {
	w.sessions.Connected(node, protocol)
}
