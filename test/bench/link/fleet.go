package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"golang.org/x/sync/errgroup"

	"github.com/edgecore-io/edgecore/test/bench/load"
	"github.com/edgecore-io/edgecore/test/bench/results"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
)

const (
	// space is where the fleet's pods are.
	space = "load"
	// populating is how many pods are made at a time: on a busy machine, a call of the API takes 0.2 s.
	populating = 32
	// settleTime is how long a fleet may take to register, or to come back, on a machine that has more to do.
	settleTime = 10 * time.Minute
	// storms is how many times all links are cut, with calm between them: longer than a heartbeat, after which an edge
	// forgets that it had to dial again.
	storms     = 3
	calm       = 20 * time.Second
	stormLimit = 10 * time.Second
	// onePod is the content of nodes whose results are recorded.
	onePod = "one pod and configmap more"
	// firstPort to lastPort are each cloudcore's ports for nodes, enough for 10,000; none is one that FreePort returns.
	firstPort, lastPort = 10000, 23999
)

// fleet is one run with simulated edges.
type fleet struct {
	*fixture
	t     *table
	n     int
	edges *load.Fleet
	track tracker
	// empty is cloudcore's memory before there was an edge.
	empty memory
	// patches are those of Nodes before anything was updated or cut.
	patches int
}

// measureLoad runs a fleet against a cluster and a cloudcore of its own.
func measureLoad(ctx context.Context, t *table, o options, n int) (err error) {
	// Nothing schedules and nothing controls: what shares the machine is only what is needed.
	// The whole fleet is behind one address, and registers at once.
	s, err := newSite(ctx, o, siteOptions{
		cluster: kube.Options{APIServerFlags: apiServerFlags(o)},
		hub:     map[string]any{"nodeLimit": n + n/10, "lookupsPerSource": n},
		modules: map[string]any{"cloudStream": map[string]any{"firstPort": firstPort, "lastPort": lastPort}},
	})
	defer func() { err = errors.Join(err, s.stops.end(ctx)) }()
	if err != nil {
		return err
	}
	f := &fleet{fixture: s, t: t, n: n}
	defer func() {
		if err != nil {
			say("the end of cloudcore's log:\n%s", daemon.Tail(s.cloud.Log(), 20))
		}
	}()
	if err := s.addClouds(ctx, o.replicas-1); err != nil {
		return err
	}
	for _, step := range []struct {
		wanted bool
		do     func(context.Context) error
	}{
		{true, f.connect},
		{o.withPods(), f.populate},
		{o.parts["updates"], f.update},
		{o.parts["storm"], f.storm},
		{o.parts["restart"], f.restart},
	} {
		if step.wanted {
			// What was measured is kept even if a later step fails: a large fleet takes many minutes.
			if err := errors.Join(step.do(ctx), o.keep.Save()); err != nil {
				return err
			}
		}
	}
	return nil
}

// point returns the point of this fleet's results.
func (f *fleet) point() results.Point { return results.Point{Nodes: f.n, Replicas: f.opts.replicas} }

func (f *fleet) row(what, measured, floor, limit string) {
	edges := fmt.Sprintf("%d edges", f.n)
	if f.opts.replicas > 1 {
		edges += fmt.Sprintf(", %d cloudcores", f.opts.replicas)
	}
	f.t.row(edges+": "+what, measured, floor, limit)
}

// connect starts the fleet, and measures what a node at rest takes.
func (f *fleet) connect(ctx context.Context) error {
	if err := f.namespace(ctx, space); err != nil {
		return err
	}
	if err := wait(ctx, 5*time.Second); err != nil {
		return err
	}
	var err error
	if f.empty, err = f.memoryNow(ctx); err != nil {
		return err
	}
	issuer, err := load.NewIssuer(ctx, f.api)
	if err != nil {
		return err
	}
	if f.edges, err = load.New(load.Options{
		Servers: f.hubs(),
		Issuer:  issuer,
		Nodes:   f.n,
		Arrived: f.track.arrived,
		Failed:  func(err error) { say("an edge failed: %v", err) },
	}); err != nil {
		return err
	}
	if err := f.register(ctx); err != nil {
		return err
	}
	if f.patches, err = f.nodePatches(ctx); err != nil {
		return err
	}
	return f.rest(ctx, f.empty, "no pods", "<= 60 KB")
}

// waitConnected waits until all edges are connected and have what they are to have; it calls look again and again.
func (f *fleet) waitConnected(ctx context.Context, patience time.Duration, look func()) error {
	err := until(ctx, "all edges are in sync", patience, func() (bool, error) {
		look()
		return f.edges.Settled(), nil
	})
	if err != nil {
		failures, last := f.edges.Failures()
		return fmt.Errorf("%w; there are %+v of %d, and %d failures, the last one: %v", err, f.edges.State(), f.n,
			failures, last)
	}
	return nil
}

// rest looks at cloudcore while the fleet only pings.
func (f *fleet) rest(ctx context.Context, before memory, with, limit string) error {
	if !f.opts.parts["memory"] {
		return nil
	}
	say("%d edges with %s at rest for %v", f.n, with, f.opts.rest)
	if err := wait(ctx, calm); err != nil { // first statuses and leases are written
		return err
	}
	cpu, err := f.used()
	if err != nil {
		return err
	}
	if err := wait(ctx, f.opts.rest); err != nil {
		return err
	}
	after, err := f.used()
	if err != nil {
		return err
	}
	now, err := f.memoryNow(ctx)
	if err != nil {
		return err
	}
	n := float64(f.n)
	f.row("RSS of cloudcore per node, "+with, fmt.Sprintf("%s (%.0f MB in all; of it anonymous %s and %.0f MB)",
		kilobytes((now.rss-before.rss)/n), now.rss/1e6, kilobytes((now.anon-before.anon)/n), now.anon/1e6),
		fmt.Sprintf("%.0f MB without nodes", before.rss/1e6), limit)
	f.row("live heap + stacks per node, "+with, fmt.Sprintf("%s + %s", kilobytes((now.heap-before.heap)/n),
		kilobytes((now.stacks-before.stacks)/n)), "", limit)
	if with == onePod {
		f.opts.keep.Samples(results.CloudRSS, results.CloudCore, f.point(), now.rss/float64(f.opts.replicas))
		live := now.heap + now.stacks - f.empty.heap - f.empty.stacks
		f.opts.keep.Samples(results.CloudLive, results.CloudCore, f.point(), live/n)
		f.opts.keep.Samples(results.CloudCPU, results.CloudCore, f.point(),
			100*after.since(cpu).cloud.Seconds()/f.opts.rest.Seconds())
	}
	f.row("goroutines per node, "+with, fmt.Sprintf("%.2f", (now.goroutines-before.goroutines)/n), "", "")
	f.row("CPU at rest in "+f.opts.rest.String()+", "+with, after.since(cpu).String(), "", "")
	if err := f.profile(ctx, fmt.Sprintf("goroutines-%d-%s.txt", f.n, with),
		"/debug/pprof/goroutine?debug=1"); err != nil {
		return err
	}
	return f.profile(ctx, fmt.Sprintf("heap-%d-%s.pprof", f.n, with), "/debug/pprof/heap?gc=1")
}

// populate gives each node a pod that mounts a configmap.
func (f *fleet) populate(ctx context.Context) error {
	say("making %d pods and configmaps", f.n)
	before, err := f.memoryNow(ctx)
	if err != nil {
		return err
	}
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(populating)
	for i := range f.n {
		group.Go(func() error {
			if _, err := f.api.CoreV1().ConfigMaps(space).Create(inner, configMap(i),
				metav1.CreateOptions{}); err != nil {
				return err
			}
			_, err := f.api.CoreV1().Pods(space).Create(inner, pod(i), metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	err = until(ctx, "each pod runs", settleTime, func() (bool, error) {
		if err := wait(ctx, time.Second); err != nil {
			return false, err
		}
		list, err := f.api.CoreV1().Pods(space).List(ctx, metav1.ListOptions{FieldSelector: "status.phase!=Running",
			Limit: 1})
		return err == nil && len(list.Items) == 0, err
	})
	if err != nil {
		return err
	}
	if f.patches, err = f.nodePatches(ctx); err != nil {
		return err
	}
	return f.rest(ctx, before, onePod, "")
}

// configMap is one of 1 KB.
func configMap(i int) *v1.ConfigMap {
	text := make([]byte, 1000)
	for j := range text {
		text[j] = 'a' + byte((i+j)%26)
	}
	return &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: load.NodeName(i)}, Data: map[string]string{"config": string(text)},
	}
}

// pod is one bound to a node.
func pod(i int) *v1.Pod {
	name := load.NodeName(i)
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "load"}},
		Spec: v1.PodSpec{
			NodeName: name,
			Containers: []v1.Container{{
				Name:         "main",
				Image:        "registry.example/app:1.2.3",
				Command:      []string{"/app", "--config", "/etc/app/config"},
				VolumeMounts: []v1.VolumeMount{{Name: "config", MountPath: "/etc/app"}},
			}},
			Volumes: []v1.Volume{{Name: "config", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
				LocalObjectReference: v1.LocalObjectReference{Name: name},
			}}}},
		},
	}
}

// storm cuts all links at once, and measures how long it takes until all is as before.
func (f *fleet) storm(ctx context.Context) error {
	var took []time.Duration
	var cpu used
	for i := range storms {
		if err := wait(ctx, calm); err != nil {
			return err
		}
		say("cutting %d links", f.n)
		before, err := f.used()
		if err != nil {
			return err
		}
		if err := f.resetPeaks(); err != nil {
			return err
		}
		failures, _ := f.edges.Failures()
		began := time.Now()
		if err := f.edges.Storm(ctx, f.edges.Cut); err != nil {
			return err
		}
		var half time.Duration
		if err := f.waitConnected(ctx, settleTime, func() {
			if half == 0 && f.edges.State().Synced >= f.n/2 {
				half = time.Since(began)
			}
		}); err != nil {
			return err
		}
		took = append(took, time.Since(began))
		after, err := f.used()
		if err != nil {
			return err
		}
		cpu = after.since(before)
		peak, err := f.peaks()
		if err != nil {
			return err
		}
		again, last := f.edges.Failures()
		say("storm %d: half after %v, all after %v, %d failures (%v), peak RSS of cloudcore %.0f MB, CPU %v", i+1, half,
			took[i], again-failures, last, peak/1e6, cpu)
	}
	if f.opts.withPods() { // as in all other fleets of the record
		f.opts.keep.Times(results.CloudStorm, results.CloudCore, f.point(), took...)
	}
	f.row("all links cut, until all are in sync (edges wait for 1 to 2 s), median (worst) of "+fmt.Sprint(storms),
		fmt.Sprintf("%s (%s)", seconds(load.Median(took)), seconds(load.Percentile(took, 100))), "",
		"<= "+seconds(stormLimit))
	f.row("CPU of a storm", cpu.String(), "", "")
	return nil
}

// restart kills cloudcore, and measures how long it takes until all edges are in sync with the next one.
func (f *fleet) restart(ctx context.Context) error {
	if err := wait(ctx, calm); err != nil {
		return err
	}
	say("restarting cloudcore")
	began := time.Now()
	var ready time.Duration
	err := f.edges.Storm(ctx, func() {
		if err := f.restartClouds(ctx); err != nil {
			say("restart: %v", err)
		}
		ready = time.Since(began)
	})
	if err != nil {
		return err
	}
	if err := f.waitConnected(ctx, settleTime, func() {}); err != nil {
		return err
	}
	f.row("cloudcore killed and started, until all are in sync (of it until cloudcore is ready)",
		fmt.Sprintf("%s (%s)", seconds(time.Since(began)), seconds(ready)), "", "")
	patches, err := f.nodePatches(ctx)
	if err != nil {
		return err
	}
	f.row("patches of Nodes, but for their status, by updates, cut links and that restart",
		fmt.Sprint(patches-f.patches), fmt.Sprintf("%d before", f.patches), "0")
	return f.rest(ctx, f.empty, "one pod and configmap, after that restart", "")
}

// nodePatches returns how many patches of Nodes, but for their status, the API server has carried out.
func (f *fleet) nodePatches(ctx context.Context) (patches int, err error) {
	text, err := f.fromAPIServer(ctx, "/metrics")
	if err != nil {
		return 0, fmt.Errorf("read the API server's metrics: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		labels, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		if !strings.HasPrefix(labels, "apiserver_request_total{") || !strings.Contains(labels, `resource="nodes"`) ||
			!strings.Contains(labels, `subresource=""`) || !strings.Contains(labels, `verb="PATCH"`) {
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil {
			return 0, fmt.Errorf("read the API server's metrics: %w", err)
		}
		patches += n
	}
	return patches, nil
}
