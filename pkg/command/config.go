package command

import (
	"fmt"

	"github.com/spf13/cobra"
)

// config is the command "config" with its own.
func (p *Program[T]) config(program string, opts *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check and show the configuration",
		Long: `The configuration is a file of kind ` + p.Kind + `, ` + p.APIVersion + `. A file made for KubeEdge is
taken as it is: keys that this version does not act on are named in warnings.`,
	}
	cmd.AddCommand(p.validate(program, opts), p.print(program, opts))
	return cmd
}

func (p *Program[T]) validate(program string, opts *Options) *cobra.Command {
	offline := false
	cmd := &cobra.Command{
		Use:   "validate [FILE]",
		Short: "Check a configuration file, and change nothing",
		Long: `Check a configuration file the way ` + program +
			` does at its start. Unknown keys and values that are
not allowed are errors, all of them named with their lines (exit status 1). Keys of KubeEdge that this version
does not act on are warnings (exit status 0), if the file gives them another value than the default.

Without FILE it checks the one that --config names.`,
		Example: "  " + program + " config validate " + p.File,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file := fileOf(opts, args)
			cfg, warnings, err := p.Load(file)
			if err != nil {
				return err
			}
			if p.CheckDevice != nil && !offline {
				if err := p.CheckDevice(cfg); err != nil {
					return fmt.Errorf("configuration %s does not work on this device (--offline leaves out what "+
						"depends on it): %w", file, err)
				}
			}
			if p.Effective != nil && !offline {
				if _, notice, err := p.Effective(file); err == nil && notice != nil {
					return notice // it was refused after a trial
				}
			}
			for _, w := range warnings {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning:", w)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is valid, with %s\n", file, counted(len(warnings), "warning"))
			return err
		},
	}
	if p.CheckDevice != nil {
		cmd.Long += `

What depends on this device is checked, too: the files and groups that the file names, and what it reserves of the
device's memory and processors; and whether the agent has tried the file and gone back to the configuration before.
--offline leaves that out, to check a file for another device.`
		cmd.Flags().BoolVar(&offline, "offline", false, "leave out what depends on this device")
	}
	return cmd
}

func (p *Program[T]) print(program string, opts *Options) *cobra.Command {
	effective := false
	cmd := &cobra.Command{
		Use:   "print [FILE]",
		Short: "Print a configuration file with the defaults filled in, without secrets",
		Long: `Print a configuration file: what it says, with the default of each key that it leaves out.
` + p.Secrets + `

Without FILE it prints the one that --config names.`,
		Example: "  " + program + " config print | " + p.Look,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file := fileOf(opts, args)
			var cfg *T
			var notice, err error
			if effective {
				cfg, notice, err = p.Effective(file)
			} else {
				cfg, _, err = p.Load(file)
			}
			if err != nil {
				return err
			}
			if notice != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning:", notice)
			}
			return printYAML(cmd.OutOrStdout(), p.Redacted(cfg))
		},
	}
	if p.Effective != nil {
		cmd.Flags().BoolVar(&effective, "effective", false, "print what "+program+" starts with: the file, or the "+
			"last good configuration where it cannot be used")
	}
	return cmd
}

func fileOf(opts *Options, args []string) string {
	if len(args) > 0 {
		return args[0]
	}
	return opts.Config
}

func counted(n int, what string) string {
	switch n {
	case 0:
		return "no " + what + "s"
	case 1:
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
