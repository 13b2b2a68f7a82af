package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/edgecore-io/edgecore/edged/serve/server"
	"github.com/edgecore-io/edgecore/local/agentclient"
	"github.com/edgecore-io/edgecore/pkg/configfile"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// errUnhealthy makes the exit status 1 where something is wrong.
var errUnhealthy = errors.New("something needs attention; see above")

func newStatusCommand(opts *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show agent health and suggested fixes",
		Long: `Show the node, its container runtime, its pods, the paths in use, and every condition that needs attention, with a
remedy. The exit status is 1 while a condition keeps the agent from doing its work.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := configfile.Running(opts.Config)
			if err != nil {
				return err
			}
			agent := agentclient.New(cfg)
			info, err := agent.Status(cmd.Context())
			if err != nil {
				return err
			}
			pods, err := agent.Pods(cmd.Context())
			if err != nil {
				return err
			}
			return printStatus(cmd.OutOrStdout(), info, pods.Items, time.Now())
		},
	}
}

func printStatus(out io.Writer, info *server.Info, pods []v1.Pod, now time.Time) error {
	phases := map[v1.PodPhase]int{}
	for i := range pods {
		phases[pods[i].Status.Phase]++
	}
	runtime := info.Runtime
	if runtime == "" {
		runtime = "unknown"
	}
	fmt.Fprintf(out, "Node:      %s\nAgent:     edgecore %s, running for %s\nRuntime:   %s %s at %s\n", info.NodeName,
		info.Version, duration.HumanDuration(now.Sub(info.Started)), runtime, info.RuntimeVersion, info.Endpoint)
	fmt.Fprintf(out, "Cloud:     %s\n", linkText(info.Link, now))
	if text := info.Link.TunnelText(); text != "" {
		fmt.Fprintf(out, "Tunnel:    %s\n", text)
	}
	fmt.Fprintf(out, "Pods:      %d (%d running, %d pending, %d succeeded, %d failed)\n", len(pods),
		phases[v1.PodRunning], phases[v1.PodPending], phases[v1.PodSucceeded], phases[v1.PodFailed])
	fmt.Fprintf(out, "Manifests: %s\nStore:     %s\nPod logs:  %s\n\n", info.StaticPodPath, info.Store, info.PodLogsDir)
	if len(info.Conditions) == 0 {
		text := "All is well."
		if info.Link.Down() {
			text = "The node is not connected to the cloud, which may pass. Nothing else needs attention."
		}
		_, err := fmt.Fprintln(out, text)
		return err
	}
	bad := false
	for _, c := range info.Conditions {
		bad = bad || c.Severity == health.Error
		fmt.Fprintf(out, "%s: %s (%s, for %s)\n", c.Severity, c.Title, c.Code, duration.HumanDuration(now.Sub(c.Since)))
		if c.Object != "" {
			fmt.Fprintf(out, "  object: %s\n", c.Object)
		}
		if c.Detail != "" {
			fmt.Fprintf(out, "  detail: %s\n", c.Detail)
		}
		fmt.Fprintf(out, "  remedy: %s\n", c.Remedy)
	}
	if bad {
		return errUnhealthy
	}
	return nil
}

// linkText describes the state of the link to the cloud in a line.
func linkText(l *server.Link, now time.Time) string {
	since := ""
	if l != nil && !l.Since.IsZero() {
		since = " for " + duration.HumanDuration(now.Sub(l.Since))
	}
	switch {
	case l == nil:
		return "none; `edgecore join` joins one"
	case l.Connected:
		return fmt.Sprintf("connected%s, to %s by %s", since, l.Server, l.Protocol)
	case l.Reason == "":
		return "not connected yet"
	}
	return fmt.Sprintf("not connected%s: %s", since, l.Reason)
}
