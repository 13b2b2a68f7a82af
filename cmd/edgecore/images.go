package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/edgecore-io/edgecore/edged/containers/imagegc"
	"github.com/edgecore-io/edgecore/edged/containers/images"
	"github.com/edgecore-io/edgecore/local/agentclient"
	"github.com/edgecore-io/edgecore/local/imagetool"
	"github.com/edgecore-io/edgecore/pkg/configfile"
)

func newImagesCommand(opts *globalOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "images",
		Aliases: []string{"image"},
		Short:   "List, pull, import and remove images on this device",
		Long: `List, pull, import and remove container images on this device. These commands talk to the container runtime, so they
work without a cloud, and most of them also while the agent is stopped.

The agent removes unused images when their disk is fuller than imageGCHighThresholdPercent (100 disables this), least
recently used first. It never removes an image that a container or pod of this device uses, the sandbox image, an image
that is pinned in the runtime, or one on the keep list: rootDirectory/images.keep, one name or pattern per line.`,
	}
	cmd.AddCommand(newImagesListCommand(opts), newImagesPullCommand(opts), newImagesImportCommand(opts),
		newImagesPruneCommand(opts), newImagesKeepCommand(opts))
	return cmd
}

// openImages returns the tool that the commands work with; close it after use.
func openImages(opts *globalOptions) (*imagetool.Tool, error) {
	cfg, err := configfile.Running(opts.Config)
	if err != nil {
		return nil, err
	}
	return imagetool.Open(&cfg.Modules.Edged, agentclient.New(cfg))
}

func newImagesListCommand(opts *globalOptions) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List images and what uses them",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, err := openImages(opts)
			if err != nil {
				return err
			}
			defer t.Close()
			podImages, err := t.PodImages(cmd.Context())
			if err != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "The images that pods use are unknown: %v\n", err)
			}
			list, err := t.List(cmd.Context(), podImages)
			if err != nil {
				return err
			}
			usage, err := t.Usage(cmd.Context())
			if err != nil {
				return err
			}
			return printImages(cmd.OutOrStdout(), list, usage, output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "the form: json or name")
	return cmd
}

func printImages(out io.Writer, list []imagegc.Image, usage imagegc.Usage, form string) error {
	switch form {
	case "json":
		type image struct {
			ID       string   `json:"id"`
			Names    []string `json:"names"`
			Size     uint64   `json:"size"`
			Pinned   bool     `json:"pinned"`
			NeededBy string   `json:"neededBy,omitempty"`
		}
		rows := make([]image, len(list))
		for n, i := range list {
			rows[n] = image{i.ID, i.Names, i.Size, i.Pinned, i.Needed}
		}
		enc := json.NewEncoder(out)
		enc.SetIndent("", "    ")
		return enc.Encode(rows)
	case "name":
		for _, i := range list {
			fmt.Fprintln(out, i.Name())
		}
		return nil
	case "":
	default:
		return fmt.Errorf("-o %s: want json or name", form)
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "IMAGE\tIMAGE ID\tSIZE\tNEEDED BY")
	for _, i := range list {
		need := i.Needed
		if i.Pinned && need == "" {
			need = "pinned"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", i.Name(), shortID(i.ID), images.Bytes(float64(i.Size)), orNone(need))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\n%s is %d%% full: %s of %s are free.\n", usage.Mountpoint, usage.Percent(),
		images.Bytes(float64(usage.Available)), images.Bytes(float64(usage.Capacity)))
	return err
}

// shortID is as much of an id as tells images apart.
func shortID(id string) string {
	id = strings.TrimPrefix(id, "sha256:")
	return id[:min(len(id), 13)]
}
