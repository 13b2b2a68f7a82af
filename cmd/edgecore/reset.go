package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgecore-io/edgecore/deploy/systemd"
	"github.com/edgecore-io/edgecore/edgehub/nodecert"
	"github.com/edgecore-io/edgecore/local/leftovers"
	"github.com/edgecore-io/edgecore/pkg/configfile"
)

// resetOptions are the flags of reset.
type resetOptions struct {
	*globalOptions
	force, keepPods bool
	tokenFile       string // of KubeEdge's installer
	// fresh is what a configuration is made from again; nil where it goes.
	fresh   func(file string) []byte
	service *systemd.Service // nil is the real one
}

func newResetCommand(opts *globalOptions) *cobra.Command {
	return (&resetOptions{
		globalOptions: opts, tokenFile: nodecert.DefaultTokenFile, fresh: func(file string) []byte {
			return configfile.Fresh("/", file)
		},
	}).command()
}

func (o *resetOptions) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reset",
		Short: "Undo a join: remove service, certificates, configuration and store",
		Long: `Undo a join. This stops and removes the service, and removes the certificates, the configuration and the store with its
copies, including reports that were not sent yet. Static manifests, logs, images and the contents of the pods' volumes stay.
The configuration says where they are. A file that --config names must exist.

The cloud is not contacted. It keeps the Node object until somebody removes it: kubectl delete node NAME.

Containers are not touched: they run until the device is switched off. An agent that is started later keeps the pods that
are in its store, and ends the others. With --keep-pods the store stays, so that an agent that joins the same cloud again
keeps the pods running. Without it, the next agent ends them. To end them now, run edgecore end-pods before the reset.`,
		Example: `  edgecore reset                 # asks first
  edgecore reset --force         # for scripts
  edgecore reset --keep-pods     # to join the same cloud again, and keep the pods running`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVarP(&o.force, "force", "f", false, "do not ask")
	cmd.Flags().BoolVar(&o.keepPods, "keep-pods", false, "keep the store, and with it the pods")
	return cmd
}

func (o *resetOptions) run(ctx context.Context, in io.Reader, out io.Writer) error {
	cfg, err := configfile.Running(o.Config)
	if err != nil {
		return fmt.Errorf("%w\nthe configuration says what to remove: %s; nothing was done", err, o.remedy(err))
	}
	if !o.force {
		what := "the service, the certificates, the configuration and the store"
		if o.keepPods {
			what = "the service, the certificates and the configuration"
		}
		fmt.Fprintf(out, "This removes %s of node %s.\nType yes to go on: ", what, cfg.Modules.Edged.HostnameOverride)
		line, err := bufio.NewReader(in).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if strings.TrimSpace(line) != "yes" {
			return errors.New("aborted: answer yes or use --force; nothing was done")
		}
	}
	s := o.service
	if s == nil {
		if s, err = systemd.NewService(); err != nil {
			return err
		}
	}
	did, err := s.Remove(ctx)
	if err != nil {
		return fmt.Errorf("service: %w; nothing else was touched", err)
	}
	fmt.Fprintln(out, did)
	return leftovers.Remove(cfg, leftovers.Removal{
		Config:    o.Config,
		Fresh:     o.fresh(o.Config),
		TokenFile: o.tokenFile,
		Root:      s.Root,
		KeepStore: o.keepPods,
		Report:    func(did string) { fmt.Fprintln(out, did) },
	})
}

// remedy returns what to do about a configuration that cannot be read. A file that was named and is missing does not
// stand for the default places: another agent may use them.
func (o *resetOptions) remedy(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "name the file of this node, or leave out --config to reset the default places"
	case configfile.Optional(o.Config):
		return "correct it, or remove it to use the default places"
	default:
		return "correct it"
	}
}
