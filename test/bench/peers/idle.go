package main

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/edgecore-io/edgecore/test/bench/process"
	"github.com/edgecore-io/edgecore/test/bench/results"
)

const (
	// workBursts bursts of workPods pods precede the measurements with pods, so that memory which a burst takes and
	// never returns is included.
	workBursts = 3
	workPods   = 30
	// quietTime is the least time before agents count as idle, in which they collect garbage, and in which cloudcore
	// changes the tolerations of pods that started: up to two minutes after each. Then, at most until settleLimit, the
	// benchmark waits until both have nothing more to report: little besides leases and pings goes over their cables.
	quietTime   = 130 * time.Second
	settleLimit = 5 * time.Minute
	while       = 10 * time.Second
	hardly      = 4096
	// statusPeriod is how often a node's status is reported, whatever else happens: a minute with the report is no more
	// typical than one without.
	statusPeriod = 5 * time.Minute
	// looks is how often memory is measured while agents are idle.
	looks = 3
)

// idleNodes measures both idle agents at the same time, with increasing numbers of pods.
func (b *bench) idleNodes(ctx context.Context) error {
	groups := make([][]*group, len(b.sides))
	worked := false
	have := 0
	for _, level := range b.levels {
		if level > 0 && !worked {
			if err := b.work(ctx); err != nil {
				return err
			}
			worked = true
		}
		say("%d pods on each node", level)
		// One node after the other, which is faster than both at once.
		for i, s := range b.sides {
			if level == have {
				continue
			}
			g, _, err := b.create(ctx, s, withToken, level-have)
			if err != nil {
				return err
			}
			groups[i] = append(groups[i], g)
		}
		have = level
		if err := b.look(ctx, level); err != nil {
			return err
		}
		// Earlier levels stay recorded if the next one fails.
		if err := b.keep.Save(); err != nil {
			return err
		}
	}
	for _, g := range slices.Concat(groups...) {
		if _, err := g.remove(ctx); err != nil {
			return err
		}
	}
	return nil
}

// work runs bursts on both nodes, so that the agents are no longer fresh.
func (b *bench) work(ctx context.Context) error {
	say("%d bursts of %d pods on each node", workBursts, workPods)
	for range workBursts {
		for _, s := range b.sides {
			g, _, err := b.create(ctx, s, withToken, workPods)
			if err != nil {
				return err
			}
			if _, err := g.remove(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// usage is what an agent has used since its start.
type usage struct {
	cpu           time.Duration
	written, wire int64
}

func (s *side) usage() (u usage, err error) {
	u.cpu, u.written, err = process.Usage(s.pid())
	u.wire = s.cable.Up.Load() + s.cable.Down.Load()
	return u, err
}

// look measures both idle agents at the same time.
func (b *bench) look(ctx context.Context, pods int) error {
	if err := b.settle(ctx); err != nil {
		return err
	}
	var both errgroup.Group
	for _, s := range b.sides {
		both.Go(func() error { return s.look(ctx, b, results.Point{Pods: pods}) })
	}
	return both.Wait()
}

// settle waits until both agents are idle.
func (b *bench) settle(ctx context.Context) error {
	began := time.Now()
	if err := pause(ctx, quietTime-while); err != nil {
		return err
	}
	for {
		before := b.wires()
		if err := pause(ctx, while); err != nil {
			return err
		}
		busy := false
		for i, now := range b.wires() {
			busy = busy || now-before[i] > hardly
		}
		if !busy {
			return nil
		}
		if time.Since(began) > settleLimit {
			say("an agent still reports after %v; it is not quite idle", settleLimit)
			return nil
		}
	}
}

// wires returns the bytes that have gone over each cable.
func (b *bench) wires() []int64 {
	var list []int64
	for _, s := range b.sides {
		list = append(list, s.cable.Up.Load()+s.cable.Down.Load())
	}
	return list
}

func (s *side) look(ctx context.Context, b *bench, at results.Point) error {
	before, err := s.usage()
	if err != nil {
		return err
	}
	began := time.Now()
	var rss, anon, pss []float64
	for range looks {
		if err := pause(ctx, b.idle/looks); err != nil {
			return err
		}
		r, a, err := process.Memory(s.pid())
		if err != nil {
			return err
		}
		p, err := process.PSS(s.pid())
		if err != nil {
			return err
		}
		rss, anon, pss = append(rss, float64(r)), append(anon, float64(a)), append(pss, float64(p))
	}
	after, err := s.usage()
	if err != nil {
		return err
	}
	took := time.Since(began)
	say("%s with %d pods: RSS %.1f MB, CPU %v in %v, %d bytes written, %d on the wire", s.subject, at.Pods,
		rss[looks-1]/1e6, after.cpu-before.cpu, took.Round(time.Second), after.written-before.written,
		after.wire-before.wire)
	b.idled.Lock()
	defer b.idled.Unlock()
	b.keep.Samples(results.RSS, s.subject, at, rss...)
	b.keep.Samples(results.Anonymous, s.subject, at, anon...)
	b.keep.Samples(results.PSS, s.subject, at, pss...)
	b.keep.Samples(results.CPU, s.subject, at, 100*(after.cpu-before.cpu).Seconds()/took.Seconds())
	b.keep.Samples(results.Written, s.subject, at, float64(after.written-before.written)/took.Minutes())
	b.keep.Samples(results.Wire, s.subject, at, float64(after.wire-before.wire)/took.Minutes())
	return nil
}
