package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/edgecore-io/edgecore/edged/cri"
	"github.com/edgecore-io/edgecore/edged/imagegc"
	"github.com/edgecore-io/edgecore/edged/images"
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
			t, err := newImageTool(opts)
			if err != nil {
				return err
			}
			defer t.close()
			return t.importFile(cmd, args[0], keep)
		},
	}
	cmd.Flags().BoolVar(&keep, "keep", true, "add the images to the keep list, so that they are never removed as unused")
	return cmd
}

func (t *imageTool) importFile(cmd *cobra.Command, file string, keep bool) error {
	ctx := cmd.Context()
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	names, err := images.ArchiveNames(f)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if len(names) == 0 {
		return fmt.Errorf("%s: none of its images has a name; save them by name and tag, as: docker save NAME:TAG", file)
	}
	loader, err := t.loader()
	if err != nil {
		return err
	}
	if err := loader.Load(ctx, file); err != nil {
		return fmt.Errorf("import %s: %w", file, t.explain(err))
	}
	for _, name := range names {
		if err := loader.Await(ctx, name); err != nil {
			return err
		}
		if keep {
			if err := imagegc.AddKeep(t.keepFile, name); err != nil {
				return fmt.Errorf("the image is here, and could not be put on the keep list: %w", err)
			}
		}
		fmt.Fprintf(cmd.OutOrStdout(), "Imported %s (%s)\n", name, images.Bytes(float64(t.size(ctx, name))))
	}
	return nil
}

// loader gives archives to the runtime.
func (t *imageTool) loader() (images.Loader, error) {
	socket, err := cri.SocketPath(t.endpoint)
	return images.Loader{Runtime: t.client, Images: t.client.Images, Socket: socket}, err
}
