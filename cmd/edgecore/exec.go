package main

import (
	"github.com/spf13/cobra"

	"github.com/edgecore-io/edgecore/local/localexec"
	"github.com/edgecore-io/edgecore/pkg/configfile"
)

func newExecCommand(opts *globalOptions) *cobra.Command {
	var c localexec.Command
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
			cfg, err := configfile.Running(opts.Config)
			if err != nil {
				return err
			}
			c.Container.Pod, c.Args = args[0], args[1:]
			c.In, c.Out, c.Err = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
			return localexec.Run(cmd.Context(), cfg.Modules.Edged.TailoredKubeletConfig.ContainerRuntimeEndpoint, c)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&c.Container.Namespace, "namespace", "n", "",
		"the pod's namespace; needed only if several pods have the name")
	f.StringVarP(&c.Container.Container, "container", "c", "", "the container; needed only if the pod has several")
	f.BoolVarP(&c.Stdin, "stdin", "i", false, "pass standard input to the command")
	f.BoolVarP(&c.TTY, "tty", "t", false, "allocate a terminal for the command")
	return cmd
}
