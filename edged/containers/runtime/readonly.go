package runtime

import (
	"context"

	v1 "k8s.io/api/core/v1"
)

// RecursiveReadOnly reports whether the handler that runs a pod can make mounts read-only with all that is mounted
// below them. One that cannot be asked cannot.
func (r *Runtime) RecursiveReadOnly(ctx context.Context, pod *v1.Pod) bool {
	handler := ""
	if r.opts.Handler != nil {
		var err error
		if handler, err = r.opts.Handler(ctx, pod); err != nil {
			return false
		}
	}
	f, err := r.Features(ctx)
	return err == nil && f.Handlers[handler].RecursiveReadOnlyMounts
}
