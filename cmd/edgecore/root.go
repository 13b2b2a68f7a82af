package main

import (
	"flag"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/version"
)

// globalOptions are the flags that every command has.
type globalOptions struct {
	config string
}

// rootOptions are those of the agent itself.
type rootOptions struct {
	globalOptions
	defaultConfig, minConfig bool
	version                  string
}

func newRootCommand() *cobra.Command {
	opts := &rootOptions{}
	cmd := &cobra.Command{
		Use:   "edgecore",
		Short: "Run pods on an edge device, with or without a cloud",
		Long: `edgecore keeps pods running on this device. It takes them from the folder of static manifests
(staticPodPath, by default ` + v1alpha2.DefaultManifests + `) and from its own store, and runs them in the
container runtime that the configuration names. It needs no network and no cloud.

Without a command it runs as the agent, until SIGTERM or SIGINT; the pods run on when it ends.

Where things lie, unless the configuration says otherwise:
  ` + v1alpha2.DefaultConfigFile + `  the configuration; it is only read, never written
  ` + v1alpha2.DefaultManifests + `             manifests of static pods
  ` + v1alpha2.DefaultDataSource + `     the store: what is to run, and what is not reported yet
  ` + v1alpha2.DefaultRootDirectory + `                   the pods' volumes
  /var/log/pods                      the pods' logs`,
		Example: `  edgecore --minconfig > ` + v1alpha2.DefaultConfigFile + `   # make a configuration, then edit it
  edgecore config validate ` + v1alpha2.DefaultConfigFile + `  # check it
  edgecore                                              # run the agent
  edgecore join -e 192.0.2.1:10000 --token-file token   # or: join a cloud, and have systemd run the agent
  edgecore status                                       # is everything well?
  edgecore get pods -o wide                             # what runs here?
  edgecore logs web-edge1 -f                            # what does it say?`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return opts.run(cmd)
		},
	}
	cmd.PersistentFlags().StringVar(&opts.config, "config", v1alpha2.DefaultConfigFile, "the configuration `file`")
	cmd.Flags().BoolVar(&opts.defaultConfig, "defaultconfig", false, "print the configuration with every key and its default, and exit")
	cmd.Flags().BoolVar(&opts.minConfig, "minconfig", false, "print a small configuration to start from, and exit")
	cmd.Flags().StringVar(&opts.version, "version", "", "print the version and exit; --version=raw prints more")
	cmd.Flags().Lookup("version").NoOptDefVal = "true"
	addLogFlags(cmd)
	cmd.AddCommand(newConfigCommand(&opts.globalOptions), newGetCommand(&opts.globalOptions), newStatusCommand(&opts.globalOptions),
		newLogsCommand(&opts.globalOptions), newJoinCommand(&opts.globalOptions), newResetCommand(&opts.globalOptions))
	return cmd
}

// addLogFlags adds those of klog's flags that KubeEdge and Kubernetes users know.
func addLogFlags(cmd *cobra.Command) {
	all := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(all)
	for _, name := range []string{"v", "vmodule"} {
		cmd.PersistentFlags().AddGoFlag(all.Lookup(name))
	}
	cmd.PersistentFlags().Duration("log-flush-frequency", 0, "how often the log is flushed; it is never buffered, so this changes nothing")
	if err := cmd.PersistentFlags().MarkHidden("log-flush-frequency"); err != nil {
		panic(err) // the flag was added above
	}
}

func (o *rootOptions) run(cmd *cobra.Command) error {
	out := cmd.OutOrStdout()
	switch {
	case o.version != "":
		return printVersion(out, o.version)
	case o.defaultConfig:
		return printYAML(out, v1alpha2.Default())
	case o.minConfig:
		_, err := out.Write(v1alpha2.Minimal())
		return err
	}
	cfg, warnings, err := v1alpha2.Load(o.config)
	if err != nil {
		return err
	}
	for _, w := range warnings {
		klog.InfoS("Configuration", "file", o.config, "warning", w)
	}
	return runAgent(cmd.Context(), cfg)
}

func printVersion(out io.Writer, form string) error {
	switch form {
	case "true":
		_, err := fmt.Fprintln(out, "EdgeCore", version.Version())
		return err
	case "raw":
		_, err := fmt.Fprintln(out, "EdgeCore", version.String())
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
