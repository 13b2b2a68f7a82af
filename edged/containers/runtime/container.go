package runtime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers/logdir"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// The kubelet's reasons for a container that waits, and its events.
const (
	reasonCreateConfigError = "CreateContainerConfigError"
	reasonCreateError       = "CreateContainerError"
	reasonRunError          = "RunContainerError"
	reasonCrashLoop         = "CrashLoopBackOff"

	eventCreated        = "Created"
	eventStarted        = "Started"
	eventFailed         = "Failed"
	eventBackOff        = "BackOff"
	eventKilling        = "Killing"
	eventSandboxChanged = "SandboxChanged"
	eventSandboxFailed  = "FailedCreatePodSandBox"
	eventSandboxStatus  = "FailedPodSandBoxStatus"
	eventUnsupported    = "UnsupportedField"
	eventSandboxLeft    = "FailedKillPod"
)

// startError is a container that could not be started, with the reason that its status shows.
type startError struct {
	observed.Reason
	err error
	// id is the container that was made and did not start.
	id string
}

func (e *startError) Error() string { return e.Reason.Reason + ": " + e.Message }
func (e *startError) Unwrap() error { return e.err }

func failStart(reason string, err error) *startError {
	return &startError{Reason: observed.Reason{Reason: reason, Message: criMessage(err)}, err: err}
}

// startParams is what the containers of a pod have in common when they are started.
type startParams struct {
	pod       *v1.Pod
	obs       *observed.Pod
	sandboxID string
	config    *runtimeapi.PodSandboxConfig
	// fresh: the sandbox was just made in place of one that had lived. What ended with that one did not
	// crash, and does not wait.
	fresh   bool
	ips     []string
	secrets []v1.Secret
	// volumeImages are the references of the images that the container mounts, by volume.
	volumeImages map[string]string
}

// startContainer makes and starts one container; everything that stands in the way is written into
// the result.
func (r *Runtime) startContainer(ctx context.Context, p startParams, s Start, res *SyncResult) {
	c := s.Container
	wait, until := r.backoff.waitFor(p.pod.UID, c.Name, Hash(c), s.Last)
	if s.Last.Running() { // it was stopped by this sync: a probe has failed, or its spec has changed
		wait, until = r.backoff.afterStopped(p.pod.UID, c.Name, Hash(c), p.obs.Attempts(c.Name))
	}
	if until.After(now()) && !p.fresh {
		res.wait(c.Name, observed.Reason{
			Reason: reasonCrashLoop, Message: fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", wait,
				c.Name, podID(p.pod)),
		})
		res.retry(until)
		r.opts.Recorder.ContainerEventf(p.pod, c, v1.EventTypeWarning, eventBackOff,
			"Back-off restarting failed container %s in pod %s", c.Name, podID(p.pod))
		return
	}
	imageRef, ok := r.ensureImages(ctx, &p, c, res)
	if !ok {
		return
	}
	r.examineEnd(ctx, p, s, imageRef)
	began := now()
	err := r.createAndStart(ctx, p, s, imageRef, res)
	if err != nil && r.startFailed(ctx, p, s, imageRef, began, err) {
		if imageRef, ok = r.ensureImages(ctx, &p, c, res); !ok {
			return
		}
		err = r.createAndStart(ctx, p, s, imageRef, res)
	}
	if err != nil {
		res.Err = errors.Join(res.Err, fmt.Errorf("container %s of pod %s: %w", c.Name, klog.KObj(p.pod), err))
		if res.outdated(err) {
			return
		}
		res.wait(c.Name, err.Reason)
		if ctx.Err() == nil && err.Reason.Reason != reasonPostStart {
			r.opts.Recorder.ContainerEventf(p.pod, c, v1.EventTypeWarning, eventFailed, "Error: %s", err.Message)
		}
	}
}

// ensureImages brings the images of a container onto the node; where one is missing the result says why.
func (r *Runtime) ensureImages(
	ctx context.Context, p *startParams, c *v1.Container, res *SyncResult,
) (imageRef string, ok bool) {
	imageRef, problem, retryAt := r.opts.Images.EnsureImage(ctx, p.pod, c, p.secrets, p.config)
	if problem == nil {
		p.volumeImages, problem, retryAt = r.ensureImageVolumes(ctx, *p, c)
	}
	if problem != nil {
		res.wait(c.Name, *problem)
		res.retry(retryAt)
	}
	return imageRef, problem == nil
}

func (r *Runtime) createAndStart(
	ctx context.Context, p startParams, s Start, imageRef string, res *SyncResult,
) *startError {
	c := s.Container
	attempt := r.nextAttempt(p, s)
	config, err := r.containerConfig(ctx, p, c, imageRef, attempt)
	if err == nil && s.Target != "" {
		err = joinTarget(config, p.obs, s.Target)
	}
	if err != nil {
		return failStart(reasonCreateConfigError, err)
	}
	id, err := r.createContainer(ctx, p, config)
	if err != nil {
		return failStart(reasonCreateError, err)
	}
	res.Changed = true
	r.opts.Recorder.ContainerEventf(p.pod, c, v1.EventTypeNormal, eventCreated, "Container created")
	if _, err := r.client.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		failed := failStart(reasonRunError, err)
		failed.id = id
		return failed
	}
	r.opts.Recorder.ContainerEventf(p.pod, c, v1.EventTypeNormal, eventStarted, "Container started")
	r.linkLog(p.pod, c.Name, id, filepath.Join(p.config.LogDirectory, config.LogPath))
	return r.postStart(ctx, p, c, id)
}

// joinTarget lets a container see the processes of another one of its pod. One that sees all processes of the pod or of
// the node sees them already.
func joinTarget(config *runtimeapi.ContainerConfig, obs *observed.Pod, name string) error {
	target := obs.Container(name)
	switch {
	case target == nil:
		return fmt.Errorf("unable to find target container %s", name)
	case !target.Running():
		return fmt.Errorf("unable to find target container %s: it does not run", name)
	}
	options := config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if options == nil {
		return fmt.Errorf("target container %q: there are no namespaces to join", name)
	}
	if options.GetPid() == runtimeapi.NamespaceMode_CONTAINER {
		options.Pid, options.TargetId = runtimeapi.NamespaceMode_TARGET, target.ID
	}
	return nil
}

// nextAttempt counts on from the attempt before; when the runtime has forgotten it, from the logs
// that it left, so that restart counts survive a reboot.
func (r *Runtime) nextAttempt(p startParams, s Start) uint32 {
	if s.Last != nil {
		return max(s.Last.Attempt, uint32(max(s.Last.RestartCount, 0))) + 1
	}
	root, err := logdir.Open(filepath.Join(p.config.LogDirectory, s.Container.Name))
	if err != nil {
		return 0
	}
	defer root.Close()
	entries, err := logdir.ReadDir(root)
	if err != nil {
		return 0
	}
	next := uint32(0)
	for _, e := range entries {
		// "3.log", or rotated "3.log.20260101-000000"
		number, _, found := strings.Cut(e.Name(), ".log")
		if n, err := strconv.ParseUint(number, 10, 31); found && err == nil {
			next = max(next, uint32(n)+1)
		}
	}
	return next
}

// containerConfig makes the CRI form of a container.
func (r *Runtime) containerConfig(
	ctx context.Context, p startParams, c *v1.Container, imageRef string, attempt uint32,
) (*runtimeapi.ContainerConfig, error) {
	in, err := r.opts.Inputs.Container(ctx, p.pod, c, p.ips)
	if err != nil {
		return nil, err
	}
	security, err := r.securityContext(p.pod, c, p.userns())
	if err != nil {
		return nil, err
	}
	security.SupplementalGroups = append(security.SupplementalGroups, in.Groups...)
	if err := r.completeUser(ctx, p.pod, c, imageRef, security); err != nil {
		return nil, err
	}
	logPath := filepath.Join(c.Name, strconv.Itoa(int(attempt))+".log")
	if err := os.MkdirAll(filepath.Join(p.config.LogDirectory, c.Name), 0o755); err != nil {
		return nil, fmt.Errorf("log folder: %w", err)
	}
	message, err := r.messageFile(p.pod, c, attempt)
	if err != nil {
		return nil, err
	}
	mounts := in.Mounts
	if message != "" {
		mounts = append(mounts[:len(mounts):len(mounts)], &runtimeapi.Mount{
			HostPath: message, ContainerPath: c.TerminationMessagePath,
		})
	}
	images, err := imageMounts(p.pod, c, p.volumeImages, in.Envs)
	if err != nil {
		return nil, err
	}
	mounts = append(mounts[:len(mounts):len(mounts)], images...)
	mapOwners(mounts, p.userns())
	if r.opts.SELinux {
		relabel(p.pod, c, filepath.Join(r.opts.RootDir, "pods"), mounts)
	}
	annotations := map[string]string{}
	maps.Copy(annotations, in.Annotations) // a device plugin does not take those away by which containers are known
	maps.Copy(annotations, containerAnnotations(p.pod, c, int32(attempt)))
	return &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: attempt},
		Image:       &runtimeapi.ImageSpec{Image: imageRef, UserSpecifiedImage: c.Image},
		Command:     in.Command,
		Args:        in.Args,
		WorkingDir:  in.WorkingDir,
		Envs:        in.Envs,
		Mounts:      mounts,
		Labels:      containerLabels(p.pod, c),
		Annotations: annotations,
		Devices:     in.Devices,
		CDIDevices:  in.CDIDevices,
		LogPath:     logPath,
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		StopSignal:  criSignal(stopSignalOf(c)),
		Linux:       &runtimeapi.LinuxContainerConfig{Resources: r.opts.Resources(p.pod, c), SecurityContext: security},
	}, nil
}

// createContainer creates a container. A stale one that holds the name, left by an agent or runtime
// that was killed, is removed and the call repeated once.
func (r *Runtime) createContainer(
	ctx context.Context, p startParams, config *runtimeapi.ContainerConfig,
) (string, error) {
	req := &runtimeapi.CreateContainerRequest{PodSandboxId: p.sandboxID, Config: config, SandboxConfig: p.config}
	resp, err := r.client.CreateContainer(ctx, req)
	if holder := reservedFor(err); holder != "" {
		if err := r.freeContainerName(ctx, p.pod, config.Metadata.Name, holder); stale(err) {
			config.Metadata.Attempt++
		} else if err != nil {
			return "", err
		}
		resp, err = r.client.CreateContainer(ctx, req)
	}
	if err != nil {
		return "", err
	}
	return resp.ContainerId, nil
}
