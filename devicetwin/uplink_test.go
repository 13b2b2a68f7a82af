package devicetwin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/devicetwin/twin"
	"github.com/edgecore-io/edgecore/pkg/devicemsg"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// answers is a bus whose cloud answers reports, or returns "" to give no answer.
type answers func(devicemsg.Report) string

const accepted = "OK"

func (answers) Receive(ctx context.Context, _ string) (*model.Message, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (a answers) SendSync(ctx context.Context, _ string, m *model.Message) (*model.Message, error) {
	about, ok := devicemsg.ParseReport(m.Route.Resource)
	if !ok {
		return nil, fmt.Errorf("resource %s is not a report's", m.Route.Resource)
	}
	switch answer := a(about); answer {
	case "":
		<-ctx.Done()
		return nil, ctx.Err()
	case accepted:
		return m.Respond(model.OK), nil
	default:
		return m.RespondError(devicemsg.SourceCloud, errors.New(answer)), nil
	}
}

// startUplink runs the uplink of a module with lamps, in the bubble of synctest, until the test ends.
func startUplink(t *testing.T, bus Bus, lamps ...string) *Module {
	t.Helper()
	m := New(Options{Bus: bus})
	m.linked, m.numbers = true, resumeNumbering(nil)
	_, m.numbers.stored = m.numbers.reserve()
	for _, at := range lamps {
		key := resource.Key{Type: resource.TypeDevice}
		key.Namespace, key.Name, _ = strings.Cut(at, "/")
		object := fmt.Sprintf(`{"metadata":{"name":%q,"namespace":%q,"uid":%q},"spec":{"protocol":{"protocolName":"dali"},
"properties":[{"name":"temp","reportToCloud":true}]}}`, key.Name, key.Namespace, at)
		if err := m.setDevice(key, json.RawMessage(object), false); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { m.uplink.run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return m
}

// TestRefusedValues: values that the cloud refuses delay no state, now or later.
func TestRefusedValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refusals, states atomic.Int32
		m := startUplink(t, answers(func(r devicemsg.Report) string {
			if r.Kind == devicemsg.KindTwin {
				refusals.Add(1)
				return "the API server says no"
			}
			states.Add(1)
			return accepted
		}), "shop/one")
		if _, err := m.Update("shop", "one", []twin.Report{{Name: "temp", Value: "21"}}, nil); err != nil {
			t.Fatal(err)
		}
		for i, state := range []string{"online", "offline", "online"} {
			if _, err := m.UpdateState("shop", "one", state, "", twin.FromNode); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * sendInterval)
			synctest.Wait()
			if got := states.Load(); got != int32(i+1) {
				t.Errorf("the cloud has accepted %d states while it refuses values, want %d", got, i+1)
			}
			time.Sleep(10 * refusedMax) // the pause of the values is the longest one now
		}
		if got := refusals.Load(); got < 15 || got > 45 {
			t.Errorf("values are sent %d times in 150 minutes, want 15 to 45: with a growing pause", got)
		}
	})
}

// TestMessages: a message that changes while the state stays is sent once a minute, the newest one in the end.
func TestMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var sent []devicemsg.StateUpdate
		m := startUplink(t, states(func(u *devicemsg.StateUpdate) {
			mu.Lock()
			defer mu.Unlock()
			sent = append(sent, *u)
		}), "shop/one")
		report := func(state, message string) {
			t.Helper()
			if _, err := m.UpdateState("shop", "one", state, message, twin.FromNode); err != nil {
				t.Fatal(err)
			}
		}
		// want checks the messages that were sent since the last call.
		want := func(what string, messages ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			var got []string
			for i := range sent {
				got = append(got, sent[i].Device.State+": "+sent[i].Message)
			}
			if !slices.Equal(got, messages) {
				t.Errorf("%s: sent %q, want %q", what, got, messages)
			}
			sent = nil
		}
		report("offline", "try 0")
		want("at first", "offline: try 0")
		time.Sleep(500 * time.Millisecond)
		for i := range 300 {
			time.Sleep(time.Second)
			report("offline", fmt.Sprint("try ", i+1))
		}
		time.Sleep(sendInterval)
		want("in 5 minutes", "offline: try 59", "offline: try 119", "offline: try 179", "offline: try 239",
			"offline: try 299")
		report("offline", "try 301")
		want("within the minute")
		time.Sleep(time.Hour)
		want("although nothing more is reported", "offline: try 301")
		report("offline", "try 302")
		time.Sleep(10 * time.Second)
		want("after a pause", "offline: try 302")
		report("offline", "try 303")
		report("offline", "try 302")
		time.Sleep(time.Hour)
		want("what was withdrawn")
		report("offline", "try 304")
		time.Sleep(sendInterval)
		want("after a minute", "offline: try 304")
		report("offline", "try 305")
		report("unhealthy", "limit: busy")
		report("unhealthy", "limit: still busy")
		time.Sleep(10 * time.Second)
		want("another state", "unhealthy: limit: busy")
		report("online", "")
		time.Sleep(time.Hour)
		want("a device that works", "online: ")
		if d := m.Devices()[0].Twin; d.StateMessage != "" || d.State != "online" {
			t.Errorf("twin %+v, want no message", d)
		}
	})
}

// states is a bus whose cloud accepts everything. It is called with the reports on states.
type states func(*devicemsg.StateUpdate)

func (states) Receive(ctx context.Context, _ string) (*model.Message, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (s states) SendSync(_ context.Context, _ string, m *model.Message) (*model.Message, error) {
	if u, err := devicemsg.DecodeStateUpdate(m.ContentData()); err == nil {
		s(u)
	}
	return m.Respond(model.OK), nil
}

// TestNoAnswers: reports that the cloud does not answer delay none of other namespaces.
func TestNoAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lamps []string
		for i := range 40 {
			lamps = append(lamps, fmt.Sprintf("evil/%d", i), fmt.Sprintf("worse/%d", i))
		}
		var got atomic.Int32
		m := startUplink(t, answers(func(r devicemsg.Report) string {
			if r.Namespace == "shop" {
				got.Add(1)
				return accepted
			}
			return ""
		}), append(lamps, "shop/one")...)
		report := func(at, value string) {
			t.Helper()
			namespace, name, _ := strings.Cut(at, "/")
			if _, err := m.Update(namespace, name, []twin.Report{{Name: "temp", Value: value}}, nil); err != nil {
				t.Fatal(err)
			}
		}
		for _, at := range lamps {
			report(at, "1")
		}
		synctest.Wait()
		for i := range 100 {
			report("shop/one", fmt.Sprint(i))
			time.Sleep(2 * sendInterval)
			synctest.Wait()
			if n := got.Load(); n != int32(i+1) {
				t.Fatalf("the cloud has %d reports of shop, want %d: each soon", n, i+1)
			}
			time.Sleep(10 * sendInterval)
		}
	})
}

func TestMayTake(t *testing.T) {
	for _, hostile := range []int{1, 2, 5, 20} {
		has, free := make([]int, hostile), sendsMax
		for range 1000 { // each gives a place back and takes what it may
			for i := range has {
				if has[i] > 0 {
					has[i]--
					free++
				}
				for mayTake(has[i], free) {
					has[i]++
					free--
				}
			}
		}
		if want := sendsMax / (hostile + 1); free < want || free > 2*want+1 {
			t.Errorf("%d namespaces without answers leave %d of %d places, want %d", hostile, free, sendsMax, want)
		}
	}
}

func TestEarliest(t *testing.T) {
	now := time.Unix(1000, 0)
	late := now.Add(sendInterval / 2)
	for name, tc := range map[string]struct {
		do   func(r *reporting)
		want time.Time
	}{
		"a reported value":      {func(r *reporting) { r.changed("a") }, time.Time{}},
		"a desired value waits": {func(r *reporting) { r.received(now, "a") }, now.Add(sendInterval)},
		"the first of two counts": {func(r *reporting) {
			r.received(now, "a")
			r.received(late, "b")
		}, now.Add(sendInterval)},
		"a report takes it along": {func(r *reporting) { r.received(now, "a"); r.changed("a") }, time.Time{}},
		"a state takes it along":  {func(r *reporting) { r.received(now, "a"); r.stateChanged() }, time.Time{}},
		"nothing takes it along":  {func(r *reporting) { r.received(now, "a"); r.changed() }, now.Add(sendInterval)},
		"other values go at once": {func(r *reporting) { r.changed("b"); r.received(now, "a") }, time.Time{}},
		"a state goes at once":    {func(r *reporting) { r.stateChanged(); r.received(now, "a") }, time.Time{}},
		"the interval counts":     {func(r *reporting) { r.next = late; r.changed("a") }, late},
		"a refused kind waits": {func(r *reporting) {
			r.refuse(devicemsg.KindTwin, now)
			r.refused[devicemsg.KindTwin].until = late
			r.changed("a")
		}, late},
		"another kind does not": {func(r *reporting) {
			r.refuse(devicemsg.KindTwin, now)
			r.changed("a")
			r.stateChanged()
		}, time.Time{}},
	} {
		var r reporting
		tc.do(&r)
		if got := r.earliest(); !got.Equal(tc.want) {
			t.Errorf("%s: earliest = %v, want %v", name, got, tc.want)
		}
		if !r.due() {
			t.Errorf("%s: due = false, want true", name)
		}
	}
}
