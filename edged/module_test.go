package edged

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/edged/options"
	"github.com/edgecore-io/edgecore/pkg/filewatch/filewatchtest"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// deafBus is a bus on which nothing comes and nothing is answered.
type deafBus struct{}

func (deafBus) SendSync(context.Context, string, *model.Message) (*model.Message, error) {
	return nil, errors.New("no answer")
}

func (deafBus) Receive(ctx context.Context, _ string) (*model.Message, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// brokenBus is a bus that ends the part which takes messages.
type brokenBus struct{ deafBus }

var errBroken = errors.New("broken")

func (brokenBus) Receive(context.Context, string) (*model.Message, error) { return nil, errBroken }

// moduleIn is a module with nothing around it: no cloud, no runtime, no pods.
func moduleIn(t *testing.T, bus options.Bus) *Module {
	dir := t.TempDir()
	return New(options.Options{
		Bus:              bus,
		Health:           &health.Registry{},
		NodeName:         "n",
		RootDir:          filepath.Join(dir, "root"),
		PodLogsDir:       filepath.Join(dir, "logs"),
		ContainerLogsDir: filepath.Join(dir, "links"),
		StaticPodDir:     filepath.Join(dir, "manifests"),
		RuntimeEndpoint:  "unix://" + filepath.Join(dir, "none.sock"),
	})
}

// runnable is such a module that can be run.
func runnable(t *testing.T, bus options.Bus) *Module {
	m := moduleIn(t, bus)
	m.opts.Watcher = filewatchtest.New(t)
	return m
}

// TestPartFails: a part that fails ends the run, with all other parts, and is not asked whether it lives after that.
func TestPartFails(t *testing.T) {
	m := runnable(t, brokenBus{})
	if err := m.Run(t.Context()); !errors.Is(err, errBroken) {
		t.Errorf("Run = %v, want %v", err, errBroken)
	}
	if e := m.running.Load(); e != nil {
		t.Errorf("running = %p after the end, want nil", e)
	}
}

// TestAliveWhileRestarted: the module is asked whether it lives, and is given other settings, while it is run again and
// again. The race detector sees what a run makes while someone reads it.
func TestAliveWhileRestarted(t *testing.T) {
	m := runnable(t, deafBus{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // each run ends as soon as its parts are made
	const runs = 20
	done := make(chan struct{})
	var wg sync.WaitGroup
	for _, ask := range []func(){
		func() {
			if err := m.Alive(t.Context()); err != nil {
				t.Errorf("Alive = %v, want no error", err)
			}
		},
		func() { m.Reload(options.Settings{}) },
	} {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					ask()
				}
			}
		})
	}
	for range runs {
		if err := m.Run(ctx); err != nil {
			t.Errorf("Run = %v, want no error", err)
		}
	}
	close(done)
	wg.Wait()
}
