package health

import (
	"errors"
	"os"
	"regexp"
	"testing"
	"testing/synctest"
	"time"
)

func TestRegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Registry
		r.Set(StaticPodBad, "b", "why")
		r.Set(StaticPodBad, "a", "why")
		r.Set(StoreRecovered, "", "what")
		r.SetError(RuntimeDown, "", errors.New("no answer"))
		if list := r.Snapshot(); len(list) != 3 || list[0].Object != "a" || list[1].Object != "b" ||
			list[2].Code != StoreRecovered {
			t.Errorf("%+v: want the errors first, and nothing that may pass by itself", list)
		}
		time.Sleep(3 * time.Second)
		if worst, ok := r.Healthy(); ok || worst.Code != RuntimeDown || worst.Detail != "no answer" ||
			worst.Remedy == "" {
			t.Errorf("Healthy = %+v, %v; want %s with no answer and a remedy, false", worst, ok, RuntimeDown)
		}
		since := r.Snapshot()[0].Since
		r.Set(RuntimeDown, "", "another detail")
		if c := r.Snapshot()[0]; c.Detail != "another detail" || !c.Since.Equal(since) {
			t.Errorf("detail %q since %v, want %q since %v as before", c.Detail, c.Since, "another detail", since)
		}
		if !r.Is(RuntimeDown) || !r.Is(StaticPodBad) || r.Is(ClockNotSet) {
			t.Errorf("Is = %v, %v, %v for %s, %s and %s; want true, true, false", r.Is(RuntimeDown), r.Is(StaticPodBad),
				r.Is(ClockNotSet), RuntimeDown, StaticPodBad, ClockNotSet)
		}
		r.SetError(RuntimeDown, "", nil)
		r.Clear(StaticPodBad, "a")
		r.Clear(StaticPodBad, "b")
		r.Clear(StaticPodBad, "never set")
		// RuntimeDown may pass by itself, and StoreRecovered is not over.
		if brief := r.TakeBrief(); len(brief) != 1 || brief[StaticPodBad].Object != "b" {
			t.Errorf("TakeBrief = %+v, want %s of b alone", brief, StaticPodBad)
		}
		r.Set(StaticPodBad, "c", "why")
		r.Clear(StaticPodBad, "c")
		if brief := r.TakeBrief(); len(brief) > 0 {
			t.Errorf("TakeBrief again = %+v, want none", brief)
		}
		if worst, ok := r.Healthy(); !ok {
			t.Errorf("Healthy with a warning = %+v, false; want true", worst)
		}
	})
}

func TestSummary(t *testing.T) {
	var r Registry
	r.Set(StoreRecovered, "", "what") // a warning
	if got := r.Summary(); got != "Running" {
		t.Errorf("Summary with a warning = %q, want Running", got)
	}
	r.Set(StoreFailing, "", "disk full")
	if got, want := r.Summary(), known[StoreFailing].Title+": disk full"; got != want {
		t.Errorf("Summary with an error = %q, want %q", got, want)
	}
}

// TestEveryCodeIsExplained: anyone who reads a condition learns what to do. The codes are read from the source, so that
// a new one cannot be forgotten.
func TestEveryCodeIsExplained(t *testing.T) {
	source, err := os.ReadFile("conditions.go")
	if err != nil {
		t.Fatal(err)
	}
	codes := regexp.MustCompile(`Code\s+= "(\w+)"`).FindAllStringSubmatch(string(source), -1)
	for _, match := range codes {
		if e := known[Code(match[1])]; e.Title == "" || e.Remedy == "" || e.Severity == "" {
			t.Errorf("%s: %+v, want a title, a remedy and a severity", match[1], e)
		}
	}
	if len(codes) == 0 || len(known) != len(codes) {
		t.Errorf("%d conditions are known, %d have a code; want as many", len(known), len(codes))
	}
}
