package runtime

import (
	"context"
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
)

// A runtime gives out the name of a sandbox or container, in which are the pod's UID and the attempt, once.
// Who holds a name that is to be used is one of three:
//
//   - left over: a call that was cut off, an agent or runtime that was killed. It is removed, and the
//     call repeated; where it cannot be removed, with the name of the attempt after.
//   - alive, and one of this pod's own by its labels: then the snapshot on which the sync was decided is too old.
//     Nothing is touched, and the pod is synced again.
//   - alive, and not this pod's: it stays, and the error says so.

// outdatedError says that a sync was decided on a snapshot which missed something that runs.
type outdatedError struct{ kind, id string }

func (e *outdatedError) Error() string {
	return fmt.Sprintf("%s %s of this pod runs already; its state is read again", e.kind, e.id)
}

// staleError is a name that what is left over does not give back: a runtime cannot always remove what a power cut has
// damaged.
type staleError struct{ err error }

func (e *staleError) Error() string { return e.err.Error() }
func (e *staleError) Unwrap() error { return e.err }

// stale reports whether another attempt number, and so another name, would help.
func stale(err error) bool {
	_, ok := errors.AsType[*staleError](err)
	return ok && !cri.IsDown(err)
}

// outdated reports whether a failure is only an old snapshot, and asks for a new one then.
func (s *SyncResult) outdated(err error) bool {
	_, ok := errors.AsType[*outdatedError](err)
	if ok {
		s.Changed = true
	}
	return ok
}

// freeSandboxName removes the stale sandbox that holds the name of a new one.
func (r *Runtime) freeSandboxName(ctx context.Context, pod *v1.Pod, holder string) error {
	resp, err := r.client.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: holder})
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("status of sandbox %s, which holds the name: %w", holder, err)
	}
	st := resp.GetStatus()
	if err == nil && st.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
		if o, ok := parseOwner(st.Labels); ok && o.uid == pod.UID {
			return &outdatedError{"sandbox", holder}
		}
		if types.UID(st.GetMetadata().GetUid()) != pod.UID {
			return fmt.Errorf("the name is used by sandbox %s, which runs and does not belong to this pod; remove "+
				"it with: "+
				"crictl rmp -f %s", holder, holder)
		}
	}
	if err := r.removeSandbox(ctx, holder); err != nil {
		return &staleError{fmt.Errorf("the name is held by a stale sandbox: %w", err)}
	}
	klog.InfoS("Removed a stale sandbox that held the name of a new one", "pod", klog.KObj(pod), "sandboxID", holder)
	return nil
}

// freeContainerName removes the stale container that holds the name of a new one.
func (r *Runtime) freeContainerName(ctx context.Context, pod *v1.Pod, name, holder string) error {
	resp, err := r.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: holder})
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("status of container %s, which holds the name: %w", holder, err)
	}
	st := resp.GetStatus()
	if err == nil && st.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
		o, ok := parseOwner(st.Labels)
		switch {
		case ok && o.uid == pod.UID && o.container == name:
			return &outdatedError{"container", holder}
		case o.uid != pod.UID:
			return fmt.Errorf("the name is used by container %s, which runs and does not belong to this pod; remove "+
				"it with: "+
				"crictl rm -f %s", holder, holder)
		}
	}
	if err := r.removeStaleContainer(ctx, holder); err != nil {
		return &staleError{
			fmt.Errorf("the name is held by stale container %s, which cannot be removed: %w", holder, err),
		}
	}
	klog.InfoS("Removed a stale container that held the name of a new one", "pod", klog.KObj(pod),
		"containerName", name, "containerID", holder)
	return nil
}

func (r *Runtime) removeStaleContainer(ctx context.Context, id string) error {
	_, err := r.client.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id})
	if err != nil && !cri.IsNotFound(err) {
		return err
	}
	return r.client.DeleteContainer(ctx, id)
}

// reservedFor returns the id that holds a name, from a runtime's refusal to give it out twice
// (`name "x" is reserved for "<id>"`); "" for other errors.
func reservedFor(err error) string {
	if err == nil {
		return ""
	}
	_, rest, found := strings.Cut(err.Error(), "is reserved for ")
	if !found {
		return ""
	}
	rest = strings.TrimLeft(rest, `"'`)
	end := strings.IndexFunc(rest, func(c rune) bool { return (c < 'a' || c > 'z') && (c < '0' || c > '9') })
	if end < 0 {
		end = len(rest)
	}
	return rest[:end]
}
