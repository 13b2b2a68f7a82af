// Package lifecycle runs the hooks of containers, postStart and preStop. It runs a handler once. The caller decides
// when a hook runs, how long it may take and what its failure means; every hook ends with its context.
//
// Source: "Container Lifecycle Hooks" in the Kubernetes documentation, KEP-3960 (sleep), and the field
// documentation of k8s.io/api/core/v1. As there: an httpGet hook has succeeded when it was answered, whatever the
// status; the certificate of a server is not checked; a tcpSocket hook always fails.
package lifecycle

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/pkg/retry"
)

// Execer runs commands in containers: the CRI.
type Execer interface {
	ExecSync(ctx context.Context, in *runtimeapi.ExecSyncRequest,
		opts ...grpc.CallOption) (*runtimeapi.ExecSyncResponse, error)
}

// Target is the container that a hook belongs to.
type Target struct {
	// ID is the runtime's id of the container.
	ID string
	// Address is the pod's, or the node's for a pod on the host network; an httpGet hook that names no host goes there.
	Address string
	// Ports resolve a port that is given by name.
	Ports []v1.ContainerPort
	// FellBack, which may be nil, is called with an HTTPS URL that answered only over HTTP.
	FellBack func(url string)
}

// Runner runs hooks. Its methods may be called from any goroutine.
type Runner struct {
	exec      Execer
	http      *http.Client
	http2     *http.Client
	userAgent string
}

// New makes a Runner. userAgent is what httpGet hooks call themselves.
func New(exec Execer, userAgent string) *Runner {
	return &Runner{exec: exec, http: newHTTPClient(false), http2: newHTTPClient(true), userAgent: userAgent}
}

// Run carries a handler out. An error says why the hook failed, without what a command printed or a server
// answered, which may be secret.
func (r *Runner) Run(ctx context.Context, t Target, h *v1.LifecycleHandler) error {
	switch {
	case h.Exec != nil:
		return r.command(ctx, t, h.Exec)
	case h.HTTPGet != nil:
		return r.get(ctx, t, h.HTTPGet)
	case h.Sleep != nil:
		return pause(ctx, time.Duration(h.Sleep.Seconds)*time.Second)
	}
	return fmt.Errorf("invalid handler: %v", h)
}

// Describe says in the kubelet's words why a hook failed, without what a command printed.
func Describe(pod *v1.Pod, container string, h *v1.LifecycleHandler, err error) string {
	of := fmt.Sprintf("for Container %q in Pod %q failed - error: %v", container,
		fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID), err)
	switch {
	case h.Exec != nil:
		return fmt.Sprintf("Exec lifecycle hook (%v) %s, message: %q", h.Exec.Command, of, "")
	case h.HTTPGet != nil:
		return fmt.Sprintf("HTTP lifecycle hook (%s) %s", h.HTTPGet.Path, of)
	case h.Sleep != nil:
		return fmt.Sprintf("Sleep lifecycle hook (%d) %s", h.Sleep.Seconds, of)
	}
	return fmt.Sprintf("Cannot run handler: %v", err)
}

// command runs a command in the container, for as long as ctx lets it: the runtime kills it then.
func (r *Runner) command(ctx context.Context, t Target, h *v1.ExecAction) error {
	resp, err := r.exec.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: t.ID, Cmd: h.Command})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// the runtime knows the deadline, and its clock may be ahead of ours
	if status.Code(err) == codes.DeadlineExceeded {
		return context.DeadlineExceeded
	}
	if err != nil {
		return err
	}
	if resp.ExitCode != 0 {
		// The kubelet ends this with what the command printed.
		return fmt.Errorf("command '%s' exited with %d: ", strings.Join(h.Command, " "), resp.ExitCode)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	if !retry.Sleep(ctx, d) {
		return ctx.Err()
	}
	return nil
}
