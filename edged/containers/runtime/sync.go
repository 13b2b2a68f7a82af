package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// sandboxLived is how long a sandbox has to have been there for its end not to count as its containers' crash.
const sandboxLived = 2 * time.Second

// now is the wall clock: what it is compared with are the runtime's own times.
func now() time.Time { return time.Now() }

// SyncInput is what SyncPod works towards, and from where.
type SyncInput struct {
	Pod *v1.Pod
	// Observed is a detailed snapshot of the pod.
	Observed *observed.Pod
	// PullSecrets are the image pull secrets that exist.
	PullSecrets []v1.Secret
	// Probes is what the probes say of the running containers.
	Probes observed.Probes
}

// SyncPod takes the next step towards the pod's spec, or several that follow from each other.
func (r *Runtime) SyncPod(ctx context.Context, in SyncInput) SyncResult {
	var res SyncResult
	pod, obs := in.Pod, in.Observed
	actions := computeActions(pod, obs, in.Probes)
	if actions.None() {
		return res
	}
	if actions.StartOver {
		r.restartAllContainers(ctx, pod, obs, &res)
		return res
	}
	replaced := actions.CreateSandbox && obs.Sandbox() != nil
	if replaced {
		r.opts.Recorder.Eventf(pod, v1.EventTypeNormal, eventSandboxChanged,
			"Pod sandbox changed, it will be killed and re-created.")
	}
	// A sandbox that died by itself still holds its addresses and host ports: it is stopped, too.
	if actions.KillPod || replaced {
		res.Changed = true
		kill := func() error { return r.KillPod(ctx, pod.UID, pod, obs, nil) }
		if !obs.Alive() {
			kill = func() error { return r.killDead(ctx, pod, obs) }
		}
		if err := kill(); err != nil {
			res.Err = err
			return res
		}
	}
	if !r.killListed(ctx, pod, obs, actions.Kill, &res) {
		return res
	}
	if len(actions.Start) == 0 {
		return res
	}
	p := startParams{pod: pod, obs: obs, sandboxID: actions.SandboxID, secrets: in.PullSecrets}
	if !r.ensureSandbox(ctx, obs, actions, &p, &res) {
		return res
	}
	for _, s := range actions.Start {
		if ctx.Err() != nil {
			res.Err = errors.Join(res.Err, ctx.Err())
			return res
		}
		r.clearAttempts(ctx, obs, s)
		r.startContainer(ctx, p, s, &res)
		if s.Gate && res.Reasons[s.Container.Name].Reason != "" {
			break
		}
	}
	res.More = actions.CreateSandbox && len(pod.Spec.EphemeralContainers) > 0
	if replaced {
		r.removeEmptySandboxes(ctx, obs)
	}
	return res
}

// removeEmptySandboxes removes old sandboxes that have no containers left.
func (r *Runtime) removeEmptySandboxes(ctx context.Context, obs *observed.Pod) {
	for _, s := range obs.Sandboxes {
		if slices.ContainsFunc(obs.Containers, func(c *observed.Container) bool { return c.SandboxID == s.ID }) {
			continue
		}
		if err := r.removeSandbox(ctx, s.ID); err != nil {
			klog.V(2).InfoS("Old sandbox not removed yet", "pod", klog.KRef(obs.Namespace, obs.Name), "sandboxID", s.ID,
				"err", err)
		}
	}
}

// killListed stops single containers; it returns false when one still may run.
func (r *Runtime) killListed(ctx context.Context, pod *v1.Pod, obs *observed.Pod, kills []Kill, res *SyncResult) bool {
	ok := true
	for _, k := range kills {
		res.Changed = true
		grace := graceOf(pod, nil)
		if k.Grace != nil && pod.DeletionGracePeriodSeconds == nil {
			grace = *k.Grace
		}
		stop := kill{
			uid:         pod.UID,
			pod:         pod,
			spec:        containerSpec(pod, k.Name),
			container:   find(obs, k.ID),
			hostNetwork: pod.Spec.HostNetwork,
			message:     k.Message,
			grace:       grace,
		}
		if box := obs.Sandbox(); box != nil {
			stop.ips = box.IPs
		}
		if err := r.killContainer(ctx, stop); err != nil {
			res.Err = errors.Join(res.Err, fmt.Errorf("stop container %s: %w", k.Name, err))
			ok = false
		}
	}
	return ok
}

func find(obs *observed.Pod, id string) *observed.Container {
	for _, c := range obs.Containers {
		if c.ID == id {
			return c
		}
	}
	return &observed.Container{ID: id}
}

// ensureSandbox creates the pod's sandbox if it needs a new one, and fills in the parts of p that depend on the
// sandbox.
func (r *Runtime) ensureSandbox(
	ctx context.Context, obs *observed.Pod, a Actions, p *startParams, res *SyncResult,
) bool {
	attempt := a.Attempt
	if !a.CreateSandbox {
		attempt = obs.Sandbox().Attempt
	}
	config, err := r.sandboxConfig(ctx, p.pod, attempt)
	if err == nil {
		p.config = config
		if !a.CreateSandbox {
			p.ips = obs.Sandbox().IPs
			return true
		}
		old := obs.Sandbox()
		age := time.Duration(0)
		if old != nil {
			age = now().Sub(old.CreatedAt)
		}
		p.fresh = old == nil || age > sandboxLived || age < 0 // the clock went back: it lived before a reboot
		r.sandboxDied(ctx, old, age)
		began := now()
		if err = r.createSandbox(ctx, p); r.sandboxFailed(ctx, began, err) {
			err = r.createSandbox(ctx, p)
		}
	}
	if err != nil {
		res.Err = fmt.Errorf("sandbox of pod %s: %w", klog.KObj(p.pod), err)
		if res.outdated(err) {
			return false
		}
		res.SandboxErr = &observed.Reason{Reason: eventSandboxFailed, Message: criMessage(err)}
		if ctx.Err() == nil && !cri.IsDown(err) {
			r.sandboxEvent(p.pod, err)
		}
		return false
	}
	res.Changed = true
	return true
}

// createSandbox runs a new sandbox and learns its addresses. A pod that this node cannot run as it is
// meant is refused here: what runs already is not touched.
func (r *Runtime) createSandbox(ctx context.Context, p *startParams) error {
	if err := Refused(p.pod); err != nil {
		return err
	}
	handler, err := r.handler(ctx, p.pod)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(p.config.LogDirectory, 0o755); err != nil {
		return fmt.Errorf("log folder: %w", err)
	}
	req := &runtimeapi.RunPodSandboxRequest{Config: p.config, RuntimeHandler: handler}
	resp, err := r.client.RunPodSandbox(ctx, req)
	if holder := reservedFor(err); holder != "" {
		if err := r.freeSandboxName(ctx, p.pod, holder); stale(err) {
			p.config.Metadata.Attempt++
		} else if err != nil {
			return err
		}
		resp, err = r.client.RunPodSandbox(ctx, req)
	}
	if err != nil {
		return err
	}
	p.sandboxID = resp.PodSandboxId
	if ignored := ignoredFields(p.pod); len(ignored) > 0 {
		r.opts.Recorder.Eventf(p.pod, v1.EventTypeWarning, eventUnsupported, "This node does not act on: %s",
			strings.Join(ignored, ", "))
	}
	if p.pod.Spec.HostNetwork {
		return nil
	}
	st, err := r.client.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.sandboxID})
	if err != nil {
		return &sandboxStatusError{err}
	}
	p.ips = sandboxIPs(st.GetStatus(), false)
	return nil
}

// sandboxStatusError is why a sandbox that was made cannot be used: the runtime does not say what it is like.
type sandboxStatusError struct{ error }

// Unwrap returns what the runtime said.
func (e *sandboxStatusError) Unwrap() error { return e.error }

// sandboxEvent says why a pod has no sandbox, with the code of the runtime's error.
func (r *Runtime) sandboxEvent(pod *v1.Pod, err error) {
	if _, ok := errors.AsType[*sandboxStatusError](err); ok {
		r.opts.Recorder.Eventf(pod, v1.EventTypeWarning, eventSandboxStatus, "Unable to get pod sandbox status: %v",
			err)
		return
	}
	r.opts.Recorder.Eventf(pod, v1.EventTypeWarning, eventSandboxFailed, "Failed to create pod sandbox: %v", err)
}

// clearAttempts removes ended attempts of a container beyond those to keep for their state and log: the newest one, or
// as many as the options say. It also removes those that never started.
func (r *Runtime) clearAttempts(ctx context.Context, obs *observed.Pod, s Start) {
	kept, keep := 0, int(r.deadAttempts.Load())
	for _, c := range obs.Attempts(s.Container.Name) {
		if c.Exited() && kept < keep {
			kept++
			continue
		}
		if c.Running() {
			continue
		}
		if err := r.removeContainer(ctx, obs, c); err != nil {
			klog.V(2).InfoS("Old container not removed yet", "pod", klog.KRef(obs.Namespace, obs.Name),
				"containerName", c.Name, "containerID", c.ID, "err", err)
		}
	}
}

// criMessage is what a runtime's error says, without the words of gRPC.
func criMessage(err error) string {
	if err == nil {
		return ""
	}
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}
