// Package command is shared by the command lines of edgecore and cloudcore: the flags that KubeEdge and Kubernetes
// users know, and the configuration commands.
package command

import (
	"context"
	"flag"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/pkg/version"
)

// Options are the flags that every command has.
type Options struct {
	// Config is the path of the configuration file.
	Config string
}

// Program is one of the two, with its kind of configuration.
type Program[T any] struct {
	// Kind is the configuration's kind, such as "EdgeCore"; --version prints it, too. APIVersion belongs to it.
	Kind, APIVersion string
	// File is where the configuration is unless --config says otherwise.
	File    string
	Default func() *T
	Minimal func() []byte
	Load    func(file string) (cfg *T, warnings []string, err error)
	// Redacted removes secrets; Secrets describes that in a sentence.
	Redacted func(*T) *T
	Secrets  string
	// Look is a command that searches the output of `config print`.
	Look string
	// Start returns the configuration to run with; nil means Load.
	Start func(file string) (cfg *T, warnings []string, err error)
	// CheckDevice says what of a valid configuration cannot work on this device; nil: nothing depends on it.
	CheckDevice func(*T) error
	// Effective returns the configuration in force where that is not always the file's, and says so in its notice; nil:
	// it always is.
	Effective func(file string) (cfg *T, notice error, err error)
	// Run runs the program until ctx ends.
	Run func(ctx context.Context, cfg *T) error
}

// flags are those of the program itself.
type flags struct {
	defaultConfig, minConfig bool
	version                  string
}

// Root adds the program's flags and the command "config" to cmd. It returns the options that the other commands need.
func (p *Program[T]) Root(cmd *cobra.Command) *Options {
	opts, own := &Options{}, &flags{}
	cmd.Args, cmd.SilenceUsage, cmd.SilenceErrors = cobra.NoArgs, true, true
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return p.run(cmd, opts, own) }
	cmd.PersistentFlags().StringVar(&opts.Config, "config", p.File, "the configuration `file`")
	cmd.Flags().BoolVar(&own.defaultConfig, "defaultconfig", false,
		"print the configuration with every key and its default, and exit")
	cmd.Flags().BoolVar(&own.minConfig, "minconfig", false, "print a small configuration to start from, and exit")
	cmd.Flags().StringVar(&own.version, "version", "", "print the version and exit; --version=raw prints more")
	cmd.Flags().Lookup("version").NoOptDefVal = "true"
	addLogFlags(cmd)
	cmd.AddCommand(p.config(cmd.Name(), opts), man(cmd))
	return opts
}

// addLogFlags adds those of klog's flags that KubeEdge and Kubernetes users know.
func addLogFlags(cmd *cobra.Command) {
	all := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(all)
	for _, name := range []string{"v", "vmodule"} {
		cmd.PersistentFlags().AddGoFlag(all.Lookup(name))
	}
	cmd.PersistentFlags().Duration("log-flush-frequency", 0,
		"how often the log is flushed; it is never buffered, so this changes nothing")
	if err := cmd.PersistentFlags().MarkHidden("log-flush-frequency"); err != nil {
		panic(err) // the flag was added above
	}
}

func (p *Program[T]) run(cmd *cobra.Command, opts *Options, own *flags) error {
	out := cmd.OutOrStdout()
	switch {
	case own.version != "":
		return printVersion(out, p.Kind, own.version)
	case own.defaultConfig:
		return printYAML(out, p.Default())
	case own.minConfig:
		_, err := out.Write(p.Minimal())
		return err
	}
	start := p.Load
	if p.Start != nil {
		start = p.Start
	}
	cfg, warnings, err := start(opts.Config)
	if err != nil {
		return err
	}
	for _, w := range warnings {
		klog.InfoS("Configuration", "file", opts.Config, "warning", w)
	}
	return p.Run(cmd.Context(), cfg)
}

func printVersion(out io.Writer, kind, form string) error {
	switch form {
	case "true":
		_, err := fmt.Fprintln(out, kind, version.Version())
		return err
	case "raw":
		_, err := fmt.Fprintln(out, kind, version.String())
		return err
	}
	return fmt.Errorf("--version=%s: want --version or --version=raw", form)
}

func printYAML(out io.Writer, v any) error {
	data, err := yaml.Marshal(v)
	if err != nil {
		return err
	}
	_, err = out.Write(data)
	return err
}
