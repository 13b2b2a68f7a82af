package cloudhub

import (
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// The requests of a batch are carried out as if each had come alone. Their answers wait for each other, so that they
// share messages as well: for as long as the node can wait, which is short if a container waits for one of them.
const (
	queryGather = 20 * time.Millisecond
	batchGather = 500 * time.Millisecond
)

// batch collects the answers to the requests of one batch. It has a goroutine until all are answered.
type batch struct {
	// gather is how long an answer waits for others.
	gather  time.Duration
	changed notify.Signal

	mu sync.Mutex
	// open counts the requests that are not done, and one more while the batch is being read.
	open int
	done []carriedOut
}

// carriedOut is a request of a batch that is done, and its answer; nil is no answer.
type carriedOut struct {
	request pendingRequest
	answer  *model.Message
}

// add notes the end of a request.
func (b *batch) add(r pendingRequest, answer *model.Message) {
	b.mu.Lock()
	b.open--
	b.done = append(b.done, carriedOut{r, answer})
	b.mu.Unlock()
	b.changed.Notify()
}

// opened counts n more requests; -1 ends the batch's own.
func (b *batch) opened(n int) {
	b.mu.Lock()
	b.open += n
	b.mu.Unlock()
	b.changed.Notify()
}

// takeDone returns the requests that are done since the last call, and whether others are not. If others are not, and
// the caller may still wait for them, it returns none. waiting reports whether it left answers.
func (b *batch) takeDone(mayWait bool) (done []carriedOut, waiting, open bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if open = b.open > 0; open && mayWait {
		return nil, len(b.done) > 0, true
	}
	done, b.done = b.done, nil
	return done, false, open
}

// takeBatch hands the requests of a batch to the executor. It returns how many messages the batch counts as.
func (s *session) takeBatch(m *model.Message) (cost int) {
	requests, err := wire.Unpack(m)
	if err != nil {
		s.drop(m, err.Error())
	}
	b := &batch{gather: batchGather, changed: notify.NewSignal(), open: 1}
	for _, one := range requests {
		if one.Route.Operation == model.OpQuery {
			b.gather = queryGather
		}
	}
	s.work.Go(func() { s.answerBatch(b) })
	for _, one := range requests {
		what, why := classify(one, s.features)
		if what != request && why == "" {
			why = "a batch carries only requests"
		}
		if why == "" {
			why = s.repeated(one)
		}
		if why != "" {
			s.drop(one, why)
			continue
		}
		b.opened(1)
		s.executor.enqueue(one, b, s.stall)
		s.resumeReading()
	}
	b.opened(-1)
	return max(1, len(requests))
}

// answerBatch sends the answers to a batch's requests until all are answered or the session ends.
func (s *session) answerBatch(b *batch) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for mayWait, timed := true, false; ; {
		select {
		case <-s.ctx.Done():
			return
		case <-b.changed:
		case <-timer.C:
			mayWait = false
		}
		done, waiting, open := b.takeDone(mayWait)
		if waiting && !timed {
			timer.Reset(b.gather)
			timed = true
		}
		if len(done) > 0 {
			mayWait, timed = true, false
			timer.Stop()
			s.deliverAll(done)
		}
		if !open {
			return
		}
	}
}

// deliverAll writes answers, and ends their requests when they are written: a node that reads no answers gets no more
// requests done.
func (s *session) deliverAll(done []carriedOut) {
	requests := map[*model.Message]*model.Message{}
	var answers []*model.Message
	for _, c := range done {
		if c.answer != nil {
			answers = append(answers, c.answer)
			requests[c.answer] = c.request.Message
		}
	}
	for _, p := range wire.Pack(sourceCloudHub, answers) {
		err := s.deliver(s.ctx, p.Message)
		if err == nil {
			continue
		}
		for _, a := range p.Carried {
			s.notDelivered(requests[a], err)
		}
	}
	for _, c := range done {
		s.executor.finishBatched(c.request)
	}
}

// drop notes that a message is not handled.
func (s *session) drop(m *model.Message, why string) {
	s.hub.metrics.dropped.Inc()
	klog.V(4).InfoS("Message dropped", "node", s.node, "why", why, "source", m.Route.Source,
		"operation", m.Route.Operation, "resource", m.Route.Resource)
}
