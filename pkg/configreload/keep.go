package configreload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/configfile"
)

const (
	// lookEvery is how often the link is looked at while a configuration is on trial, lookLater while it is only to be
	// noted that the agent has reached the cloud with it.
	lookEvery = 2 * time.Second
	lookLater = 30 * time.Second
)

// ErrGoBack ends the agent, which starts again with the last good configuration.
var ErrGoBack = errors.New("going back to the last good configuration")

// KeeperOptions make a Keeper.
type KeeperOptions struct {
	Copies configfile.Copies
	// Started is closed when the agent has reached its running state.
	Started <-chan struct{}
	// Connected reports whether there is a link to the cloud; nil: none is wanted.
	Connected func() bool
	// GoBack is called with why, once, if a device that could reach the cloud cannot since its configuration changed.
	GoBack func(reason error)
}

// Keeper keeps a copy of each configuration with which the agent has reached its running state. One that changes the
// link to the cloud is on trial first: if the agent has reached the cloud with the copy and does not within
// modules.edgeHub.configTrialSeconds with the new one, the agent goes back to the copy.
type Keeper struct {
	opts KeeperOptions
	// next wakes Run; it holds the newest configuration.
	next chan candidate
}

// candidate is a configuration that is in force, and the content of its file.
type candidate struct {
	config *v1alpha2.EdgeCore
	data   []byte
}

// NewKeeper returns a keeper; Run runs it.
func NewKeeper(opts KeeperOptions) *Keeper { return &Keeper{opts, make(chan candidate, 1)} }

// InForce tells the keeper of a configuration that is in force as a whole: the agent runs with it. It does not block.
// It is called by one goroutine at a time.
func (k *Keeper) InForce(config *v1alpha2.EdgeCore, data []byte) {
	select {
	case <-k.next:
	default:
	}
	k.next <- candidate{config, data}
}

// Run keeps copies until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-k.opts.Started:
	}
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-k.next:
			if !k.try(ctx, c) {
				return
			}
		}
	}
}

// Start runs the keeper until ctx ends or end is called.
func (k *Keeper) Start(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { k.Run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// try keeps a configuration, or goes back. It reports whether the agent runs on. A newer configuration ends the trial
// of this one.
func (k *Keeper) try(ctx context.Context, c candidate) (on bool) {
	trial, reached := k.trialOf(c)
	every := lookEvery
	if trial == 0 {
		if k.keep(c, reached || k.connected()); reached {
			return true
		}
		every = lookLater
	}
	began := time.Now()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		switch verdictOf(trial, k.opts.Connected != nil, k.connected(), time.Since(began)) {
		case verdictKeep:
			k.keep(c, true)
			return true
		case verdictDone:
			return true
		case verdictBack:
			k.goBack(c, trial)
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case newer := <-k.next:
			if bytes.Equal(newer.data, c.data) {
				continue
			}
			k.next <- newer
			return true
		case <-tick.C:
		}
	}
}

// verdict is what happens to a configuration that is in force.
type verdict int

const (
	verdictWait verdict = iota
	verdictKeep         // it has reached the cloud
	verdictDone         // it is kept, and there is nothing to wait for
	verdictBack
)

// verdictOf decides about a configuration that has been in force for a time. trial is how long it may take to connect;
// 0: it is kept already, and only whether it connects is still to be noted. It is pure.
func verdictOf(trial time.Duration, cloud, connected bool, since time.Duration) verdict {
	switch {
	case connected:
		return verdictKeep
	case !cloud:
		return verdictDone
	case trial > 0 && since >= trial:
		return verdictBack
	}
	return verdictWait
}

func (k *Keeper) connected() bool { return k.opts.Connected != nil && k.opts.Connected() }

// trialOf returns how long a configuration may take to reach the cloud before the agent goes back; 0: it does not.
// reached reports whether the agent has reached the cloud with the copy, and nothing that matters for that has changed.
func (k *Keeper) trialOf(c candidate) (trial time.Duration, reached bool) {
	last, ok := k.opts.Copies.Newest()
	if !ok || !last.Connected || k.opts.Connected == nil {
		return 0, false
	}
	before, _, err := v1alpha2.Parse(last.Data)
	if err != nil { // of another version
		return 0, false
	}
	changes, err := v1alpha2.Changes(before, c.config)
	if err != nil {
		return 0, false
	}
	if !changesLink(changes) {
		return 0, true
	}
	return time.Duration(c.config.Modules.EdgeHub.ConfigTrialSeconds) * time.Second, false
}

// changesLink reports whether a change can keep the agent from reaching the cloud. It is pure.
func changesLink(changes []v1alpha2.Change) bool {
	for _, c := range changes {
		for _, prefix := range []string{"modules.edgeHub", "modules.edged.hostnameOverride", "database"} {
			if rest, ok := strings.CutPrefix(c.Path, prefix); ok && (rest == "" || rest[0] == '.') {
				return true
			}
		}
	}
	return false
}

func (k *Keeper) keep(c candidate, connected bool) {
	if err := k.opts.Copies.Keep(c.data, connected); err != nil {
		klog.ErrorS(err, "Configuration not kept; if its file becomes invalid, edgecore cannot start with it")
	}
}

func (k *Keeper) goBack(c candidate, trial time.Duration) {
	reason := fmt.Sprintf("the cloud was not reached within %v with it (modules.edgeHub.configTrialSeconds), but with "+
		"the one before; correct the file, or touch it to have it tried again at the next start", trial)
	if err := k.opts.Copies.Refuse(c.data, reason); err != nil {
		klog.ErrorS(err, "Edgecore keeps the changed configuration, with which it does not reach the cloud")
		return
	}
	k.opts.GoBack(fmt.Errorf("%w: %s", ErrGoBack, reason))
}
