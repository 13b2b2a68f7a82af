// Package twins is the device part of an agent for tests: the real module with a real store and socket, and devices
// that a cloud has sent before the link was lost.
package twins

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/devicetwin"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// Node is a running module.
type Node struct {
	*devicetwin.Module
	Store *store.Store
	// Socket is where mappers register.
	Socket string
	// Prepare, if not nil, is called with each new module before it runs.
	Prepare func(*devicetwin.Module)

	t     testing.TB
	inbox inbox
	opts  devicetwin.Options
	stop  func()
}

// Start starts a module with objects, by key such as "shop/device/one"; changed may be nil. Each object is JSON.
func Start(t testing.TB, objects map[string]string, changed func(devicetwin.Change)) *Node {
	t.Helper()
	dir := t.TempDir()
	s, _, err := store.Open(t.Context(), filepath.Join(dir, "edgecore.db"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{t: t, Store: s, Socket: filepath.Join(dir, "dmi", "dmi.sock"), inbox: make(inbox, 10)}
	for key, value := range objects {
		n.store(key, value)
	}
	n.opts = devicetwin.Options{Bus: n.inbox, Store: s, SocketDir: filepath.Dir(n.Socket), Changed: changed}
	n.Run()
	t.Cleanup(func() {
		n.Stop()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// Run starts the module again after Stop, as after a restart of the agent.
func (n *Node) Run() {
	n.Module = devicetwin.New(n.opts)
	if n.Prepare != nil {
		n.Prepare(n.Module)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := n.Module.Run(ctx); err != nil {
			n.t.Errorf("Run = %v, want no error", err)
		}
	})
	n.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	rows, err := n.Store.List(n.t.Context(), "device")
	if err != nil {
		n.t.Fatal(err)
	}
	wait.True(n.t, "the devices", func() bool { return len(n.Devices()) == len(rows) })
}

// Stop stops the module.
func (n *Node) Stop() { n.stop() }

func (n *Node) store(key, value string) {
	n.t.Helper()
	row := store.Meta{Key: key, Type: strings.Split(key, "/")[1], Value: []byte(value)}
	if err := n.Store.Apply(n.t.Context(), store.Upsert(row)); err != nil {
		n.t.Fatal(err)
	}
}

// Apply stores an object and hands it to the module, as metamanager does.
func (n *Node) Apply(key, value string) {
	n.t.Helper()
	n.store(key, value)
	n.inbox <- model.New("devicecontroller", model.GroupResource, model.OpUpdate, key, json.RawMessage(value))
}

// Delete deletes an object; value is the last one.
func (n *Node) Delete(key, value string) {
	n.t.Helper()
	if err := n.Store.Apply(n.t.Context(), store.Delete(key)); err != nil {
		n.t.Fatal(err)
	}
	n.inbox <- model.New("devicecontroller", model.GroupResource, model.OpDelete, key, json.RawMessage(value))
}

// inbox is a bus without a cloud.
type inbox chan *model.Message

func (c inbox) Receive(ctx context.Context, _ string) (*model.Message, error) {
	select {
	case m := <-c:
		return m, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c inbox) SendSync(_ context.Context, _ string, m *model.Message) (*model.Message, error) {
	return m.RespondError(model.ModuleEdgeHub, errors.New("not connected to the cloud")), nil
}
