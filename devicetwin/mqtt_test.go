package devicetwin

import (
	"strings"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/devicetwin/twin"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestMarksAreStored: what is ahead of messages that wait at an MQTT broker is so after a crash, too, whether it was
// taken before or while they wait, and also if it is what the twin had.
func TestMarksAreStored(t *testing.T) {
	e := start(t)
	e.lamp("")
	take := func() {
		t.Helper()
		stored, err := e.Update("shop", "one", []twin.Report{{Name: "temp", Value: "21"}},
			[]twin.Report{{Name: "level", Value: "5"}})
		if err == nil {
			err = stored(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := e.ReportState(t.Context(), "shop", "one", "online", ""); err != nil {
			t.Fatal(err)
		}
	}
	marks := func() int {
		t.Helper()
		row, err := e.store.Get(t.Context(), "shop/devicetwin/one")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(row.Value), `head":true`)
	}
	e.MQTTBehind(time.Time{})
	e.MQTTCaughtUp()
	take()
	if n := marks(); n != 0 {
		t.Fatalf("%d marks are stored while no message waits, want none", n)
	}
	e.MQTTBehind(time.Time{})
	wait.True(t, "the marks of two values and the state to be stored", func() bool { return marks() == 3 })
	e.MQTTCaughtUp()
	wait.True(t, "the marks to be gone", func() bool { return marks() == 0 })
	e.MQTTBehind(time.Now().Add(time.Hour)) // what the twin has may be older than what waits
	take()
	if n := marks(); n != 3 {
		t.Errorf("%d marks are stored after the same values and state came again, want 3", n)
	}
}
