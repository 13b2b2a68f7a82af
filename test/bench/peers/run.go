package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/edgecore-io/edgecore/test/bench/results"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/kubelet"
)

// run measures the parts.
func run(ctx context.Context, o options) (err error) {
	programs := map[string]string{"edgecore": o.edge, "containerd": "containerd"}
	if o.nodes() {
		if programs["kubelet"], err = kubelet.Build(ctx, os.Stderr); err != nil {
			return err
		}
		programs["cloudcore"] = o.cloud
	}
	keep, err := results.NewRecorder(ctx, o.json, programs)
	if err != nil {
		return err
	}
	b := &bench{options: o, keep: keep}
	defer func() { err = errors.Join(err, b.stops.end(ctx)) }()
	if err := b.start(ctx); err != nil {
		return err
	}
	for _, part := range []struct {
		name    string
		measure func(context.Context) error
	}{
		{partStatic, func(ctx context.Context) error { return b.withoutCloud(ctx, partStatic, (*alone).static) }},
		{partProbes, func(ctx context.Context) error { return b.withoutCloud(ctx, partProbes, (*alone).probes) }},
		{partRestarts, func(ctx context.Context) error { return b.withoutCloud(ctx, partRestarts, (*alone).restarts) }},
		{partIdle, b.idleNodes},
		{partToken, func(ctx context.Context) error { return b.single(ctx, withToken) }},
		{partPlain, func(ctx context.Context) error { return b.single(ctx, withoutToken) }},
		{partFull, func(ctx context.Context) error { return b.single(ctx, withVolumes) }},
		{partBursts, b.bursts},
	} {
		if !o.parts[part.name] {
			continue
		}
		if slices.Contains(nodeParts, part.name) && b.kube == nil {
			if err := b.startNodes(ctx, programs["kubelet"]); err != nil {
				return err
			}
		}
		if err := part.measure(ctx); err != nil {
			for _, s := range b.sides {
				say("the end of the log of %s:\n%s", s.subject, daemon.Tail(s.log, 10))
			}
			return fmt.Errorf("%s: %w", part.name, err)
		}
		// Saved after each part, so that its results stay if a later one fails.
		if err := keep.Save(); err != nil {
			return err
		}
	}
	return printTable(keep.File())
}

// printTable lists medians and spreads.
func printTable(f *results.File) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "METRIC\tPODS\tOF\tMEDIAN\tQUARTILES\tSAMPLES\tTO FLOOR")
	for _, s := range f.Series {
		metric, _ := results.MetricOf(s.Metric)
		subject := s.Subject
		if s.At.Parallel > 0 {
			subject += fmt.Sprintf(", %d at a time", s.At.Parallel)
		}
		ratio := ""
		if r, ok := f.RatioOf(s.Metric, s.At); ok && s.Subject == results.EdgeCore {
			ratio = fmt.Sprintf("%.2fx", r.Value)
		}
		format := func(value float64) string { return results.Format(metric.Unit, value) }
		fmt.Fprintln(w, strings.Join([]string{
			metric.Title, fmt.Sprint(s.At.Pods), subject, format(s.Summary.Median),
			format(s.Summary.Low) + " to " + format(s.Summary.High), fmt.Sprint(s.Summary.N), ratio,
		}, "\t"))
	}
	return w.Flush()
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "==> %s "+format+"\n", append([]any{time.Now().Format("15:04:05")}, args...)...)
}

// pause waits for d, or returns the error of ctx if that ends first.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// gap waits until the kernel, the runtimes and the API server have finished their work after a pod is gone. Its length
// is random, so that periodic work does not always affect the same subject.
func gap(ctx context.Context) error {
	return pause(ctx, 400*time.Millisecond+rand.N(400*time.Millisecond))
}

// ending stops everything that was started, the last first, and joins the errors.
type ending []func(context.Context) error

func (e *ending) add(stop func(context.Context) error) { *e = append(*e, stop) }

func (e ending) end(ctx context.Context) error {
	ctx, cancel := daemon.Within(context.WithoutCancel(ctx))
	defer cancel()
	var err error
	for i := len(e) - 1; i >= 0; i-- {
		err = errors.Join(err, e[i](ctx))
	}
	return err
}
