package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/pkg/certs"
)

// tokenTimeout bounds the requests to kube-apiserver.
const tokenTimeout = 30 * time.Second

// getTokenOptions are the flags of gettoken.
type getTokenOptions struct {
	*globalOptions
	certificates.TokenRequest
	kubeConfig string
	// secrets opens the API's secrets; nil is the real way.
	secrets func(context.Context) (certificates.Secrets, error)
}

func newGetTokenCommand(opts *globalOptions) *cobra.Command {
	return (&getTokenOptions{globalOptions: opts}).command()
}

func (o *getTokenOptions) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gettoken [--node NAME [--replace]] [--ttl 24h]",
		Short: "Print a token that a device joins with",
		Long: `Print a token for ` + "`edgecore join`" +
			` (or KubeEdge's keadm join). It tells the device which CA to trust, and the
cloud that the device may have a certificate.

Without flags it is the general token, which cloudcore recreates every 12 hours: it lets any device join under any
name that no node has. With --node it is a new token for that node alone, and the one to use for a node that the
cluster knows already: its certificate has expired, or its hardware was replaced. With --replace the certificates that
the node has are revoked first, so that the old hardware cannot come back (see cloudcore revoke --help).

It reads secrets of the namespace kubeedge, by way of --kube-config, or else as cloudcore itself does, or else by
$KUBECONFIG or ~/.kube/config. The token goes to standard output; on a terminal, a word on it to standard error.`,
		Example: `  cloudcore gettoken
  cloudcore gettoken --node edge1 --ttl 1h
  cloudcore gettoken --node edge1 --replace
  kubectl -n kubeedge exec deploy/cloudcore -- cloudcore gettoken --node edge1`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), tokenTimeout)
			defer cancel()
			return o.run(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr(), time.Now())
		},
	}
	cmd.Flags().StringVar(&o.kubeConfig, "kube-config", "", "the kubeconfig `file` to reach kube-apiserver with")
	cmd.Flags().StringVar(&o.Node, "node", "", "make a token for the node of this `name` alone")
	cmd.Flags().BoolVar(&o.Replace, "replace", false,
		"revoke the certificates that the node of --node has: another device takes its place")
	cmd.Flags().DurationVar(&o.TTL, "ttl", 0,
		"make a token that expires after this time, 90 days at most; 24h if only --node is given")
	return cmd
}

func (o *getTokenOptions) run(ctx context.Context, out, errs io.Writer, now time.Time) error {
	if err := o.Check(); err != nil {
		return err
	}
	open := o.secrets
	if open == nil {
		open = o.openSecrets
	}
	secrets, err := open(ctx)
	if err != nil {
		return err
	}
	token, err := o.Issue(ctx, secrets, now)
	if err != nil {
		return err
	}
	if isTerminal(errs) {
		fmt.Fprintln(errs, aboutToken(token))
	}
	_, err = fmt.Fprintln(out, token)
	return err
}

// aboutToken returns a hint for someone who reads a token.
func aboutToken(token *certs.Token) string {
	whom := "any device"
	if token.Claims.Node != "" {
		whom = "node " + token.Claims.Node + " alone"
	}
	return "For " + whom + ", until " + token.Claims.Expires.UTC().Format(time.RFC3339) +
		". To join: edgecore join --cloudcore-ipport HOST:10000 --token-file FILE"
}

// isTerminal reports whether a person reads along; a program may take all output together for the token.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func (o *getTokenOptions) openSecrets(context.Context) (certificates.Secrets, error) {
	client, err := o.openClient()
	if err != nil {
		return nil, err
	}
	return client.CoreV1().Secrets(certificates.Namespace), nil
}
