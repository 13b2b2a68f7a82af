package edgehub

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

func eventMessage(i int) *model.Message {
	return outgoing(model.OpInsert, fmt.Sprintf("default/event/web.%d", i))
}

func tokenRequest(account string) *model.Message {
	return outgoing(model.OpQuery, "default/serviceaccounttoken/"+account)
}

// sent is what was taken from a queue at one time.
type sent struct {
	After time.Duration
	What  []string
}

// takeInTime takes messages from a queue as they become due, until ctx ends.
func takeInTime(t *testing.T, q *sendQueue, send func()) []sent {
	t.Helper()
	var got []sent
	began := time.Now()
	var taker sync.WaitGroup
	ctx := t.Context()
	done := make(chan struct{})
	taker.Go(func() {
		for q.wait(ctx) {
			select {
			case <-done:
				return
			default:
			}
			one := sent{After: time.Since(began)}
			for _, m := range q.pop() {
				one.What = append(one.What, m.Route.Resource)
			}
			got = append(got, one)
		}
	})
	send()
	time.Sleep(time.Minute) // of the simulated clock
	close(done)
	q.enqueue(outgoing(model.OpQuery, "default/secret/end"))
	taker.Wait()
	return got
}

// TestGather: events wait a moment for others, or until there are enough for a batch; a request for a token waits only
// if another one has just been sent. Whatever is more urgent does not wait for them, and without batches nothing waits.
func TestGather(t *testing.T) {
	events := func(from, to int) (out []string) {
		for i := from; i < to; i++ {
			out = append(out, fmt.Sprintf("default/event/web.%d", i))
		}
		return out
	}
	const token = "default/serviceaccounttoken/"
	for name, c := range map[string]struct {
		batches bool
		send    func(*sendQueue)
		want    []sent
	}{
		"events": {true, func(q *sendQueue) {
			q.enqueue(eventMessage(0))
			time.Sleep(30 * time.Millisecond)
			q.enqueue(eventMessage(1))
			time.Sleep(10 * time.Millisecond)
			q.enqueue(outgoing(model.OpPatch, "default/podpatch/web"))
			q.enqueue(eventMessage(2))
		}, []sent{
			{40 * time.Millisecond, []string{"default/podpatch/web"}},
			{eventGather, events(0, 3)},
		}},
		"many events": {true, func(q *sendQueue) {
			for i := range 2*wire.BatchMax + 2 {
				q.enqueue(eventMessage(i))
			}
		}, []sent{
			{0, events(0, wire.BatchMax)},
			{0, events(wire.BatchMax, 2*wire.BatchMax)},
			{eventGather, events(2*wire.BatchMax, 2*wire.BatchMax+2)},
		}},
		"tokens": {true, func(q *sendQueue) {
			q.enqueue(tokenRequest("a"))
			synctest.Wait()
			q.enqueue(tokenRequest("b"))
			time.Sleep(time.Millisecond)
			q.enqueue(outgoing(model.OpPatch, "default/podpatch/web"))
			q.enqueue(tokenRequest("c"))
			time.Sleep(30 * time.Second)
			q.enqueue(tokenRequest("d"))
		}, []sent{
			{0, []string{token + "a"}},
			{time.Millisecond, []string{"default/podpatch/web"}},
			{tokenGather, []string{token + "b", token + "c"}},
			{30*time.Second + time.Millisecond, []string{token + "d"}},
		}},
		"plain": {false, func(q *sendQueue) {
			q.enqueue(eventMessage(0))
			synctest.Wait()
			q.enqueue(eventMessage(1))
			synctest.Wait()
			q.enqueue(tokenRequest("a"))
			synctest.Wait()
			q.enqueue(tokenRequest("b"))
		}, []sent{
			{0, events(0, 1)}, {0, events(1, 2)}, {0, []string{token + "a"}}, {0, []string{token + "b"}},
		}},
		"link lost": {true, func(q *sendQueue) {
			q.enqueue(eventMessage(0))
			time.Sleep(time.Millisecond)
			q.setBatches(false)
		}, []sent{{time.Millisecond, events(0, 1)}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newSendQueue()
				q.setBatches(c.batches)
				got := takeInTime(t, q, func() { c.send(q) })
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("sent (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestNotDue: events that are not due any more, because the link of now has batches, stay in the queue.
func TestNotDue(t *testing.T) {
	q := newSendQueue()
	q.enqueue(eventMessage(0))
	q.setBatches(true)
	q.eventSince = time.Now().Add(time.Hour)
	if got := q.pop(); got != nil || q.len() != 1 {
		t.Errorf("took %d messages, %d are left; want none and 1", len(got), q.len())
	}
}

// TestBatches: with the feature, requests that wait together go as one message and each gets its own answer, from
// batches or alone; with a cloud that does not have the feature each goes alone.
func TestBatches(t *testing.T) {
	all := wire.Features{Inventory: true, Lease: true, Batch: true}
	for name, c := range map[string]struct {
		features wire.Features
		// together: the cloud answers a batch with a batch.
		together bool
		want     map[string]int
	}{
		"together":    {all, true, map[string]int{wire.OpBatch: 2}},
		"one by one":  {all, false, map[string]int{wire.OpBatch: 2}},
		"not agreed":  {wire.Features{Inventory: true, Lease: true}, false, map[string]int{model.OpInsert: 40}},
		"of KubeEdge": {wire.Features{Lease: true}, false, map[string]int{model.OpInsert: 40}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				got := map[string]int{}
				_, e := simulateCloud(t, c.features, nil, func(conn wire.Conn) {
					for m, err := conn.Read(); err == nil; m, err = conn.Read() {
						mu.Lock()
						got[m.Route.Operation]++
						mu.Unlock()
						answerAll(t, conn, m, c.together)
					}
				})
				e.told(1)
				var asked sync.WaitGroup
				for i := range 40 {
					asked.Go(func() {
						answer, err := e.ask(t.Context(), eventMessage(i))
						want := fmt.Sprintf("default/event/web.%d", i)
						if err != nil || string(answer.ContentData()) != want {
							t.Errorf("answer %+v, %v; want %q", answer, err, want)
						}
					})
				}
				asked.Wait()
				mu.Lock()
				defer mu.Unlock()
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("messages by operation (-want +got):\n%s", diff)
				}
				if s := e.hub.session(); len(s.requests.byID) > 0 {
					t.Errorf("%d requests count as unanswered, want none", len(s.requests.byID))
				}
			})
		})
	}
}

// answerAll answers a request, or all of a batch.
func answerAll(t *testing.T, conn wire.Conn, m *model.Message, together bool) {
	if !wire.IsBatch(m) {
		_ = conn.Write(echo(m))
		return
	}
	requests, err := wire.Unpack(m)
	if err != nil {
		t.Error(err)
	}
	var answers []*model.Message
	for _, r := range requests {
		answers = append(answers, echo(r))
	}
	if !together {
		for _, a := range answers {
			_ = conn.Write(a)
		}
		return
	}
	for _, p := range wire.Pack("cloudhub", answers) {
		_ = conn.Write(p.Message)
	}
}

// TestBatchLost: requests of a batch whose answer does not come before the link ends are answered with an error, and
// one whose content cannot be sent fails alone.
func TestBatchLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		links := 0
		_, e := simulateCloud(t, wire.Features{Inventory: true, Lease: true, Batch: true}, nil, func(conn wire.Conn) {
			links++
			for m, err := conn.Read(); err == nil; m, err = conn.Read() {
				if links == 1 {
					return // which ends the link
				}
				answerAll(t, conn, m, true)
			}
		})
		e.told(1)
		ask := func(bad int) (failed []int) {
			var mu sync.Mutex
			var asked sync.WaitGroup
			for i := range 5 {
				asked.Go(func() {
					m := eventMessage(i)
					if i == bad {
						m.Content = []byte(`{`)
					}
					answer, err := e.ask(t.Context(), m)
					if mu.Lock(); err != nil || answer.Route.Operation == model.OpError {
						failed = append(failed, i)
					}
					mu.Unlock()
				})
			}
			asked.Wait()
			return failed
		}
		if failed := ask(-1); len(failed) != 5 {
			t.Errorf("requests %v of the lost link failed, want all 5", failed)
		}
		e.told(3)
		if failed := ask(2); !cmp.Equal(failed, []int{2}) {
			t.Errorf("requests %v failed, want the one that is not JSON", failed)
		}
	})
}

// TestBatchFromCloud: what a cloud sends in a batch counts as if it came alone; what no batch may carry is dropped, and
// a batch that was not agreed on, too.
func TestBatchFromCloud(t *testing.T) {
	pushes := []*model.Message{push("default/pod/a"), push("default/pod/b")}
	batch := wire.Pack("cloudhub", pushes)[0].Message
	mixed := model.New("cloudhub", "resource", wire.OpBatch, wire.ResourceBatch,
		[]byte(`[1,`+string(batch.Content[1:len(batch.Content)-1])+`,{"header":{}}]`))
	for name, c := range map[string]struct {
		features wire.Features
		batch    *model.Message
		want     int
	}{
		"agreed":     {wire.Features{Inventory: true, Lease: true, Batch: true}, batch, 2},
		"mixed":      {wire.Features{Inventory: true, Lease: true, Batch: true}, mixed, 2},
		"not agreed": {wire.Features{Inventory: true, Lease: true}, batch, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, e := simulateCloud(t, c.features, nil, func(conn wire.Conn) {
					_ = conn.Write(c.batch)
					_ = conn.Write(push("default/pod/last"))
					for _, err := conn.Read(); err == nil; _, err = conn.Read() {
						continue // acknowledgements
					}
				})
				e.until("the last push", func() bool {
					return len(e.got) > 0 && e.got[len(e.got)-1].Route.Resource == "default/pod/last"
				})
				if got := len(e.got) - 1; got != c.want {
					t.Errorf("%d messages of the batch came, want %d", got, c.want)
				}
			})
		})
	}
}
