package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/cri"
	"github.com/edgecore-io/edgecore/edged/observed"
)

const (
	// defaultGrace is what a pod gets that says nothing, in seconds.
	defaultGrace = int64(v1.DefaultTerminationGracePeriodSeconds)
	// killParallel bounds the stops in flight for one pod.
	killParallel = 16
	// minGrace is the least that a container gets, in seconds, so that none is killed that was not asked
	// to end before; minGraceRestart when it is stopped to be started again. Both are the kubelet's.
	minGrace        = int64(1)
	minGraceRestart = int64(2)
)

// graceOf is how many seconds the containers of a pod get to end by themselves; at least one, also
// where 0 is asked for.
func graceOf(pod *v1.Pod, override *int64) int64 {
	switch {
	case override != nil:
		return max(*override, minGrace)
	case pod == nil:
		return defaultGrace
	case pod.DeletionGracePeriodSeconds != nil:
		return max(*pod.DeletionGracePeriodSeconds, minGrace)
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		return max(*pod.Spec.TerminationGracePeriodSeconds, minGrace)
	}
	return defaultGrace
}

// KillPod stops all containers of a pod side by side, each within the grace period, then its
// sandboxes, also those that died by themselves: their addresses and host ports are still held. pod is nil
// for an orphan, whose containers carry their grace in annotations. grace, in seconds, overrides both.
// Nothing is removed. It may be called again at any time.
func (r *Runtime) KillPod(ctx context.Context, uid types.UID, pod *v1.Pod, obs *observed.Pod, grace *int64) error {
	var g errgroup.Group
	g.SetLimit(killParallel)
	errs := make([]error, len(obs.Containers))
	for i, c := range obs.Containers {
		if c.Exited() {
			continue
		}
		g.Go(func() error {
			seconds := graceOf(pod, grace)
			if pod == nil && grace == nil {
				seconds = r.orphanGrace(ctx, c)
			}
			if err := r.killContainer(ctx, pod, c, "Stopping container "+c.Name, seconds); err != nil {
				errs[i] = fmt.Errorf("stop container %s of pod %s: %w", c.Name, uid, err)
			}
			return nil
		})
	}
	_ = g.Wait() // the errors are in errs
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, s := range obs.Sandboxes {
		if _, err := r.client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: s.ID}); ignoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("stop sandbox %s of pod %s: %w", s.ID, uid, err))
		}
	}
	return errors.Join(errs...)
}

// orphanGrace reads the grace period from what the container carries.
func (r *Runtime) orphanGrace(ctx context.Context, c *observed.Container) int64 {
	resp, err := r.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.ID})
	if err != nil {
		return defaultGrace
	}
	if g := parseNotes(resp.GetStatus().GetAnnotations()).grace; g != nil {
		return max(*g, minGrace)
	}
	return defaultGrace
}

func (r *Runtime) killContainer(ctx context.Context, pod *v1.Pod, c *observed.Container, message string, grace int64) error {
	if pod != nil {
		if spec := containerSpec(pod, c.Name); spec != nil && c.Running() {
			r.opts.Recorder.ContainerEventf(pod, spec, v1.EventTypeNormal, eventKilling, "%s", message)
		}
	}
	_, err := r.client.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: c.ID, Timeout: grace})
	return ignoreNotFound(err)
}

func containerSpec(pod *v1.Pod, name string) *v1.Container {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// RemovePod removes a stopped pod from the runtime, with its logs, and forgets its backoff.
func (r *Runtime) RemovePod(ctx context.Context, obs *observed.Pod) error {
	var errs []error
	for _, c := range obs.Containers {
		errs = append(errs, r.removeContainer(ctx, obs, c))
	}
	for _, s := range obs.Sandboxes {
		errs = append(errs, r.removeSandbox(ctx, s.ID))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	r.backoff.forget(obs.UID)
	return r.removePodLogs(obs.UID)
}

// removePodLogs removes the log folder of a pod, found by its UID, and the links into it: the runtime
// may have forgotten the pod, or some of its containers.
func (r *Runtime) removePodLogs(uid types.UID) error {
	entries, err := os.ReadDir(r.opts.PodLogsDir)
	if err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("pod logs: %w", err)
	}
	var errs []error
	for _, e := range entries {
		owner, ok := strings.CutSuffix(e.Name(), "_"+string(uid))
		namespace, name, two := strings.Cut(owner, "_")
		if uid == "" || !ok || !two || !e.IsDir() {
			continue
		}
		dir := filepath.Join(r.opts.PodLogsDir, e.Name())
		r.removeLinks(namespace, name, dir)
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}

// removeLinks removes the links of a pod that lead into its log folder.
func (r *Runtime) removeLinks(namespace, pod, dir string) {
	entries, err := os.ReadDir(r.opts.ContainerLogsDir)
	if err != nil {
		return // there are none
	}
	for _, e := range entries {
		link := filepath.Join(r.opts.ContainerLogsDir, e.Name())
		if !strings.HasPrefix(e.Name(), pod+"_"+namespace+"_") {
			continue
		}
		if target, err := os.Readlink(link); err != nil || !strings.HasPrefix(target, dir+"/") {
			continue
		}
		if err := os.Remove(link); err != nil && !os.IsNotExist(err) {
			klog.V(2).InfoS("Log link not removed", "link", link, "err", err)
		}
	}
}

// removeSandbox stops and removes a sandbox. Removing an absent one is no error.
func (r *Runtime) removeSandbox(ctx context.Context, id string) error {
	if _, err := r.client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); ignoreNotFound(err) != nil {
		return fmt.Errorf("stop sandbox %s: %w", id, err)
	}
	if _, err := r.client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}); ignoreNotFound(err) != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	return nil
}

// removeContainer removes a container that does not run, with its log and its link.
func (r *Runtime) removeContainer(ctx context.Context, obs *observed.Pod, c *observed.Container) error {
	if _, err := r.client.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: c.ID}); err != nil && !cri.IsNotFound(err) {
		return fmt.Errorf("remove container %s (%s): %w", c.Name, c.ID, err)
	}
	if err := os.Remove(r.logLink(obs.Namespace, obs.Name, c.Name, c.ID)); err != nil && !os.IsNotExist(err) {
		klog.V(2).InfoS("Log link not removed", "containerID", c.ID, "err", err)
	}
	// The folder is ours by construction; a log path elsewhere is not ours to remove.
	if dir := r.podLogDir(obs.Namespace, obs.Name, string(obs.UID)); strings.HasPrefix(c.LogPath, dir+"/") && filepath.Clean(c.LogPath) == c.LogPath {
		removeLogs(c.LogPath)
	}
	return nil
}

// removeLogs removes a log and its rotated parts.
func removeLogs(path string) {
	parts, err := filepath.Glob(path + "*")
	if err != nil {
		parts = []string{path}
	}
	for _, p := range parts {
		if err := os.Remove(p); err != nil && !os.IsNotExist(err) {
			klog.V(2).InfoS("Container log not removed", "path", p, "err", err)
		}
	}
}

// logLink is the link by which log collectors find a container's log.
func (r *Runtime) logLink(namespace, pod, container, id string) string {
	const maxName = 251 // with ".log" the longest name of a file
	name := fmt.Sprintf("%s_%s_%s-%s", pod, namespace, container, id)
	return filepath.Join(r.opts.ContainerLogsDir, truncate(name, maxName)+".log")
}

// linkLog makes that link. A pod runs without it, so a failure is no more than logged.
func (r *Runtime) linkLog(pod *v1.Pod, container, id, logPath string) {
	link := r.logLink(pod.Namespace, pod.Name, container, id)
	err := os.MkdirAll(r.opts.ContainerLogsDir, 0o755)
	if err == nil {
		err = os.Symlink(logPath, link)
	}
	if err != nil && !os.IsExist(err) {
		klog.ErrorS(err, "Log link not made; log collectors will miss this container", "pod", klog.KObj(pod), "containerName", container, "link", link)
	}
}
