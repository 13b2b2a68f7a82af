package fakecri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// SetExec says how commands in containers end; nil: well, and at once.
func (r *Runtime) SetExec(run func(ctx context.Context, req *runtimeapi.ExecSyncRequest) (exitCode int32, err error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.exec = run
}

// SetDeaf makes a container take some time to stop after SIGTERM. A call that does not wait so long kills it.
func (r *Runtime) SetDeaf(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.deaf == nil {
		r.deaf = map[string]bool{}
	}
	r.deaf[id] = true
}

// ExecSync implements the CRI.
func (r *Runtime) ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	r.mu.Lock()
	run := r.exec
	r.mu.Unlock()
	if run == nil {
		return &runtimeapi.ExecSyncResponse{}, nil
	}
	code, err := run(ctx, req)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ExecSyncResponse{ExitCode: code}, nil
}
