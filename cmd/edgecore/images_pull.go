package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgecore-io/edgecore/edged/containers/images"
	"github.com/edgecore-io/edgecore/local/imagetool"
)

func newImagesPullCommand(opts *globalOptions) *cobra.Command {
	var keep bool
	var authFile string
	cmd := &cobra.Command{
		Use:   "pull IMAGE",
		Short: "Pull an image before a pod needs it",
		Long: `Pull an image from its registry. There is no overall timeout; the pull stops after ` +
			images.DefaultProgressTimeout.String() + ` without progress.`,
		Example: `  edgecore images pull docker.io/library/nginx:1.27
  edgecore images pull --keep --auth-file ~/.docker/config.json registry.example.com/app:3`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := openImages(opts)
			if err != nil {
				return err
			}
			defer t.Close()
			return pull(cmd, t, args[0], authFile, keep)
		},
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "add the image to the keep list, so that it is never removed as unused")
	cmd.Flags().StringVar(&authFile, "auth-file", "",
		"a docker `config.json` with the registry's credentials (default: the node's own)")
	return cmd
}

func pull(cmd *cobra.Command, t *imagetool.Tool, image, authFile string, keep bool) error {
	done, err := t.Pull(cmd.Context(), image, authFile, keep, func(p images.Progress) {
		fmt.Fprintf(cmd.ErrOrStderr(), "Pulling %s: %v\n", image, p)
	})
	if err != nil {
		return err
	}
	rate := ""
	if done.Progress.Received > 0 {
		rate = "; " + done.Progress.String()
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "Pulled %s (%s) in %v%s\n", done.Name, images.Bytes(float64(done.Size)),
		done.Progress.Took.Round(time.Millisecond), rate)
	return err
}
