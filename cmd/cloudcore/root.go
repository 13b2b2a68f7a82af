package main

import (
	"github.com/spf13/cobra"

	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
	"github.com/edgecore-io/edgecore/pkg/command"
)

// globalOptions are the flags that every command has.
type globalOptions = command.Options

func newRootCommand() *cobra.Command {
	program := command.Program[v1alpha1.CloudCore]{
		Kind:       "CloudCore",
		APIVersion: v1alpha1.APIVersion,
		File:       v1alpha1.DefaultConfigFile,
		Default:    v1alpha1.Default,
		Minimal:    v1alpha1.Minimal,
		Load:       v1alpha1.Load,
		Redacted:   (*v1alpha1.CloudCore).Redacted,
		Secrets:    "A password in the URL of kube-apiserver is shown as (hidden).",
		Look:       "grep -A3 https",
		Run:        runCloud,
	}
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
namespace kubeedge. To join the first edge node:
  on this side   cloudcore gettoken
  on the edge    edgecore join --cloudcore-ipport HOST:10000 --token TOKEN`,
		Example: `  cloudcore --minconfig > ` + v1alpha1.DefaultConfigFile + `   # make a configuration, then edit it
  cloudcore config validate ` + v1alpha1.DefaultConfigFile + `  # check it
  cloudcore                                              # run
  cloudcore gettoken                                     # a token that a device joins with
  cloudcore revoke edge1                                 # a device was stolen: let it in no more
  cloudcore rotate ca                                    # replace the CA while devices are connected
  curl 'http://127.0.0.1:9091/readyz?verbose'            # is everything well?`,
	}
	opts := program.Root(cmd)
	cmd.AddCommand(newGetTokenCommand(opts), newRevokeCommand(opts), newRotateCommand(opts))
	return cmd
}
