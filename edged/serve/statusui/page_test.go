package statusui

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/edged/serve/server"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// moment is a device where everything is said in the given text.
func moment(text string) View {
	now := time.Unix(1_000_000, 0)
	ago := func(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }
	return View{
		Now: now,
		Info: server.Info{
			NodeName:       text,
			Version:        text,
			Started:        now.Add(-time.Hour),
			Runtime:        text,
			RuntimeVersion: text,
			Endpoint:       text,
			Store:          text,
			StaticPodPath:  text,
			PodLogsDir:     text,
			Conditions: []health.Condition{{
				Code:     health.RuntimeDown,
				Title:    text,
				Severity: health.Error,
				Object:   text,
				Detail:   text,
				Remedy:   text,
				Since:    now.Add(-time.Minute),
			}},
			Link: &server.Link{Server: text, Protocol: text, Reason: text, Since: now.Add(-2 * time.Minute)},
		},
		Pods: []*v1.Pod{
			{
				ObjectMeta: metav1.ObjectMeta{Name: text, Namespace: text, CreationTimestamp: ago(time.Hour)},
				Status: v1.PodStatus{
					Phase:   v1.PodFailed,
					Reason:  text,
					Message: text,
					PodIP:   text,
				},
			},
		},
		Events: []v1.Event{{
			Type:           v1.EventTypeWarning,
			Reason:         text,
			Message:        text,
			Count:          3,
			LastTimestamp:  ago(time.Second),
			InvolvedObject: v1.ObjectReference{Name: text},
		}},
		Gauges: []Gauge{{Name: text, Used: 1, Total: 2, Detail: text}},
		Devices: []Device{{Namespace: text, Name: text, State: text, Message: text, Properties: []Property{{
			Name: text, Value: text, Desired: text + "!", Unit: text, At: now.Add(-time.Minute),
			Recent: []Point{{now.Add(-time.Minute), 1}, {now, 2}},
		}}}},
	}
}

// marks counts what makes HTML of a text.
func marks(page []byte) [4]int {
	var n [4]int
	for i, c := range []string{"<", ">", `"`, "'"} {
		n[i] = bytes.Count(page, []byte(c))
	}
	return n
}

// FuzzRender: whatever a pod, an event or the cloud says, it stays text.
func FuzzRender(f *testing.F) {
	for _, s := range []string{"x", "<script>alert(1)</script>", `" onclick="alert(1)`, "'", "&lt;", "\x00\xff",
		"</style>", strings.Repeat("<", 3000), strings.Repeat("\"", 64<<10)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if s == "" {
			return // what says nothing is left out
		}
		// The text stands on the page in some ten places, in which a byte becomes six at most; the page grows as it is
		// written.
		var page []byte
		membound.Check(t, membound.Linear(len(s), 512), func() { page = Render(moment(s)) })
		if got, want := marks(page), marks(Render(moment("x"))); got != want {
			t.Errorf("%q: %v of < > \" ', want the %v of a harmless text", s, got, want)
		}
	})
}

func TestRender(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	ready := []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
	well := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "well", Namespace: "default"},
		Status:     v1.PodStatus{Phase: v1.PodRunning, Conditions: ready},
	}
	begun := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "begun",
		}, Status: v1.PodStatus{Phase: v1.PodPending, ContainerStatuses: []v1.ContainerStatus{
			{Name: "c", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}}}},
	}
	ill := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "ill",
		}, Status: v1.PodStatus{
			Phase: v1.PodPending, ContainerStatuses: []v1.ContainerStatus{
				{
					Name: "c", State: v1.ContainerState{
						Waiting: &v1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"},
					},
				}},
		},
	}
	warning := health.Condition{Title: "QUIC", Severity: health.Warning, Remedy: "do"}
	event := func(kind, reason string, ago time.Duration) v1.Event {
		return v1.Event{Type: kind, Reason: reason, Count: 1, LastTimestamp: metav1.NewTime(now.Add(-ago))}
	}
	for name, tc := range map[string]struct {
		view View
		// want are texts of the page in this order; never are texts that it does not have.
		want, never []string
	}{
		"all is well": {
			View{
				Pods: []*v1.Pod{
					well,
				}, Info: server.Info{NodeName: "edge1", Version: "v1", Started: now.Add(-time.Hour)},
			},
			[]string{"<title>edge1 · edgecore", "All is well", "None", "has not joined a cloud", "1 of 1 " +
				"healthy", "well",
				"Running", "None since the agent started", "running for 60m"},
			[]string{"Needs attention", `class="dot bad"`, `class="dot warn"`},
		},
		"connected": {
			View{Info: server.Info{Link: &server.Link{
				Connected: true,
				Since:     now.Add(-3 * time.Hour),
				Server:    "192.0.2.1:10000",
				Protocol:  "quic",
			}}},
			[]string{"Connected for 3h", "192.0.2.1:10000 by quic", "0 of 0 healthy"}, []string{"Not connected"},
		},
		"a tunnel": {
			View{Info: server.Info{Link: &server.Link{Connected: true, Tunnels: 1, Streams: 2}}},
			[]string{"Tunnel: open, with 2 connections"}, nil,
		},
		"streams of the link": {
			View{Info: server.Info{Link: &server.Link{Connected: true, Streams: 2}}},
			[]string{"Tunnel: 2 connections to the kubelet API, as streams of the link"}, nil,
		},
		"no tunnel": {
			View{Info: server.Info{Link: &server.Link{Connected: true, TunnelFailure: "status 403"}}},
			[]string{"Tunnel: not open, so that kubectl logs, exec and the like do not reach this node: status 403"},
			nil,
		},
		"cut off": {
			View{Info: server.Info{Link: &server.Link{Since: now.Add(-72 * time.Hour), Reason: "the name is unknown"}}},
			[]string{
				`state warn" id="state">Not connected to the cloud<`, "Not connected for 3d", "the name is unknown",
				"Pods keep running",
			}, []string{">Connected", "All is well"},
		},
		"not yet": {View{Info: server.Info{Link: &server.Link{}}}, []string{"Not connected yet"}, nil},
		"pods, those first that are not well": {
			View{Pods: []*v1.Pod{well, begun, ill}},
			[]string{
				"2 pods are not ready", "1 of 3 healthy", `class="dot warn"></i><b>begun`, `class="dot bad"></i><b>ill`,
				"ImagePullBackOff", "c: no such image", `class="dot ok"></i><b>well`,
			}, nil,
		},
		"warnings": {
			View{Info: server.Info{Conditions: []health.Condition{warning}}},
			[]string{`state warn" id="state">1 warning<`, "Needs attention", "QUIC", "do"}, []string{"All is well"},
		},
		"both": {View{Info: server.Info{Conditions: []health.Condition{warning, warning}}, Pods: []*v1.Pod{ill}},
			[]string{"2 warnings, 1 pod is not ready"}, nil},
		"errors": {
			View{
				Info: server.Info{
					Conditions: []health.Condition{
						{Title: "Store", Severity: health.Error, Since: now.Add(-90 * time.Second)}, warning,
					},
				},
			},
			[]string{
				"1 thing needs attention", `<li class="bad"><b>Store</b> <small>for 90s`, `<li class="warn"><b>QUIC`,
			}, nil,
		},
		"the newest errors, and only errors": {
			View{
				Events: []v1.Event{
					event("Warning", "Older", time.Hour), event("Normal", "Started", 0),
					event("Warning", "Newer", time.Minute),
				},
			},
			[]string{"Newer", "60s ago", "Older", "60m ago"}, []string{"Started", "times"},
		},
		"gauges": {
			View{Gauges: []Gauge{{Name: "Memory", Used: 300 << 20, Total: 512 << 20}, {
				Name:   "Disk",
				Used:   81,
				Total:  100,
				Plain:  true,
				Detail: "/var",
			}, {Name: "Full", Used: 8 << 30, Total: 8 << 30}, {Name: "Unknown"}}},
			[]string{"Memory", "58 %", `bar ok"><i style="width:58%"`, "300 MiB of 512 MiB", "Disk", `bar warn`,
				"81 of 100 <code>/var", "Full", `bar bad`, "8.0 GiB of 8.0 GiB"}, []string{"Unknown"},
		},
		"a clock that went back": {View{Info: server.Info{Started: now.Add(time.Hour)}}, []string{"running for 0s"},
			nil},
		"a long text": {
			View{Info: server.Info{NodeName: strings.Repeat("ä", 600)}}, []string{strings.Repeat("ä", 500) + "…"},
			[]string{strings.Repeat("ä", 501)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.view.Now = now
			page := string(Render(tc.view))
			rest := page
			for _, want := range tc.want {
				_, after, found := strings.Cut(rest, want)
				if !found {
					t.Fatalf("the page lacks %q after the texts before it, want all in this order:\n%s", want, page)
				}
				rest = after
			}
			for _, never := range tc.never {
				if strings.Contains(page, never) {
					t.Errorf("the page contains %q, want it not to:\n%s", never, page)
				}
			}
		})
	}
}

// TestErrorsAreBounded: the page stays small however bad things are.
func TestErrorsAreBounded(t *testing.T) {
	v := moment(strings.Repeat("x", 10_000))
	for i := range 1000 {
		v.Events = append(v.Events, v1.Event{
			Type: v1.EventTypeWarning, Reason: fmt.Sprint("R", i), Message: strings.Repeat("y", 4000),
		})
	}
	for range 110 {
		v.Pods = append(v.Pods, v.Pods[0])
	}
	if n := len(Render(v)); n > 400_000 {
		t.Errorf("%d bytes, want at most 400_000", n)
	}
	for range 1000 {
		v.Devices[0].Properties = append(v.Devices[0].Properties, v.Devices[0].Properties[0])
		v.Devices = append(v.Devices, v.Devices[0])
	}
	if n := len(Render(v)); n > 6_000_000 {
		t.Errorf("%d bytes with devices, want at most 6,000,000", n)
	}
}

// TestDevices: what is shown of a device, and the plot of a property.
func TestDevices(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	var points []Point
	for i := range 5 {
		points = append(points, Point{now.Add(time.Duration(i-5) * time.Minute), float64(20 + i%2)})
	}
	page := string(Render(View{Now: now, Devices: []Device{
		{Namespace: "shop", Name: "hall", State: "online", Well: true, Properties: []Property{
			{Name: "temp", Value: "21", Unit: "°C", At: now.Add(-2 * time.Second), Recent: points},
			{Name: "limit", Value: "60", Desired: "40", At: now}, {Name: "none"},
		}},
		{Namespace: "shop", Name: "gate", State: "offline", Message: "no <answer>"}, {Namespace: "shop", Name: "new"},
	}}))
	for _, want := range []string{
		"1 device is not online", "1 of 3 online", "21 °C", "2s ago",
		"desired: 40", "no mapper yet", "offline", "no &lt;answer&gt;", "20 to 21 in the last 5m",
		`points="0.0,23.0 30.0,1.0 60.0,23.0 90.0,1.0 120.0,23.0 "`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	for name, points := range map[string][]Point{
		"extremes": {{now, -math.MaxFloat64}, {now.Add(time.Second), math.MaxFloat64}}, "level": {{now, 3}, {now, 3}},
	} {
		page := string(Render(View{Now: now, Devices: []Device{{Properties: []Property{{At: now, Recent: points}}}}}))
		if strings.Contains(page, "NaN") || strings.Contains(page, "Inf") {
			t.Errorf("%s: the plot has numbers that are none:\n%s", name, page)
		}
	}
}

type device struct{ View }

func (d device) Pods() []*v1.Pod                  { return d.View.Pods }
func (d device) Events() []v1.Event               { return d.View.Events }
func (d device) Info(context.Context) server.Info { return d.View.Info }
func (d device) Gauges(context.Context) []Gauge   { return d.View.Gauges }
func (d device) Devices() []Device                { return d.View.Devices }

func TestHandler(t *testing.T) {
	h := Handler(device{moment("x")})
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, "/", nil))
		if w.Code != 200 || w.Header().Get("Content-Type") != "text/html; charset=utf-8" ||
			w.Header().Get("Cache-Control") != "no-store" ||
			!strings.HasPrefix(w.Header().Get("Content-Security-Policy"), "default-src 'none'") ||
			(w.Body.Len() > 0) != (method == http.MethodGet) {
			t.Errorf("%s: %d %v, %d bytes; want a page with the policy, and a body for GET only",
				method, w.Code, w.Header(), w.Body.Len())
		}
	}
}

func BenchmarkRender(b *testing.B) {
	v := moment("some text of a usual length")
	for range 29 {
		v.Pods = append(v.Pods, v.Pods[0])
	}
	for b.Loop() {
		Render(v)
	}
}
