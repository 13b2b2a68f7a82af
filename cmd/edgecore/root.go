package main

import (
	"github.com/spf13/cobra"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/command"
)

// globalOptions are the flags that every command has.
type globalOptions = command.Options

func newRootCommand() *cobra.Command {
	program := command.Program[v1alpha2.EdgeCore]{
		Kind: "EdgeCore", APIVersion: v1alpha2.APIVersion, File: v1alpha2.DefaultConfigFile,
		Default: v1alpha2.Default, Minimal: v1alpha2.Minimal, Load: v1alpha2.Load, Redacted: (*v1alpha2.EdgeCore).Redacted,
		Secrets: "Tokens and passwords are shown as (hidden).", Look: "grep -i endpoint", Run: runAgent,
	}
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
	}
	opts := program.Root(cmd)
	cmd.AddCommand(newGetCommand(opts), newStatusCommand(opts), newLogsCommand(opts), newJoinCommand(opts), newResetCommand(opts))
	return cmd
}
