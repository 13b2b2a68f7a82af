package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgecore-io/edgecore/deploy/systemd"
	"github.com/edgecore-io/edgecore/local/migrate"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/configfile"
)

// adoptedStore is where the store is after a takeover, as with the package.
const adoptedStore = "/var/lib/edgecore/edgecore.db"

// adoptOptions are the flags of adopt.
type adoptOptions struct {
	*globalOptions
	from, store  string
	root         string // below which units are
	dryRun, undo bool
	force        bool
	wait         time.Duration
	service      *systemd.Service // nil is the real one
}

func newAdoptCommand(opts *globalOptions) *cobra.Command {
	return (&adoptOptions{globalOptions: opts}).command()
}

func (o *adoptOptions) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "adopt",
		Short: "Migrate this device from KubeEdge's edgecore, or back",
		Long: `Migrate this device from KubeEdge's edgecore (1.12 to 1.23, with a runtime that speaks CRI v1). The node keeps its name,
pods, certificates and keys, and no container is restarted.

adopt first prints what it will do and what will change, and stops if containers would be restarted. Then it writes
edgecore's configuration and certificates, stops KubeEdge's service, converts KubeEdge's store, moves KubeEdge's systemd
unit aside, and starts edgecore as a service. KubeEdge's own files (configuration, certificates, store) are only read. If a
step fails, the steps before it are undone. If the command is interrupted, run it again to finish.

--undo migrates back to KubeEdge in the same way: KubeEdge's files are unchanged, and pods keep running. KubeEdge receives
what changed in the cloud meanwhile when it connects. Containers that edgecore has started have the container hash of
Kubernetes 1.31 and newer; KubeEdge before 1.21 restarts them.

Both programs are called edgecore, and a shell may find KubeEdge's first: run /usr/bin/edgecore for the package's. The
migration renames KubeEdge's program to edgecore.kubeedge.`,
		Example: `  /usr/bin/edgecore adopt --dry-run   # print the plan
  /usr/bin/edgecore adopt             # do it
  edgecore adopt --undo               # go back to KubeEdge`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("config") {
				o.Config = configfile.Packaged
			}
			return o.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.from, "from", v1alpha2.DefaultConfigFile, "KubeEdge's configuration `file`")
	f.StringVar(&o.store, "store", adoptedStore, "the `file` of edgecore's store")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the plan, and change nothing")
	f.BoolVar(&o.undo, "undo", false, "go back to KubeEdge")
	f.BoolVar(&o.force, "force", false, "continue even if containers would be restarted or pods ended")
	f.DurationVar(&o.wait, "wait", 2*time.Minute,
		"how `long` to wait for edgecore to list the pods before undoing the migration")
	f.StringVar(&o.root, "root", "/", "the `folder` below which systemd's units are")
	hide(cmd, "root")
	return cmd
}

func (o *adoptOptions) run(ctx context.Context, out io.Writer) error {
	if o.undo && o.dryRun {
		return errors.New("--undo and --dry-run: want one of the two")
	}
	for _, path := range []*string{&o.Config, &o.from, &o.store, &o.root} {
		var err error
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	t, err := o.migration(out)
	if err != nil {
		return err
	}
	if o.dryRun {
		p, err := t.Look(ctx)
		if err != nil {
			return err
		}
		t.Print(out, p)
		return p.Refused(o.force)
	}
	unlock, err := migrate.Lock(o.root)
	if err != nil {
		return err
	}
	defer unlock()
	if o.undo {
		if err := t.Undo(ctx); err != nil {
			return fmt.Errorf("%w\n`edgecore adopt --undo` goes on from here", err)
		}
		return nil
	}
	if err := t.Adopt(ctx); !errors.Is(err, migrate.ErrDone) {
		return err
	}
	_, err = fmt.Fprintln(out, migrate.ErrDone)
	return err
}

func (o *adoptOptions) migration(out io.Writer) (*migrate.Migration, error) {
	s := o.service
	if s == nil {
		var err error
		if s, err = systemd.NewService(); err != nil {
			return nil, err
		}
		s.Root = o.root
	}
	return migrate.New(migrate.Options{
		From: o.from, Config: o.Config, Store: o.store, Force: o.force, Wait: o.wait, Out: out,
		Service: migrate.Service{
			Root:      s.Root,
			Present:   s.Present(),
			Program:   s.Program,
			Packaged:  s.Packaged,
			Systemctl: s.Systemctl,
		},
	}), nil
}
