package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

func newConfigCommand(opts *globalOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check and show the configuration",
		Long: `The configuration is a file of kind EdgeCore, ` + v1alpha2.APIVersion + `. A file made for KubeEdge is
taken as it is: keys that this version does not act on are named in warnings.`,
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "validate [FILE]",
		Short: "Check a configuration file, and change nothing",
		Long: `Check a configuration file the way the agent does at its start: keys that nobody knows and values that are
of no use are errors (exit status 1), keys that this version does not act on are warnings.`,
		Example: "  edgecore config validate /etc/kubeedge/config/edgecore.yaml",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file := opts.config
			if len(args) > 0 {
				file = args[0]
			}
			_, warnings, err := v1alpha2.Load(file)
			if err != nil {
				return err
			}
			for _, w := range warnings {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning:", w)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is valid, with %d warnings\n", file, len(warnings))
			return err
		},
	}, &cobra.Command{
		Use:   "print",
		Short: "Print the configuration in force: the file with the defaults filled in, without secrets",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, _, err := v1alpha2.Load(opts.config)
			if err != nil {
				return err
			}
			return printYAML(cmd.OutOrStdout(), cfg.Redacted())
		},
	})
	return cmd
}
