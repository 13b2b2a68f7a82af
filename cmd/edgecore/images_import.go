package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/edgecore-io/edgecore/edged/containers/images"
)

func newImagesImportCommand(opts *globalOptions) *cobra.Command {
	keep := true
	cmd := &cobra.Command{
		Use:   "import FILE.tar",
		Short: "Import images from an archive",
		Long: `Import images from an archive made by "docker save", "podman save", "skopeo copy" or "ctr images export". The archive
may be compressed with gzip. No registry is needed. The images are added to the keep list, because they might not be
available to pull again; --keep=false leaves them off the list.

CRI cannot import images, so this runs ctr, which comes with containerd. With CRI-O, use: skopeo copy docker-archive:FILE
containers-storage:NAME.`,
		Example: "  docker save nginx:1.27 app:3 | ssh device 'cat > images.tar'\n  edgecore images import images.tar",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := openImages(opts)
			if err != nil {
				return err
			}
			defer t.Close()
			return t.Import(cmd.Context(), args[0], keep, func(name string, size uint64) {
				fmt.Fprintf(cmd.OutOrStdout(), "Imported %s (%s)\n", name, images.Bytes(float64(size)))
			})
		},
	}
	cmd.Flags().BoolVar(&keep, "keep", true,
		"add the images to the keep list, so that they are never removed as unused")
	return cmd
}
