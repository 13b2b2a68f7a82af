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
		Short: "Remove the images that nobody needs",
		Long: `Remove every image that no container and no pod of this device needs, that is not the sandbox's, not pinned in the
runtime and not on the keep list. The agent is asked which pods there are; while it does not answer nothing is removed, unless
with --force.`,
		Example: `  edgecore images prune --dry-run    # what would go?
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
				return fmt.Errorf("%w\nnothing was removed: an image of a pod that is to run here may be the only one for miles; --force removes all but those of containers", err)
			}
			return t.prune(cmd, wanted, dryRun)
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would go")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also when the agent does not say which pods there are")
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
		Short: "Show or change the list of images that stay",
		Long: `Show the keep list, or add names to it. A name may have * and ? in it for parts between slashes. What is on the list stays
on the device whether a pod uses it or not.`,
		Example: `  edgecore images keep                                  # what is on it?
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
					return fmt.Errorf("%q is no image's name", args[bad])
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
	cmd.Flags().BoolVar(&drop, "drop", false, "take the names from the list")
	return cmd
}
