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
	"github.com/edgecore-io/edgecore/test/bench/results"
	"github.com/edgecore-io/edgecore/test/testenv/images"
)

// Each container has two probes a second: fifty of them ask as often as a hundred pods with one.
const (
	probedPods       = 5
	probedContainers = 10
)

// probes measures what a hundred HTTP probes a second cost the agent.
func (a *alone) probes(ctx context.Context) error {
	say("100 HTTP probes a second, for %v", a.idle)
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer server.Close()
	port := strings.TrimPrefix(server.URL, "http://127.0.0.1:")
	if err := a.agent.WriteManifest("pods.yaml", probedManifest(port)); err != nil {
		return err
	}
	err := a.until(ctx, func(pods map[string]*v1.Pod) bool { return len(pods) == probedPods && allReady(pods) })
	if err != nil {
		return err
	}
	if err := pause(ctx, 3*time.Second); err != nil { // what their start has cost is over then
		return err
	}
	pid, began, asks := a.agent.PID(), time.Now(), asked.Load()
	before, _, err := process.Usage(pid)
	if err != nil {
		return err
	}
	if err := pause(ctx, a.idle); err != nil {
		return err
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
	// A probe that is late on a busy machine is not made up for.
	say("%.0f probes a second", rate)
	a.keep.Samples(results.CPUProbes, results.EdgeCore, results.Point{},
		100*(after-before).Seconds()/took*100/rate)
	return a.clear(ctx, 0)
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
