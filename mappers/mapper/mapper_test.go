package mapper

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"

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
