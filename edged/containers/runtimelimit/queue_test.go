package runtimelimit

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// timeline is a queue and its time, with the calls that a test made.
type timeline struct {
	q     *queue
	now   time.Time
	calls map[string]*call
	// idle is set if pods arrive at a runtime that works on none. Otherwise a container has started already.
	idle bool
}

func newTimeline(limit float64) *timeline {
	q := newQueue(1)
	q.levels = [phases]level{{start: limit, limit: limit}, {start: limit, limit: limit}}
	return &timeline{q: q, now: time.Unix(1e9, 0), calls: map[string]*call{}}
}

func (l *timeline) arrive(name string, k Kind, o Owner) {
	o.UID = types.UID(name)
	l.calls[name] = l.q.arrive(l.now, k, o)
	if !l.idle {
		l.q.first = false
		l.q.grantWaiting(l.now)
	}
}

func (l *timeline) leave(name string) { l.q.removeCall(l.now, l.calls[name], true) }

func (l *timeline) after(d time.Duration) {
	l.now = l.now.Add(d)
	l.q.expire(l.now)
}

// granted returns the names of the calls that were granted since it was asked last, in their order.
func (l *timeline) granted() (names []string) {
	for _, c := range l.q.granted {
		names = append(names, string(c.owner.UID))
	}
	l.q.granted = nil
	return names
}

func (l *timeline) want(t *testing.T, names ...string) {
	t.Helper()
	if diff := cmp.Diff(names, l.granted()); diff != "" {
		t.Errorf("granted calls mismatch (-want +got):\n%s", diff)
	}
}

func TestOrder(t *testing.T) {
	l := newTimeline(2)
	old, young := time.Unix(1, 0), time.Unix(2, 0)
	l.arrive("a", RunPodSandbox, Owner{})
	l.arrive("b", RunPodSandbox, Owner{priority: 1})
	l.want(t, "a", "b")
	l.arrive("low", RunPodSandbox, Owner{priority: -1, created: old})
	l.arrive("young", RunPodSandbox, Owner{created: young})
	l.arrive("old", RunPodSandbox, Owner{created: old})
	l.arrive("old2", RunPodSandbox, Owner{created: old})
	l.arrive("high", RunPodSandbox, Owner{priority: 7, created: young})
	l.want(t)
	for _, next := range [][2]string{{"a", "high"}, {"b", "old"}, {"high", "old2"}, {"old", "young"}, {"old2", "low"}} {
		l.leave(next[0])
		l.want(t, next[1])
	}
}

func TestNobodyComesLast(t *testing.T) {
	l := newTimeline(2)
	l.arrive("a", RunPodSandbox, Owner{})
	l.arrive("b", RunPodSandbox, Owner{})
	gc := l.q.arrive(l.now, CreateContainer, Owner{})
	l.arrive("c", RunPodSandbox, Owner{priority: -10})
	l.want(t, "a", "b")
	l.leave("a")
	l.want(t, "c")
	l.leave("b")
	if len(l.q.granted) != 1 || l.q.granted[0] != gc {
		t.Errorf("granted %v, want the call of nobody", l.q.granted)
	}
}

func TestCriticalPodsWaitForNoOthers(t *testing.T) {
	l := newTimeline(2)
	l.arrive("a", RunPodSandbox, Owner{})
	l.arrive("b", RunPodSandbox, Owner{})
	l.arrive("c", RunPodSandbox, Owner{})
	l.want(t, "a", "b")
	for _, name := range []string{"static", "critical", "third"} {
		l.arrive(name, RunPodSandbox, Owner{class: critical})
	}
	l.want(t, "static", "critical") // the third waits for these two
	l.leave("a")
	l.leave("static")
	l.want(t, "third")
	l.leave("critical")
	l.want(t) // b and the third run
	l.leave("b")
	l.want(t, "c")
}

// Pods that start and pods that end wait for their own kind.
func TestStartsAndEnds(t *testing.T) {
	l := newTimeline(2)
	for _, name := range []string{"a", "b", "c"} {
		l.arrive(name, CreateContainer, Owner{})
	}
	for _, name := range []string{"x", "y", "z"} {
		l.arrive(name, RemovePodSandbox, Owner{})
	}
	l.want(t, "a", "b", "x", "y")
	l.leave("x")
	l.want(t, "z")
}

func TestUrgentCallsNeverWait(t *testing.T) {
	l := newTimeline(2)
	for _, name := range []string{"a", "b", "c"} {
		l.arrive(name, StopPodSandbox, Owner{})
	}
	for _, name := range []string{"u1", "u2", "u3"} {
		l.arrive(name, StopContainer, Owner{class: urgent})
	}
	l.want(t, "a", "b", "u1", "u2", "u3")
}

// A pod whose sandbox was just created gets its container before other pods get theirs. If it takes longer, as for an
// image pull, it waits like the others.
func TestPodsThatHaveBegunGoOn(t *testing.T) {
	l := newTimeline(2)
	for _, name := range []string{"a", "b", "c", "d"} {
		l.arrive(name, RunPodSandbox, Owner{})
	}
	l.want(t, "a", "b")
	l.leave("a")
	l.want(t, "c")
	l.after(continues)
	l.arrive("a", CreateContainer, Owner{})
	l.want(t, "a")
	l.leave("b")
	l.want(t)
	l.after(continues + time.Millisecond)
	l.arrive("b", CreateContainer, Owner{})
	l.want(t)
	l.leave("a")
	l.want(t, "d")
}

// TestSandboxesStopInOrder: pods whose containers have just ended wait for each other, so the first are gone sooner.
func TestSandboxesStopInOrder(t *testing.T) {
	l := newTimeline(2)
	names := []string{"a", "b", "c"}
	for _, name := range names {
		l.arrive(name, StopContainer, Owner{})
	}
	l.after(stopCounts)
	l.want(t, names...)
	for _, name := range names {
		l.leave(name)
		l.arrive(name, StopPodSandbox, Owner{})
	}
	l.want(t, "a", "b")
	l.leave("a")
	l.want(t, "c")
}

// TestPodsThatStartAgain: after a power cut, pods whose dead sandboxes are stopped start a few at a time.
func TestPodsThatStartAgain(t *testing.T) {
	l := newTimeline(2)
	names := []string{"a", "b", "c", "d"}
	for _, name := range names {
		l.arrive(name, StopPodSandbox, Owner{})
	}
	l.want(t, "a", "b")
	l.leave("a")
	l.leave("b")
	l.want(t, "c", "d")
	l.leave("c")
	l.leave("d")
	for _, name := range names {
		l.arrive(name, RunPodSandbox, Owner{})
	}
	l.want(t, "a", "b")
	l.leave("a")
	l.want(t, "c")
	l.arrive("a", CreateContainer, Owner{})
	l.want(t, "a")
}

// TestBackground: calls in the background wait until no others wait or count, but not for ever.
func TestBackground(t *testing.T) {
	l := newTimeline(2)
	l.arrive("a", StopPodSandbox, Owner{})
	l.arrive("b", RunPodSandbox, Owner{})
	l.leave("a")
	l.want(t, "a", "b")
	for _, name := range []string{"a", "bg1", "bg2"} { // a has begun
		l.arrive(name, RemoveContainer, Owner{class: background})
	}
	l.want(t)
	l.leave("b")
	l.want(t, "a", "bg1")
	if l.q.busy() {
		t.Error("busy with background calls alone, want not")
	}
	l.arrive("c", StopPodSandbox, Owner{})
	l.want(t)
	l.leave("a")
	l.want(t, "c")
	l.leave("bg1")
	l.want(t)
	l.calls["c"].until = l.now.Add(time.Hour) // it is expected to take this long
	if got, want := l.q.next(), l.calls["bg2"].arrived.Add(patience); !got.Equal(want) {
		t.Errorf("next look at %v, want %v: patience ends", got, want)
	}
	l.after(patience)
	l.want(t, "bg2")
}

// TestBackgroundIsNoLoad: calls that wait in the background do not change the limit, which was not reached.
func TestBackgroundIsNoLoad(t *testing.T) {
	l := newTimeline(8)
	for i := range 10 * windowCalls {
		var stops []string
		for j := range i%3 + 1 {
			stops = append(stops, fmt.Sprint("stop", i, "-", j))
			l.arrive(stops[j], StopPodSandbox, Owner{})
		}
		l.arrive("background", RemoveContainer, Owner{class: background})
		l.after(10 * time.Millisecond)
		for _, stop := range stops {
			l.leave(stop)
		}
		l.leave("background")
	}
	if got := l.q.levels[ends].limit; got != 8 {
		t.Errorf("limit %v, want 8", got)
	}
}

// TestFirstPod: until the first container has started, a call failed or one hangs, half of the limit applies.
func TestFirstPod(t *testing.T) {
	begin := func() *timeline {
		l := newTimeline(4)
		l.idle = true
		for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
			l.arrive(name, RunPodSandbox, Owner{})
		}
		l.want(t, "a", "b")
		return l
	}
	l := begin()
	l.leave("a")
	l.want(t, "c")
	l.arrive("a", StartContainer, Owner{})
	l.want(t, "a")
	l.leave("b")
	l.want(t)
	l.leave("a")
	l.want(t, "d", "e", "f")
	for _, name := range []string{"c", "d", "e", "f"} {
		l.leave(name)
	}
	l.after(continues + time.Second)
	for _, name := range []string{"g", "h", "i"} { // another burst
		l.arrive(name, RunPodSandbox, Owner{})
	}
	l.want(t, "g", "h")

	failed := begin()
	failed.q.removeCall(failed.now, failed.calls["a"], false)
	failed.want(t, "c", "d", "e")

	hung := begin()
	hung.after(countsUnknown)
	hung.want(t, "c", "d", "e", "f")
}

func TestFailedCallsDoNotGoOn(t *testing.T) {
	l := newTimeline(2)
	for _, name := range []string{"a", "b", "c"} {
		l.arrive(name, RunPodSandbox, Owner{})
	}
	l.want(t, "a", "b")
	l.q.removeCall(l.now, l.calls["a"], false)
	l.want(t, "c")
	l.arrive("a", RunPodSandbox, Owner{})
	l.want(t)
}

func TestPatience(t *testing.T) {
	l := newTimeline(2)
	l.arrive("a", RunPodSandbox, Owner{})
	l.arrive("b", RunPodSandbox, Owner{})
	l.arrive("low", RunPodSandbox, Owner{priority: -5})
	l.want(t, "a", "b")
	for name := range l.calls { // they are expected to take this long
		l.calls[name].until = l.now.Add(time.Hour)
	}
	l.after(patience - time.Millisecond)
	l.arrive("high", RunPodSandbox, Owner{priority: 5})
	l.after(time.Millisecond)
	l.leave("a")
	l.want(t, "low")
}

func TestCallsThatHangStopCounting(t *testing.T) {
	l := newTimeline(2)
	l.q.levels[starts].usual[RunPodSandbox] = 0.5
	for _, name := range []string{"a", "b", "c"} {
		l.arrive(name, RunPodSandbox, Owner{})
	}
	l.want(t, "a", "b")
	if got, want := l.q.next(), l.now.Add(2*time.Second); !got.Equal(want) {
		t.Errorf("next look at %v, want %v: four times what is usual", got, want)
	}
	l.after(2*time.Second - time.Millisecond)
	l.want(t)
	l.after(time.Millisecond)
	l.want(t, "c")
	if got := l.q.next(); !got.IsZero() {
		t.Errorf("next look at %v, want none: nobody waits", got)
	}
	l.leave("a") // late, but not lost
	l.leave("b")
	if l.q.counted[starts] != 1 || len(l.q.running) != 1 {
		t.Errorf("%d calls count and %d run, want c alone", l.q.counted[starts], len(l.q.running))
	}
}

// Containers that ignore SIGTERM count for a moment, not for their grace period.
func TestGracePeriodsTakeNoPlace(t *testing.T) {
	l := newTimeline(2)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		l.arrive(name, StopContainer, Owner{})
	}
	l.want(t, "a", "b")
	l.after(stopCounts)
	l.want(t, "c", "d")
	l.after(stopCounts)
	l.want(t, "e")
	l.after(30 * time.Second)
	l.leave("a")
	if usual := l.q.levels[ends].usual[StopContainer]; usual != 0 {
		t.Errorf("the usual StopContainer takes %v s, want no answer: its container waited", usual)
	}
	l.arrive("pod", RunPodSandbox, Owner{})
	l.want(t, "pod")
}

func TestWaitingCallsMayLeave(t *testing.T) {
	l := newTimeline(2)
	for _, name := range []string{"a", "b", "c", "d"} {
		l.arrive(name, RunPodSandbox, Owner{})
	}
	l.want(t, "a", "b")
	l.leave("c")
	l.leave("a")
	l.want(t, "d")
}

func TestOwnerOf(t *testing.T) {
	created := metav1.NewTime(time.Unix(7, 0))
	pod := func(priority *int32, annotations map[string]string) *v1.Pod {
		return &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{UID: "u", CreationTimestamp: created, Annotations: annotations},
			Spec:       v1.PodSpec{Priority: priority},
		}
	}
	static := map[string]string{"kubernetes.io/config.source": "file"}
	for name, tc := range map[string]struct {
		pod  *v1.Pod
		want Owner
	}{
		"unknown":          {nil, Owner{UID: "u"}},
		"ordinary":         {pod(new(int32(5)), nil), Owner{"u", ordinary, 5, created.Time}},
		"without priority": {pod(nil, nil), Owner{"u", ordinary, 0, created.Time}},
		"system critical":  {pod(new(int32(2000001000)), nil), Owner{"u", critical, 2000001000, created.Time}},
		"static":           {pod(nil, static), Owner{"u", critical, 0, created.Time}},
	} {
		if got := OwnerOf("u", tc.pod); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}
