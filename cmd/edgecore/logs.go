package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgecore-io/edgecore/edged/containers/crilog"
	"github.com/edgecore-io/edgecore/local/agentclient"
	"github.com/edgecore-io/edgecore/local/localpods"
	"github.com/edgecore-io/edgecore/pkg/configfile"
	"github.com/edgecore-io/edgecore/pkg/filewatch"
)

func newLogsCommand(opts *globalOptions) *cobra.Command {
	var query localpods.Query
	var printing crilog.Options
	var since time.Duration
	cmd := &cobra.Command{
		Use:   "logs POD [-c CONTAINER]",
		Short: "Print the logs of a container of this device",
		Long: `Print the output of a container from its log files on this device. This works without a cloud, and while the agent
or the container runtime is stopped.`,
		Example: `  edgecore logs web-edge1
  edgecore logs web-edge1 -c sidecar --tail 20
  edgecore logs web-edge1 -f
  edgecore logs web-edge1 --previous      # of the previous container: why did it crash?`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := configfile.Running(opts.Config)
			if err != nil {
				return err
			}
			query.Pod = args[0]
			root := cfg.Modules.Edged.TailoredKubeletConfig.PodLogsDir
			dir, err := localpods.LogDir(cmd.Context(), agentclient.New(cfg), root, query)
			if err != nil {
				return err
			}
			if since > 0 {
				printing.Since = time.Now().Add(-since)
			}
			printing.Watcher = filewatch.New(filewatch.Options{Report: func(err error) {
				if err != nil && printing.Follow {
					fmt.Fprintf(cmd.ErrOrStderr(), "New output is shown late: %v\n", err)
				}
			}})
			defer printing.Watcher.Close()
			err = crilog.Print(cmd.Context(), dir, cmd.OutOrStdout(), cmd.ErrOrStderr(), printing)
			if errors.Is(err, crilog.ErrNoLog) {
				return fmt.Errorf("pod %q has written no such log yet: %w", args[0], err)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVarP(&query.Namespace, "namespace", "n", "",
		"the pod's namespace; needed only if several pods have the name")
	f.StringVarP(&query.Container, "container", "c", "", "the container; needed only if the pod has several")
	f.BoolVarP(&printing.Follow, "follow", "f", false, "keep printing new output")
	f.Int64Var(&printing.Tail, "tail", -1, "show only the last `N` lines; -1 is all")
	f.DurationVar(&since, "since", 0, "show only output newer than this, such as 10m")
	f.BoolVarP(&printing.Previous, "previous", "p", false, "print the log of the previous container")
	f.BoolVar(&printing.Timestamps, "timestamps", false, "print the time before each line")
	return cmd
}
