package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgecore-io/edgecore/local/endpods"
	"github.com/edgecore-io/edgecore/local/leftovers"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/configfile"
)

// endPodsOptions are the flags of end-pods.
type endPodsOptions struct {
	*globalOptions
	within    time.Duration
	leftOvers string
	links     string
	// kill: if there is no runtime that could stop pods, kill their processes.
	kill bool
	// wait bounds the wait for a runtime that does not answer, and within bounds it, too. Zero: ask once.
	wait time.Duration
}

func newEndPodsCommand(opts *globalOptions) *cobra.Command {
	o := &endPodsOptions{
		globalOptions: opts,
		links:         leftovers.ContainerLinks,
		wait:          endpods.DefaultWait,
	}
	cmd := &cobra.Command{
		Use:   "end-pods",
		Short: "End all pods of a stopped agent",
		Long: `End the pods that the agent has started on this device, with their hooks and grace periods. Pods that still run after
--within are killed. Containers, sandboxes and their logs are removed, and volumes are unmounted. Pods that another program
has started in the same container runtime are left alone.

Stop the agent first, or it starts the pods again. The store and the contents of volumes stay: an agent that is started
later runs the same pods again, with their volumes as they are. Removing the Debian package does the same; purging it also
deletes the rest.

Containers keep running when their runtime is stopped or removed, and only the runtime can end them gracefully. If the
runtime does not answer, the command retries for up to 30 seconds, and no longer than --within, since the runtime may be
restarting. If nothing listens on its socket after that, --kill finds the pods' processes by their cgroups and kills them:
no hooks are run, and there is no grace period.`,
		Example: `  systemctl stop edgecore && edgecore end-pods
  edgecore end-pods --kill       # the container runtime was removed, but its containers still run`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().DurationVar(&o.within, "within", time.Minute, "how `long` pods may take to end gracefully")
	cmd.Flags().BoolVar(&o.kill, "kill", false, "kill the pods if the container runtime is gone")
	cmd.Flags().StringVar(&o.leftOvers, "left-overs", "",
		"write to this `file` what is left of pods and agent, one path per line")
	hide(cmd, "left-overs")
	return cmd
}

func (o *endPodsOptions) run(ctx context.Context, out, errOut io.Writer) error {
	cfg, err := configfile.Running(o.Config)
	if err != nil {
		return err
	}
	if db := cfg.Database.DataSource; store.InUse(db) {
		return fmt.Errorf("an agent runs with store %s, and would start the pods again: stop it first (systemctl "+
			"stop edgecore)", db)
	}
	end := endpods.FromConfig(cfg)
	end.Links, end.Within, end.Wait, end.Kill = o.links, o.within, o.wait, o.kill
	end.Out, end.Progress = out, errOut
	err = endpods.End(ctx, end)
	if err != nil || o.leftOvers == "" {
		return err // what may be mounted still, or in use, is not to be deleted by anybody
	}
	return certs.WriteFile(o.leftOvers, []byte(strings.Join(leftovers.Of(cfg), "\n")+"\n"))
}
