// Package edged is the light kubelet: it keeps the pods that the store and the manifest folder want running in
// a CRI runtime. It acts only on what is on the device; there is no "connected" in it.
//
// Each of its folders makes its own parts, with New. This folder holds no logic of its own: build makes the folders'
// parts in the order of their dependencies, wings.go says what each gets, cycles.go what an earlier one asks of a later
// one, and parts.go lists what runs, is served, is reloaded and is measured.
package edged

import (
	"context"

	"github.com/edgecore-io/edgecore/edged/containers"
	"github.com/edgecore-io/edgecore/edged/node"
	"github.com/edgecore-io/edgecore/edged/options"
	"github.com/edgecore-io/edgecore/edged/pods"
	"github.com/edgecore-io/edgecore/edged/podstate"
	"github.com/edgecore-io/edgecore/edged/serve"
	"github.com/edgecore-io/edgecore/edged/storage"
)

// Edged is one run of the module: its parts are made by build and never replaced. Anyone who asks while the module is
// restarted (a liveness check, an HTTP request that outlasts the server) has one run or the other, never a mix.
type Edged struct {
	opts       options.Options
	state      *state
	self       *node.Self
	podstate   *podstate.Parts
	workers    *pods.Workers
	storage    *storage.Parts
	containers *containers.Parts
	node       *node.Parts
	pods       *pods.Parts
	serve      *serve.Parts
	// list is the list of parts.
	list []part
}

// build makes the parts of each folder and hands them what they need. Nobody else has e before it returns.
func (e *Edged) build(ctx context.Context) (err error) {
	e.self = node.NewSelf(e.opts.NodeName, e.opts.NodeIP, e.opts.Interface, e.opts.Allocatable)
	e.podstate = podstate.New(e.podstateOptions())
	e.workers = pods.NewWorkers(ctx, e.opts.Resync, &e.state.pods, e.podstate)
	e.storage = storage.New(e.storageOptions(ctx))
	if e.containers, err = containers.New(e.containersOptions()); err != nil {
		return err
	}
	e.node = node.New(ctx, e.nodeOptions())
	e.pods = pods.New(ctx, e.podsOptions())
	e.serve = serve.New(ctx, e.serveOptions())
	e.list = e.parts()
	e.state.reloads.setParts(e.list)
	return nil
}
