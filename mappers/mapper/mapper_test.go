package mapper

import (
	"context"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	dmi "github.com/edgecore-io/edgecore/pkg/dmi/v1beta1"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/twins"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// values is a driver and a device with the values of its properties.
type values map[string]string

func (v values) Open(context.Context, Config) (Conn, error) { return v, nil }
func (v values) Close() error                               { return nil }
func (v values) Read(_ context.Context, p *Property) (string, error) {
	return v[p.Name], nil
}
func (v values) Write(context.Context, *Property, string) error { return nil }

// TestRefusedValue: a value that edgecore refuses does not hold up those of other properties.
func TestRefusedValue(t *testing.T) {
	n := twins.Start(t, map[string]string{"shop/device/one": `{"metadata":{"name":"one","namespace":"shop","uid":"d1"},
"spec":{"protocol":{"protocolName":"files"},"properties":[{"name":"long","collectCycle":20},{"name":"temp",
"collectCycle":20}]}}`}, nil)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := Run(ctx, Options{
			Name: "files", Protocol: "files", Agent: n.Socket, Socket: filepath.Join(t.TempDir(), "files.sock"),
			Driver: values{"long": strings.Repeat("x", 10_000), "temp": "21"},
		}); err != nil {
			t.Errorf("Run = %v, want no error", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	wait.True(t, "temp to be reported", func() bool {
		props, err := n.Properties("shop", "one")
		return err == nil && props["temp"].Reported != nil && props["temp"].Reported.Value == "21"
	})
}

// TestCycles: a cycle that is too long for a duration is a long one, not one of 10 ms.
func TestCycles(t *testing.T) {
	w := newWorker(&mapper{}, "shop", "one", nil)
	for ms, want := range map[int64][2]time.Duration{
		0: {defaultCycle, 0}, -1: {defaultCycle, 0}, 1: {leastCycle, time.Millisecond}, 1500: {1.5e9, 1.5e9},
		9_300_000_000_000: {mostCycle, mostCycle}, math.MaxInt64: {mostCycle, mostCycle},
	} {
		w.configure(&dmi.Device{Spec: &dmi.DeviceSpec{Properties: []*dmi.DeviceProperty{
			{Name: "a", CollectCycle: ms, ReportCycle: ms},
		}}}, nil)
		if p := w.points["a"]; p.collect != want[0] || p.report != want[1] {
			t.Errorf("%d ms: read every %v and reported every %v, want %v", ms, p.collect, p.report, want)
		}
	}
}
