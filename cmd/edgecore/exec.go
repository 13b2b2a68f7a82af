package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/cri"
	"github.com/edgecore-io/edgecore/edged/streaming/channels"
)

// execTimeout bounds each question to the runtime; the command itself may take as long as it takes.
const execTimeout = 10 * time.Second

// The labels by which the runtime knows whose a container is.
const (
	labelPodName      = "io.kubernetes.pod.name"
	labelPodNamespace = "io.kubernetes.pod.namespace"
	labelPodUID       = "io.kubernetes.pod.uid"
	labelContainer    = "io.kubernetes.container.name"
)

// execOptions are the flags of exec.
type execOptions struct {
	namespace, container string
	stdin, tty           bool
}

// exitError is a command that has ended with a code of its own, which becomes that of this program.
type exitError struct{ code int }

func (e *exitError) Error() string {
	return fmt.Sprintf("command terminated with exit code %d", e.code)
}

func newExecCommand(opts *globalOptions) *cobra.Command {
	o := &execOptions{}
	cmd := &cobra.Command{
		Use:   "exec POD [-c CONTAINER] -- COMMAND [ARGUMENT...]",
		Short: "Run a command in a container of this device",
		Long: `Run a command in a running container of this device. The command goes through the container runtime, so it works without a
cloud and while the agent is stopped. The exit code is that of the command.

Without -t, the command does not see the end of its input: use -i only with commands that know when it ends, such as tar.`,
		Example: `  edgecore exec web-edge1 -- ls /etc
  edgecore exec web-edge1 -c sidecar -- cat /proc/1/status
  edgecore exec web-edge1 -it -- sh
  tar c . | edgecore exec web-edge1 -i -- tar x -C /data`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := newAgent(opts)
			if err != nil {
				return err
			}
			kubelet := &a.cfg.Modules.Edged.TailoredKubeletConfig
			client, err := cri.Dial(kubelet.ContainerRuntimeEndpoint, "", execTimeout)
			if err != nil {
				return err
			}
			defer client.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), execTimeout)
			defer cancel()
			id, err := findContainer(ctx, client, args[0], o)
			if err != nil {
				return err
			}
			return execIn(cmd.Context(), client, id, args[1:], o, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.namespace, "namespace", "n", "", "the pod's namespace; needed only if several pods have the name")
	f.StringVarP(&o.container, "container", "c", "", "the container; needed only if the pod has several")
	f.BoolVarP(&o.stdin, "stdin", "i", false, "pass this command's input on")
	f.BoolVarP(&o.tty, "tty", "t", false, "give the command a terminal")
	return cmd
}

// findContainer returns the id of a running container.
func findContainer(ctx context.Context, client *cri.Client, name string, o *execOptions) (string, error) {
	list, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}}})
	if err != nil {
		return "", fmt.Errorf("the container runtime does not answer: %w", err)
	}
	return chooseRunning(list.Containers, name, o)
}

// chooseRunning is pure.
func chooseRunning(running []*runtimeapi.Container, name string, o *execOptions) (string, error) {
	byUID := map[string]*logPod{}
	ids := map[[2]string]string{}
	for _, c := range running {
		uid, container := c.Labels[labelPodUID], c.Labels[labelContainer]
		if uid == "" || o.namespace != "" && c.Labels[labelPodNamespace] != o.namespace {
			continue
		}
		if byUID[uid] == nil {
			byUID[uid] = &logPod{namespace: c.Labels[labelPodNamespace], name: c.Labels[labelPodName], uid: uid}
		}
		byUID[uid].containers = append(byUID[uid].containers, container)
		ids[[2]string{uid, container}] = c.Id
	}
	pods := make([]logPod, 0, len(byUID))
	for _, p := range byUID {
		slices.Sort(p.containers)
		pods = append(pods, *p)
	}
	slices.SortFunc(pods, func(a, b logPod) int { return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.uid, b.uid)) })
	pod, err := choosePod(pods, name)
	if err != nil {
		return "", fmt.Errorf("among the pods that run: %w", err)
	}
	container, err := chooseContainer(pod, o.container)
	if err != nil {
		return "", fmt.Errorf("among the containers that run: %w", err)
	}
	return ids[[2]string{pod.uid, container}], nil
}

// execIn runs a command in a container, joined to the streams of this program.
func execIn(ctx context.Context, client *cri.Client, id string, command []string, o *execOptions, in io.Reader, out, errOut io.Writer) error {
	resp, err := client.Exec(ctx, &runtimeapi.ExecRequest{ContainerId: id, Cmd: command, Tty: o.tty, Stdin: o.stdin, Stdout: true, Stderr: !o.tty})
	if err != nil {
		return err
	}
	streams := channels.Streams{Out: out, Err: errOut}
	if o.stdin {
		streams.In = in
	}
	if o.tty {
		terminal, err := openTerminal(ctx, in)
		if err != nil {
			return err
		}
		defer terminal.restore()
		streams.Sizes = terminal.sizes
	}
	code, err := channels.Run(ctx, resp.Url, streams)
	if err == nil && code != 0 {
		err = &exitError{code}
	}
	return err
}
