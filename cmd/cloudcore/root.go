package main

import (
	"flag"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
	"github.com/edgecore-io/edgecore/pkg/version"
)

// globalOptions are the flags that every command has.
type globalOptions struct {
	config string
}

// rootOptions are those of cloudcore itself.
type rootOptions struct {
	globalOptions
	defaultConfig, minConfig bool
	version                  string
}

func newRootCommand() *cobra.Command {
	opts := &rootOptions{}
	cmd := &cobra.Command{
		Use:   "cloudcore",
		Short: "Serve the edges of a Kubernetes cluster",
		Long: `cloudcore stands between kube-apiserver and the edges of the cluster. Each edge keeps one connection to it.
cloudcore sends the pods that are bound to the edge, and the configmaps and secrets that those name, and carries
the node's and the pods' status, leases and events into the API. What an edge asks for is done in the edge's own
name (system:node:NAME), so that kube-apiserver decides what it may do.

All state is in the API server: several of them may run side by side, behind one address.

Without a command it runs, until SIGTERM or SIGINT; edges then connect again, to it or to another one, and
their pods run on.

Ports, unless the configuration says otherwise:
  10000/tcp        edges connect (WebSocket)
  10001/udp        edges connect (QUIC; off by default)
  10002/tcp        edges join and renew their certificates (HTTPS)
  127.0.0.1:9091   /metrics, /healthz and /readyz (?verbose names the parts)

The certificates of the link and the token to join with are made at the first start and kept in secrets of the
namespace kubeedge. How to come to the first edge:
  on this side   cloudcore gettoken
  on the edge    edgecore join --cloudcore-ipport HOST:10000 --token TOKEN`,
		Example: `  cloudcore --minconfig > ` + v1alpha1.DefaultConfigFile + `   # make a configuration, then edit it
  cloudcore config validate ` + v1alpha1.DefaultConfigFile + `  # check it
  cloudcore                                              # run
  cloudcore gettoken                                     # a token that a device joins with
  curl 'http://127.0.0.1:9091/readyz?verbose'            # is everything well?`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return opts.run(cmd)
		},
	}
	cmd.PersistentFlags().StringVar(&opts.config, "config", v1alpha1.DefaultConfigFile, "the configuration `file`")
	cmd.Flags().BoolVar(&opts.defaultConfig, "defaultconfig", false, "print the configuration with every key and its default, and exit")
	cmd.Flags().BoolVar(&opts.minConfig, "minconfig", false, "print a small configuration to start from, and exit")
	cmd.Flags().StringVar(&opts.version, "version", "", "print the version and exit; --version=raw prints more")
	cmd.Flags().Lookup("version").NoOptDefVal = "true"
	addLogFlags(cmd)
	cmd.AddCommand(newConfigCommand(&opts.globalOptions), newGetTokenCommand(&opts.globalOptions))
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
		return printYAML(out, v1alpha1.Default())
	case o.minConfig:
		_, err := out.Write(v1alpha1.Minimal())
		return err
	}
	cfg, warnings, err := v1alpha1.Load(o.config)
	if err != nil {
		return err
	}
	for _, w := range warnings {
		klog.InfoS("Configuration", "file", o.config, "warning", w)
	}
	return runCloud(cmd.Context(), cfg)
}

func printVersion(out io.Writer, form string) error {
	switch form {
	case "true":
		_, err := fmt.Fprintln(out, "CloudCore", version.Version())
		return err
	case "raw":
		_, err := fmt.Fprintln(out, "CloudCore", version.String())
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
