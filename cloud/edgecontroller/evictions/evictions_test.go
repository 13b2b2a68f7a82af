package evictions

import (
	"fmt"
	"math"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

func TestTolerated(t *testing.T) {
	both := func(notReady, unreachable int64) []v1.Toleration {
		out := fakes.Limited(notReady)
		out[1].TolerationSeconds = &unreachable
		return out
	}
	forever, _ := unlimited(nil)
	for name, tc := range map[string]struct {
		have []v1.Toleration
		want time.Duration
	}{
		"the defaults": {fakes.Limited(300), 300 * time.Second},
		"the shorter":  {both(40, 10), 10 * time.Second},
		"longer":       {fakes.Limited(3600), 300 * time.Second},
		"the longest":  {fakes.Limited(math.MaxInt64), 300 * time.Second},
		"negative":     {fakes.Limited(-1), 0},
		"none":         {nil, 0},
		"one of two":   {fakes.Limited(300)[:1], 0},
		"for ever":     {forever, 300 * time.Second},
		"one for ever": {[]v1.Toleration{forever[0], fakes.Limited(20)[1]}, 20 * time.Second},
		"listed twice": {append(fakes.Limited(300), fakes.Limited(5)...), 5 * time.Second},
		"of every taint": {
			[]v1.Toleration{{Operator: v1.TolerationOpExists, TolerationSeconds: new(int64(7))}}, 7 * time.Second,
		},
	} {
		if got := tolerated(tc.have); got != tc.want {
			t.Errorf("%s: tolerated = %v, want %v", name, got, tc.want)
		}
	}
}

// TestPatchDelay: the times of the table at longestTolerance, without the spread.
func TestPatchDelay(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	scheduled := func(ago time.Duration) func(*v1.Pod) {
		return func(p *v1.Pod) {
			c := fakes.Condition(v1.PodScheduled, v1.ConditionTrue)
			c.LastTransitionTime = metav1.NewTime(now.Add(-ago))
			p.Status.Conditions = append(p.Status.Conditions, c)
		}
	}
	created := func(ago time.Duration) func(*v1.Pod) {
		return func(p *v1.Pod) { p.CreationTimestamp = metav1.NewTime(now.Add(-ago)) }
	}
	running := func(p *v1.Pod) { p.Status.Phase = v1.PodRunning }
	short := func(seconds int64) func(*v1.Pod) {
		return func(p *v1.Pod) { p.Spec.Tolerations = fakes.Limited(seconds) }
	}
	all := func(changes ...func(*v1.Pod)) func(*v1.Pod) {
		return func(p *v1.Pod) {
			for _, change := range changes {
				change(p)
			}
		}
	}
	for name, tc := range map[string]struct {
		change func(*v1.Pod)
		want   time.Duration
	}{
		"just bound":               {scheduled(0), 120 * time.Second},
		"created for its node":     {created(20 * time.Second), 100 * time.Second},
		"waited for a node":        {all(created(time.Hour), scheduled(0)), 120 * time.Second},
		"bound before":             {scheduled(time.Hour), 0},
		"running":                  {all(scheduled(0), running), 60 * time.Second},
		"running at last":          {all(scheduled(110*time.Second), running), 10 * time.Second},
		"a clock that is ahead":    {all(scheduled(-time.Hour)), 120 * time.Second},
		"ahead, and running":       {all(scheduled(-time.Hour), running), 60 * time.Second},
		"tolerates for 10 seconds": {all(short(10), scheduled(0)), 4 * time.Second},
		"10 seconds, running":      {all(short(10), scheduled(0), running), 2 * time.Second},
		"tolerates for no time":    {all(short(0), scheduled(0)), 0},
		"tolerates nothing":        {func(p *v1.Pod) { p.Spec.Tolerations = nil }, 0},
	} {
		pod := fakes.Pod("e1", "ns", "a")
		pod.Spec.Tolerations = fakes.Limited(300)
		tc.change(pod)
		limit := tolerated(pod.Spec.Tolerations)
		got := PatchDelay(pod, now) - spread(pod.UID, limit/shareSpread)
		if got != tc.want {
			t.Errorf("%s: delay %v, want %v", name, got, tc.want)
		}
	}
}

// TestSpread: pods that came together are patched in small batches.
func TestSpread(t *testing.T) {
	var each [6]int
	for i := range 600 {
		uid := types.UID(fmt.Sprintf("%08x-0000-4000-8000-000000000000", i))
		at := spread(uid, time.Minute)
		if at < 0 || at >= time.Minute || at != spread(uid, time.Minute) {
			t.Fatalf("spread(%s) = %v, then %v; want the same below a minute", uid, at, spread(uid, time.Minute))
		}
		each[at/(10*time.Second)]++
	}
	for i, n := range each {
		if n < 50 || n > 150 {
			t.Errorf("%d of 600 pods fall into part %d of 6, want about 100", n, i)
		}
	}
}
