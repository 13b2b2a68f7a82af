package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers/logdir"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/pkg/readdir"
)

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
	r.stopFailures.forget(obs.UID)
	return r.removePodLogs(obs.UID)
}

// removePodLogs removes the log folder of a pod, found by its UID, and the links into it: the runtime
// may have forgotten the pod, or some of its containers.
func (r *Runtime) removePodLogs(uid types.UID) error {
	var errs []error
	err := r.podLogs(func(folder, namespace, name string, owner types.UID) {
		if owner == uid {
			dir := filepath.Join(r.opts.PodLogsDir, folder)
			r.removeLinks(namespace, name, dir)
			errs = append(errs, os.RemoveAll(dir))
		}
	})
	return errors.Join(append(errs, err)...)
}

// LoggedPods returns the UIDs of the pods that have a log folder.
func (r *Runtime) LoggedPods() ([]types.UID, error) {
	var uids []types.UID
	err := r.podLogs(func(_, _, _ string, owner types.UID) { uids = append(uids, owner) })
	return uids, err
}

// podLogs calls f for each folder of a pod's logs, <namespace>_<name>_<uid>.
func (r *Runtime) podLogs(f func(folder, namespace, name string, owner types.UID)) error {
	entries, err := readdir.Quiet(r.opts.PodLogsDir)
	if err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("pod logs: %w", err)
	}
	for _, e := range entries {
		if parts := strings.SplitN(e.Name(), "_", 3); len(parts) == 3 && parts[2] != "" && e.IsDir() {
			f(e.Name(), parts[0], parts[1], types.UID(parts[2]))
		}
	}
	return nil
}

// removeLinks removes the links of a pod that lead into its log folder.
func (r *Runtime) removeLinks(namespace, pod, dir string) {
	entries, err := readdir.Quiet(r.opts.ContainerLogsDir)
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

// stopSandbox stops a sandbox, which frees its addresses and host ports. It is not an error if it does not exist.
func (r *Runtime) stopSandbox(ctx context.Context, id string) error {
	if _, err := r.client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{
		PodSandboxId: id,
	}); ignoreNotFound(err) != nil {
		return fmt.Errorf("stop sandbox %s: %w", id, err)
	}
	r.stopped.first(id)
	return nil
}

// removeSandbox removes a sandbox, and stops it before unless that was done: the runtime would run all plugins of the
// network again, to take down what is gone. It is not an error if it does not exist.
func (r *Runtime) removeSandbox(ctx context.Context, id string) error {
	if !r.stopped.has(id) {
		if err := r.stopSandbox(ctx, id); err != nil {
			return err
		}
	}
	r.stopped.forget(id) // one that cannot be removed is stopped again before the next try
	if _, err := r.client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}); ignoreNotFound(
		err) != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	return nil
}

// removeContainer removes a container that does not run, with its log and its link.
func (r *Runtime) removeContainer(ctx context.Context, obs *observed.Pod, c *observed.Container) error {
	if err := r.client.DeleteContainer(ctx, c.ID); err != nil {
		return fmt.Errorf("remove container %s (%s): %w", c.Name, c.ID, err)
	}
	r.preStopDone.forget(c.ID)
	if err := os.Remove(r.logLink(obs.Namespace, obs.Name, c.Name, c.ID)); err != nil && !os.IsNotExist(err) {
		klog.V(2).InfoS("Log link not removed", "containerID", c.ID, "err", err)
	}
	// The folder is ours by construction; a log path elsewhere is not ours to remove.
	if dir := r.podLogDir(obs.Namespace, obs.Name, string(obs.UID)); strings.HasPrefix(c.LogPath, dir+"/") &&
		filepath.Clean(c.LogPath) == c.LogPath {
		removeLogs(c.LogPath)
	}
	return nil
}

// removeLogs removes a log and its rotated parts.
func removeLogs(path string) {
	err := removeInLogs(filepath.Dir(path), func(name string) bool {
		return strings.HasPrefix(name, filepath.Base(path))
	})
	if err != nil {
		klog.V(2).InfoS("Container log not removed", "path", path, "err", err)
	}
}

// removeInLogs removes the files of a container's log folder that which selects by name. A folder that is not there has
// none. No link is followed: a pod with a writable /var/log could have files elsewhere removed.
func removeInLogs(dir string, which func(name string) bool) error {
	root, err := logdir.Open(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	entries, err := logdir.ReadDir(root)
	errs := []error{err}
	for _, e := range entries {
		if !which(e.Name()) {
			continue
		}
		if err := root.Remove(e.Name()); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// logLink is the link by which log collectors find a container's log.
func (r *Runtime) logLink(namespace, pod, container, id string) string {
	const maxName = 251 // with ".log" the longest name of a file
	name := fmt.Sprintf("%s_%s_%s-%s", pod, namespace, container, id)
	return filepath.Join(r.opts.ContainerLogsDir, truncate(name, maxName)+".log")
}

// linkLog makes that link. A pod runs without it, so a failure is only logged.
func (r *Runtime) linkLog(pod *v1.Pod, container, id, logPath string) {
	link := r.logLink(pod.Namespace, pod.Name, container, id)
	err := os.MkdirAll(r.opts.ContainerLogsDir, 0o755)
	if err == nil {
		err = os.Symlink(logPath, link)
	}
	if err != nil && !os.IsExist(err) {
		klog.ErrorS(err, "Log link not made; log collectors will miss this container", "pod", klog.KObj(pod),
			"containerName", container, "link", link)
	}
}
