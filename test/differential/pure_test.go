package differential

import (
	"net/http"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/test/testenv/crirecord"
)

func TestCompare(t *testing.T) {
	run := func(values ...string) Trace { return Trace{"p": values} }
	tests := []struct {
		name        string
		left, right []Trace
		want        []string
	}{
		{"equal", []Trace{run("a", "b")}, []Trace{run("a", "b")}, nil},
		{"another order", []Trace{run("a", "b")}, []Trace{run("b", "a")}, []string{"p"}},
		{"never on the right", []Trace{run("a")}, []Trace{{}}, []string{"p"}},
		{"never on the left", []Trace{{}}, []Trace{run("a")}, []string{"p"}},
		{"equal in another run", []Trace{run("a", "b"), run("a")}, []Trace{run("a"), run("c")}, nil},
		{"different in all runs", []Trace{run("a"), run("b")}, []Trace{run("c"), run("d")}, []string{"p"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, d := range Compare(test.left, test.right) {
				got = append(got, d.Path)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("paths that differ = %v, want %v", got, test.want)
			}
		})
	}
}

func TestUnlisted(t *testing.T) {
	found := []Difference{
		{Path: "pod.status.phase", Left: []string{"Running"}, Right: []string{"Pending"}},
		{Path: "pod.status.phase2", Left: []string{"Running"}, Right: []string{"Pending"}},
	}
	got := Unlisted("case-1", found, []Allowed{{
		Case:  "case-.*",
		Path:  `pod\.status\.phase`,
		Left:  "Running",
		Right: "Pending",
	}})
	if len(got) != 1 || got[0].Path != "pod.status.phase2" {
		t.Errorf("unlisted differences = %v, want that of phase2 only", got)
	}
	if got := Unlisted("other", found, []Allowed{{Case: "case-.*"}}); len(got) != 2 {
		t.Errorf("unlisted differences of another case = %v, want both", got)
	}
	list := []Allowed{{Path: `pod\.status\.phase`, With: `pod\.status\.phase2 Running`}}
	if got := Unlisted("case-1", found, list); len(got) != 1 || got[0].Path != "pod.status.phase2" {
		t.Errorf("unlisted differences with the other one = %v, want that of phase2 only", got)
	}
	if got := Unlisted("case-1", found[:1], list); len(got) != 1 {
		t.Errorf("unlisted differences without the other one = %v, want that of phase", got)
	}
}

// TestWithout: values that do not count may be anywhere, and all others have to be the same.
func TestWithout(t *testing.T) {
	list := []Allowed{{Path: "memory", Without: `gone|none`, Row: "row"}}
	for _, test := range []struct {
		name        string
		left, right []string
		want        bool
	}{
		{"gone at the end", []string{"64Mi", "gone"}, []string{"64Mi"}, true},
		{"gone in between", []string{"64Mi", "gone", "64Mi"}, []string{"64Mi"}, true},
		{"only what does not count", []string{"none", "gone"}, nil, true},
		{"on the right", []string{"64Mi"}, []string{"none", "64Mi"}, true},
		{"another value", []string{"64Mi", "gone"}, []string{"32Mi"}, false},
		{"one value more", []string{"64Mi", "gone"}, []string{"64Mi", "32Mi"}, false},
		{"never there", []string{"64Mi", "gone"}, nil, false},
	} {
		found := []Difference{{Path: "memory", Left: test.left, Right: test.right}}
		if got := len(Unlisted("case", found, list)) == 0; got != test.want {
			t.Errorf("%s: %v is allowed: %v, want %v", test.name, found[0], got, test.want)
		}
	}
}

func TestSkipped(t *testing.T) {
	tests := []struct {
		name      string
		all, some []string
		want      bool
	}{
		{"one between is left out", []string{"a", "b", "c"}, []string{"a", "c"}, true},
		{"a loop is left out", []string{"a", "b", "a", "b", "c"}, []string{"a", "b", "c"}, true},
		{"another end", []string{"a", "b", "c"}, []string{"a", "b"}, false},
		{"another beginning", []string{"a", "b", "c"}, []string{"b", "c"}, false},
		{"a value of its own", []string{"a", "b", "c"}, []string{"a", "x", "c"}, false},
		{"never there", []string{"a"}, nil, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := skipped(test.all, test.some); got != test.want {
				t.Errorf("skipped(%q, %q) = %v, want %v", test.all, test.some, got, test.want)
			}
		})
	}
}

func TestFlatten(t *testing.T) {
	value := map[string]any{
		"list":  []map[string]any{{"name": "b", "n": 1}, {"name": "a"}},
		"plain": []string{"x", "y"},
		"empty": map[string]any{},
	}
	got, err := Flatten("top", value)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"top.list": "[b a]", "top.list[b].name": "b", "top.list[b].n": "1", "top.list[a].name": "a",
		"top.plain": "[0 1]", "top.plain[0]": "x", "top.plain[1]": "y",
		"top.empty": "{}",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("paths and values, - want, + got:\n%s", diff)
	}
}

func TestGone(t *testing.T) {
	trace := Trace{}
	trace.Add("pod.a", "1")
	trace.Add("pod.b", "2")
	trace.Add("other", "3")
	trace.Gone("pod.", map[string]string{"pod.a": "1"})
	trace.Gone("pod.", map[string]string{"pod.a": "1"})
	want := Trace{"pod.a": {"1"}, "pod.b": {"2", absent}, "other": {"3"}}
	if diff := cmp.Diff(want, trace); diff != "" {
		t.Errorf("trace, - want, + got:\n%s", diff)
	}
}

func TestReplace(t *testing.T) {
	names := Names{
		Texts: map[string]string{"/tmp/x": "<root>", "/tmp/x/logs": "<logs>", "differ-l": "<node>"},
		Pods:  netip.MustParsePrefix("10.9.0.0/16"),
	}
	hash := "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for text, want := range map[string]string{
		"/tmp/x/logs/a /tmp/x/b":                           "<logs>/a <root>/b",
		"on differ-l at 10.9.1.2, not 10.8.1.2":            "on <node> at <address of a pod>, not 10.8.1.2",
		"containerd://" + hash:                             "containerd://<id>",
		"sha256:" + hash:                                   "sha256:" + hash,
		"2026-01-02T03:04:05.678Z":                         "<time>",
		"kube-api-access-ab1c2":                            "kube-api-access-<x>",
		"/pods/u/containers/main/f0e819c4":                 "/pods/u/containers/main/<attempt>",
		"3f2f8a3e-6f2b-4a7c-9c9e-0123456789ab":             "<uid>",
		"pulled in 12ms (1.5s including waiting). Size: 5": "pulled in <duration>. Size: 5",
		"[::ffff:127.0.0.1]:35980 to 127.0.0.1:8080":       "[::ffff:127.0.0.1]:<client's port> to 127.0.0.1:8080",
	} {
		if got := names.Replace(text); got != want {
			t.Errorf("Replace(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestAlike(t *testing.T) {
	tests := []struct {
		left, right string
		want        bool
	}{
		{"a", "a", true},
		{"a", "b", false},
		{"about 0", "about 999", true},
		{"about 0", "about 99999", true},
		{"about 0", "about 1e6", false},
		{"about 5e6", "about 1e7", true},
		{"about 5e6", "about 5000", false},
		{"about 1", "1", false},
		{"3 s after a hook", "4 s after a hook", true},
		{"5 s after a hook", "4 s after a hook", true},
		{"3 s after a hook", "5 s after a hook", false},
		{"3", "4", false},
	}
	for _, test := range tests {
		if got := alike(test.left, test.right); got != test.want {
			t.Errorf("alike(%q, %q) = %v, want %v", test.left, test.right, got, test.want)
		}
	}
}

func TestAddAnswer(t *testing.T) {
	names := Names{Texts: map[string]string{"differ-l": "<node>"}}
	header := func(kind string) http.Header {
		return http.Header{"Content-Type": {kind}, "Date": {"now"}, "X-Content-Type-Options": {"nosniff"}}
	}
	const page = `# HELP a_total A number.
# TYPE a_total counter
a_total{container="main",id="/kubepods/pod1/2",namespace="differ-l",pod="api"} 5000 17
a_total{container="",id="/",namespace="",pod=""} 3
a_total{container="",id="/system.slice",namespace="",pod=""} 9
`
	tests := []struct {
		name, path string
		answer     Answer
		want       Trace
	}{
		{
			"metrics", "/metrics/cadvisor", Answer{Status: "200 OK", Header: header("text/plain"), Body: []byte(page)},
			Trace{
				"k/status": {"200 OK"}, "k/type": {"text/plain"}, "k/header/X-Content-Type-Options": {"nosniff"},
				"k/type/a_total": {"# TYPE a_total counter"},
				"k/series/a_total{container=main,id=*,namespace=<node>,pod=api}": {"about 5000"},
				"k/series/a_total{container=,id=/,namespace=,pod=}":              {"about 3"},
			},
		},
		{
			"JSON", "/stats/summary?x=1", Answer{
				Status: "200 OK", Header: http.Header{"Content-Type": {"application/json"}},
				Body: []byte(`{"node":{"a":7,"usageNanoCores":1},"list":[{"b":1},{"b":3}]}`),
			},
			Trace{
				"k/status": {"200 OK"}, "k/type": {"application/json"}, "k/field.node.a": {"about 7"},
				"k/field.node.usageNanoCores": {"a rate"},
				"k/field.list[].b":            {"about 3"},
			},
		},
		{
			"error", "/none", Answer{Status: "404 Not Found", Header: http.Header{}, Body: []byte("none on differ-l")},
			Trace{"k/status": {"404 Not Found"}, "k/type": {""}, "k/error": {"none on <node>"}},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := Trace{}
			if err := got.addAnswer("k", test.path, test.answer, names); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("trace, - want, + got:\n%s", diff)
			}
		})
	}
}

func TestAddCalls(t *testing.T) {
	canceled := status.Error(codes.Canceled, "context canceled")
	stop := func(id string, timeout int64, err error) crirecord.Call {
		return crirecord.Call{
			Method:    "StopContainer",
			Container: "main",
			Request:   &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: timeout},
			Err:       err,
		}
	}
	start := crirecord.Call{Method: "StartContainer", Container: "main", Request: &runtimeapi.StartContainerRequest{}}
	tests := []struct {
		name    string
		calls   []crirecord.Call
		order   []string
		timeout []string
		hooked  map[string]bool
	}{
		{
			"one stop", []crirecord.Call{start, stop("a", 30, nil)}, []string{"StartContainer", "StopContainer"},
			[]string{"30"}, nil,
		},
		{
			"repeated", []crirecord.Call{stop("a", 30, canceled), stop("a", 2, nil)}, []string{"StopContainer"},
			[]string{"30"}, nil,
		},
		{
			"not repeated", []crirecord.Call{stop("a", 30, canceled)},
			[]string{"StopContainer failed: " + canceled.Error()}, []string{"30"}, nil,
		},
		{
			"another container",
			[]crirecord.Call{stop("a", 30, canceled), stop("b", 2, nil)},
			[]string{"StopContainer failed: " + canceled.Error(), "StopContainer"},
			[]string{"30"}, nil,
		},
		{
			"after a hook", []crirecord.Call{stop("a", 28, nil)}, []string{"StopContainer"},
			[]string{"28 s after a hook"}, map[string]bool{"main": true},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			trace := Trace{}
			if err := addCalls(trace, test.calls, test.hooked, Names{}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.order, trace["cri/order/main"]); diff != "" {
				t.Errorf("order of calls (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.timeout, trace["cri/StopContainer/main.timeout"]); diff != "" {
				t.Errorf("timeout of the stop (-want +got):\n%s", diff)
			}
		})
	}
}
