package footprint

import (
	"os"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestTune: the environment goes before what a program asks for, and Switch before all.
func TestTune(t *testing.T) {
	processors := runtime.GOMAXPROCS(0)
	percent := debug.SetGCPercent(100)
	t.Cleanup(func() { runtime.GOMAXPROCS(processors); debug.SetGCPercent(percent) })
	type state struct{ percent, processors int }
	for name, c := range map[string]struct {
		env    map[string]string
		tuning Tuning
		want   state
	}{
		"both":           {nil, Tuning{50, 1}, state{50, 1}},
		"garbage only":   {nil, Tuning{GCPercent: 50}, state{50, 4}},
		"more than Go's": {nil, Tuning{50, 8}, state{50, 4}},
		"GOGC":           {map[string]string{"GOGC": "80"}, Tuning{50, 1}, state{100, 1}},
		"GOMAXPROCS":     {map[string]string{"GOMAXPROCS": "4"}, Tuning{50, 1}, state{50, 4}},
		"off":            {map[string]string{Switch: "off"}, Tuning{50, 1}, state{100, 4}},
		"on":             {map[string]string{Switch: "on"}, Tuning{50, 1}, state{50, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, variable := range []string{"GOGC", "GOMAXPROCS", Switch} {
				t.Setenv(variable, c.env[variable])
			}
			runtime.GOMAXPROCS(4)
			debug.SetGCPercent(100)
			Tune(c.tuning)
			if got := (state{debug.SetGCPercent(100), runtime.GOMAXPROCS(0)}); got != c.want {
				t.Errorf("percent and processors: %v, want %v", got, c.want)
			}
		})
	}
}

// TestSwitch: no other part does anything when the package is off.
func TestSwitch(t *testing.T) {
	t.Setenv(Switch, "off")
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	slack := func() [2]string {
		tid, err := thread()
		if err != nil {
			t.Fatal(err)
		}
		var texts [2]string
		for i, id := range []int{tid, unix.Gettid()} {
			text, err := os.ReadFile(slackFile(id))
			if err != nil {
				t.Fatal(err)
			}
			texts[i] = string(text)
		}
		return texts
	}
	before := slack()
	if err := SetSlack(7 * time.Millisecond); err != nil {
		t.Error(err)
	}
	if err := Restart(7 * time.Millisecond); err != nil {
		t.Error(err)
	}
	if after := slack(); after != before {
		t.Errorf("slack of the monitoring thread and of this one: %q, want %q as before", after, before)
	}
	Trim(t.Context(), TrimOptions{Every: time.Hour}) // returns
}
