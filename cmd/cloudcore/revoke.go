package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/cloud/kubeapi"
)

// revokeOptions are the flags of revoke.
type revokeOptions struct {
	access getTokenOptions // the way to kube-apiserver is that of gettoken
	// client opens the API; nil is the real way.
	client func() (kubernetes.Interface, error)
}

func newRevokeCommand(opts *globalOptions) *cobra.Command {
	return (&revokeOptions{access: getTokenOptions{globalOptions: opts}}).command()
}

func (o *revokeOptions) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "revoke NODE",
		Short: "Refuse a node's certificates from now on: its device was stolen, lost or copied",
		Long: `Refuse all certificates of a node that were issued until now, and all tokens that were made for it alone.

Every cloudcore acts on it within 5 seconds: connections with such a certificate end, new ones are refused, and the
certificate cannot be renewed. It holds for certificates that KubeEdge's cloudcore issued as well.

What it does not do: the pods on the device run on, and what the device has stored stays readable on it. After a
theft, also
  - replace the secrets that pods on that node used; tokens of service accounts end when their pods are deleted:
    kubectl delete node NODE deletes the pods as well
  - run cloudcore rotate tokens if a general token of the last 24 hours may be on the device

To let a device be the node again, the same one or its replacement:
  cloudcore gettoken --node NODE        and on the device: edgecore join with that token
gettoken --node NODE --replace does both at once: it revokes the node, and prints a token for the new device.

The moment of each revocation is kept in the secret edgecore-revocations of the namespace kubeedge. It counts by the
clock of the machine that this command runs on, so that should be right.`,
		Example: `  cloudcore revoke edge1
  kubectl -n kubeedge exec deploy/cloudcore -- cloudcore revoke edge1`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), tokenTimeout)
			defer cancel()
			return o.run(ctx, args[0], cmd.OutOrStdout(), cmd.ErrOrStderr(), time.Now())
		},
	}
	cmd.Flags().StringVar(&o.access.kubeConfig, "kube-config", "", "the kubeconfig `file` to reach kube-apiserver with")
	return cmd
}

func (o *revokeOptions) run(ctx context.Context, node string, out, errs io.Writer, now time.Time) error {
	open := o.client
	if open == nil {
		open = o.access.openClient
	}
	client, err := open()
	if err != nil {
		return err
	}
	since, err := certificates.Revoke(ctx, client.CoreV1().Secrets(certificates.Namespace), node, now)
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		fmt.Fprintf(errs, "warning: the cluster has no node %s now; is the name right?\n", node)
	}
	_, err = fmt.Fprintf(out, "Revoked node %s: certificates and tokens of before %s are refused.\n", node,
		since.Format(time.RFC3339))
	return err
}

func (o *getTokenOptions) openClient() (kubernetes.Interface, error) {
	rc, err := kubeapi.Find(o.kubeConfig, o.Config, rest.InClusterConfig)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(rc)
}
