package podadmit

import (
	"context"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/pkg/notify"
)

// retries are Allocations that count how often deferred resizes were decided again.
type retries struct {
	asAsked
	n int
}

func (r *retries) Retry(*v1.Pod) { r.n++ }

// TestRun: when resources become free, a rejected static pod is admitted and deferred resizes are decided again; a
// rejected pod of the API server stays rejected.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r, c, desired := newFixture(ctx)
		freed, allocations := notify.NewSignal(), &retries{}
		c.opts.Freed, c.opts.Allocations = freed, allocations
		static, api := asking("static", "2"), asking("api", "2")
		desired.SetStatic([]*v1.Pod{static})
		desired.Put(api, false)
		c.Admit(static.UID)
		c.Admit(api.UID)
		if len(r.rejected) != 2 {
			t.Fatalf("rejected %v, want both pods, which ask for 2 cpus of 1", r.rejected)
		}
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		c.Probe()
		c.opts.Allocatable[v1.ResourceCPU] = static.Spec.Containers[0].Resources.Requests[v1.ResourceCPU]
		freed.Notify()
		synctest.Wait()
		if !r.started(static.UID) || r.started(api.UID) || allocations.n != 1 {
			t.Errorf("static pod started: %t, pod of the API server started: %t, resizes decided again %d times; "+
				"want true, false, 1", r.started(static.UID), r.started(api.UID), allocations.n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
}
