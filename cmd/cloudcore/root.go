package main

import (
	"context"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
	"github.com/edgecore-io/edgecore/pkg/command"
)

// globalOptions are the flags that every command has.
type globalOptions = command.Options

// newRootCommand returns the command cloudcore. restartErr says why footprint.Restart failed, if it did.
func newRootCommand(restartErr error) *cobra.Command {
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
		Run: func(ctx context.Context, cfg *v1alpha1.CloudCore) error {
			if restartErr != nil {
				klog.V(2).InfoS("cloudcore takes more processor time than it needs to", "err", restartErr)
			}
			return runCloud(ctx, cfg)
		},
	}
	cmd := &cobra.Command{
		Use:   "cloudcore",
		Short: "Connect edge nodes to a Kubernetes cluster",
		Long: `cloudcore connects edge nodes to kube-apiserver. Each node keeps one connection to cloudcore.
cloudcore sends a node the pods that are bound to it, and the configmaps and secrets that these pods refer to. It
writes the status, leases and events that the node reports to the API. It carries out a node's requests in the name
of that node (system:node:NAME), so that kube-apiserver decides what the node may do.

All state is in the API server: several replicas can run side by side, behind one address.

Without a command, cloudcore runs until it gets SIGTERM or SIGINT. The nodes then reconnect, to this or another
replica, and their pods keep running.

Ports, unless the configuration says otherwise:
` + command.Table(
			[2]string{"10000/tcp", "nodes connect (WebSocket)"},
			[2]string{"10001/udp", "nodes connect (QUIC; off by default)"},
			[2]string{"10002/tcp", "nodes join and renew their certificates (HTTPS)"},
			[2]string{"127.0.0.1:9091", "/metrics, /healthz and /readyz (?verbose names the parts)"},
		) + `

At its first start, cloudcore creates the certificates of the link and a join token, and stores them in Secrets of the
namespace kubeedge. To join the first edge node:
` + command.Table(
			[2]string{"here", "cloudcore gettoken"},
			[2]string{"on the device", "edgecore join --cloudcore-ipport HOST:10000 --token TOKEN"},
		),
		Example: command.Table(
			[2]string{"cloudcore --minconfig > " + v1alpha1.DefaultConfigFile, "# make a configuration, then edit it"},
			[2]string{"cloudcore config validate " + v1alpha1.DefaultConfigFile, "# check it"},
			[2]string{"cloudcore", "# run"},
			[2]string{"cloudcore gettoken", "# a token that a device joins with"},
			[2]string{"cloudcore revoke edge1", "# a device was stolen: refuse its certificates"},
			[2]string{"cloudcore adopt plan", "# what it takes to replace KubeEdge's cloudcore"},
			[2]string{"cloudcore rotate ca", "# replace the CA while devices are connected"},
			[2]string{"curl 'http://127.0.0.1:9091/readyz?verbose'", "# is everything well?"},
		),
	}
	opts := program.Root(cmd)
	cmd.AddCommand(newGetTokenCommand(opts), newRevokeCommand(opts), newRotateCommand(opts),
		newAdoptCommand(opts))
	command.RefuseUnknown(cmd)
	return cmd
}
