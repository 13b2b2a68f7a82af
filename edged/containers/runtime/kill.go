package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

const (
	// defaultGrace is what a pod gets that says nothing, in seconds.
	defaultGrace = int64(v1.DefaultTerminationGracePeriodSeconds)
	// minGrace is the shortest grace period of a pod that ends, in seconds: a preStop hook runs for so long at least.
	minGrace = int64(1)
	// minGraceLeft is what a container has at the least between its stop signal and SIGKILL, in seconds. Both are the
	// kubelet's.
	minGraceLeft = int64(2)
)

// graceOf returns how many seconds the containers of a pod have to end by themselves.
func graceOf(pod *v1.Pod, override *int64) int64 {
	switch {
	case override != nil:
		return *override
	case pod == nil:
		return defaultGrace
	case pod.DeletionGracePeriodSeconds != nil:
		return *pod.DeletionGracePeriodSeconds
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		return *pod.Spec.TerminationGracePeriodSeconds
	}
	return defaultGrace
}

// kill is one container to stop, and how.
type kill struct {
	uid types.UID
	// pod is nil for an orphan; spec where it is not known.
	pod         *v1.Pod
	spec        *v1.Container
	container   *observed.Container
	ips         []string
	hostNetwork bool
	message     string
	// grace, in seconds, is for the preStop hook, the turn and the container's own end together. 0 skips the hook.
	grace int64
	// turn, which may be nil, waits until it is the container's turn, or its context ends.
	turn func(context.Context) error
}

// killContainer stops one container: its preStop hook, its turn, then the signal; and SIGKILL when the grace period is
// over. It returns when the container has ended, or an error. Of what the hook and the turn take, whole seconds are
// counted.
func (r *Runtime) killContainer(ctx context.Context, k kill) error {
	if k.pod != nil && k.spec != nil && k.container.Running() {
		r.opts.Recorder.ContainerEventf(k.pod, k.spec, v1.EventTypeNormal, eventKilling, "%s", k.message)
	}
	left := k.grace
	begun := time.Now()
	if r.preStop(ctx, k) {
		left -= int64(time.Since(begun) / time.Second)
	}
	if k.turn != nil && left > 0 {
		begun := time.Now()
		within, cancel := context.WithTimeout(ctx, time.Duration(left)*time.Second)
		err := k.turn(within)
		over := within.Err() != nil
		cancel()
		if err != nil && !over {
			return err
		}
		left -= int64(time.Since(begun) / time.Second)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return r.stopWithin(ctx, k, max(left, minGraceLeft))
}

// stopWithin stops a container that has some seconds to end by itself.
func (r *Runtime) stopWithin(ctx context.Context, k kill, left int64) error {
	within, cancel := context.WithTimeout(ctx, time.Duration(left)*time.Second)
	defer cancel()
	if !r.signalled(within, k) {
		return r.stopContainer(ctx, k.container.ID, left)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return r.stopContainer(ctx, k.container.ID, 0)
}

// stopContainer makes the runtime signal the container, and kill it after some seconds; 0 kills it at once.
func (r *Runtime) stopContainer(ctx context.Context, id string, after int64) error {
	_, err := r.client.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: after})
	return ignoreNotFound(err)
}

// signalled does the runtime's work where it does not know of stop signals (containerd before 2.2): it sends the signal
// that the container asks for and waits for its end. It returns false when the runtime is to do it after all.
func (r *Runtime) signalled(ctx context.Context, k kill) bool {
	want := stopSignalOf(k.spec)
	if want == "" || k.container.StopSignal != "" || !k.container.Running() {
		return false
	}
	number := unixSignal(want)
	p, err := openProcess(k.container.PID, k.container.ID)
	if errors.Is(err, os.ErrProcessDone) {
		return k.container.PID > 0
	}
	if err == nil {
		defer p.close()
		if number > 0 {
			err = p.signal(number)
		} else {
			err = fmt.Errorf("unknown signal %s", want)
		}
	}
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		klog.ErrorS(err, "Stop signal not sent by the agent; the runtime sends it", "podUID", k.uid,
			"containerName", k.container.Name, "signal", want)
		return false
	}
	if err := p.wait(ctx); err != nil && ctx.Err() == nil {
		klog.ErrorS(err, "Exit of a container cannot be watched", "podUID", k.uid, "containerName", k.container.Name)
	}
	return true
}

// orphan reads how an orphan wants to be stopped from what the container carries.
func (r *Runtime) orphan(ctx context.Context, c *observed.Container) (*v1.Container, int64) {
	resp, err := r.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.ID})
	if err != nil {
		return nil, defaultGrace
	}
	notes := resp.GetStatus().GetAnnotations()
	grace := defaultGrace
	if g := parseNotes(notes).grace; g != nil {
		grace = max(*g, minGrace)
	}
	return orphanSpec(c.Name, notes), grace
}

// containerSpec finds a container of whichever kind by its name, or returns nil.
func containerSpec(pod *v1.Pod, name string) *v1.Container {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if e := &pod.Spec.EphemeralContainers[i]; e.Name == name {
			c := v1.Container(e.EphemeralContainerCommon)
			return &c
		}
	}
	return nil
}
