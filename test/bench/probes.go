package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/bench/process"
	"github.com/edgecore-io/edgecore/test/testenv/images"
)

// Each container has two probes a second: fifty of them ask as often as a hundred pods with one.
const (
	probedPods       = 5
	probedContainers = 10
)

// probes measures what a hundred HTTP probes a second cost the agent.
func (b *bench) probes(ctx context.Context) (err error) {
	say("100 HTTP probes a second, for %v", b.idle)
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer server.Close()
	if err := b.startAgent(ctx, "probes"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.agent.Stop(context.WithoutCancel(ctx))) }()
	port := strings.TrimPrefix(server.URL, "http://127.0.0.1:")
	if err := b.agent.WriteManifest("pods.yaml", probedManifest(port)); err != nil {
		return err
	}
	err = b.until(ctx, func(pods map[string]*v1.Pod) bool { return len(pods) == probedPods && allReady(pods) })
	if err != nil {
		return err
	}
	if !wait(ctx, 3*time.Second) { // what their start has cost is over then
		return ctx.Err()
	}
	pid, began, asks := b.agent.PID(), time.Now(), asked.Load()
	before, _, err := process.Usage(pid)
	if err != nil {
		return err
	}
	if !wait(ctx, b.idle) {
		return ctx.Err()
	}
	after, _, err := process.Usage(pid)
	if err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	rate := float64(asked.Load()-asks) / took
	if rate == 0 {
		return errors.New("nothing was probed")
	}
	share := 100 * (after - before).Seconds() / took
	// A probe that is late on a busy machine is not made up for.
	value := fmt.Sprintf("%.2f (at %.0f a second)", share*100/rate, rate)
	b.row("CPU of 100 HTTP probes a second, % of a core", value, "", "", "<= 3")
	return b.clear(ctx, 0)
}

// probedManifest is pods whose probes ask a port of the node.
func probedManifest(port string) string {
	probe := "{httpGet: {host: 127.0.0.1, port: " + port + ", path: /}, periodSeconds: 1}"
	var docs []string
	for p := range probedPods {
		var list []string
		for c := range probedContainers {
			list = append(list, fmt.Sprintf("{name: c%d, image: %q, readinessProbe: %s, livenessProbe: %s}",
				c, images.NonRoot, probe, probe))
		}
		docs = append(docs, fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: probed-%d}, "+
			"spec: {terminationGracePeriodSeconds: 1, containers: [%s]}}\n", p, strings.Join(list, ", ")))
	}
	return strings.Join(docs, "---\n")
}

// adopt kills the agent and measures how soon the next one has its pods.
func (b *bench) adopt(ctx context.Context, pods int) error {
	say("agent killed, and started again")
	const rounds = 3
	var took []time.Duration
	for range rounds {
		if err := b.agent.Kill9(ctx); err != nil {
			return err
		}
		began := time.Now()
		if err := b.agent.Start(ctx); err != nil {
			return err
		}
		err := b.until(ctx, func(have map[string]*v1.Pod) bool { return len(have) == pods && allReady(have) })
		if err != nil {
			return err
		}
		took = append(took, time.Since(began))
	}
	what := fmt.Sprintf("agent killed and started again -> %d pods adopted, median of %d", pods, rounds)
	b.row(what, seconds(median(took)), "", "", "<= 1 s")
	return nil
}

// allReady reports whether every pod has the condition Ready.
func allReady(pods map[string]*v1.Pod) bool {
	for _, p := range pods {
		ready := false
		for _, c := range p.Status.Conditions {
			ready = ready || c.Type == v1.PodReady && c.Status == v1.ConditionTrue
		}
		if !ready {
			return false
		}
	}
	return true
}
