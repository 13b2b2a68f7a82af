package prober

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/env"
)

// Execer is the runtime's call that runs a command in a container.
type Execer interface {
	ExecSync(ctx context.Context, in *runtimeapi.ExecSyncRequest,
		opts ...grpc.CallOption) (*runtimeapi.ExecSyncResponse, error)
}

// runCommand runs a command in the container; it is well when it exits with 0 in time.
func (a *attempts) runCommand(ctx context.Context, q *ask, h *v1.ExecAction) (result, string, error) {
	command := expandStatic(h.Command, q.container.Env)
	timeout := q.timeout()
	resp, err := a.exec.ExecSync(ctx, &runtimeapi.ExecSyncRequest{
		ContainerId: q.id, Cmd: command, Timeout: int64(timeout.Seconds()),
	})
	switch {
	case status.Code(err) == codes.DeadlineExceeded || errors.Is(err, context.DeadlineExceeded):
		return failure, fmt.Sprintf("command timed out: %q timed out after %v", strings.Join(command, " "), timeout),
			nil
	case err != nil:
		return unknown, "", err
	}
	output := string(clip(append(clip(resp.Stdout), clip(resp.Stderr)...)))
	if resp.ExitCode != 0 {
		return failure, output, nil
	}
	return success, output, nil
}

// isAway reports whether a call failed because the runtime is unreachable, for which the agent has a condition of its
// own, or because the container is gone, which is reported anyway.
func isAway(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.NotFound:
		return true
	}
	// As containerd says of a container that has ended.
	return strings.Contains(status.Convert(err).Message(), "CONTAINER_EXITED")
}

func clip(text []byte) []byte { return text[:min(len(text), maxOutput)] }

// expandStatic expands $(NAME) from those of the container's variables that are written out in its spec.
func expandStatic(command []string, vars []v1.EnvVar) []string {
	known := map[string]string{}
	for _, v := range vars {
		if v.ValueFrom == nil {
			known[v.Name] = v.Value
		}
	}
	out := make([]string, len(command))
	for i, word := range command {
		out[i] = env.Expand(word, func(name string) (string, bool) {
			value, ok := known[name]
			return value, ok
		})
	}
	return out
}
