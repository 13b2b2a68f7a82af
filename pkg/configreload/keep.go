package configreload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
	// longestPause limits the time until a refused file is tried again.
	longestPause = 24 * time.Hour
)

// Why the agent ends to start again with another configuration.
var (
	ErrGoBack   = errors.New("going back to the last good configuration")
	ErrTryAgain = errors.New("trying the changed configuration again")
)

// KeeperOptions make a Keeper.
type KeeperOptions struct {
	Copies configfile.Copies
	// Started is closed when the agent has reached its running state.
	Started <-chan struct{}
	// Connected returns since when there is a link to the cloud, and whether there is one; nil: none is wanted.
	Connected func() (since time.Time, connected bool)
	// GoBack is called, once, with ErrGoBack if a device that could reach the cloud cannot since its configuration
	// changed, or with ErrTryAgain.
	GoBack func(reason error)
}

// Keeper keeps a copy of each configuration with which the agent has reached its running state. One that changes the
// link to the cloud is on trial first: if the agent has reached the cloud with the copy and does not within
// modules.edgeHub.configTrialSeconds with the new one, the agent goes back to the copy. If it does not reach the cloud
// with the copy either, the changed file was perhaps not the cause, and is tried again, after longer and longer pauses.
type Keeper struct {
	opts KeeperOptions
	// next wakes Run; it holds the newest configuration.
	next chan candidate
}

// candidate is a configuration that is in force, and the content of its file.
type candidate struct {
	config *v1alpha2.EdgeCore
	data   []byte
	since  time.Time
	// whole: all of it is in force; else some of it needs a restart.
	whole bool
	// refused is set for a copy, in place of a file that was refused.
	refused bool
}

// NewKeeper returns a keeper; Run runs it.
func NewKeeper(opts KeeperOptions) *Keeper { return &Keeper{opts, make(chan candidate, 1)} }

// InForce tells the keeper of a configuration that is in force: the agent runs with it. whole reports whether none of
// it needs a restart. It does not block, and is called by one goroutine at a time.
func (k *Keeper) InForce(config *v1alpha2.EdgeCore, data []byte, whole bool) {
	k.tell(candidate{config: config, data: data, whole: whole})
}

// Refused tells the keeper that a copy is in force, since the file was refused after a trial.
func (k *Keeper) Refused(config *v1alpha2.EdgeCore) { k.tell(candidate{config: config, refused: true}) }

func (k *Keeper) tell(c candidate) {
	c.since = time.Now()
	select {
	case <-k.next:
	default:
	}
	k.next <- c
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
			for next := &c; next != nil; {
				next = k.try(ctx, *next)
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

// try keeps a configuration, or goes back. It returns the newer configuration that ends the trial of this one.
func (k *Keeper) try(ctx context.Context, c candidate) (newer *candidate) {
	t := k.trialOf(c)
	every := lookEvery
	if t.after == 0 {
		if c.whole {
			k.keep(c, t.reached || k.connected(c, false))
		}
		if t.reached || !c.whole {
			return nil
		}
		every = lookLater
	}
	began := time.Now()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		connected := k.connected(c, t.after > 0 && !c.refused)
		switch verdictOf(t.after, k.opts.Connected != nil, connected, time.Since(began)) {
		case verdictKeep:
			if c.whole {
				k.keep(c, true)
			}
			return nil
		case verdictDone:
			return nil
		case verdictBack:
			k.goBack(c, t.after)
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case n := <-k.next:
			if !c.refused && bytes.Equal(n.data, c.data) && n.whole == c.whole {
				continue
			}
			return &n
		case <-tick.C:
		}
	}
}

// verdict is what happens to a configuration that is in force.
type verdict int

const (
	verdictWait verdict = iota
	verdictKeep         // it has reached the cloud
	verdictDone         // there is nothing to wait for
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

// connected reports whether there is a link; with made, one that was made since the configuration is in force: one from
// before may last a moment.
func (k *Keeper) connected(c candidate, made bool) bool {
	if k.opts.Connected == nil {
		return false
	}
	since, connected := k.opts.Connected()
	return connected && (!made || since.After(c.since))
}

// trial is how long a configuration may take to reach the cloud; 0: as long as it takes. reached: the agent has reached
// the cloud with the copy, and nothing that matters for that has changed.
type trial struct {
	after   time.Duration
	reached bool
}

func (k *Keeper) trialOf(c candidate) trial {
	seconds := time.Duration(c.config.Modules.EdgeHub.ConfigTrialSeconds) * time.Second
	last, ok := k.opts.Copies.Newest()
	switch {
	case k.opts.Connected == nil:
		return trial{}
	case c.refused:
		return trial{after: pauseOf(seconds, k.opts.Copies.Refusals())}
	case !ok || !last.Connected:
		return trial{}
	case !configfile.ChangesLink(last.Data, c.config):
		return trial{reached: true}
	}
	return trial{after: seconds}
}

// pauseOf returns how long a copy may take to reach the cloud before the file is tried again. It is pure.
func pauseOf(seconds time.Duration, refusals int) time.Duration {
	pause := seconds
	for range min(refusals-1, 20) {
		if pause *= 2; pause > longestPause {
			return longestPause
		}
	}
	return pause
}

func (k *Keeper) keep(c candidate, connected bool) {
	if err := k.opts.Copies.Keep(c.data, connected); err != nil {
		klog.ErrorS(err, "Configuration not kept; if its file becomes invalid, edgecore cannot start with it")
	}
}

func (k *Keeper) goBack(c candidate, trial time.Duration) {
	if c.refused {
		if err := k.opts.Copies.TryAgain(); err != nil {
			klog.ErrorS(err, "The changed configuration is not tried again")
			return
		}
		k.opts.GoBack(fmt.Errorf("%w: the cloud was not reached within %v with the one before either", ErrTryAgain,
			trial))
		return
	}
	reason := fmt.Sprintf("the cloud was not reached within %v with it (modules.edgeHub.configTrialSeconds), but with "+
		"the one before; correct the file, or touch it to have it tried again at the next start", trial)
	if err := k.opts.Copies.Refuse(c.data, reason); err != nil {
		klog.ErrorS(err, "Edgecore keeps the changed configuration, with which it does not reach the cloud")
		return
	}
	k.opts.GoBack(fmt.Errorf("%w: %s", ErrGoBack, reason))
}
