package eviction

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestParse(t *testing.T) {
	list, err := Parse(Settings{
		Hard: map[string]string{
			"memory.available": "100Mi", "nodefs.available": "10%", "imagefs.available": "0%", "pid.available": "100%",
			"containerfs.available": "0",
		},
		Soft:        map[string]string{"memory.available": "200Mi", "pid.available": "1k"},
		SoftGrace:   map[string]string{"memory.available": "90s", "pid.available": "0s"},
		MinReclaim:  map[string]string{"memory.available": "50Mi", "nodefs.available": "1.5%"},
		PodsLimited: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	hundred, fifty := Value{Amount: 100 << 20}, Value{Amount: 50 << 20}
	want := []Threshold{
		{Signal: Memory, Value: hundred, MinReclaim: fifty},
		{Signal: Memory, Value: Value{Amount: 200 << 20}, MinReclaim: fifty, Soft: true, Grace: 90 * time.Second},
		{Signal: AllocatableMemory, Value: hundred, MinReclaim: fifty},
		{Signal: NodeFS, Value: Value{Percent: 10}, MinReclaim: Value{Percent: 1.5}},
		{Signal: PIDs, Value: Value{Amount: 1000}, Soft: true},
	}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	capacity := v1.ResourceList{
		v1.ResourceMemory: resource.MustParse("1Gi"), v1.ResourceEphemeralStorage: resource.MustParse("1000"),
	}
	if diff := cmp.Diff(map[string]string{"memory": "104857600", "ephemeral-storage": "100"},
		Reserved(list, capacity)); diff != "" {
		t.Errorf("reserved (-want +got):\n%s", diff)
	}
}

// TestParseOwnThreshold: who sets the threshold of all pods together has it.
func TestParseOwnThreshold(t *testing.T) {
	list, err := Parse(Settings{
		Hard: map[string]string{"memory.available": "100Mi", "allocatableMemory.available": "7Mi"}, PodsLimited: true,
	})
	if err != nil || len(list) != 2 || list[1].Value.Amount != 7<<20 {
		t.Errorf("Parse = %+v, %v; want two thresholds, the second 7Mi", list, err)
	}
}

func TestParseRefuses(t *testing.T) {
	for name, s := range map[string]Settings{
		"signal":   {Hard: map[string]string{"memory.free": "1Mi"}},
		"value":    {Hard: map[string]string{"memory.available": "much"}},
		"negative": {Hard: map[string]string{"memory.available": "-1"}},
		"percent":  {Hard: map[string]string{"memory.available": "NaN%"}},
		"over":     {Hard: map[string]string{"memory.available": "101%"}},
		"no grace": {Soft: map[string]string{"memory.available": "1Mi"}},
		"reclaim": {
			Hard: map[string]string{"memory.available": "1Mi"}, MinReclaim: map[string]string{"memory.available": "x"},
		},
	} {
		if list, err := Parse(s); err == nil {
			t.Errorf("%s: Parse = %+v, want an error", name, list)
		}
	}
}

func FuzzParseValue(f *testing.F) {
	for _, text := range []string{"100Mi", "10%", "0.5%", "1e3", "-1", "%", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, err := parseValue(text)
		if err != nil {
			return
		}
		if v.Amount < 0 || v.Percent < 0 || v.Percent > 100 {
			t.Errorf("parseValue(%q) = %+v, want 0 or more, and at most 100 percent", text, v)
		}
		if of := v.Of(1 << 40); of < 0 {
			t.Errorf("%q of a terabyte = %d, want 0 or more", text, of)
		}
	})
}
