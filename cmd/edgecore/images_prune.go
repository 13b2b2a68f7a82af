package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgecore-io/edgecore/edged/imagegc"
	"github.com/edgecore-io/edgecore/edged/images"
)

func newImagesPruneCommand(opts *globalOptions) *cobra.Command {
	var dryRun, force bool
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove unused images",
		Long: `Remove every image that no container or pod of this device uses, except the sandbox image, images that are pinned in
the runtime, and images on the keep list. The agent says which pods there are; if it does not answer, nothing is removed
unless --force is given.`,
		Example: `  edgecore images prune --dry-run    # list what would be removed
  edgecore images prune`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, err := newImageTool(opts)
			if err != nil {
				return err
			}
			defer t.close()
			wanted, err := t.wanted(cmd.Context())
			if err != nil && !force {
				return fmt.Errorf("%w\nnothing was removed: an image that a pod needs might not be available to pull again; --force removes all images that no container uses", err)
			}
			return t.prune(cmd, wanted, dryRun)
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "list what would be removed, and remove nothing")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "remove images even if the agent does not answer")
	return cmd
}

func (t *imageTool) prune(cmd *cobra.Command, wanted []string, dryRun bool) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	list, err := t.list(ctx, wanted)
	if err != nil {
		return err
	}
	before, err := t.state.Usage(ctx)
	if err != nil {
		return t.explain(err)
	}
	going := imagegc.Removable(list, 0, time.Now())
	for _, i := range going {
		if dryRun {
			fmt.Fprintf(out, "Would remove %s (%s)\n", i.Name(), images.Bytes(float64(i.Size)))
			continue
		}
		if err := t.state.Remove(ctx, i.ID); err != nil {
			return fmt.Errorf("remove %s: %w", i.Name(), t.explain(err))
		}
		fmt.Fprintf(out, "Removed %s (%s)\n", i.Name(), images.Bytes(float64(i.Size)))
	}
	if len(going) == 0 {
		_, err := fmt.Fprintln(out, "Every image is needed; \"edgecore images list\" says by whom.")
		return err
	}
	if dryRun {
		return nil
	}
	after, err := t.state.Usage(ctx)
	if err != nil {
		return t.explain(err)
	}
	freed := uint64(0)
	if after.Available > before.Available {
		freed = after.Available - before.Available
	}
	_, err = fmt.Fprintf(out, "%s is %d%% full now; %s became free.\n", after.Mountpoint, after.Percent(), images.Bytes(float64(freed)))
	return err
}

func newImagesKeepCommand(opts *globalOptions) *cobra.Command {
	var drop bool
	cmd := &cobra.Command{
		Use:   "keep [NAME...]",
		Short: "Show or change the keep list",
		Long: `Show the keep list, or add names to it. In a name, * and ? match within a part between slashes. Images on the list are
never removed as unused.`,
		Example: `  edgecore images keep                                  # show the list
  edgecore images keep 'docker.io/library/nginx:*'
  edgecore images keep --drop 'docker.io/library/nginx:*'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := newAgent(opts)
			if err != nil {
				return err
			}
			file := imagegc.KeepFile(a.cfg.Modules.Edged.RootDirectory)
			switch {
			case drop:
				return imagegc.DropKeep(file, args...)
			case len(args) > 0:
				if bad := slices.IndexFunc(args, func(name string) bool { return name == "" || strings.ContainsAny(name, " \t\n#") }); bad >= 0 {
					return fmt.Errorf("%q is not an image name", args[bad])
				}
				return imagegc.AddKeep(file, args...)
			}
			list, err := imagegc.ReadKeep(file)
			if err != nil {
				return err
			}
			for _, name := range list {
				fmt.Fprintln(cmd.OutOrStdout(), name)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&drop, "drop", false, "remove the names from the list")
	return cmd
}
