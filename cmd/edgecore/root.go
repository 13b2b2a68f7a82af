package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/command"
	"github.com/edgecore-io/edgecore/pkg/configfile"
)

// globalOptions are the flags that every command has.
type globalOptions = command.Options

func newRootCommand() *cobra.Command {
	program := command.Program[v1alpha2.EdgeCore]{
		Kind:        "EdgeCore",
		APIVersion:  v1alpha2.APIVersion,
		File:        v1alpha2.DefaultConfigFile,
		Default:     v1alpha2.Default,
		Minimal:     v1alpha2.Minimal,
		Load:        v1alpha2.Load,
		CheckDevice: checkDevice,
		Effective: func(file string) (*v1alpha2.EdgeCore, error, error) {
			f, err := configfile.Choose(file)
			if err != nil {
				return nil, nil, err
			}
			return f.Config, f.Notice(), nil
		},
		Redacted: (*v1alpha2.EdgeCore).Redacted,
		Secrets:  "Tokens and passwords are shown as (hidden).",
		Look:     "grep -i endpoint",
	}
	cmd := &cobra.Command{
		Use:   "edgecore",
		Short: "Run pods on an edge device, with or without a cloud",
		Long: `edgecore keeps pods running on this device. It reads static manifests from a folder (staticPodPath, by
default ` + v1alpha2.DefaultManifests + `) and the pods of the cluster from its own store, and runs them in the
configured container runtime. It needs no network and no cloud.

Without a command, edgecore runs as the agent until it gets SIGTERM or SIGINT; pods keep running when it stops. On
SIGHUP, and when the configuration file changes, it applies the settings that can change while pods run, and logs those
that need a restart.

Files, unless the configuration says otherwise:
` + command.Table(
			[2]string{v1alpha2.DefaultConfigFile, "the configuration; the agent only reads it"},
			[2]string{v1alpha2.DefaultManifests + "/", "manifests of static pods"},
			[2]string{v1alpha2.DefaultDataSource, "the store: desired pods, and reports not sent yet"},
			[2]string{v1alpha2.DefaultRootDirectory + "/", "the pods' volumes"},
			[2]string{"/var/log/pods/", "the pods' logs"},
		) + `

With the Debian package:
` + command.Table(
			[2]string{configfile.Packaged, "the configuration"},
			[2]string{"/etc/edgecore/manifests/", "manifests of static pods"},
			[2]string{"/etc/edgecore/certs/", "certificates of the link to the cloud"},
			[2]string{"/var/lib/edgecore/edgecore.db", "the store"},
		),
		Example: command.Table(
			[2]string{"edgecore --minconfig > " + v1alpha2.DefaultConfigFile, "# make a configuration, then edit it"},
			[2]string{"edgecore config validate " + v1alpha2.DefaultConfigFile, "# check it"},
			[2]string{"edgecore preflight", "# can this device run pods?"},
			[2]string{"edgecore", "# run the agent"},
			[2]string{
				"edgecore join -e 192.0.2.1:10000 --token-file token",
				"# or: join a cloud and run the agent as a service",
			},
			[2]string{"edgecore status", "# is the agent healthy?"},
			[2]string{"edgecore get pods -o wide", "# what runs here?"},
			[2]string{"edgecore logs web-edge1 -f", "# show the output of a pod"},
			[2]string{"edgecore images list", "# which images are here, and which pods need them?"},
			[2]string{"edgecore exec web-edge1 -- ls /data", "# run a command in a pod"},
		),
	}
	opts := program.Root(cmd)
	opts.Config = configfile.Default("/")
	// on any device
	cmd.PersistentFlags().Lookup("config").DefValue = configfile.Packaged + " with the package, else " +
		v1alpha2.DefaultConfigFile
	var started *agentStart
	program.Start = func(file string) (cfg *v1alpha2.EdgeCore, warnings []string, err error) {
		if started, err = newAgentStart(file); err != nil {
			return nil, nil, err
		}
		return started.inForce.Config, started.inForce.Warnings, nil
	}
	program.Run = func(ctx context.Context, _ *v1alpha2.EdgeCore) error { return started.run(ctx) }
	cmd.AddCommand(newGetCommand(opts), newStatusCommand(opts), newPreflightCommand(opts), newLogsCommand(opts),
		newExecCommand(opts), newImagesCommand(opts), newJoinCommand(opts), newResetCommand(opts),
		newEndPodsCommand(opts), newAdoptCommand(opts))
	command.RefuseUnknown(cmd)
	return cmd
}
