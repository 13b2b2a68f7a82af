package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/imagegc"
	"github.com/edgecore-io/edgecore/edged/images"
)

// pullReport is how often a pull says how far it is.
const pullReport = 5 * time.Second

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
			t, err := newImageTool(opts)
			if err != nil {
				return err
			}
			defer t.close()
			secrets, err := authOf(authFile)
			if err != nil {
				return err
			}
			return t.pull(cmd, args[0], secrets, keep)
		},
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "add the image to the keep list, so that it is never removed as unused")
	cmd.Flags().StringVar(&authFile, "auth-file", "", "a docker `config.json` with the registry's credentials (default: the node's own)")
	return cmd
}

// authOf reads a docker configuration as a pull secret.
func authOf(file string) ([]v1.Secret, error) {
	if file == "" {
		return nil, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return nil, err
	}
	secret := v1.Secret{Type: v1.SecretTypeDockerConfigJson, Data: map[string][]byte{v1.DockerConfigJsonKey: data}}
	secret.Namespace, secret.Name = "file", file
	return []v1.Secret{secret}, nil
}

// pullOptions are those of a pull by hand: with the credentials of the node, as the agent pulls.
func (t *imageTool) pullOptions() images.Options {
	return images.Options{
		Meter:          t.state,
		ReportEvery:    pullReport,
		CredentialsDir: t.cfg.Modules.Edged.RootDirectory,
	}
}

func (t *imageTool) pull(cmd *cobra.Command, image string, secrets []v1.Secret, keep bool) error {
	ctx := cmd.Context()
	puller := images.New(t.client.Images, t.pullOptions())
	name, done, err := puller.Pull(ctx, image, secrets, func(p images.Progress) {
		fmt.Fprintf(cmd.ErrOrStderr(), "Pulling %s: %v\n", image, p)
	})
	if err != nil {
		return fmt.Errorf("pull %s: %w", image, t.explain(err))
	}
	if keep {
		if err := imagegc.AddKeep(t.keepFile, name); err != nil {
			return fmt.Errorf("the image is here, and could not be put on the keep list: %w", err)
		}
	}
	rate := ""
	if done.Received > 0 {
		rate = "; " + done.String()
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "Pulled %s (%s) in %v%s\n", name, images.Bytes(float64(t.size(ctx, name))), done.Took.Round(time.Millisecond), rate)
	return err
}
