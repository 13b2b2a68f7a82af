// Package localexec runs a command in a container of this device through the container runtime alone, so that it needs
// neither a cloud nor the agent. It owns the request to the runtime, the streams of the command, and this program's
// terminal while the command has it.
//
// It promises that the terminal is restored when Run returns, and that the exit code of the command reaches the caller.
package localexec

import (
	"context"
	"fmt"
	"io"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/serve/streaming/channels"
	"github.com/edgecore-io/edgecore/local/localpods"
)

// callTimeout bounds each request to the runtime; the command itself may take as long as it takes.
const callTimeout = 10 * time.Second

// ExitError says that the command ended with an exit code other than 0.
type ExitError struct{ Code int }

func (e *ExitError) Error() string {
	return fmt.Sprintf("command terminated with exit code %d", e.Code)
}

// Command is what to run, and where.
type Command struct {
	Container localpods.Query
	Args      []string
	// In is this program's input. Stdin passes it on to the command; TTY gives the command a terminal, and In has to be
	// one.
	In         io.Reader
	Stdin, TTY bool
	Out, Err   io.Writer
}

// Run runs the command by way of the runtime at an endpoint, and returns when it has ended: nil after exit code 0, an
// ExitError after another one.
func Run(ctx context.Context, endpoint string, c Command) error {
	client, err := cri.Dial(endpoint, "", callTimeout)
	if err != nil {
		return err
	}
	defer client.Close()
	return run(ctx, client, c)
}

func run(ctx context.Context, client *cri.Client, c Command) error {
	id, err := find(ctx, client, c.Container)
	if err != nil {
		return err
	}
	resp, err := client.Exec(ctx, &runtimeapi.ExecRequest{
		ContainerId: id,
		Cmd:         c.Args,
		Tty:         c.TTY,
		Stdin:       c.Stdin,
		Stdout:      true,
		Stderr:      !c.TTY,
	})
	if err != nil {
		return err
	}
	streams := channels.Streams{Out: c.Out, Err: c.Err}
	if c.Stdin {
		streams.In = c.In
	}
	if c.TTY {
		terminal, err := openTerminal(ctx, c.In)
		if err != nil {
			return err
		}
		defer terminal.restore()
		streams.Sizes = terminal.sizes
	}
	code, err := channels.Run(ctx, resp.Url, streams)
	if err == nil && code != 0 {
		err = &ExitError{code}
	}
	return err
}

// find returns the id of a running container.
func find(ctx context.Context, client *cri.Client, q localpods.Query) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return "", fmt.Errorf("the container runtime does not answer: %w", err)
	}
	return localpods.RunningContainer(list.Containers, q)
}
