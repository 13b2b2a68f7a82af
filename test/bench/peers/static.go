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
	"github.com/edgecore-io/edgecore/test/bench/results"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/images"
)

// patience is how long pods of an agent without a cloud may take.
const patience = 3 * time.Minute

// alone is an agent without a cloud, which runs pods from manifests. It shares the floor's containerd.
type alone struct {
	*bench
	agent *agent.Agent
}

// withoutCloud starts an agent without a cloud, measures it, and stops it: the next one needs its containerd.
func (b *bench) withoutCloud(
	ctx context.Context, part string, measure func(*alone, context.Context) error,
) (err error) {
	dir := filepath.Join(b.dir, part)
	a := &alone{bench: b}
	a.agent, err = agent.New(agent.Options{
		Binary:     b.edge,
		Dir:        dir,
		Endpoint:   b.ctrd.Endpoint(),
		CgroupRoot: b.ctrd.CgroupRoot(),
	})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			say("the end of the agent's log:\n%s", daemon.Tail(a.agent.Log(), 10))
		}
		ctx, cancel := daemon.Within(context.WithoutCancel(ctx))
		defer cancel()
		err = errors.Join(err, a.agent.Stop(ctx), agent.Unmount(dir), a.agent.RemoveLogLinks())
	}()
	if err := a.agent.Start(ctx); err != nil {
		return err
	}
	return measure(a, ctx)
}

// static measures pods from manifests: one at a time, many at once, and how soon an agent that was killed has its pods
// again.
func (a *alone) static(ctx context.Context) error {
	base, err := a.likeStatic(ctx)
	if err != nil {
		return err
	}
	if err := a.singles(ctx, base); err != nil {
		return err
	}
	if err := a.staticBursts(ctx, base); err != nil {
		return err
	}
	return a.adopt(ctx)
}

// likeStatic returns a floor that makes the same requests to the runtime as the agent does for its pods.
func (a *alone) likeStatic(ctx context.Context) (base *floor.Client, err error) {
	if err := a.put(ctx, "like", 1, 0); err != nil {
		return nil, err
	}
	pods, err := a.agent.Pods(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range pods {
		if base, err = a.likePod(ctx, a.floor.CRI, p, filepath.Base(a.agent.Dir)); err != nil {
			return nil, err
		}
	}
	return base, a.clear(ctx, 0)
}

// manifest is a pod like the floor's.
func manifest(name string) string {
	return fmt.Sprintf(
		"apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec:\n  terminationGracePeriodSeconds: %.0f\n"+
			"  containers:\n  - {name: main, image: %q, command: [%q, %q, %q]}\n", name, grace.Seconds(), images.Demo,
		command[0], command[1], command[2])
}

// put runs pods and waits until all do. It does not look before a time has passed: looking costs what is looked at.
func (a *alone) put(ctx context.Context, prefix string, n int, unseen time.Duration) error {
	var docs []string
	for i := range n {
		docs = append(docs, manifest(fmt.Sprintf("%s-%d", prefix, i)))
	}
	if err := a.agent.WriteManifest("pods.yaml", strings.Join(docs, "---\n")); err != nil {
		return err
	}
	if err := pause(ctx, unseen); err != nil {
		return err
	}
	return a.until(ctx, func(pods map[string]*v1.Pod) bool { return len(pods) == n && allRun(pods) })
}

// clear removes all pods and waits until nothing of them is left; as put does, unseen.
func (a *alone) clear(ctx context.Context, unseen time.Duration) error {
	if err := a.agent.RemoveManifest("pods.yaml"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := pause(ctx, unseen); err != nil {
		return err
	}
	return a.until(ctx, func(pods map[string]*v1.Pod) bool { return len(pods) == 0 })
}

func allRun(pods map[string]*v1.Pod) bool {
	for _, p := range pods {
		if p.Status.Phase != v1.PodRunning {
			return false
		}
	}
	return true
}

// until asks the agent for its pods until they are as they should be. A full list takes its time on both sides, so it
// asks less often if there are many.
func (a *alone) until(ctx context.Context, done func(map[string]*v1.Pod) bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		pods, err := a.agent.Pods(ctx)
		if err != nil {
			return err
		}
		if done(pods) {
			return nil
		}
		if err := pause(ctx, time.Duration(5+2*len(pods))*time.Millisecond); err != nil {
			return fmt.Errorf("the %d pods are not as they should be: %w", len(pods), err)
		}
	}
}

// singles makes and removes one pod after another, the agent's and the floor's in turn.
func (a *alone) singles(ctx context.Context, base *floor.Client) error {
	for round := range a.rounds + 1 {
		say("one static pod, round %d of %d", round, a.rounds)
		if err := gap(ctx); err != nil {
			return err
		}
		floorUp, deleted, err := floorLife(ctx, base, fmt.Sprintf("static-%d", round))
		if err != nil {
			return err
		}
		if err := gap(ctx); err != nil {
			return err
		}
		began := time.Now()
		if err := a.put(ctx, fmt.Sprintf("single%d", round), 1, floorUp*3/4); err != nil {
			return err
		}
		up := time.Since(began)
		if err := gap(ctx); err != nil {
			return err
		}
		began = time.Now()
		if err := a.clear(ctx, deleted.Removed*3/4); err != nil {
			return err
		}
		gone := time.Since(began)
		if round > 0 { // the first warms things up
			a.keep.Times(results.CreateStatic, results.EdgeCore, results.Point{}, up)
			a.keep.Times(results.DeleteStatic, results.EdgeCore, results.Point{}, gone)
			a.keep.Times(results.CreateStatic, results.Floor, results.Point{}, floorUp)
			a.keep.Times(results.DeleteStatic, results.Floor, results.Point{}, deleted.Removed)
		}
	}
	return nil
}

// staticBursts makes many pods at once, the agent's and the floor's in turn.
func (a *alone) staticBursts(ctx context.Context, base *floor.Client) error {
	for repeat := range a.repeats {
		for _, size := range a.sizes {
			say("burst of %d static pods, %d of %d", size, repeat+1, a.repeats)
			turns := []func(context.Context) error{
				func(ctx context.Context) error { return a.staticBurst(ctx, repeat, size) },
			}
			for _, level := range levelsFor(size) {
				name := fmt.Sprintf("static-%d-%d-%d", repeat, size, level)
				turns = append(turns, func(ctx context.Context) error {
					t, err := floorBurst(ctx, base, name, size, level)
					if err != nil {
						return err
					}
					a.keep.Times(results.BurstStaticLast, results.Floor, t.made, t.last)
					a.keep.Times(results.BurstStaticGone, results.Floor, t.removed, t.deletion.Removed)
					return nil
				})
			}
			if err := inTurns(ctx, turns); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *alone) staticBurst(ctx context.Context, repeat, size int) error {
	at := results.Point{Pods: size}
	began := time.Now()
	if err := a.put(ctx, fmt.Sprintf("burst%d", repeat), size, time.Second); err != nil {
		return err
	}
	a.keep.Times(results.BurstStaticLast, results.EdgeCore, at, time.Since(began))
	if err := pause(ctx, settleTime); err != nil {
		return err
	}
	began = time.Now()
	if err := a.clear(ctx, 0); err != nil {
		return err
	}
	a.keep.Times(results.BurstStaticGone, results.EdgeCore, at, time.Since(began))
	return nil
}

// adoptedPods is how many pods an agent has that is killed.
const adoptedPods = 10

// adopt kills the agent and measures how soon the next one has its pods.
func (a *alone) adopt(ctx context.Context) error {
	say("agent killed, and started again, %d times", a.repeats)
	if err := a.put(ctx, "adopted", adoptedPods, 0); err != nil {
		return err
	}
	for range a.repeats {
		if err := a.agent.Kill9(ctx); err != nil {
			return err
		}
		began := time.Now()
		if err := a.agent.Start(ctx); err != nil {
			return err
		}
		err := a.until(ctx, func(have map[string]*v1.Pod) bool { return len(have) == adoptedPods && allReady(have) })
		if err != nil {
			return err
		}
		a.keep.Times(results.Adopt, results.EdgeCore, results.Point{Pods: adoptedPods}, time.Since(began))
	}
	return a.clear(ctx, 0)
}

// allReady reports whether every pod has the condition Ready.
func allReady(pods map[string]*v1.Pod) bool {
	for _, p := range pods {
		if !slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
		}) {
			return false
		}
	}
	return true
}
