package cri

import (
	"context"
	"fmt"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// DeleteContainer removes a container that does not run. It is not an error if the container is gone.
//
// A start that is cut off, as when the agent is killed, can leave a container that containerd calls exited, and that
// has a task all the same. CRI can neither stop nor remove such a container (containerd issue 11037), so its task is
// removed with containerd's own API first.
func (c *Client) DeleteContainer(ctx context.Context, id string) error {
	remove := func() error {
		_, err := c.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
		if IsNotFound(err) {
			return nil
		}
		return err
	}
	err := remove()
	if status.Code(err) != codes.FailedPrecondition || len(c.conns) == 0 {
		return err
	}
	if taskErr := c.deleteTask(ctx, id); taskErr != nil {
		return fmt.Errorf("%w (its task was not removed, either: %w)", err, taskErr)
	}
	return remove()
}

// deleteTask kills the processes of a container's task, waits for their end, and removes it. It is not an error if
// there is no task.
func (c *Client) deleteTask(ctx context.Context, id string) error {
	tasks, ctx := tasksapi.NewTasksClient(c.conns[0]), inNamespace(ctx)
	_, err := tasks.Kill(ctx, &tasksapi.KillRequest{ContainerID: id, Signal: uint32(unix.SIGKILL), All: true})
	if err == nil {
		_, err = tasks.Wait(ctx, &tasksapi.WaitRequest{ContainerID: id})
	}
	if err == nil || IsNotFound(err) { // the processes may be gone while the task is there
		_, err = tasks.Delete(ctx, &tasksapi.DeleteTaskRequest{ContainerID: id})
	}
	if IsNotFound(err) {
		return nil
	}
	return err
}
