package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/bench/floor"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/images"
)

// static measures an agent without a cloud.
func (b *bench) static(ctx context.Context) (err error) {
	if err := b.startAgent(ctx, "static"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.agent.Stop(context.WithoutCancel(ctx))) }()
	if err := b.footprint(ctx, 0, "<= 32 (8) MB", ""); err != nil {
		return err
	}
	if err := b.likeOurs(ctx); err != nil {
		return err
	}
	if err := b.singlePods(ctx); err != nil {
		return err
	}
	if err := b.bursts(ctx); err != nil {
		return err
	}
	if err := b.put(ctx, "idle", 10, 0); err != nil {
		return err
	}
	if err := b.footprint(ctx, 10, "", ""); err != nil {
		return err
	}
	if err := b.adopt(ctx, 10); err != nil {
		return err
	}
	if err := b.clear(ctx, 0); err != nil {
		return err
	}
	if err := b.put(ctx, "idle", burst, 0); err != nil {
		return err
	}
	if err := b.footprint(ctx, burst, "<= 36 (13) MB", "<= 0.3"); err != nil {
		return err
	}
	return b.clear(ctx, 0)
}

// startAgent starts an agent of static pods, with its files in a folder of the benchmark's. The caller stops it.
func (b *bench) startAgent(ctx context.Context, folder string) (err error) {
	b.agent, err = agent.New(agent.Options{
		Binary:     b.binary,
		Dir:        filepath.Join(b.dir, folder),
		Endpoint:   b.ctrd.Endpoint(),
		CgroupRoot: b.ctrd.CgroupRoot(),
	})
	if err != nil {
		return err
	}
	if err := b.agent.Start(ctx); err != nil {
		return errors.Join(err, b.agent.Stop(context.WithoutCancel(ctx)))
	}
	return nil
}

// likeOurs has the floor ask for what the agent asks for.
func (b *bench) likeOurs(ctx context.Context) error {
	if err := b.put(ctx, "like", 1, 0); err != nil {
		return err
	}
	pods, err := b.agent.Pods(ctx)
	if err != nil {
		return err
	}
	for _, p := range pods {
		id := strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://")
		if b.floor.Like, err = floor.Of(ctx, b.floor.CRI, id, filepath.Join(b.floor.LogDir, "like")); err != nil {
			return err
		}
	}
	return b.clear(ctx, 0)
}

// manifest is a pod like the floor's.
func manifest(name string) string {
	return fmt.Sprintf(
		"apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec:\n  terminationGracePeriodSeconds: 1\n  containers:\n"+
			"  - {name: main, image: %q, command: [%q, %q, %q]}\n", name, images.Demo, script[0], script[1], script[2])
}

// put runs pods and waits until all do. Nobody looks before a time has passed: looking costs what is looked at.
func (b *bench) put(ctx context.Context, prefix string, n int, unseen time.Duration) error {
	var docs []string
	for i := range n {
		docs = append(docs, manifest(fmt.Sprintf("%s-%d", prefix, i)))
	}
	if err := b.agent.WriteManifest("pods.yaml", strings.Join(docs, "---\n")); err != nil {
		return err
	}
	if !wait(ctx, unseen) {
		return ctx.Err()
	}
	return b.until(ctx, func(pods map[string]*v1.Pod) bool { return len(pods) == n && allRun(pods) })
}

// clear removes all pods and waits until nothing of them is left; as put does, unseen.
func (b *bench) clear(ctx context.Context, unseen time.Duration) error {
	if err := b.agent.RemoveManifest("pods.yaml"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if !wait(ctx, unseen) {
		return ctx.Err()
	}
	return b.until(ctx, func(pods map[string]*v1.Pod) bool { return len(pods) == 0 })
}

func allRun(pods map[string]*v1.Pod) bool {
	for _, p := range pods {
		if p.Status.Phase != v1.PodRunning {
			return false
		}
	}
	return true
}

func (b *bench) until(ctx context.Context, done func(map[string]*v1.Pod) bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		pods, err := b.agent.Pods(ctx)
		if err != nil {
			return err
		}
		if done(pods) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the pods did not come to where they should: %w", ctx.Err())
		case <-time.After(pollEvery(len(pods))):
		}
	}
}

// pollEvery keeps the looking from costing what is looked at: a full list takes its time on both sides.
func pollEvery(pods int) time.Duration {
	return time.Duration(5+2*pods) * time.Millisecond
}

// singlePods makes and removes one pod after another, ours and the floor's in turn.
func (b *bench) singlePods(ctx context.Context) error {
	say("one pod, %d times", b.pods)
	var ours, base lives
	for i := range b.pods + 1 {
		floorUp, deleted, err := floorLife(ctx, b.floor, fmt.Sprintf("single-%d", i))
		if err != nil {
			return err
		}
		if err := rest(ctx); err != nil {
			return err
		}
		began := time.Now()
		if err := b.put(ctx, fmt.Sprintf("single%d", i), 1, floorUp*3/4); err != nil {
			return err
		}
		up := time.Since(began)
		began = time.Now()
		if err := b.clear(ctx, deleted.Removed*3/4); err != nil {
			return err
		}
		if i > 0 { // the first warms things up
			ours.add(up, time.Since(began))
			base.add(floorUp, deleted.Removed)
		}
	}
	b.latency(fmt.Sprintf("create -> Running, one pod, median of %d", b.pods), ours.up, base.up, "<= 1.10x")
	b.row(fmt.Sprintf("create -> Running, one pod, slowest of %d", b.pods), seconds(slices.Max(ours.up)),
		seconds(slices.Max(base.up)), "", "")
	b.latency("delete -> gone, grace 1 s", ours.down, base.down, "<= floor + 0.1 s")
	return nil
}

// bursts makes 30 pods at once, three times each in turn.
func (b *bench) bursts(ctx context.Context) error {
	say("bursts of %d pods", burst)
	var ours lives
	floors := newFloors()
	removed := func(d floor.Deletion) time.Duration { return d.Removed }
	for i := range 3 {
		if err := floors.round(ctx, b.floor, fmt.Sprintf("burst-%d", i), removed); err != nil {
			return err
		}
		began := time.Now()
		if err := b.put(ctx, fmt.Sprintf("burst%d", i), burst, time.Second); err != nil {
			return err
		}
		up := time.Since(began)
		began = time.Now()
		if err := b.clear(ctx, 0); err != nil {
			return err
		}
		ours.add(up, time.Since(began))
	}
	_, up := floors.best(func(l *lives) []time.Duration { return l.up })
	_, down := floors.best(func(l *lives) []time.Duration { return l.down })
	b.latency("burst of 30, last Running, median of 3", ours.up, up, "<= 1.10x + 0.5 s")
	b.latency("all 30 deleted, median of 3", ours.down, down, "<= 1.15x + grace used")
	b.row("floor of bursts, last Running and all deleted", "", floors.String(), "", "")
	return nil
}
