package mapper

import (
	"context"
	"log/slog"
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

// startMapper runs a mapper of a driver on a node until the test ends.
func startMapper(t *testing.T, n *twins.Node, driver Driver) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := Run(ctx, Options{
			Name: "files", Protocol: "files", Agent: n.Socket, Socket: filepath.Join(t.TempDir(), "files.sock"),
			Driver: driver, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		}); err != nil {
			t.Errorf("Run = %v, want no error", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

// configs is a driver that passes on the configurations of its devices.
type configs chan Config

func (c configs) Open(_ context.Context, config Config) (Conn, error) {
	c <- config
	return values{}, nil
}

// TestDigits: numbers of a configuration have the digits that they have in the cluster.
func TestDigits(t *testing.T) {
	n := twins.Start(t, map[string]string{"shop/device/one": `{"metadata":{"name":"one","namespace":"shop","uid":"d1"},
"spec":{"protocol":{"protocolName":"files","configData":{"scale":0.1234567891,"serial":18446744073709551615,"tenth":0.1,
"nested":{"id":9007199254740993}}}}}`}, nil)
	opened := make(configs, 1)
	startMapper(t, n, opened)
	var got struct {
		Scale, Tenth float64
		Serial       uint64
		Nested       struct{ ID int64 }
	}
	if err := wait.Receive(t, "the configuration", opened).Decode(&got); err != nil {
		t.Fatal(err)
	}
	if got.Scale != 0.1234567891 || got.Tenth != 0.1 || got.Serial != math.MaxUint64 || got.Nested.ID != 1<<53+1 {
		t.Errorf("the driver gets %+v", got)
	}
}

// TestRefusedValue: a value that edgecore refuses does not hold up those of other properties.
func TestRefusedValue(t *testing.T) {
	n := twins.Start(t, map[string]string{"shop/device/one": `{"metadata":{"name":"one","namespace":"shop","uid":"d1"},
"spec":{"protocol":{"protocolName":"files"},"properties":[{"name":"long","collectCycle":20},{"name":"temp",
"collectCycle":20}]}}`}, nil)
	startMapper(t, n, values{"long": strings.Repeat("x", 10_000), "temp": "21"})
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
