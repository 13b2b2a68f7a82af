package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgecore-io/edgecore/edged/containers/imagegc"
	"github.com/edgecore-io/edgecore/edged/containers/images"
	"github.com/edgecore-io/edgecore/local/imagetool"
	"github.com/edgecore-io/edgecore/pkg/configfile"
)

func newImagesPruneCommand(opts *globalOptions) *cobra.Command {
	var dryRun, force bool
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove unused images",
		Long: `Remove every image that no container or pod of this device uses, except the sandbox image, images that are pinned in
the runtime, and images on the keep list. The list of pods comes from the agent; if it does not answer, nothing is removed
unless --force is given.`,
		Example: `  edgecore images prune --dry-run    # list what would be removed
  edgecore images prune`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, err := openImages(opts)
			if err != nil {
				return err
			}
			defer t.Close()
			podImages, err := t.PodImages(cmd.Context())
			if err != nil && !force {
				return fmt.Errorf("%w\nnothing was removed: an image that a pod needs might not be available to pull "+
					"again; --force removes all images that no container uses", err)
			}
			return prune(cmd.Context(), t, podImages, dryRun, cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "list what would be removed, and remove nothing")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "remove images even if the agent does not answer")
	return cmd
}

func prune(ctx context.Context, t *imagetool.Tool, podImages []string, dryRun bool, out io.Writer) error {
	did := "Removed"
	if dryRun {
		did = "Would remove"
	}
	pruned, err := t.Prune(ctx, podImages, dryRun, func(i imagegc.Image) {
		fmt.Fprintf(out, "%s %s (%s)\n", did, i.Name(), images.Bytes(float64(i.Size)))
	})
	switch {
	case err != nil:
		return err
	case pruned.Images == 0:
		_, err = fmt.Fprintln(out, "Every image is needed; \"edgecore images list\" says by whom.")
	case !dryRun:
		_, err = fmt.Fprintf(out, "%s is %d%% full now; %s became free.\n", pruned.Usage.Mountpoint,
			pruned.Usage.Percent(), images.Bytes(float64(pruned.Freed)))
	}
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
			cfg, err := configfile.Running(opts.Config)
			if err != nil {
				return err
			}
			file := imagegc.KeepFile(cfg.Modules.Edged.RootDirectory)
			switch {
			case drop:
				return imagegc.DropKeep(file, args...)
			case len(args) > 0:
				for _, name := range args {
					if name == "" || strings.ContainsAny(name, " \t\n#") {
						return fmt.Errorf("%q is not an image name", name)
					}
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
