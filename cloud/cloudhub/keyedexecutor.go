package cloudhub

import (
	"context"
	"sync"
	"time"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Limits on a node's unanswered requests. Each costs memory here, and API calls.
const (
	executorParallel     = 8
	executorPending      = 256
	executorPendingBytes = 8 << 20
	// executorPaused limits the paused requests, which do not count towards executorParallel.
	executorPaused = 64
	// queriesFirst is how many queries in a row may overtake other requests that wait for a worker.
	queriesFirst = 8
	// eventsParallel is how many workers may handle events of batches, and eventsLast how many other requests in a row
	// may overtake these: a node sends more of them at a time than of others, and nothing waits for them.
	eventsParallel = 4
	eventsLast     = 16
)

// pendingRequest is a request that waits or runs.
type pendingRequest struct {
	*model.Message
	arrived time.Time
	// batch is the batch that the request came in; nil if it came alone.
	batch *batch
}

func (r pendingRequest) size() int { return len(r.Content) + 512 }

// isLast reports whether a request may be overtaken by all others: an event of a batch.
func (r pendingRequest) isLast() bool {
	if r.batch == nil {
		return false
	}
	key, err := resource.Parse(r.Route.Resource)
	return err == nil && key.Type == resource.TypeEvent && r.Route.Operation != model.OpQuery
}

// keyedExecutor handles the requests of one node: those that change one object in order, others in parallel. Containers
// wait for the answers to queries (a token, a Secret), so queries go first. When idle it has no goroutine.
type keyedExecutor struct {
	handle func(pendingRequest)

	mu     sync.Mutex
	room   *sync.Cond
	queues map[string][]pendingRequest // a queue exists while one of its requests runs or waits
	// ready, queries and events are the queues that wait for a worker: in queries, the next request is a query; in
	// events, it is an event of a batch; ready has the others. passed counts the queries that were started while a
	// queue in ready waited, passedEvents the requests that were started while a queue in events waited.
	ready, queries, events []string
	passed, passedEvents   int
	workers, eventWorkers  int
	// paused counts the workers whose request is paused.
	paused  int
	pending int
	bytes   int
	closed  bool
	idle    sync.WaitGroup
}

func newKeyedExecutor(handle func(pendingRequest)) *keyedExecutor {
	l := &keyedExecutor{handle: handle}
	l.room = sync.NewCond(&l.mu)
	return l
}

// enqueue adds a request; it blocks while the node has too many unanswered ones, and calls waits before it does. Only
// one goroutine may call it. A request of a batch counts until finishBatched is called with it.
func (l *keyedExecutor) enqueue(m *model.Message, b *batch, waits func()) {
	r := pendingRequest{m, time.Now(), b}
	size := r.size()
	name := executorKey(m)
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.closed && l.pending > 0 && (l.pending >= executorPending || l.bytes+size > executorPendingBytes) {
		waits()
		l.room.Wait()
	}
	if l.closed {
		return
	}
	l.pending++
	l.bytes += size
	if l.queues == nil {
		l.queues = map[string][]pendingRequest{}
	}
	queue, ok := l.queues[name]
	l.queues[name] = append(queue, r)
	if ok {
		return
	}
	l.waits(name)
	l.startWorker()
}

// waits adds a queue to those that wait for a worker; l.mu is held.
func (l *keyedExecutor) waits(name string) {
	switch r := l.queues[name][0]; {
	case r.Route.Operation == model.OpQuery:
		l.queries = append(l.queries, name)
	case r.isLast():
		l.events = append(l.events, name)
	default:
		l.ready = append(l.ready, name)
	}
}

// mayStart reports whether a request waits that a free worker may handle; l.mu is held.
func (l *keyedExecutor) mayStart() bool {
	return len(l.ready)+len(l.queries) > 0 || l.mayStartEvent()
}

func (l *keyedExecutor) mayStartEvent() bool {
	return len(l.events) > 0 && l.eventWorkers < eventsParallel
}

// next removes and returns the queue that gets the next worker; l.mu is held.
func (l *keyedExecutor) next() (name string) {
	list := &l.ready
	switch {
	case l.mayStartEvent() && (len(l.ready)+len(l.queries) == 0 || l.passedEvents >= eventsLast):
		list = &l.events
	case len(l.ready) == 0:
		list, l.passed = &l.queries, 0
	case len(l.queries) > 0 && l.passed < queriesFirst:
		list = &l.queries
		l.passed++
	default:
		l.passed = 0
	}
	if l.passedEvents++; list == &l.events || len(l.events) == 0 {
		l.passedEvents = 0
	}
	name, *list = (*list)[0], (*list)[1:]
	return name
}

// startWorker starts a worker if a request waits for one; l.mu is held.
func (l *keyedExecutor) startWorker() {
	if l.mayStart() && l.workers-l.paused < executorParallel && !l.closed {
		l.workers++
		l.idle.Add(1)
		go l.runRequests()
	}
}

// pause frees the worker of a request that waits, until resume. After resume, more than executorParallel requests may
// run for a moment.
func (l *keyedExecutor) pause() (resume func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.paused >= executorPaused {
		return func() {}
	}
	l.paused++
	l.startWorker()
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.paused--
	}
}

// runRequests handles requests until none waits, or enough other workers run.
func (l *keyedExecutor) runRequests() {
	defer l.idle.Done()
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.mayStart() && l.workers-l.paused <= executorParallel && !l.closed {
		name := l.next()
		r := l.queues[name][0]
		last := r.isLast()
		if last {
			l.eventWorkers++
		}
		l.mu.Unlock()
		l.handle(r)
		l.mu.Lock()
		if last {
			l.eventWorkers--
		}
		if r.batch == nil {
			l.answered(r)
		}
		if l.closed {
			break
		}
		if rest := l.queues[name][1:]; len(rest) > 0 {
			l.queues[name] = rest
			l.waits(name)
		} else {
			delete(l.queues, name)
		}
		if len(l.queues) == 0 {
			l.queues, l.ready, l.queries, l.events = nil, nil, nil, nil
		}
	}
	l.workers--
}

// finishBatched ends a request of a batch: its answer has been written, or there is none.
func (l *keyedExecutor) finishBatched(r pendingRequest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answered(r)
}

// answered makes room for another request; l.mu is held.
func (l *keyedExecutor) answered(r pendingRequest) {
	l.pending--
	l.bytes -= r.size()
	l.room.Signal()
}

// close drops waiting requests; enqueue returns at once from now on.
func (l *keyedExecutor) close() {
	l.mu.Lock()
	l.closed = true
	l.queues, l.ready, l.queries, l.events = nil, nil, nil, nil
	l.room.Broadcast()
	l.mu.Unlock()
}

// wait returns when no request runs any more.
func (l *keyedExecutor) wait() { l.idle.Wait() }

// unanswered returns how many requests wait or run.
func (l *keyedExecutor) unanswered() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pending
}

// How long nodes wait for the answer to a request. A request begun later would have no reader, and would delay the
// node's other requests when the node sends it again.
const (
	// reportWait is for reports that our edgecore repeats until they are answered.
	reportWait = 20 * time.Second
	// requestWait is for everything else, and is KubeEdge's timeout as well.
	requestWait = time.Minute
)

// answerWait returns how long a node waits for the answer to a request; zero is forever: the node does not repeat it.
func answerWait(key resource.Key, operation string, features wire.Features) time.Duration {
	event := key.Type == resource.TypeEvent
	switch {
	case !features.Inventory && event:
		return 0
	case !features.Inventory:
		return requestWait
	case event, key.Type == resource.TypePodPatch, key.Type == resource.TypePod && operation == model.OpDelete:
		return reportWait
	}
	return requestWait
}

// inTime limits ctx to the time until the node gives the request up. It reports whether any time is left.
func (r pendingRequest) inTime(ctx context.Context, features wire.Features) (
	timed context.Context, cancel context.CancelFunc, ok bool) {
	ctx = WithArrival(ctx, r.arrived)
	key, err := resource.Parse(r.Route.Resource)
	limit := answerWait(key, r.Route.Operation, features)
	if err != nil || limit == 0 {
		timed, cancel = context.WithCancel(ctx)
		return timed, cancel, true
	}
	if time.Since(r.arrived) >= limit {
		return ctx, func() {}, false
	}
	timed, cancel = context.WithDeadline(ctx, r.arrived.Add(limit))
	return timed, cancel, true
}
