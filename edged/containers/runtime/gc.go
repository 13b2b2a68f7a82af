package runtime

import (
	"context"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// RemoveContainer removes a container that does not run, with its log and its link. It is not an error if it does not
// exist.
func (r *Runtime) RemoveContainer(ctx context.Context, obs *observed.Pod, c *observed.Container) error {
	return r.removeContainer(ctx, obs, c)
}

// RemoveSandbox stops and removes a sandbox. It is not an error if it does not exist.
func (r *Runtime) RemoveSandbox(ctx context.Context, id string) error {
	return r.removeSandbox(ctx, id)
}

// LogDirs returns the folder of the links that log collectors follow, and that of pod logs.
func (r *Runtime) LogDirs() (links, logs string) { return r.opts.ContainerLogsDir, r.opts.PodLogsDir }

// SetDeadAttempts says how many ended attempts of a container stay when it is started again: at least one, which is the
// default.
func (r *Runtime) SetDeadAttempts(n int) { r.deadAttempts.Store(int64(max(n, 1))) }
