package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/cloud/kubeapi"
	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
	"github.com/edgecore-io/edgecore/pkg/certs"
)

const (
	defaultTTL = 24 * time.Hour
	// maxTTL is long enough for a batch of devices that is shipped, and short enough to be forgotten.
	maxTTL = 90 * 24 * time.Hour
	// tokenTimeout bounds the questions to kube-apiserver.
	tokenTimeout = 30 * time.Second
)

// getTokenOptions are the flags of gettoken.
type getTokenOptions struct {
	*globalOptions
	kubeConfig string
	node       string
	ttl        time.Duration
	replace    bool
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
		Long: `Print a token for ` + "`edgecore join`" + ` (or KubeEdge's keadm join). It tells the device which CA to trust, and the
cloud that the device may have a certificate.

Without flags it is the general token, which cloudcore makes anew every 12 hours: it lets any device join under any
name that no node has. With --node it is a new token for that node alone, and the one to use for a node that the
cluster knows already: its certificate has ended, or its hardware was replaced. With --replace the certificates that
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
	cmd.Flags().StringVar(&o.node, "node", "", "make a token for the node of this `name` alone")
	cmd.Flags().BoolVar(&o.replace, "replace", false, "revoke the certificates that the node of --node has: another device takes its place")
	cmd.Flags().DurationVar(&o.ttl, "ttl", 0, "make a token that ends after this time, 90 days at most; 24h if only --node is given")
	return cmd
}

func (o *getTokenOptions) run(ctx context.Context, out, errs io.Writer, now time.Time) error {
	if faults := validation.IsDNS1123Subdomain(o.node); o.node != "" && len(faults) > 0 {
		return fmt.Errorf("--node %q is not the name of a node: %s", o.node, faults[0])
	}
	if o.ttl < 0 || o.ttl > maxTTL {
		return fmt.Errorf("--ttl %s: want more than 0s, and %s at most", o.ttl, maxTTL)
	}
	if o.replace && o.node == "" {
		return errors.New("--replace: which node? name it with --node NAME")
	}
	open := o.secrets
	if open == nil {
		open = o.openSecrets
	}
	secrets, err := open(ctx)
	if err != nil {
		return err
	}
	token, err := o.token(ctx, secrets, now)
	if err != nil {
		return err
	}
	if isTerminal(errs) {
		fmt.Fprintln(errs, aboutToken(token))
	}
	_, err = fmt.Fprintln(out, token)
	return err
}

// aboutToken is a word to somebody who looks at a token.
func aboutToken(token *certs.Token) string {
	whom := "any device"
	if token.Claims.Node != "" {
		whom = "node " + token.Claims.Node + " alone"
	}
	return "For " + whom + ", until " + token.Claims.Expires.UTC().Format(time.RFC3339) + ". To join: edgecore join --cloudcore-ipport HOST:10000 --token-file FILE"
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

func (o *getTokenOptions) token(ctx context.Context, secrets certificates.Secrets, now time.Time) (*certs.Token, error) {
	if o.replace {
		if _, err := certificates.Revoke(ctx, secrets, o.node, now); err != nil {
			return nil, err
		}
	}
	switch {
	case o.node == "" && o.ttl == 0:
		return certificates.ReadToken(ctx, secrets, now)
	case o.ttl == 0:
		return certificates.NewNodeToken(ctx, secrets, o.node, now.Add(defaultTTL))
	}
	return certificates.NewNodeToken(ctx, secrets, o.node, now.Add(o.ttl))
}

func (o *getTokenOptions) openSecrets(context.Context) (certificates.Secrets, error) {
	client, err := o.openClient()
	if err != nil {
		return nil, err
	}
	return client.CoreV1().Secrets(certificates.Namespace), nil
}

// restConfig finds the way to kube-apiserver: the flag's, cloudcore's own, the pod's, or kubectl's.
func (o *getTokenOptions) restConfig(inCluster func() (*rest.Config, error)) (*rest.Config, error) {
	if o.kubeConfig != "" {
		rc, err := clientcmd.BuildConfigFromFlags("", o.kubeConfig)
		if err != nil {
			return nil, fmt.Errorf("--kube-config %s: %w", o.kubeConfig, err)
		}
		return rc, nil
	}
	cfg, _, err := v1alpha1.Load(o.Config)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err == nil && (cfg.KubeAPIConfig.KubeConfig != "" || cfg.KubeAPIConfig.Master != "") {
		return kubeapi.Config(&cfg.KubeAPIConfig, inCluster)
	}
	rc, err := inCluster()
	if err == nil {
		return rc, nil
	}
	rc, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("no way to kube-apiserver: give --kube-config FILE, or set $KUBECONFIG: %w", err)
	}
	return rc, nil
}
