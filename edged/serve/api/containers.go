package api

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// Containers answers what the API is asked about containers as the runtime has them.
type Containers struct {
	// All are the pods of the runtime, as last seen.
	All     func() []*observed.Pod
	Runtime runtimeapi.RuntimeServiceClient
	// CheckpointDir is made when it is needed.
	CheckpointDir string
}

// RunningPods are the pods with a running container, desired or not.
func (c *Containers) RunningPods() []*v1.Pod {
	var pods []*v1.Pod
	for _, obs := range c.All() {
		pod := &v1.Pod{}
		pod.Name, pod.Namespace, pod.UID = obs.Name, obs.Namespace, obs.UID
		for _, c := range obs.Containers {
			if c.Running() {
				pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: c.Name, Image: c.Image})
			}
		}
		if len(pod.Spec.Containers) > 0 {
			pods = append(pods, pod)
		}
	}
	return pods
}

// Checkpoint has the runtime write the state of a container that runs to a file, within a timeout in seconds, and
// returns its path.
func (c *Containers) Checkpoint(
	ctx context.Context, namespace, name, container string, timeout int64,
) (string, error) {
	running := c.running(namespace, name, container)
	if running == nil {
		return "", fmt.Errorf("container %s of pod %s/%s does not run on this node: %w", container, namespace, name,
			fs.ErrNotExist)
	}
	if err := os.MkdirAll(c.CheckpointDir, 0o700); err != nil {
		return "", err
	}
	file := fmt.Sprintf("checkpoint-%s_%s-%s-%s.tar", name, namespace, container, time.Now().Format(time.RFC3339))
	req := &runtimeapi.CheckpointContainerRequest{
		ContainerId: running.ID,
		Location:    filepath.Join(c.CheckpointDir, file),
		Timeout:     timeout,
	}
	if _, err := c.Runtime.CheckpointContainer(ctx, req); err != nil {
		return "", fmt.Errorf("checkpoint of container %s of pod %s/%s: %w", container, namespace, name, err)
	}
	return req.Location, nil
}

// running is a container that runs; nil where there is none of the name.
func (c *Containers) running(namespace, name, container string) *observed.Container {
	for _, obs := range c.All() {
		if obs.Namespace != namespace || obs.Name != name {
			continue
		}
		for _, c := range obs.Containers {
			if c.Name == container && c.Running() {
				return c
			}
		}
	}
	return nil
}
