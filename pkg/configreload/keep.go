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
	// Runtime says why the container runtime that a configuration names cannot run pods as it says; nil if it can.
	Runtime func(context.Context, *v1alpha2.EdgeCore) error
	// Failing says what else keeps this agent from starting pods since it has the configuration in force.
	Failing func() error
	// GoBack is called, once, with ErrGoBack if what worked does not since the configuration changed, or with
	// ErrTryAgain.
	GoBack func(reason error)
}

// Keeper keeps a copy of each configuration with which the agent has reached its running state. One that changes the
// link to the cloud, or how pods are run, is on trial first. The agent goes back to the copy if within
// modules.edgeHub.configTrialSeconds
//   - it does not reach the cloud with the new one, and has reached it with the copy. If it does not reach the cloud
//     with the copy either, the changed file was perhaps not the cause, and is tried again, after longer and longer
//     pauses;
//   - it does not reach the container runtime with the new one, or that has another cgroup driver, and it has with the
//     copy, and could at this moment. So a runtime that is down is waited for.
//
// The time counts over all starts.
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
	k.sendCandidate(candidate{config: config, data: data, whole: whole})
}

// Refused tells the keeper that a copy is in force, since the file was refused after a trial.
func (k *Keeper) Refused(config *v1alpha2.EdgeCore) {
	k.sendCandidate(candidate{config: config, refused: true})
}

func (k *Keeper) sendCandidate(c candidate) {
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
				next = k.runTrial(ctx, *next)
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

// runTrial keeps a configuration, or goes back. It returns the newer configuration that ends the trial of this one.
func (k *Keeper) runTrial(ctx context.Context, c candidate) (newer *candidate) {
	t := k.trialOf(c)
	if t.none {
		return nil
	}
	clock := k.startClock(t)
	proof, kept := t.proof, false
	if t.limit == 0 { // before the runtime is asked, which may take its time
		proof.Connected = proof.Connected || k.connected(c, false)
		k.promote(c, proof)
		kept = true
	}
	for {
		elapsed := clock.elapsed()
		s := k.checkTrial(ctx, c, t, elapsed >= t.limit)
		switch v := verdictOf(t, s, elapsed); v {
		case verdictKeep:
			if next := proof.Any(s.proof()); !kept || next != proof {
				proof, kept = next, true
				k.endTrial()
				k.promote(c, proof)
			}
			if !c.whole || (proof.Connected || !s.cloud) && (proof.Ran || !s.pods) {
				return nil
			}
			t = trial{proof: proof} // what it has not reached yet is noted when it does
		case verdictLink, verdictRuntime:
			k.goBack(c, t, v, s.why)
			return nil
		}
		every := lookEvery
		if t.limit == 0 {
			every = lookLater
		}
		select {
		case <-ctx.Done():
			return nil
		case n := <-k.next:
			if !c.refused && bytes.Equal(n.data, c.data) && n.whole == c.whole {
				continue
			}
			return &n
		case <-time.After(every):
		}
	}
}

// trial is what a configuration has to reach, and how long it may take; 0: it is kept at once, and only what it reaches
// is still to be noted.
type trial struct {
	// none: there is nothing to wait for.
	none  bool
	limit time.Duration
	// name names the trial in the file that counts its time.
	name string
	// link: the cloud was reached with the copy, and what matters for that has changed. runtime: the same for the
	// container runtime, and before is the copy.
	link, runtime bool
	before        *v1alpha2.EdgeCore
	// proof is what was reached with the copy, as far as nothing that matters for it has changed.
	proof configfile.Proof
}

// state is what is known of a configuration that is in force.
type state struct {
	// cloud and pods: a link and a container runtime are wanted. connected and runs: there is one.
	cloud, connected bool
	pods, runs       bool
	// before: the runtime would run pods as the copy says.
	before bool
	// why is why the runtime does not run pods.
	why error
}

func (s state) proof() configfile.Proof { return configfile.Proof{Connected: s.connected, Ran: s.runs} }

// verdict is what happens to a configuration that is in force.
type verdict int

const (
	verdictWait    verdict = iota
	verdictKeep            // it has reached what it has to
	verdictLink            // it has not reached the cloud
	verdictRuntime         // it has not reached the container runtime, which the copy would
)

// verdictOf decides about a configuration that has been in force for a time. It is pure.
func verdictOf(t trial, s state, elapsed time.Duration) verdict {
	link, runtime := t.link && !s.connected, t.runtime && !s.runs
	switch {
	case !link && !runtime:
		return verdictKeep
	case elapsed < t.limit:
		return verdictWait
	case runtime && s.before:
		return verdictRuntime
	case link:
		return verdictLink
	}
	return verdictWait
}

// checkTrial finds out what a configuration has reached. over: its time is over.
func (k *Keeper) checkTrial(ctx context.Context, c candidate, t trial, over bool) state {
	s := state{
		cloud:     k.opts.Connected != nil,
		connected: t.proof.Connected || k.connected(c, t.link && !c.refused),
		pods:      k.opts.Runtime != nil && c.config.Modules.Edged.Enable && c.whole,
		runs:      t.proof.Ran,
	}
	if s.pods && !s.runs {
		s.why = k.opts.Runtime(ctx, c.config)
		if s.why == nil && k.opts.Failing != nil {
			s.why = k.opts.Failing()
		}
		s.runs = s.why == nil
	}
	s.before = t.runtime && !s.runs && over && t.before != nil && k.opts.Runtime(ctx, t.before) == nil
	return s
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

func (k *Keeper) trialOf(c candidate) trial {
	limit := time.Duration(c.config.Modules.EdgeHub.ConfigTrialSeconds) * time.Second
	if c.refused {
		times, final := k.opts.Copies.Refusals()
		return trial{
			none:  final || k.opts.Connected == nil,
			limit: pauseOf(limit, times),
			name:  k.opts.Copies.AgainOf(),
			link:  true,
		}
	}
	last, ok := k.opts.Copies.Newest()
	if !ok {
		return trial{none: !c.whole}
	}
	t := trial{name: k.opts.Copies.TrialOf(c.data), limit: limit}
	switch {
	case !last.Connected || k.opts.Connected == nil:
	case configfile.ChangesLink(last.Data, c.config):
		t.link = limit > 0
	default:
		t.proof.Connected = true
	}
	switch {
	case !last.Ran || k.opts.Runtime == nil || !c.config.Modules.Edged.Enable:
	case configfile.ChangesRuntime(last.Data, c.config):
		if t.runtime = limit > 0 && c.whole; t.runtime {
			t.before, _, _ = v1alpha2.Parse(last.Data) // nil: of another version
		}
	default:
		t.proof.Ran = true
	}
	if !t.link && !t.runtime {
		t.none, t.limit = !c.whole, 0
	}
	return t
}

// trialClock counts how long a trial has lasted, over all starts. Each start counts for a part of it at least, so that
// it ends on a device that is switched off again and again. It asks no wall clock, which may be wrong.
type trialClock struct {
	keeper *Keeper
	trial  trial
	began  time.Time
	// before is what is over of it, noted what the next start takes for over, step how much is noted at once.
	before, noted, step time.Duration
}

const clockSteps = 10

func (k *Keeper) startClock(t trial) *trialClock {
	c := &trialClock{keeper: k, trial: t, began: time.Now()}
	if t.limit == 0 {
		return c
	}
	c.step = min(max(t.limit/clockSteps, lookEvery), t.limit/2)
	c.before = min(k.opts.Copies.Spent(t.name), t.limit-c.step)
	return c
}

func (c *trialClock) elapsed() time.Duration {
	e := c.before + time.Since(c.began)
	if c.trial.limit > 0 && e >= c.noted && e < c.trial.limit {
		c.noted = e + c.step
		if err := c.keeper.opts.Copies.Spend(c.trial.name, c.noted); err != nil {
			klog.V(1).InfoS("How long a configuration has been on trial is not noted", "err", err)
		}
	}
	return e
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

func (k *Keeper) promote(c candidate, proof configfile.Proof) {
	if !c.whole {
		return
	}
	if err := k.opts.Copies.Keep(c.data, proof); err != nil {
		klog.ErrorS(err, "Configuration not kept; if its file becomes invalid, edgecore cannot start with it")
	}
}

func (k *Keeper) endTrial() {
	if err := k.opts.Copies.EndTrial(); err != nil {
		klog.V(1).InfoS("How long a configuration was on trial is not forgotten", "err", err)
	}
}

// goBack ends the agent: the next start is with the copy, or with the file again.
func (k *Keeper) goBack(c candidate, t trial, v verdict, why error) {
	if c.refused {
		if err := k.opts.Copies.TryAgain(); err != nil {
			klog.ErrorS(err, "The changed configuration is not tried again")
			return
		}
		k.endTrial()
		k.opts.GoBack(fmt.Errorf("%w: the cloud was not reached within %v with the one before either", ErrTryAgain,
			t.limit))
		return
	}
	const remedy = "correct the file, or touch it to have it tried again at the next start"
	reason := fmt.Sprintf("the cloud was not reached within %v with it (modules.edgeHub.configTrialSeconds), but with "+
		"the one before; %s", t.limit, remedy)
	if v == verdictRuntime {
		reason = fmt.Sprintf("no pod could start within %v with it (modules.edgeHub.configTrialSeconds), and the "+
			"container runtime is there with the one before: %v; %s", t.limit, why, remedy)
	}
	if err := k.opts.Copies.Refuse(c.data, reason, v == verdictRuntime && !t.link); err != nil {
		klog.ErrorS(err, "Edgecore keeps the changed configuration, which does not work")
		return
	}
	k.endTrial()
	k.opts.GoBack(fmt.Errorf("%w: %s", ErrGoBack, reason))
}
