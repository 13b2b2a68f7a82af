package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/podstate/lifecycle"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// How hooks are run. A hook ends with its container's process: there is nothing left to do it for. preStop is run
// once for a container: when a termination is cut short or tried again, what is left of the time is the container's.

const (
	eventPostStartFailed = "FailedPostStartHook"
	eventPreStopFailed   = "FailedPreStopHook"
	eventHookFellBack    = "LifecycleHTTPFallback"
	reasonPostStart      = "PostStartHookError"
)

// errProcessEnded says why a hook was cut off.
var errProcessEnded = errors.New("the container exited before the hook finished")

// once remembers for which containers, or sandboxes, something was done. The zero value is ready.
type once struct {
	mu   sync.Mutex
	done map[string]bool
}

// first reports whether one was not named before, and remembers it.
func (o *once) first(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.done == nil {
		o.done = map[string]bool{}
	}
	first := !o.done[id]
	o.done[id] = true
	return first
}

func (o *once) has(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.done[id]
}

func (o *once) forget(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.done, id)
}

// hookTarget is where a hook of a container goes. pod is nil for an orphan.
func (r *Runtime) hookTarget(pod *v1.Pod, c *v1.Container, id string, ips []string, hostNetwork bool) lifecycle.Target {
	t := lifecycle.Target{ID: id, Ports: c.Ports}
	switch {
	case len(ips) > 0:
		t.Address = ips[0]
	case hostNetwork:
		t.Address = r.opts.HostIP()
	}
	t.FellBack = func(host string) {
		if pod != nil {
			r.opts.Recorder.ContainerEventf(pod, c, v1.EventTypeWarning, eventHookFellBack,
				"request to HTTPS lifecycle hook %s got HTTP response, retry with HTTP succeeded", host)
		}
	}
	return t
}

// runHook runs a hook until it is done, ctx ends or the container's process does.
func (r *Runtime) runHook(ctx context.Context, t lifecycle.Target, pid int, h *v1.LifecycleHandler) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	if p, err := openProcess(pid, t.ID); err == nil {
		wg.Go(func() {
			defer p.close()
			if p.wait(ctx) == nil {
				cancel(errProcessEnded)
			}
		})
	}
	err := r.hooks.Run(ctx, t, h)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// postStart runs the hook of a container that was just started. Until it is done nothing else happens in the pod, and
// the container does not count as running. If it fails the container is stopped.
func (r *Runtime) postStart(ctx context.Context, p startParams, c *v1.Container, id string) *startError {
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	o := &observed.Container{
		ID:        id,
		Name:      c.Name,
		SandboxID: p.sandboxID,
		State:     runtimeapi.ContainerState_CONTAINER_RUNNING,
		Hash:      Hash(c),
	}
	if err := r.refreshContainer(ctx, o); err != nil {
		klog.V(2).InfoS("Process of new container unknown", "pod", klog.KObj(p.pod), "containerName", c.Name,
			"err", err)
	}
	err := r.runHook(ctx, r.hookTarget(p.pod, c, id, p.ips, p.pod.Spec.HostNetwork), o.PID, c.Lifecycle.PostStart)
	if err == nil {
		return nil
	}
	failed := failStart(reasonPostStart, fmt.Errorf("postStart hook of container %s: %w", c.Name, err))
	failed.Message = lifecycle.Describe(p.pod, c.Name, c.Lifecycle.PostStart, err)
	if ctx.Err() != nil {
		return failed // the pod is to end, or the agent does
	}
	klog.InfoS("PostStart hook failed", "pod", klog.KObj(p.pod), "containerName", c.Name, "err", err)
	r.opts.Recorder.ContainerEventf(p.pod, c, v1.EventTypeWarning, eventPostStartFailed, "PostStartHook failed")
	k := kill{
		pod:         p.pod,
		spec:        c,
		container:   o,
		ips:         p.ips,
		hostNetwork: p.pod.Spec.HostNetwork,
		message:     eventPostStartFailed,
		grace:       graceOf(p.pod, nil),
	}
	if err := r.killContainer(ctx, k); err != nil {
		failed.err = errors.Join(failed.err, err)
	}
	return failed
}

// refreshContainer reads what is needed to watch a container's process.
func (r *Runtime) refreshContainer(ctx context.Context, o *observed.Container) error {
	return r.detailContainer(ctx, o)
}

// preStop runs the hook of a container that is to be stopped, within its grace period, and reports whether there was
// one.
func (r *Runtime) preStop(ctx context.Context, k kill) (ran bool) {
	c := k.spec
	if c == nil || c.Lifecycle == nil || c.Lifecycle.PreStop == nil || k.grace <= 0 || !k.container.Running() ||
		!r.preStopDone.first(k.container.ID) {
		return false
	}
	within, cancel := context.WithTimeout(ctx, time.Duration(k.grace)*time.Second)
	defer cancel()
	hook := c.Lifecycle.PreStop
	err := r.runHook(within, r.hookTarget(k.pod, c, k.container.ID, k.ips, k.hostNetwork), k.container.PID, hook)
	late := within.Err() != nil || errors.Is(err, context.DeadlineExceeded)
	switch {
	case err == nil, ctx.Err() != nil:
		return true
	case late:
		klog.InfoS("PreStop hook not completed in grace period", "podUID", k.uid, "containerName", k.container.Name,
			"gracePeriod", k.grace)
	default:
		klog.InfoS("PreStop hook failed", "podUID", k.uid, "containerName", k.container.Name, "err", err)
	}
	if hook.Exec == nil && (late || errors.Is(err, errProcessEnded)) {
		return true // a command is killed with its container, which is a failure; other hooks are only not waited for
	}
	if k.pod != nil {
		// The error could hold a secret of the server's.
		r.opts.Recorder.ContainerEventf(k.pod, c, v1.EventTypeWarning, eventPreStopFailed, "PreStopHook failed")
	}
	return true
}

// orphanSpec is what an orphan's annotations say of how it wants to be stopped.
func orphanSpec(name string, annotations map[string]string) *v1.Container {
	c := &v1.Container{Name: name}
	h := &v1.LifecycleHandler{}
	if text := annotations[annotationPreStop]; text != "" && json.Unmarshal([]byte(text), h) == nil {
		c.Lifecycle = &v1.Lifecycle{PreStop: h}
	}
	if text := annotations[annotationPorts]; text != "" && json.Unmarshal([]byte(text), &c.Ports) != nil {
		c.Ports = nil
	}
	return c
}
