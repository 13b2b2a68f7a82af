package runtimelimit

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Limiter limits the calls of one runtime. Its methods may be called from any goroutine.
type Limiter struct {
	mu    sync.Mutex
	queue *queue
	// timer expires calls that no longer count. It runs while other calls wait.
	timer *time.Timer

	limit, waiting, running *prometheus.Desc
}

// New returns a Limiter for a device with a number of processors.
func New(cpus int) *Limiter {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("edgecore_runtime_calls_"+name, help, []string{"phase"}, nil)
	}
	return &Limiter{
		queue:   newQueue(cpus),
		limit:   desc("limit", "Most calls that start or end pods that the container runtime works on at once"),
		waiting: desc("waiting", "Calls that start or end pods and wait to be made"),
		running: desc("in_flight", "Calls that start or end pods and that the container runtime has not answered yet"),
	}
}

type ownerKey struct{}

// WithOwner returns a context for the calls of a pod. They stay urgent if ctx is from Urgent.
func WithOwner(ctx context.Context, o Owner) context.Context {
	if ownerFrom(ctx).class == urgent {
		o.class = urgent
	}
	return context.WithValue(ctx, ownerKey{}, o)
}

// Urgent returns a context for calls that do not wait.
func Urgent(ctx context.Context) context.Context {
	o := ownerFrom(ctx)
	o.class = urgent
	return context.WithValue(ctx, ownerKey{}, o)
}

// Background returns a context for calls for which nobody waits: they are made when no other call is. It ends the
// effect of Urgent.
func Background(ctx context.Context) context.Context {
	o := ownerFrom(ctx)
	o.class = background
	return context.WithValue(ctx, ownerKey{}, o)
}

func ownerFrom(ctx context.Context) Owner {
	o, _ := ctx.Value(ownerKey{}).(Owner)
	return o
}

// Do makes a call on behalf of the owner in ctx as soon as the limit allows. If ctx ends before that, Do returns its
// error.
func (l *Limiter) Do(ctx context.Context, k Kind, call func() error) error {
	c := l.arrive(k, ownerFrom(ctx))
	ok := false
	defer func() { l.removeCall(c, ok) }()
	select {
	case <-c.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	err := call()
	ok = err == nil
	return err
}

// Busy reports whether pods start or end: whether calls wait, or the runtime works on some. Calls in the background do
// not count. Neither do calls that have taken much longer than usual.
func (l *Limiter) Busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue.expire(time.Now())
	l.carryOn()
	return l.queue.busy()
}

func (l *Limiter) arrive(k Kind, o Owner) *call {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.queue.arrive(time.Now(), k, o)
	l.carryOn()
	return c
}

func (l *Limiter) removeCall(c *call, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue.removeCall(time.Now(), c, ok)
	l.carryOn()
}

func (l *Limiter) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue.expire(time.Now())
	l.carryOn()
}

// carryOn wakes the goroutines of granted calls, and sets the timer.
func (l *Limiter) carryOn() {
	for _, c := range l.queue.granted {
		close(c.ready)
	}
	l.queue.granted = nil
	next := l.queue.next()
	switch {
	case next.IsZero():
		if l.timer != nil {
			l.timer.Stop()
		}
	case l.timer == nil:
		l.timer = time.AfterFunc(time.Until(next), l.expire)
	default:
		l.timer.Reset(time.Until(next))
	}
}

// Describe implements prometheus.Collector.
func (l *Limiter) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{l.limit, l.waiting, l.running} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (l *Limiter) Collect(ch chan<- prometheus.Metric) {
	for p, name := range []string{starts: "start", ends: "end"} {
		of := func(calls []*call) (n int) {
			for _, c := range calls {
				if c.kind.phase() == phase(p) {
					n++
				}
			}
			return n
		}
		l.mu.Lock()
		limit, waiting, running := l.queue.levels[p].current(), of(l.queue.waiting), of(l.queue.running)
		l.mu.Unlock()
		for desc, value := range map[*prometheus.Desc]int{l.limit: limit, l.waiting: waiting, l.running: running} {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), name)
		}
	}
}
