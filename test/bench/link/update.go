package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/test/bench/load"
)

const (
	// rate is how many updates there are in a second, for how long.
	rate        = 200
	updatesTime = 30 * time.Second
	// mark is the annotation that says which update an object is of.
	mark = "load/update"
)

// round is a number of updates, and when each was there.
type round struct {
	first int64
	sent  []atomic.Int64 // Unix ns, when the call of the API began
	wrote []atomic.Int64 // when it had returned

	failed atomic.Int64 // calls of the API

	edges load.Samples // from the beginning of the call until the edge has the update
	after load.Samples // from the end of the call
	watch load.Samples // from the beginning of the call until a client that watches has it
}

// tracker takes note of updates that arrive.
type tracker struct{ round atomic.Pointer[round] }

// arrived is for the fleet.
func (t *tracker) arrived(_ string, m *model.Message, at time.Time) {
	r := t.round.Load()
	if r == nil {
		return
	}
	var object struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	if json.Unmarshal(m.ContentData(), &object) != nil {
		return
	}
	if i, ok := r.number(object.Metadata.Annotations); ok {
		r.edges.Add(time.Duration(at.UnixNano() - r.sent[i].Load()))
		if wrote := r.wrote[i].Load(); wrote != 0 {
			r.after.Add(max(0, time.Duration(at.UnixNano()-wrote)))
		} else {
			r.after.Add(0) // it was there before the caller knew
		}
	}
}

func (r *round) number(annotations map[string]string) (int64, bool) {
	n, err := strconv.ParseInt(annotations[mark], 10, 64)
	n -= r.first
	return n, err == nil && n >= 0 && n < int64(len(r.sent))
}

// update changes objects at a steady pace, whatever comes of it, and measures how long each takes to reach its edge.
func (f *fleet) update(ctx context.Context) error {
	patch := func(i int64) []byte {
		return fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}}}`, mark, i)
	}
	maps, pods := f.api.CoreV1().ConfigMaps(space), f.api.CoreV1().Pods(space)
	for number, kind := range []struct {
		name  string
		write func(ctx context.Context, node string, i int64) error
		watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
	}{
		{"configmaps", func(ctx context.Context, node string, i int64) error {
			_, err := maps.Patch(ctx, node, types.MergePatchType, patch(i), metav1.PatchOptions{})
			return err
		}, maps.Watch},
		{"pods", func(ctx context.Context, node string, i int64) error {
			_, err := pods.Patch(ctx, node, types.MergePatchType, patch(i), metav1.PatchOptions{})
			return err
		}, pods.Watch},
	} {
		if err := wait(ctx, 5*time.Second); err != nil {
			return err
		}
		count := int64(rate * updatesTime / time.Second)
		r := &round{first: int64(number+1) * 1_000_000, sent: make([]atomic.Int64, count), wrote: make([]atomic.Int64, count)}
		if err := f.updates(ctx, kind.name, r, kind.write, kind.watch); err != nil {
			return fmt.Errorf("update %s: %w", kind.name, err)
		}
	}
	return nil
}

func (f *fleet) updates(ctx context.Context, name string, r *round, write func(context.Context, string, int64) error,
	watching func(context.Context, metav1.ListOptions) (watch.Interface, error)) error {
	say("%d updates of %s, %d a second", len(r.sent), name, rate)
	stop, err := r.observe(ctx, watching)
	if err != nil {
		return err
	}
	defer stop()
	before, err := f.used()
	if err != nil {
		return err
	}
	f.track.round.Store(r)
	defer f.track.round.Store(nil)
	profiled := make(chan error, 1)
	go func() {
		profiled <- f.profile(ctx, fmt.Sprintf("cpu-%d-%s.pprof", f.n, name), "/debug/pprof/profile?seconds=15")
	}()
	if err := r.send(ctx, f.n, write); err != nil {
		return err
	}
	// All are there long before, or will not come.
	_ = until(ctx, "all updates arrived", 20*time.Second, func() (bool, error) {
		return r.edges.Len() >= len(r.sent) && r.watch.Len() >= len(r.sent), nil
	})
	if err := ctx.Err(); err != nil {
		return err
	}
	after, err := f.used()
	if err != nil {
		return err
	}
	floor := func(p float64) string { return millis(r.watch.Percentile(p)) }
	what := fmt.Sprintf("%d updates a second of %s, call of the API -> edge, ", rate, name)
	f.row(what+"p50", millis(r.edges.Percentile(50)), floor(50), "")
	f.row(what+"p99", millis(r.edges.Percentile(99)), floor(99), "<= 100 ms")
	f.row(what+"p99 from the API's answer", millis(r.after.Percentile(99)), "", "")
	f.row(fmt.Sprintf("updates of %s that arrived", name), fmt.Sprintf("%d of %d, %d refused by the API", r.edges.Len(), len(r.sent), r.failed.Load()),
		fmt.Sprintf("%d", r.watch.Len()), "all")
	f.row("CPU of these updates", after.since(before).String(), "", "")
	return <-profiled
}

// send makes the updates, each at its time: that some are slow delays none.
func (r *round) send(ctx context.Context, nodes int, write func(context.Context, string, int64) error) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	began := time.Now()
	for i := range r.sent {
		at := began.Add(time.Duration(i+1) * time.Second / rate)
		if err := wait(ctx, time.Until(at)); err != nil {
			return err
		}
		wg.Go(func() {
			r.sent[i].Store(time.Now().UnixNano())
			if err := write(ctx, load.NodeName(i%nodes), r.first+int64(i)); err != nil {
				r.failed.Add(1)
			}
			r.wrote[i].Store(time.Now().UnixNano())
		})
	}
	return nil
}

// observe watches as any client can: the floor. What it returns ends that.
func (r *round) observe(ctx context.Context, watching func(context.Context, metav1.ListOptions) (watch.Interface, error)) (stop func(), err error) {
	w, err := watching(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for event := range w.ResultChan() {
			at := time.Now()
			object, ok := event.Object.(metav1.Object)
			if !ok {
				continue
			}
			if i, ok := r.number(object.GetAnnotations()); ok && event.Type == watch.Modified {
				r.watch.Add(time.Duration(at.UnixNano() - r.sent[i].Load()))
			}
		}
	})
	return func() { w.Stop(); wg.Wait() }, nil
}
