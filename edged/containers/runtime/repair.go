package runtime

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	imagenames "github.com/edgecore-io/edgecore/edged/containers/images"
	"github.com/edgecore-io/edgecore/edged/containers/repair"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// ImageRepairer looks at an image after a failure that may be its fault, and puts it right; see package repair. Both
// return true when the start is to be tried again at once.
type ImageRepairer interface {
	Examine(ctx context.Context, s repair.Suspect) bool
	ExamineSandbox(ctx context.Context, f repair.Failure, since time.Time) bool
}

// exitUnknown is the exit code that containerd reports for a container that it found dead.
const exitUnknown = 255

// startFailed examines the image of a container that could not be started. It returns true when nothing is left of the
// attempt, and the start is to be tried again.
func (r *Runtime) startFailed(
	ctx context.Context, p startParams, s Start, imageRef string, began time.Time, failed *startError,
) bool {
	stage := repair.Start
	switch failed.Reason.Reason {
	case reasonCreateError:
		stage = repair.Create
	case reasonRunError:
	default:
		return false
	}
	if r.opts.Repair == nil || ctx.Err() != nil {
		return false
	}
	suspect := r.suspect(p, s, imageRef)
	suspect.Failure, suspect.Since = repair.Failure{Stage: stage, Message: failed.Message}, began
	if failed.id != "" {
		suspect.Dead = append(suspect.Dead, failed.id)
	}
	if !r.opts.Repair.Examine(ctx, suspect) {
		return false
	}
	if failed.id == "" {
		return true
	}
	return r.client.DeleteContainer(ctx, failed.id) == nil
}

// examineEnd examines the image of a container that ended soon after its start, before it is started again.
func (r *Runtime) examineEnd(ctx context.Context, p startParams, s Start, imageRef string) {
	last := s.Last
	switch {
	case r.opts.Repair == nil, !last.Exited(), p.fresh, last.SandboxID != p.sandboxID, last.Hash != Hash(s.Container),
		last.FinishedAt.IsZero(), last.ExitCode == exitUnknown && last.Reason == "Unknown":
		return
	}
	suspect := r.suspect(p, s, imageRef)
	suspect.Since = last.StartedAt
	logged, err := logTail(r.LogPath(p.obs, last))
	if err != nil {
		klog.V(2).InfoS("Log of a terminated container not read", "pod", klog.KObj(p.pod), "containerName", last.Name,
			"err", err)
	}
	suspect.Failure = repair.Failure{
		Stage: repair.Exit, ExitCode: last.ExitCode, Message: strings.TrimSpace(last.Message + " " + logged),
	}
	if !last.StartedAt.IsZero() {
		suspect.Lived = last.FinishedAt.Sub(last.StartedAt)
	}
	r.opts.Repair.Examine(ctx, suspect)
}

// suspect is what is known of the image of a container.
func (r *Runtime) suspect(p startParams, s Start, imageRef string) repair.Suspect {
	out := repair.Suspect{
		Image:     s.Container.Image,
		Reference: s.Container.Image,
		ID:        imageRef,
		Pod:       p.pod,
		Container: s.Container,
		Secrets:   p.secrets,
	}
	if name, err := imagenames.Normalize(s.Container.Image); err == nil {
		out.Image = name
	}
	for _, c := range p.obs.Attempts(s.Container.Name) {
		if !c.Running() {
			out.Dead = append(out.Dead, c.ID)
		}
	}
	return out
}

// sandboxFailed examines the sandbox image after a sandbox could not be created. It reports whether to try again.
func (r *Runtime) sandboxFailed(ctx context.Context, began time.Time, err error) bool {
	return err != nil && r.opts.Repair != nil && ctx.Err() == nil &&
		r.opts.Repair.ExamineSandbox(ctx, repair.Failure{Stage: repair.Start, Message: criMessage(err)}, began)
}

// sandboxDied examines the sandbox image before the replacement of a sandbox that ended soon after its creation.
func (r *Runtime) sandboxDied(ctx context.Context, old *observed.Sandbox, age time.Duration) {
	if r.opts.Repair != nil && old != nil && !old.Ready && age >= 0 {
		r.opts.Repair.ExamineSandbox(ctx, repair.Failure{Stage: repair.Exit, ExitCode: exitFailedStart, Lived: age},
			old.CreatedAt)
	}
}

// exitFailedStart is how a runtime ends what it could not start.
const exitFailedStart = 128

// stopTries is how often StopPodSandbox is tried for a dead sandbox before the pod goes on without.
const stopTries = 3

// killDead is KillPod for a pod without running containers. The remains may be so damaged that the runtime can neither
// stop nor remove them; the pod gets a new sandbox all the same, under another attempt. It is stopped and removed as
// garbage later.
func (r *Runtime) killDead(ctx context.Context, pod *v1.Pod, obs *observed.Pod) error {
	err := r.KillPod(ctx, pod.UID, pod, obs, nil)
	if err == nil || ctx.Err() != nil || cri.IsDown(err) {
		return err
	}
	if !r.stopFailures.reached(pod.UID, obs.Sandbox().ID, stopTries) {
		return err
	}
	klog.ErrorS(err, "A dead sandbox cannot be stopped; the pod gets another one", "pod", klog.KObj(pod))
	r.opts.Recorder.Eventf(pod, v1.EventTypeWarning, eventSandboxLeft,
		"The dead sandbox cannot be stopped, and the pod gets another one: %s", criMessage(err))
	return nil
}

// ReleaseSandboxes stops the sandboxes of a pod without running containers that were not stopped yet: until then they
// hold the pod's addresses and host ports. One that cannot be stopped is left to the garbage collection after some
// tries: a power cut may have damaged it.
func (r *Runtime) ReleaseSandboxes(ctx context.Context, pod *v1.Pod, obs *observed.Pod) error {
	var errs []error
	for _, s := range obs.Sandboxes {
		if !r.stopped.has(s.ID) {
			errs = append(errs, r.stopSandbox(ctx, s.ID))
		}
	}
	err := errors.Join(errs...)
	if err == nil || ctx.Err() != nil || cri.IsDown(err) ||
		!r.stopFailures.reached(pod.UID, obs.Sandbox().ID, stopTries) {
		return err
	}
	klog.ErrorS(err, "A dead sandbox of a terminated pod cannot be stopped; trying again when it is removed",
		"pod", klog.KObj(pod))
	return nil
}

// tries counts how often something failed for a pod, with one thing of it at a time. The zero value is ready.
type tries struct {
	mu     sync.Mutex
	failed map[types.UID]struct {
		id    string
		count int
	}
}

// reached counts a failure, and reports whether there were so many.
func (t *tries) reached(uid types.UID, id string, limit int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.failed[uid]
	if f.id != id {
		f.id, f.count = id, 0
	}
	f.count++
	if t.failed == nil {
		t.failed = map[types.UID]struct {
			id    string
			count int
		}{}
	}
	t.failed[uid] = f
	return f.count >= limit
}

func (t *tries) forget(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.failed, uid)
}
