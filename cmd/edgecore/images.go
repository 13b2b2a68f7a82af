package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/cri"
	"github.com/edgecore-io/edgecore/edged/imagegc"
	"github.com/edgecore-io/edgecore/edged/images"
	"github.com/edgecore-io/edgecore/edged/server"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// runtimeTimeout bounds a question to the runtime, which is on this device.
const runtimeTimeout = 2 * time.Minute

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
	cmd.AddCommand(newImagesListCommand(opts), newImagesPullCommand(opts), newImagesImportCommand(opts), newImagesPruneCommand(opts), newImagesKeepCommand(opts))
	return cmd
}

// imageTool is what the commands work with.
type imageTool struct {
	*agent
	client   *cri.Client
	state    *imagegc.CRI
	endpoint string
	keepFile string
}

func newImageTool(opts *globalOptions) (*imageTool, error) {
	a, err := newAgent(opts)
	if err != nil {
		return nil, err
	}
	own := &a.cfg.Modules.Edged
	k := &own.TailoredKubeletConfig
	client, err := cri.Dial(k.ContainerRuntimeEndpoint, k.ImageServiceEndpoint, runtimeTimeout)
	if err != nil {
		return nil, err
	}
	return &imageTool{agent: a, client: client, state: &imagegc.CRI{Client: client}, endpoint: k.ContainerRuntimeEndpoint, keepFile: imagegc.KeepFile(own.RootDirectory)}, nil
}

func (t *imageTool) close() {
	if err := t.client.Close(); err != nil {
		klog.V(2).InfoS("Connection to the runtime not closed", "err", err)
	}
}

// explain says what to do about a runtime that does not answer.
func (t *imageTool) explain(err error) error {
	if cri.IsDown(err) {
		return fmt.Errorf("the container runtime does not answer at %s (is it running? try: systemctl status containerd): %w", t.endpoint, err)
	}
	return err
}

// list returns the images with who needs them. Without pods it is not known which those need.
func (t *imageTool) list(ctx context.Context, wanted []string) ([]imagegc.Image, error) {
	list, err := t.state.Images(ctx)
	if err != nil {
		return nil, t.explain(err)
	}
	used, err := t.state.InUse(ctx)
	if err != nil {
		return nil, t.explain(err)
	}
	sandbox, err := t.state.Sandbox(ctx)
	if err != nil {
		return nil, t.explain(err)
	}
	keep, err := imagegc.ReadKeep(t.keepFile)
	if err != nil {
		return nil, fmt.Errorf("keep list: %w", err)
	}
	imagegc.Needs{Used: used, Wanted: wanted, Sandbox: sandbox, Keep: keep}.Mark(list)
	slices.SortFunc(list, func(a, b imagegc.Image) int { return strings.Compare(a.Name(), b.Name()) })
	return list, nil
}

// wanted asks the agent which images its pods need. An agent whose store was damaged may not know all pods.
func (t *imageTool) wanted(ctx context.Context) ([]string, error) {
	var info server.Info
	if err := t.get(ctx, "/status", &info); err != nil {
		return nil, err
	}
	for _, c := range info.Conditions {
		if c.Code == health.StoreRecovered {
			return nil, fmt.Errorf("the store of the agent was damaged (%s), and it may not know all pods until the cloud has sent them again", c.Detail)
		}
	}
	pods, err := t.pods(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range pods.Items {
		if p := &pods.Items[i]; imagegc.Wants(p, p.Status.Phase) {
			names = append(names, imagegc.PodImages(p)...)
		}
	}
	return names, nil
}

func newImagesListCommand(opts *globalOptions) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List images and what uses them",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, err := newImageTool(opts)
			if err != nil {
				return err
			}
			defer t.close()
			wanted, err := t.wanted(cmd.Context())
			if err != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "The images that pods use are unknown: %v\n", err)
			}
			list, err := t.list(cmd.Context(), wanted)
			if err != nil {
				return err
			}
			usage, err := t.state.Usage(cmd.Context())
			if err != nil {
				return t.explain(err)
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
	_, err := fmt.Fprintf(out, "\n%s is %d%% full: %s of %s are free.\n", usage.Mountpoint, usage.Percent(), images.Bytes(float64(usage.Available)), images.Bytes(float64(usage.Capacity)))
	return err
}

// shortID is as much of an id as tells images apart.
func shortID(id string) string {
	id = strings.TrimPrefix(id, "sha256:")
	return id[:min(len(id), 13)]
}

// size returns the size of an image that the runtime has, 0 for one that it has not.
func (t *imageTool) size(ctx context.Context, name string) uint64 {
	resp, err := t.client.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
	if err != nil {
		return 0
	}
	return resp.GetImage().GetSize()
}
