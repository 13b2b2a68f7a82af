package eviction

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

// TestStep walks through looks at a node: what is available of memory and disk at each, and what follows.
func TestStep(t *testing.T) {
	const mi = 1 << 20
	config := Config{Transition: 5 * time.Minute, MaxPodGrace: 30, Thresholds: []Threshold{
		{Signal: Memory, Value: Value{Amount: 100 * mi}, MinReclaim: Value{Amount: 50 * mi}},
		{Signal: Memory, Value: Value{Amount: 200 * mi}, Soft: true, Grace: 60 * time.Second},
		{Signal: NodeFS, Value: Value{Percent: 10}},
		{Signal: NodeFSInodes, Value: Value{Percent: 5}},
		{Signal: PIDs, Value: Value{Amount: 100}},
	}}
	type look struct {
		after        time.Duration
		memory, disk int64 // MiB; -1 is unknown
		want         string
	}
	for name, looks := range map[string][]look{
		"nothing is short": {{0, 500, 500, "[] nothing, again in 10s"}},
		"nothing is known": {{0, -1, -1, "[] nothing, again in 10s"}},
		"the disk is nearly short": {
			{0, 500, 110, "[] nothing, again in 10s"}, {10 * time.Second, 500, 110, "[] nothing, again in 10s"},
		},
		"the disk gets short": {
			{0, 500, 500, "[] nothing, again in 10s"},
			{10 * time.Second, 500, 300, "[] nothing, again in 5s"},
			{15 * time.Second, 500, 200, "[] nothing, again in 2.5s"},
			{18 * time.Second, 500, 140, "[] nothing, again in 2s"},
			{20 * time.Second, 500, 99, "[DiskPressure] nodefs.available, again in 2s"},
		},
		"the disk gets short slowly": {
			{0, 500, 500, "[] nothing, again in 10s"}, {10 * time.Second, 500, 480, "[] nothing, again in 10s"},
		},
		"memory nearly short is the kernel's to say": {{0, 210, 500, "[] nothing, again in 10s"}},
		"hard": {
			{0, 99, 500, "[MemoryPressure] memory.available, again in 2s"},
			// The minimum has to be reclaimed.
			{time.Second, 140, 500, "[MemoryPressure] memory.available, again in 2s"},
			{2 * time.Second, 150, 500, "[MemoryPressure] nothing, again in 10s"},
		},
		"soft": {
			{0, 199, 500, "[MemoryPressure] nothing, again in 10s"},
			{55 * time.Second, 199, 500, "[MemoryPressure] nothing, again in 5s"},
			{60 * time.Second, 199, 500, "[MemoryPressure] memory.available soft, again in 2s"},
			{61 * time.Second, 201, 500, "[MemoryPressure] nothing, again in 10s"},
			// A new beginning.
			{62 * time.Second, 199, 500, "[MemoryPressure] nothing, again in 10s"},
		},
		"the condition stays for a while": {
			{0, 500, 99, "[DiskPressure] nodefs.available, again in 2s"},
			{time.Second, 500, 500, "[DiskPressure] nothing, again in 10s"},
			{4*time.Minute + 56*time.Second, 500, 500, "[DiskPressure] nothing, again in 4s"},
			{5 * time.Minute, 500, 500, "[] nothing, again in 10s"},
		},
		"memory first": {{0, 50, 50, "[DiskPressure MemoryPressure] memory.available nodefs.available, again in 2s"}},
	} {
		var state State
		began := time.Now()
		for i, l := range looks {
			seen := Observations{NodeFSInodes: {1000, 1000}, PIDs: {1000, 2000}}
			if l.memory >= 0 {
				seen[Memory] = Observation{l.memory * mi, 1000 * mi}
			}
			if l.disk >= 0 {
				seen[NodeFS] = Observation{l.disk * mi, 1000 * mi}
			}
			var v Verdict
			state, v = Step(config, state, seen, began.Add(l.after))
			if diff := cmp.Diff(l.want, say(v)); diff != "" {
				t.Errorf("%s, look %d (-want +got):\n%s", name, i, diff)
			}
		}
	}
}

func say(v Verdict) string {
	var acts []string
	for _, t := range v.Acts {
		acts = append(acts, string(t.Signal))
		if t.Soft && (len(v.Acts) == 1) {
			acts = append(acts, "soft")
		}
	}
	if acts == nil {
		acts = []string{"nothing"}
	}
	kinds := v.Conditions
	if kinds == nil {
		kinds = []v1.NodeConditionType{}
	}
	return fmt.Sprintf("%v %s, again in %v", kinds, strings.Join(acts, " "), v.Again)
}

// TestStepForgets: with no transition period a condition ends when its threshold is met no more.
func TestStepForgets(t *testing.T) {
	c := Config{Thresholds: []Threshold{{Signal: PIDs, Value: Value{Amount: 100}}}}
	now := time.Now()
	state, v := Step(c, State{}, Observations{PIDs: {99, 1000}}, now)
	if got := say(v); got != "[PIDPressure] pid.available, again in 2s" {
		t.Errorf("step: %q, want [PIDPressure] pid.available, again in 2s", got)
	}
	if _, v = Step(c, state, Observations{PIDs: {500, 1000}}, now.Add(time.Second)); len(v.Conditions) > 0 {
		t.Errorf("conditions %v, want none", v.Conditions)
	}
}

func TestHeadroom(t *testing.T) {
	c := Config{
		Thresholds: []Threshold{
			{Signal: Memory, Value: Value{Amount: 100}}, {Signal: Memory, Value: Value{Amount: 300}, Soft: true},
		},
	}
	for available, want := range map[int64]int64{1000: 700, 310: 10, 250: 150, 50: -50} {
		if got, ok := headroom(c, Observations{Memory: {available, 2000}}, Memory); !ok || got != want {
			t.Errorf("of %d: %d, %v; want %d", available, got, ok, want)
		}
	}
	if got, ok := headroom(c, Observations{}, Memory); ok {
		t.Errorf("headroom without an observation = %d, true, want false", got)
	}
}

// TestWithHard: soft thresholds and what is to be reclaimed are the new ones, hard thresholds the old.
func TestWithHard(t *testing.T) {
	old := Config{
		Transition: time.Minute, Thresholds: []Threshold{
			{Signal: Memory, Value: Value{Amount: 1}}, {Signal: Memory, Value: Value{Amount: 2}, Soft: true},
			{Signal: PIDs, Value: Value{Amount: 3}},
		},
	}
	next := Config{
		Transition: time.Hour, MaxPodGrace: 4, Thresholds: []Threshold{
			{Signal: Memory, Value: Value{Amount: 50}, MinReclaim: Value{Amount: 5}},
			{Signal: NodeFS, Value: Value{Amount: 6}, Soft: true}, {Signal: NodeFS, Value: Value{Amount: 7}},
		},
	}
	want := Config{
		Transition: time.Hour, MaxPodGrace: 4, Thresholds: []Threshold{
			{Signal: Memory, Value: Value{Amount: 1}, MinReclaim: Value{Amount: 5}},
			{Signal: NodeFS, Value: Value{Amount: 6}, Soft: true}, {Signal: PIDs, Value: Value{Amount: 3}},
		},
	}
	if diff := cmp.Diff(want, next.WithHard(old)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
