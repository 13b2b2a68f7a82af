package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/test/bench/load"
	"github.com/edgecore-io/edgecore/test/bench/results"
)

const (
	// updatesTime is how long there are updates, warmUp how long of it they do not count.
	updatesTime = 20 * time.Second
	warmUp      = 3 * time.Second
	// keptRate is the rate of updates per second whose results are recorded.
	keptRate = 200
	// mark is the annotation that says which update an object is of.
	mark = "load/update"
)

// round is a number of updates, with what happened to each. Times are in Unix ns, 0 while it has not.
type round struct {
	first int64
	// rate is how many there are in a second.
	rate int
	list []updated

	failed  atomic.Int64 // calls of the API
	failure atomic.Pointer[error]
}

// updated is one update: when its call of the API began and ended, and when a client that watches and the edge had it.
type updated struct{ called, wrote, watched, arrived atomic.Int64 }

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
	if u := r.update(object.Metadata.Annotations); u != nil {
		u.arrived.CompareAndSwap(0, at.UnixNano())
	}
}

// update is the one that an object is of; nil: none of this round.
func (r *round) update(annotations map[string]string) *updated {
	n, err := strconv.ParseInt(annotations[mark], 10, 64)
	if n -= r.first; err != nil || n < 0 || n >= int64(len(r.list)) {
		return nil
	}
	return &r.list[n]
}

// count is for how many updates something happened.
func (r *round) count(what func(*updated) int64) (n int) {
	for i := range r.list {
		if what(&r.list[i]) != 0 {
			n++
		}
	}
	return n
}

func called(u *updated) int64  { return u.called.Load() }
func wrote(u *updated) int64   { return u.wrote.Load() }
func watched(u *updated) int64 { return u.watched.Load() }
func arrived(u *updated) int64 { return u.arrived.Load() }

// between are the times from one thing to another, at least 0, of the updates to which both happened, when all is warm.
func (r *round) between(from, to func(*updated) int64) []time.Duration {
	var times []time.Duration
	for i := int(warmUp.Seconds()) * r.rate; i < len(r.list); i++ {
		a, b := from(&r.list[i]), to(&r.list[i])
		if a != 0 && b != 0 {
			times = append(times, time.Duration(max(0, b-a)))
		}
	}
	return times
}

// update changes objects at a steady pace, whatever comes of it, and measures how long each takes to reach its edge.
// The calls are the cheapest that there are, whole objects in protobuf: kube-apiserver shares the machine. A pod takes
// it 6 ms of processor time all the same, a configmap 2, so that 200 a second of pods are too many for two cores.
func (f *fleet) update(ctx context.Context) error {
	writer, err := f.client("bench-writer")
	if err != nil {
		return err
	}
	watcher, err := f.client("bench-watcher")
	if err != nil {
		return err
	}
	maps, pods := writer.CoreV1().ConfigMaps(space), writer.CoreV1().Pods(space)
	var list *v1.PodList
	for number, kind := range []struct {
		name  string
		rate  int
		write func(ctx context.Context, node int, i int64) error
		watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
	}{
		{"configmaps", keptRate, func(ctx context.Context, node int, i int64) error {
			object := configMap(node)
			object.Annotations = marked(i)
			_, err := maps.Update(ctx, object, metav1.UpdateOptions{})
			return err
		}, watcher.CoreV1().ConfigMaps(space).Watch},
		{"pods", 50, func(ctx context.Context, node int, i int64) error {
			object := list.Items[node] // a shallow copy
			object.Annotations, object.ResourceVersion = marked(i), ""
			_, err := pods.Update(ctx, &object, metav1.UpdateOptions{})
			return err
		}, watcher.CoreV1().Pods(space).Watch},
	} {
		if err := wait(ctx, 5*time.Second); err != nil {
			return err
		}
		if list, err = pods.List(ctx, metav1.ListOptions{}); err != nil {
			return err
		}
		r := &round{
			first: int64(number+1) * 1_000_000, rate: kind.rate,
			list: make([]updated, kind.rate*int(updatesTime.Seconds())),
		}
		if err := f.updates(ctx, kind.name, r, kind.write, kind.watch); err != nil {
			return fmt.Errorf("update %s: %w", kind.name, err)
		}
	}
	return nil
}

func marked(i int64) map[string]string { return map[string]string{mark: strconv.FormatInt(i, 10)} }

// client is one of a user of its own, and so on a connection of its own.
func (f *fleet) client(user string) (kubernetes.Interface, error) {
	if _, err := f.kube.AddUser(user, "system:masters"); err != nil {
		return nil, err
	}
	config, err := f.kube.ConfigFor(user)
	if err != nil {
		return nil, err
	}
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+
		runtime.ContentTypeJSON
	return kubernetes.NewForConfig(config)
}

func (f *fleet) updates(ctx context.Context, name string, r *round, write func(context.Context, int, int64) error,
	watching func(context.Context, metav1.ListOptions) (watch.Interface, error)) error {
	say("%d updates of %s, %d a second", len(r.list), name, r.rate)
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
	stalled := stalls(ctx)
	profiled := make(chan error, 1)
	go func() {
		profiled <- f.profile(ctx, fmt.Sprintf("cpu-%d-%s.pprof", f.n, name), "/debug/pprof/profile?seconds=15")
	}()
	err = errors.Join(r.send(ctx, f.n, write), <-profiled)
	late := stalled()
	if err != nil {
		return err
	}
	// All are there long before, or will not come.
	_ = until(ctx, "all updates arrived", 20*time.Second, func() (bool, error) {
		return r.count(arrived) == len(r.list) && r.count(watched) == len(r.list), nil
	})
	if err := ctx.Err(); err != nil {
		return err
	}
	after, err := f.used()
	if err != nil {
		return err
	}
	f.tell(name, r, late, after.since(before))
	return nil
}

// stalls looks at how late the machine wakes a goroutine that sleeps for a millisecond, until it is asked for the
// times: whatever has to be woken five times on the way to an edge is late that often.
func stalls(ctx context.Context) (stop func() []time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	var late []time.Duration
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			time.Sleep(time.Millisecond)
			late = append(late, time.Since(began)-time.Millisecond)
		}
	})
	return func() []time.Duration { cancel(); wg.Wait(); return late }
}

// tell makes a round's rows.
func (f *fleet) tell(name string, r *round, late []time.Duration, cpu used) {
	if why := r.failure.Load(); why != nil {
		say("%d calls of the API failed, the last one: %v", r.failed.Load(), *why)
	}
	what := fmt.Sprintf("%d updates a second of %s, ", r.rate, name)
	edge, floor, own := r.between(called, arrived), r.between(called, watched), r.between(watched, arrived)
	if r.rate == keptRate {
		keep := func(subject string, list []time.Duration) {
			f.opts.keep.Times(results.CloudP50, subject, f.point(), load.Percentile(list, 50))
			f.opts.keep.Times(results.CloudP99, subject, f.point(), load.Percentile(list, 99))
		}
		keep(results.CloudCore, edge)
		keep(results.Floor, floor)
	}
	at := func(list []time.Duration, p float64) string { return millis(load.Percentile(list, p)) }
	f.row(what+"call of the API -> edge, p50", at(edge, 50), at(floor, 50), "")
	f.row(what+"call of the API -> edge, p99", at(edge, 99), at(floor, 99), "<= 100 ms")
	f.row(what+"from when a client that watches has it, p50, p99", at(own, 50)+", "+at(own, 99),
		"the machine wakes late: "+at(late, 50)+", "+at(late, 99), "")
	f.row(what+"from the API's answer, p99", at(r.between(wrote, arrived), 99), at(r.between(wrote, watched), 99), "")
	f.row(what+"arrived", fmt.Sprintf("%d of %d, %d refused by the API", r.count(arrived), len(r.list),
		r.failed.Load()),
		strconv.Itoa(r.count(watched)), "all")
	f.row(what+"CPU of all", cpu.String(), "", "")
}

// send makes the updates, each at its time: that some are slow delays none.
func (r *round) send(ctx context.Context, nodes int, write func(context.Context, int, int64) error) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	began := time.Now()
	for i := range r.list {
		at := began.Add(time.Duration(i+1) * time.Second / time.Duration(r.rate))
		if err := wait(ctx, time.Until(at)); err != nil {
			return err
		}
		wg.Go(func() {
			u := &r.list[i]
			u.called.Store(time.Now().UnixNano())
			if err := write(ctx, i%nodes, r.first+int64(i)); err != nil {
				r.failed.Add(1)
				r.failure.Store(&err)
			}
			u.wrote.Store(time.Now().UnixNano())
		})
	}
	return nil
}

// observe watches as any client can: the floor. What it returns ends that.
func (r *round) observe(
	ctx context.Context, watching func(context.Context, metav1.ListOptions) (watch.Interface, error),
) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	w, err := watching(ctx, metav1.ListOptions{})
	if err != nil {
		cancel()
		return nil, err
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		version := ""
		for ctx.Err() == nil {
			for event := range w.ResultChan() {
				version = r.seen(event, time.Now(), version)
			}
			// An API server that has too much to do ends watches; clients take up where they were.
			if again, err := watching(ctx, metav1.ListOptions{ResourceVersion: version}); err == nil {
				w = again
			}
		}
	})
	return func() { cancel(); wg.Wait() }, nil
}

// seen notes an event of a watch, and returns the version from which another would go on.
func (r *round) seen(event watch.Event, at time.Time, version string) string {
	object, ok := event.Object.(metav1.Object)
	if !ok {
		return version
	}
	if u := r.update(object.GetAnnotations()); u != nil {
		u.watched.CompareAndSwap(0, at.UnixNano())
	}
	return object.GetResourceVersion()
}
