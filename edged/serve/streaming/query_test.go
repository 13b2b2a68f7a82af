package streaming

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// outcome is a result, or the text of a refusal.
type outcome[T any] struct {
	Value T
	Err   string
}

func outcomeOf[T any](v T, err error) outcome[T] {
	if err != nil {
		return outcome[T]{Err: err.Error()}
	}
	return outcome[T]{Value: v}
}

func compare[T any](t *testing.T, name string, got, want outcome[T]) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(logQuery{}, wants{})); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func parsed(t *testing.T, query string) url.Values {
	t.Helper()
	v, err := url.ParseQuery(query)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestParseLogQuery(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	all := logQuery{tail: -1, stdout: true, stderr: true}
	with := func(change func(*logQuery)) outcome[logQuery] {
		q := all
		change(&q)
		return outcome[logQuery]{Value: q}
	}
	bad := func(text string) outcome[logQuery] { return outcome[logQuery]{Err: text} }
	for query, want := range map[string]outcome[logQuery]{
		"": {Value: all},
		"follow=true&timestamps=1&previous": with(func(q *logQuery) {
			q.follow, q.timestamps, q.previous = true, true, true
		}),
		"follow=False&timestamps=0":        {Value: all},
		"tailLines=0":                      with(func(q *logQuery) { q.tail = 0 }),
		"tail=7":                           with(func(q *logQuery) { q.tail = 7 }),
		"tail=all&tailLines=3":             {Value: all},
		"limitBytes=10":                    with(func(q *logQuery) { q.limit = 10 }),
		"sinceSeconds=60":                  with(func(q *logQuery) { q.since = now.Add(-time.Minute) }),
		"sinceSeconds=9223372036854775807": with(func(q *logQuery) { q.since = now.Add(-maxSince * time.Second) }),
		"sinceTime=2026-01-01T00:00:00Z": with(func(q *logQuery) {
			q.since = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		}),
		"stream=All":                {Value: all},
		"stream=Stderr":             with(func(q *logQuery) { q.stdout = false }),
		"stream=Stdout":             with(func(q *logQuery) { q.stderr = false }),
		"tailLines=-1":              bad(`tailLines "-1": want a number of at least 0`),
		"tailLines=x":               bad(`tailLines "x": want a number of at least 0`),
		"limitBytes=0":              bad(`limitBytes "0": want a number of at least 1`),
		"sinceSeconds=0":            bad(`sinceSeconds "0": want a number of at least 1`),
		"sinceTime=yesterday":       bad(`sinceTime "yesterday": want a time such as 2026-01-02T15:04:05Z`),
		"stream=stdout":             bad(`stream "stdout": want All, Stdout or Stderr`),
		"stream=Stdout&tailLines=1": bad("tailLines and stream=Stdout exclude each other"),
		"sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z": bad("at most one of sinceTime and sinceSeconds may be given"),
	} {
		compare(t, query, outcomeOf(parseLogQuery(parsed(t, query), now)), want)
	}
}

func TestParseStreams(t *testing.T) {
	const none = "you must specify at least 1 of stdin, stdout, stderr"
	for query, want := range map[string]outcome[wants]{
		"input=1&output=1&tty=1&error=1": {Value: wants{stdin: true, stdout: true, tty: true}},
		"stdout=true&stderr=true":        {Value: wants{stdout: true, stderr: true}},
		"tty=1":                          {Err: none},
		"output=0":                       {Err: none},
	} {
		compare(t, query, outcomeOf(parseWants(parsed(t, query))), want)
	}
	for query, want := range map[string]outcome[[]string]{
		"command=sh&command=-c&command=": {Value: []string{"sh", "-c", ""}},
		"":                               {Err: "no command: ask with ?command=PROGRAM&command=ARGUMENT"},
		"command=":                       {Err: "no command: ask with ?command=PROGRAM&command=ARGUMENT"},
	} {
		compare(t, query, outcomeOf(parseCommand(parsed(t, query))), want)
	}
	for query, want := range map[string]outcome[[]int32]{
		"":                    {Err: `query parameter "port" is required`},
		"port=80,443&ports=1": {Value: []int32{80, 443, 1}},
		"port=0":              {Err: `port "0": want a number between 1 and 65535`},
		"port=65536":          {Err: `port "65536": want a number between 1 and 65535`},
		"port=80,":            {Err: `port "": want a number between 1 and 65535`},
	} {
		compare(t, query, outcomeOf(parsePorts(parsed(t, query), true)), want)
	}
	if ports, err := parsePorts(nil, false); err != nil || len(ports) > 0 {
		t.Errorf("SPDY names its ports later: %v, %v; want no error, none", ports, err)
	}
}

func TestChoosePod(t *testing.T) {
	pod := func(uid types.UID, leaving bool, annotations map[string]string) *v1.Pod {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: uid, Annotations: annotations}}
		if leaving {
			p.DeletionTimestamp = &metav1.Time{}
		}
		return p
	}
	pods := []*v1.Pod{pod("old", true, nil), pod("new", false, map[string]string{"kubernetes.io/config.hash": "h"})}
	for _, c := range []struct {
		namespace, name string
		uid, want       types.UID
	}{
		{"ns", "p", "", "new"}, {"ns", "p", "old", "old"}, {"ns", "p", "h", "new"}, {"ns", "p", "other", ""},
		{"ns", "q", "", ""}, {"other", "p", "", ""},
	} {
		var got types.UID
		if p := choosePod(pods, c.namespace, c.name, c.uid); p != nil {
			got = p.UID
		}
		if got != c.want {
			t.Errorf("%+v: got %q, want %v", c, got, c.want)
		}
	}
}

func TestLogged(t *testing.T) {
	ended := func(id string) v1.ContainerState {
		return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ContainerID: id}}
	}
	waiting := func(reason string) v1.ContainerState {
		return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}
	}
	running := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	for name, c := range map[string]struct {
		status   v1.ContainerStatus
		previous bool
		want     outcome[string]
	}{
		"running": {
			v1.ContainerStatus{
				ContainerID: "containerd://2", State: running, LastTerminationState: ended("containerd://1"),
			}, false, outcome[string]{Value: "2"},
		},
		"previous": {
			v1.ContainerStatus{
				ContainerID: "containerd://2", State: running, LastTerminationState: ended("containerd://1"),
			}, true, outcome[string]{Value: "1"},
		},
		"no previous": {
			v1.ContainerStatus{ContainerID: "containerd://2", State: running}, true,
			outcome[string]{Err: `previous terminated container "c" in pod "p" not found`},
		},
		"ended": {v1.ContainerStatus{State: ended("containerd://1")}, false, outcome[string]{Value: "1"}},
		"never began": {
			v1.ContainerStatus{State: ended("")}, false, outcome[string]{Err: `container "c" in pod "p" is terminated`},
		},
		"back-off": {
			v1.ContainerStatus{State: waiting("CrashLoopBackOff"), LastTerminationState: ended("containerd://1")},
			false, outcome[string]{Value: "1"},
		},
		"creating": {
			v1.ContainerStatus{State: waiting("ContainerCreating")}, false,
			outcome[string]{Err: `container "c" in pod "p" is waiting to start: ContainerCreating`},
		},
		"image": {
			v1.ContainerStatus{State: waiting("ImagePullBackOff")}, false,
			outcome[string]{Err: `container "c" in pod "p" is waiting to start: trying and failing to pull image`},
		},
		"nothing known": {
			v1.ContainerStatus{}, false, outcome[string]{
				Err: `container "c" in pod "p" is waiting to start - no logs yet`,
			},
		},
		"of another place": {
			v1.ContainerStatus{Name: "d"}, false, outcome[string]{Err: `container "c" in pod "p" is not available`},
		},
	} {
		if c.status.Name == "" {
			c.status.Name = "c"
		}
		pod := &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: "p",
			}, Status: v1.PodStatus{EphemeralContainerStatuses: []v1.ContainerStatus{c.status}},
		}
		compare(t, name, outcomeOf(logged(pod, "c", c.previous)), c.want)
	}
}

// TestPassed: the runtime gets no credentials.
func TestPassed(t *testing.T) {
	in := http.Header{
		"Connection": {"keep-alive, Upgrade"}, "Upgrade": {"websocket"}, "Authorization": {"Bearer secret"},
		"Cookie": {"secret"}, "X-Remote-User": {"admin"},
		"Sec-Websocket-Protocol":    {"v4.channel.k8s.io, " + bearerProtocol + "c2VjcmV0", bearerProtocol + "x"},
		"X-Stream-Protocol-Version": {"v4", "v3"},
	}
	want := http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Protocol": {"v4.channel.k8s.io"},
		"X-Stream-Protocol-Version": {"v4", "v3"},
	}
	if diff := cmp.Diff(want, passed(in)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// FuzzHeaders: what the runtime gets of a client's headers takes memory in proportion to them.
func FuzzHeaders(f *testing.F) {
	f.Add("v4.channel.k8s.io, "+bearerProtocol+"x", "Upgrade", uint16(2))
	f.Add(strings.Repeat(",", 16<<10), strings.Repeat(",", 16<<10), uint16(1))
	f.Add(strings.Repeat("a,", 8<<10), "a", uint16(1))
	f.Add("", "", uint16(4_000))
	f.Fuzz(func(t *testing.T, protocol, connection string, lines uint16) {
		lines = min(lines, 4_000) // a line of a head has 4 bytes at least
		in := http.Header{
			"Sec-Websocket-Protocol": slices.Repeat([]string{protocol}, int(lines)),
			"Connection":             slices.Repeat([]string{connection}, int(lines)),
			"Upgrade":                {"websocket"}, "Authorization": {"secret"},
		}
		size := (len(protocol) + len(connection) + 4) * int(lines)
		if size > 1<<20 {
			return
		}
		// A name of 1 byte becomes a string of 16 in a list that doubles, and is joined again.
		var out http.Header
		membound.Check(t, membound.Linear(size, 128), func() {
			out = passed(in)
			isWebSocket(&http.Request{Header: in})
		})
		if out["Authorization"] != nil || strings.Contains(strings.Join(out["Sec-Websocket-Protocol"], ","),
			bearerProtocol) {
			t.Errorf("passed on %v, want no credentials", out)
		}
	})
}

func FuzzQueries(f *testing.F) {
	f.Add("follow=true&tailLines=3&sinceSeconds=5&limitBytes=7")
	f.Add("port=1,2&command=a&input=1")
	f.Add(strings.Repeat("command&", 2_000))
	f.Add(strings.Repeat("port=1&", 2_000))
	f.Add("port=" + strings.Repeat(",", 16<<10))
	f.Add("tailLines=" + strings.Repeat("%00", 5_000) + "&sinceTime=" + strings.Repeat("%00", 5_000))
	f.Add(strings.Repeat("%00&", 4_000))
	f.Fuzz(func(t *testing.T, text string) {
		now := time.Unix(1<<31, 0)
		var query url.Values
		var err error
		// The server takes no more than 16 KiB of a head. A parameter of 2 bytes becomes a list of one string in a map,
		// or a string in a list that doubles; a value is quoted in an error.
		membound.Check(t, membound.Linear(len(text), 256), func() {
			if query, err = url.ParseQuery(text); err == nil {
				_, _ = parseLogQuery(query, now)
				_, _ = parsePorts(query, true)
				_, _ = parseCommand(query)
				_, _ = parseWants(query)
			}
		})
		if err != nil {
			return
		}
		if q, err := parseLogQuery(query, now); err == nil && (q.tail < -1 || q.limit < 0 || (!q.stdout && !q.stderr)) {
			t.Errorf("%q: %+v, want an error or limits that make sense", text, q)
		}
		if ports, err := parsePorts(query, true); err == nil && (len(ports) == 0 || len(ports) > maxPorts) {
			t.Errorf("%q: %v, want an error or between 1 and %d ports", text, ports, maxPorts)
		}
	})
}
