package cloudhub

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/edgecore-io/edgecore/beehive/model"
)

func nodeRequest(operation, resource string) *model.Message {
	return model.New(model.ModuleEdged, model.GroupMeta, operation, resource, json.RawMessage("null"))
}

// TestQueriesInParallel: queries about one object do not wait for each other, changes of one do.
func TestQueriesInParallel(t *testing.T) {
	for operation, want := range map[string]int64{model.OpQuery: 5, model.OpPatch: 1} {
		synctest.Test(t, func(t *testing.T) {
			var running, most atomic.Int64
			end := make(chan struct{})
			l := newKeyedExecutor(func(pendingRequest) {
				most.Store(max(most.Load(), running.Add(1)))
				<-end
				running.Add(-1)
			})
			for range 5 {
				l.enqueue(nodeRequest(operation, "default/serviceaccounttoken/default"), nil, func() {})
			}
			synctest.Wait()
			if got := running.Load(); got != want {
				t.Errorf("%d of 5 requests %q run at a time, want %d", got, operation, want)
			}
			close(end)
			l.wait()
			if got := most.Load(); got > want {
				t.Errorf("%d requests %q ran at a time, want %d", got, operation, want)
			}
		})
	}
}

// TestQueriesFirst: of what waits for a worker queries go first, and after some of them another request goes.
func TestQueriesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var order []string
		busy := make(chan struct{})
		l := newKeyedExecutor(func(r pendingRequest) {
			if r.Route.Operation == model.OpDelete {
				<-busy
				return
			}
			mu.Lock()
			defer mu.Unlock()
			order = append(order, r.Route.Operation)
		})
		put := func(operation string, n int) {
			for i := range n {
				l.enqueue(nodeRequest(operation, fmt.Sprintf("default/pod/%s-%d", operation, i)), nil, func() {})
			}
		}
		put(model.OpDelete, executorParallel) // takes all workers
		synctest.Wait()
		put(model.OpPatch, 2)
		put(model.OpQuery, 2*queriesFirst+1)
		busy <- struct{}{} // one worker does the rest, in order
		synctest.Wait()
		var patches []int
		for i, operation := range order {
			if operation == model.OpPatch {
				patches = append(patches, i)
			}
		}
		if want := []int{queriesFirst, 2*queriesFirst + 1}; !slices.Equal(patches, want) {
			t.Errorf("the patches went as numbers %v of %d requests, want %v", patches, len(order), want)
		}
		close(busy)
		l.wait()
	})
}

// TestPause: while requests pause, others run in their place.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l *keyedExecutor
		var began, running atomic.Int64
		sleep, end := make(chan struct{}), make(chan struct{})
		l = newKeyedExecutor(func(pendingRequest) {
			began.Add(1)
			resume := l.pause()
			<-sleep
			resume()
			running.Add(1)
			<-end
			running.Add(-1)
		})
		const requests = executorPaused + 2*executorParallel
		for i := range requests {
			l.enqueue(nodeRequest(model.OpQuery, fmt.Sprintf("default/secret/s%d", i)), nil, func() {})
		}
		synctest.Wait()
		// The last ones find no room to pause.
		if got, want := began.Load(), int64(executorPaused+executorParallel); got != want {
			t.Errorf("%d requests began while others paused, want %d", got, want)
		}
		close(sleep)
		close(end)
		l.wait()
		if began.Load() != requests || l.unanswered() != 0 || l.workers != 0 || l.paused != 0 {
			t.Errorf("%d of %d requests ran; %d unanswered, %d workers, %d paused; want none",
				began.Load(), requests, l.unanswered(), l.workers, l.paused)
		}
	})
}
