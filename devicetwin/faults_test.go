package devicetwin

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/devicetwin/twin"
	"github.com/edgecore-io/edgecore/pkg/devicemsg"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

var (
	long = flag.Bool("long", false, "1,000 faults instead of 60 in TestFaults")
	seed = flag.Uint64("seed", 1, "the seed of TestFaults")
)

// latest returns the value of a property that a cloud has which keeps the highest version.
func (c *cloud) latest(property string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var value string
	var version int64 = -1
	for _, m := range c.reports {
		u, err := devicemsg.DecodeTwinUpdate(m.ContentData())
		if err != nil || u.Twin[property] == nil || u.Twin[property].ActualVersion == nil {
			continue
		}
		if v := u.Twin[property].ActualVersion.Edge; v > version {
			version = v
			value, _ = u.Twin[property].Actual.Text()
		}
	}
	return value
}

// TestFaults: the link, the mapper, the disk and the agent fail at random. What was acknowledged is never lost, and in
// the end the cloud has the newest values, although it keeps nothing older than it has.
func TestFaults(t *testing.T) {
	faults := 60
	if *long {
		faults = 1000
	}
	rng := rand.New(rand.NewPCG(*seed, 0))
	e := start(t)
	e.cloud.set(false)
	e.lamp("0")
	m := e.mapper()
	m.AwaitRegister()
	properties := []string{"level", "temp"}
	acknowledged := map[string]int{}
	away, full, refusing := false, false, false
	n, desired := 0, 0
	report := func() {
		t.Helper()
		n++
		property := properties[rng.IntN(len(properties))]
		r := twin.Report{Name: property, Value: strconv.Itoa(n), At: int64(n)}
		stored, err := e.Update("shop", "one", []twin.Report{r}, nil)
		if err != nil {
			t.Fatalf("fault %d: report %d: %v, want no error", n, n, err)
		}
		if rng.IntN(4) > 0 {
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		switch err := stored(ctx); {
		case err == nil:
			acknowledged[property] = n
		case !full:
			t.Errorf("report %d not stored: %v, want no error: the disk has room", n, err)
		}
	}
	restart := func(kill bool) {
		t.Helper()
		if kill {
			e.disk.fill(true) // the end of the process, for the store
		}
		e.stop()
		e.disk.fill(full)
		e.run()
		wait.True(t, "the device", func() bool { return len(e.Devices()) == 1 })
		props, err := e.Properties("shop", "one")
		if err != nil {
			t.Fatal(err)
		}
		for property, want := range acknowledged {
			r := props[property].Reported
			if r == nil {
				t.Fatalf("after a restart %s is gone, want at least %d, which was acknowledged", property, want)
			}
			if got, err := strconv.Atoi(r.Value); err != nil || got < want {
				t.Fatalf("after a restart %s = %s, want at least %d, which was acknowledged", property, r.Value, want)
			}
		}
		e.cloud.set(away)
	}
	for range faults {
		for range rng.IntN(4) {
			report()
		}
		switch rng.IntN(7) {
		case 0, 1:
			away = !away
			e.cloud.set(away)
		case 2:
			restart(false)
		case 3, 4:
			restart(true)
		case 5:
			full = !full
			e.disk.fill(full)
		default:
			refusing = !refusing
			var err error
			if refusing {
				err = errors.New("refused")
			}
			m.Fail(err)
			desired++
			e.object(model.OpUpdate, resource.TypeDevice, "one", lamp(strconv.Itoa(desired)))
		}
	}
	e.disk.fill(false)
	m.Fail(nil)
	e.cloud.set(false)
	for _, property := range properties {
		n++
		want := strconv.Itoa(n)
		if err := e.Report(t.Context(), "shop", "one", []twin.Report{{Name: property, Value: want}}); err != nil {
			t.Fatal(err)
		}
		wait.Until(t, "the cloud to have "+property+" = "+want, func() error {
			if got := e.cloud.latest(property); got != want {
				return fmt.Errorf("it is %s", got)
			}
			return nil
		})
	}
	m.AwaitDesired("shop/one", "level", strconv.Itoa(desired))
}
