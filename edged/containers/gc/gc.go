// Package gc removes what pods leave behind, also if the agent was killed meanwhile: dead containers and sandboxes in
// the runtime beyond those that are worth keeping, and on the disk folders, mounts, logs, links and cgroups that belong
// to no pod any more.
//
// What goes is decided by pure functions over snapshots (plan.go, leftovers.go); Collector carries out the first, and
// the owner of the pods the second, since the end of a pod has its own order. Three things stay, always: what runs; the
// newest attempt at each container of a pod that is still to run, from which its restarts are decided; and whatever
// might belong to a pod that is not known yet.
package gc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// Runtime is what the collector does to the container runtime.
type Runtime interface {
	// RemoveContainer removes a container that does not run, with its log.
	RemoveContainer(ctx context.Context, pod *observed.Pod, c *observed.Container) error
	// RemoveSandbox stops and removes a sandbox.
	RemoveSandbox(ctx context.Context, id string) error
}

// Options configure a Collector.
type Options struct {
	Runtime Runtime
	Policy  Policy
	// Pods returns the newest snapshots of this node's desired pods.
	Pods func() []Pod
	// Refresh reads a pod from the runtime again, with its details.
	Refresh func(ctx context.Context, uid types.UID) (*observed.Pod, error)
}

// Collector removes dead containers and sandboxes. Its methods may be called from any goroutine.
type Collector struct {
	opts   Options
	policy atomic.Pointer[Policy]
	mu     sync.Mutex
}

// New makes a Collector.
func New(opts Options) *Collector {
	c := &Collector{opts: opts}
	c.policy.Store(&opts.Policy)
	return c
}

// SetPolicy changes Options.Policy, from the next collection on.
func (c *Collector) SetPolicy(p Policy) { c.policy.Store(&p) }

// Collect removes what the policy does not keep, and returns how many containers and sandboxes that were. It asks the
// runtime nothing where there is nothing to remove.
func (c *Collector) Collect(ctx context.Context) (int, error) {
	return c.collect(ctx, *c.policy.Load())
}

// RemoveAllDead removes all dead containers and sandboxes from which nothing is decided any more, for want of room.
func (c *Collector) RemoveAllDead(ctx context.Context) (int, error) {
	return c.collect(ctx, Policy{})
}

func (c *Collector) collect(ctx context.Context, p Policy) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pods := c.opts.Pods()
	now := time.Now()
	plan := Plan(p, pods, now)
	byPod := map[types.UID]bool{}
	for _, k := range plan.Containers {
		byPod[k.UID] = true
	}
	for _, s := range plan.Sandboxes {
		byPod[s.UID] = true
	}
	going := map[string]bool{}
	for _, k := range plan.Containers {
		going[k.ID] = true
	}
	for _, s := range plan.Sandboxes {
		going[s.ID] = true
	}
	removed := 0
	var errs []error
	for _, pod := range pods {
		if !byPod[pod.Observed.UID] || ctx.Err() != nil {
			continue
		}
		n, err := c.ofPod(ctx, pod, going, now)
		removed += n
		errs = append(errs, err)
	}
	return removed, errors.Join(append(errs, ctx.Err())...)
}

// ofPod removes what is going of one pod. The earlier lists may be out of date: what to remove is decided again from
// the runtime's current answer.
func (c *Collector) ofPod(ctx context.Context, pod Pod, going map[string]bool, now time.Time) (removed int, err error) {
	uid := pod.Observed.UID
	fresh, err := c.opts.Refresh(ctx, uid)
	if err != nil {
		return 0, fmt.Errorf("read state of pod %s: %w", uid, err)
	}
	may := Plan(Policy{}, []Pod{{Observed: fresh, Ended: pod.Ended}}, now)
	var errs []error
	for _, k := range may.Containers {
		if !going[k.ID] {
			continue
		}
		if err := c.opts.Runtime.RemoveContainer(ctx, fresh, k.Container); err != nil {
			errs = append(errs, err)
			continue
		}
		klog.V(2).InfoS("Dead container removed", "pod", klog.KRef(fresh.Namespace, fresh.Name),
			"containerName", k.Name, "containerID", k.ID, "attempt", k.Attempt)
		removed++
	}
	if len(errs) == 0 {
		for _, s := range may.Sandboxes {
			if !going[s.ID] {
				continue
			}
			if err := c.opts.Runtime.RemoveSandbox(ctx, s.ID); err != nil {
				errs = append(errs, err)
				continue
			}
			klog.V(2).InfoS("Dead sandbox removed", "pod", klog.KRef(fresh.Namespace, fresh.Name), "sandboxID", s.ID,
				"attempt", s.Attempt)
			removed++
		}
	}
	if removed > 0 {
		_, err = c.opts.Refresh(ctx, uid)
		errs = append(errs, err)
	}
	return removed, errors.Join(errs...)
}

func unknown(c *observed.Container) bool {
	return c.State == runtimeapi.ContainerState_CONTAINER_UNKNOWN
}
