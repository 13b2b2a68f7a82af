package podsync

import (
	"context"
	"fmt"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/storage/volume"
)

// observe returns what the runtime has of a pod. It uses the PLEG's cache if the cache has all details.
func (s *Syncer) observe(ctx context.Context, uid types.UID) (*observed.Pod, error) {
	obs := s.opts.PLEG.Get(uid)
	switch {
	case obs != nil && obs.Detailed:
		return obs, nil
	case obs == nil && s.opts.PLEG.Healthy() == nil:
		// The runtime was listed and does not have the pod, so there is no need to ask again.
		return &observed.Pod{UID: uid, Detailed: true, At: time.Now()}, nil
	}
	return s.opts.PLEG.Refresh(ctx, uid)
}

// prepare makes what a pod needs before its sandbox: its folder, cgroup and volumes. It returns the pull secrets.
func (s *Syncer) prepare(ctx context.Context, pod *v1.Pod) ([]v1.Secret, volume.Volumes, error) {
	if err := os.MkdirAll(s.opts.PodDir(pod.UID), 0o750); err != nil {
		return nil, nil, fmt.Errorf("pod folder: %w", err)
	}
	if err := s.opts.Allocations.EnsureCgroup(pod); err != nil {
		s.opts.Recorder.Eventf(pod, v1.EventTypeWarning, events.FailedCreatePodContainer,
			"unable to ensure pod container exists: %v", err)
		return nil, nil, fmt.Errorf("cgroup of pod %s: %w", klog.KObj(pod), err)
	}
	volumes, err := s.opts.Volumes.Setup(ctx, pod)
	if err != nil {
		if ctx.Err() == nil {
			s.opts.Recorder.Eventf(pod, v1.EventTypeWarning, events.FailedMountVolume, "%v", err)
		}
		return nil, nil, err
	}
	s.opts.Inputs.SetVolumes(pod.UID, volumes)
	s.opts.Prepared(pod)
	return s.pullSecrets(ctx, pod), volumes, nil
}

// pullSecrets returns the image pull secrets that exist. A missing one is reported in an event, and the pull is tried
// without it.
func (s *Syncer) pullSecrets(ctx context.Context, pod *v1.Pod) []v1.Secret {
	var secrets []v1.Secret
	for _, ref := range pod.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		secret, err := s.opts.Store.Secret(ctx, pod.Namespace, ref.Name)
		if err != nil {
			if apierrors.IsNotFound(err) {
				s.opts.Recorder.Eventf(pod, v1.EventTypeWarning, events.FailedToRetrieveImagePullSecret,
					"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.",
					ref.Name)
			} else {
				klog.ErrorS(err, "Image pull secret could not be read", "pod", klog.KObj(pod), "secret", ref.Name)
			}
			continue
		}
		secrets = append(secrets, *secret)
	}
	return secrets
}
