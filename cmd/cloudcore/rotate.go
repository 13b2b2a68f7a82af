package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgecore-io/edgecore/cloud/certificates"
)

// rotateOptions are the flags of rotate's commands.
type rotateOptions struct {
	access getTokenOptions // the way to kube-apiserver is that of gettoken
	finish bool
}

func newRotateCommand(opts *globalOptions) *cobra.Command {
	return (&rotateOptions{access: getTokenOptions{globalOptions: opts}}).command()
}

func (o *rotateOptions) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Replace the CA of the link, or the key of the tokens",
		Long: `Replace a secret of the link. Every cloudcore takes up the new one within 5 seconds, without a restart; connections
go on.`,
		Example: `  cloudcore rotate ca
  cloudcore rotate tokens`,
	}
	cmd.PersistentFlags().StringVar(&o.access.kubeConfig, "kube-config", "",
		"the kubeconfig `file` to reach kube-apiserver with")
	tokens := &cobra.Command{
		Use:   "tokens",
		Short: "Invalidate all tokens",
		Long: `Make a new key for the tokens that devices join with. All earlier tokens are invalid from then on; cloudcore makes a
new general one at once. Certificates stay valid.`,
		Example: `  cloudcore rotate tokens
  kubectl -n kubeedge exec deploy/cloudcore -- cloudcore rotate tokens`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd, func(ctx context.Context, secrets certificates.Secrets, out io.Writer) error {
				if err := certificates.RotateTokenKey(ctx, secrets); err != nil {
					return err
				}
				_, err := fmt.Fprintln(out, "Rotated the key of tokens: all earlier tokens are invalid.")
				return err
			})
		},
	}
	ca := &cobra.Command{
		Use:   "ca [--finish]",
		Short: "Replace the CA that signs the nodes' certificates",
		Long: `Replace the CA that signs the certificates of devices and of cloudcore, in two steps:

  cloudcore rotate ca            From now on a new CA signs; the key of the old one is deleted. Certificates of the old CA
                                 are still good, and devices that know only the old CA still trust cloudcore: it shows a
                                 certificate for the new CA by the old one. Devices learn of the new CA when they renew
                                 their certificate, which edgecore does within an hour or two of its next connection.
  cloudcore rotate ca --finish   Certificates of the old CA are refused. Devices that have not renewed by then join again,
                                 with a token of cloudcore gettoken --node NAME.

If the key of the CA has leaked, do not rotate it: until --finish, anyone with that key can get certificates of the new CA.
Stop every cloudcore, delete the secrets casecret, cloudcoresecret, tokenkeysecret and tokensecret, start cloudcore, and
join each device again with a token of cloudcore gettoken --node NAME.

KubeEdge's edgecore renews its certificate as usual, near its end, and keeps trusting cloudcore by the old CA afterwards.
Tokens from before the rotation name the old CA and are invalid: give out new ones.

This is for the CA in the secret casecret. Where modules.cloudHub.tlsCAFile names a file that exists, cloudcore uses that
one, and reads it when it starts.`,
		Example: `  kubectl -n kubeedge exec deploy/cloudcore -- cloudcore rotate ca`,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd, o.rotateCA) },
	}
	ca.Flags().BoolVar(&o.finish, "finish", false, "refuse certificates of the CAs before this one")
	cmd.AddCommand(ca, tokens)
	return cmd
}

func (o *rotateOptions) rotateCA(ctx context.Context, secrets certificates.Secrets, out io.Writer) error {
	if !o.finish {
		if err := certificates.RotateCA(ctx, secrets, time.Now()); err != nil {
			return err
		}
		_, err := fmt.Fprintln(out,
			"Rotated the CA: certificates of the one before are good until cloudcore rotate ca --finish.")
		return err
	}
	n, err := certificates.FinishCA(ctx, secrets)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "Finished: certificates of %d older CAs are refused.\n", n)
	return err
}

func (o *rotateOptions) run(cmd *cobra.Command, do func(context.Context, certificates.Secrets, io.Writer) error) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), tokenTimeout)
	defer cancel()
	open := o.access.secrets
	if open == nil {
		open = o.access.openSecrets
	}
	secrets, err := open(ctx)
	if err != nil {
		return err
	}
	return do(ctx, secrets, cmd.OutOrStdout())
}
