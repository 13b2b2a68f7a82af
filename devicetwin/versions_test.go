package devicetwin

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/devicetwin/twin"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/devicemsg"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// api is what the API has: a value never replaces one with a higher version of the same epoch.
type api struct{ versions, values map[string]string }

func (a *api) write(report []byte) *devicemsg.Outdated {
	if a.values == nil {
		a.versions, a.values = map[string]string{}, map[string]string{}
	}
	var late devicemsg.Outdated
	set := func(name, value, version string) {
		if have := a.versions[name]; devicemsg.OlderVersion(version, have) {
			if name == "state" {
				late.State = have
				return
			}
			late.Values = map[string]string{name: have}
			return
		}
		a.versions[name], a.values[name] = version, value
	}
	if u, err := devicemsg.DecodeStateUpdate(report); err == nil {
		set("state", u.Device.State, devicemsg.FormatVersion(u.Epoch, u.Version))
	}
	if u, err := devicemsg.DecodeTwinUpdate(report); err == nil {
		for name, p := range u.Twin {
			if text, ok := p.Actual.Text(); ok {
				set(name, text, devicemsg.FormatVersion(u.Epoch, p.ActualVersion.Edge))
			}
		}
	}
	if len(late.Values) == 0 && late.State == "" {
		return nil
	}
	late.Message = "older"
	return &late
}

// awaitAPI waits until the API has a value, or a state.
func (e *env) awaitAPI(name, want string) {
	e.t.Helper()
	wait.Until(e.t, fmt.Sprintf("the API to have %s = %s", name, want), func() error {
		e.cloud.mu.Lock()
		defer e.cloud.mu.Unlock()
		if got := e.cloud.api.values[name]; got != want {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
}

// reportTemp reports a value, and waits until the API has it.
func (e *env) reportTemp(value string) {
	e.t.Helper()
	if err := e.Report(e.t.Context(), "shop", "one", []twin.Report{{Name: "temp", Value: value}}); err != nil {
		e.t.Fatal(err)
	}
	e.awaitAPI("temp", value)
}

// TestBoundAgain: a device that leaves the node and returns reports on, although the API has its earlier values.
func TestBoundAgain(t *testing.T) {
	e := start(t)
	e.cloud.set(false)
	e.lamp("")
	for i := range 3 {
		e.reportTemp(fmt.Sprint("before", i))
	}
	e.object(model.OpDelete, resource.TypeDevice, "one", lamp(""))
	wait.True(t, "the device to be gone", func() bool { return len(e.Devices()) == 0 })
	e.lamp("")
	e.reportTemp("after")
}

// TestRowsLost: whichever rows of the store are lost, devices report on.
func TestRowsLost(t *testing.T) {
	for name, lose := range map[string]func(row store.Meta) bool{
		"twin":    func(row store.Meta) bool { return row.Type == resource.TypeDeviceTwin },
		"numbers": func(row store.Meta) bool { return row.Type == typeEpoch },
		"both":    func(row store.Meta) bool { return strings.HasPrefix(row.Type, resource.TypeDeviceTwin) },
	} {
		t.Run(name, func(t *testing.T) {
			e := start(t)
			e.cloud.set(false)
			e.lamp("")
			for i := range 3 {
				e.reportTemp(fmt.Sprint("before", i))
			}
			e.stop()
			for _, typ := range []string{resource.TypeDeviceTwin, typeEpoch} {
				rows, err := e.store.List(t.Context(), typ)
				if err != nil {
					t.Fatal(err)
				}
				for _, row := range rows {
					if !lose(row) {
						continue
					}
					if err := e.store.Apply(t.Context(), store.Delete(row.Key)); err != nil {
						t.Fatal(err)
					}
				}
			}
			e.run()
			e.cloud.set(false)
			wait.True(t, "the device", func() bool { return len(e.Devices()) == 1 })
			e.reportTemp("after")
		})
	}
}

// TestOlderCopyOfTheStore: a store that was restored from a copy gives out numbers again that the API has seen. It
// begins a new epoch.
func TestOlderCopyOfTheStore(t *testing.T) {
	e := start(t)
	e.cloud.set(false)
	e.lamp("")
	e.reportTemp("before")
	copied, err := e.store.Get(t.Context(), numberingKey)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // each run gives out higher numbers
		e.stop()
		e.run()
		e.cloud.set(false)
		wait.True(t, "the device", func() bool { return len(e.Devices()) == 1 })
	}
	e.reportTemp("later")
	if err := e.ReportState(t.Context(), "shop", "one", "online", ""); err != nil {
		t.Fatal(err)
	}
	e.awaitAPI("state", "online")
	e.stop()
	if err := e.store.Apply(t.Context(), store.Upsert(copied), store.Delete(twinKey("shop/one"))); err != nil {
		t.Fatal(err)
	}
	e.run()
	e.cloud.set(false)
	wait.True(t, "the device", func() bool { return len(e.Devices()) == 1 })
	if err := e.ReportState(t.Context(), "shop", "one", "offline", ""); err != nil {
		t.Fatal(err)
	}
	e.awaitAPI("state", "offline")
	e.reportTemp("after")
}

// TestSentButNotStored: the API has a value that an earlier run sent and did not store. The earlier value is not
// written over it, but it is when the machine has it again.
func TestSentButNotStored(t *testing.T) {
	e := start(t)
	e.cloud.set(false)
	e.lamp("")
	e.reportTemp("cold")
	if err := e.ReportState(t.Context(), "shop", "one", "online", ""); err != nil {
		t.Fatal(err)
	}
	e.awaitAPI("state", "online")
	e.disk.fill(true)
	if _, err := e.Update("shop", "one", []twin.Report{{Name: "temp", Value: "hot"}}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := e.UpdateState("shop", "one", "offline", "", twin.FromNode); err != nil {
		t.Fatal(err)
	}
	e.awaitAPI("temp", "hot")
	e.awaitAPI("state", "offline")
	e.stop() // killed: the disk is full until the end
	e.disk.fill(false)
	e.run()
	e.cloud.set(false)
	wait.True(t, "the answer that the API has a newer value", func() bool {
		e.Module.mu.Lock()
		defer e.Module.mu.Unlock()
		x := e.Module.devices["shop/one"]
		return x != nil && x.report.outdated["temp"] && x.report.outdatedState
	})
	e.awaitAPI("temp", "hot")
	e.reportTemp("cold")
	if err := e.ReportState(t.Context(), "shop", "one", "online", ""); err != nil {
		t.Fatal(err)
	}
	e.awaitAPI("state", "online")
}

// TestNumbering: no version is given out twice, and none before it is reserved.
func TestNumbering(t *testing.T) {
	var row []byte
	seen := map[string]bool{}
	for run := range 3 {
		n := resumeNumbering(row)
		if n.Next(); n.maySend() {
			t.Errorf("run %d: versions may be sent before any is reserved", run)
		}
		ops, r := n.reserve()
		if len(ops) == 0 {
			t.Fatalf("run %d: nothing is reserved", run)
		}
		n.stored = r
		var err error
		if row, err = json.Marshal(r); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			v := devicemsg.FormatVersion(n.epoch, n.Next())
			if seen[v] || !n.maySend() {
				t.Errorf("run %d: version %s, seen before %v, may be sent %v; want a new one that may", run, v, seen[v],
					n.maySend())
			}
			seen[v] = true
		}
		if ops, _ := n.reserve(); len(ops) > 0 {
			t.Errorf("run %d: more is reserved, want that there is enough", run)
		}
		n.Last += reserved
		if ops, _ := n.reserve(); len(ops) == 0 || n.maySend() {
			t.Errorf("run %d: nothing is reserved although all is given out, or it may be sent", run)
		}
	}
	if a, b := resumeNumbering(nil), resumeNumbering([]byte(`"0a1b"`)); a.epoch == "" || a.epoch == b.epoch {
		t.Errorf("epochs of stores without a reservation: %q and %q, want one of its own each", a.epoch, b.epoch)
	}
}
