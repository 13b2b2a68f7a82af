package differential

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSameBut: only values that were brief may be left out, on either side; neither order nor the last value may
// differ.
func TestSameBut(t *testing.T) {
	// A value with an exclamation mark is brief, one with a question mark was brief while the pod started.
	parse := func(text ...string) sequence {
		var values []string
		var lengths []brevity
		for _, value := range text {
			length := map[byte]brevity{'!': brief, '?': starting}[value[len(value)-1]]
			values, lengths = append(values, strings.TrimRight(value, "!?")), append(lengths, length)
		}
		return newSequence(values, lengths, false)
	}
	for _, c := range []struct {
		name        string
		left, right []string
		want        bool
	}{
		{"equal", []string{"a", "b"}, []string{"a", "b"}, true},
		{"left out", []string{"a", "b!", "c"}, []string{"a", "c"}, true},
		{"left out on the left", []string{"a", "c"}, []string{"a", "b!", "c"}, true},
		{"too long to be left out", []string{"a", "b", "c"}, []string{"a", "c"}, false},
		{"the first one", []string{"a!", "c"}, []string{"c"}, true},
		{"never there", []string{"a!", absent}, nil, true},
		{"never there, and long", []string{"a", absent}, nil, false},
		{"the last one", []string{"a", "b"}, []string{"a"}, false},
		{"between two that are the same", []string{"a", "b!", "a"}, []string{"a"}, true},
		{"between two that are the same, and long", []string{"a", "b", "a"}, []string{"a"}, false},
		{"each side another one", []string{"a", "b!", "d"}, []string{"a", "c!", "d"}, false},
		{"each side another one of the start", []string{"a", "b?", "d"}, []string{"a", "c?", "d"}, true},
		{"one of the start, and another one", []string{"a", "b?", "d"}, []string{"a", "c!", "d"}, true},
		{"one of the start, and a long one", []string{"a", "b?", "d"}, []string{"a", "c", "d"}, false},
		{"each side one, with a common one between", []string{"a", "b!", "c", "d"}, []string{"a", "c", "e!", "d"},
			true},
		{"two in a row", []string{"a", "b!", "c!", "d"}, []string{"a", "d"}, true},
		{"brief on one side", []string{"a", "b!", "c"}, []string{"a", "b", "c"}, true},
		{"another order", []string{"a", "b", "c"}, []string{"b", "a", "c"}, false},
		{"there again", []string{"a!", absent, "c"}, []string{"c"}, true},
	} {
		if got := sameBut(parse(c.left...), parse(c.right...)); got != c.want {
			t.Errorf("%s: %v and %v are the same but for brief values: %v, want %v", c.name, c.left, c.right, got,
				c.want)
		}
	}
}

// TestBriefStates: how long a value lasted is taken from the times at which the API server's states came.
func TestBriefStates(t *testing.T) {
	begin := time.Unix(1e9, 0)
	states := func(long time.Duration, phases ...v1.PodPhase) []state {
		var out []state
		for i, phase := range phases {
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Status: v1.PodStatus{Phase: phase}}
			out = append(out, state{pod: pod, at: begin.Add(time.Duration(i) * long)})
		}
		return out
	}
	for long, want := range map[time.Duration]int{100 * time.Millisecond: 2, time.Hour: 3} {
		l, r := Trace{}, Trace{}
		lBrief, err := addStates(l, states(long, v1.PodPending, v1.PodRunning, v1.PodSucceeded), Names{})
		if err != nil {
			t.Fatal(err)
		}
		rBrief, err := addStates(r, states(time.Hour, v1.PodPending, v1.PodSucceeded), Names{})
		if err != nil {
			t.Fatal(err)
		}
		withoutBrief(l, r, lBrief, rBrief)
		if got := l["pod.status.phase"]; len(got) != want {
			t.Errorf("phases with %v each, beside a node that leaves one out: %v, want %d of them", long, got, want)
		}
	}
}

// TestBriefStart: a node may leave out that a pod starts, for longer than other states, but not why it cannot start.
func TestBriefStart(t *testing.T) {
	for reason, want := range map[string]bool{
		"ContainerCreating": true, "PodInitializing": true, "ErrImagePull": false,
	} {
		now := time.Unix(1e9, 0)
		pod := func(phase v1.PodPhase, s v1.ContainerState) *v1.Pod {
			return &v1.Pod{Status: v1.PodStatus{
				Phase:             phase,
				ContainerStatuses: []v1.ContainerStatus{{Name: "main", State: s}},
			}}
		}
		created := state{pod: &v1.Pod{Status: v1.PodStatus{Phase: v1.PodPending}}, at: now}
		waits := state{
			pod: pod(v1.PodPending, v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}),
			at:  now,
		}
		runs := state{
			pod: pod(v1.PodRunning, v1.ContainerState{Running: &v1.ContainerStateRunning{}}),
			at:  now.Add(2 * briefLimit),
		}
		l, r := Trace{}, Trace{}
		lBrief, err := addStates(l, []state{created, waits, runs}, Names{})
		if err != nil {
			t.Fatal(err)
		}
		rBrief, err := addStates(r, []state{created, runs}, Names{})
		if err != nil {
			t.Fatal(err)
		}
		withoutBrief(l, r, lBrief, rBrief)
		if diff := cmp.Diff(l, r); (diff == "") != want {
			t.Errorf("%s: same without it: %v, want %v (-left +right):\n%s", reason, diff == "", want, diff)
		}
	}
}

// TestSlowStart: a node that takes long to start a pod reports moments of the start. Beside it, one that starts the pod
// soon may report none, and one that takes long may report others, but not none.
func TestSlowStart(t *testing.T) {
	now := time.Unix(1e9, 0)
	states := func(took time.Duration, unready string) []state {
		starts := v1.PodStatus{Phase: v1.PodPending}
		if unready != "" {
			starts.Conditions = []v1.PodCondition{{Type: v1.PodReady, Message: unready}}
		}
		return []state{
			{pod: &v1.Pod{Status: v1.PodStatus{Phase: v1.PodPending}}, at: now},
			{pod: &v1.Pod{Status: starts}, at: now},
			{pod: &v1.Pod{Status: v1.PodStatus{Phase: v1.PodRunning}}, at: now.Add(took)},
		}
	}
	for name, c := range map[string]struct {
		other []state
		want  bool
	}{
		"started soon":                      {states(time.Second, ""), true},
		"took as long, and reported none":   {states(time.Hour, ""), false},
		"took as long, and reported others": {states(time.Hour, "[main1]"), true},
	} {
		l, r := Trace{}, Trace{}
		lBrief, err := addStates(l, states(time.Hour, "[main0 main1]"), Names{})
		if err != nil {
			t.Fatal(err)
		}
		rBrief, err := addStates(r, c.other, Names{})
		if err != nil {
			t.Fatal(err)
		}
		withoutBrief(l, r, lBrief, rBrief)
		if diff := cmp.Diff(l, r); (diff == "") != c.want {
			t.Errorf("beside a node that %s: the same: %v, want %v (-left +right):\n%s", name, diff == "", c.want, diff)
		}
	}
}
