package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/edgecore-io/edgecore/edged/agentconfig"
	"github.com/edgecore-io/edgecore/edged/preflight"
	"github.com/edgecore-io/edgecore/pkg/configfile"
)

// errPreflight makes the exit status 1 where pods would not run.
var errPreflight = errors.New("pods do not run here yet; see the errors above")

func newPreflightCommand(opts *globalOptions) *cobra.Command {
	output := ""
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Check whether this device can run pods, and list what is missing",
		Long: `Check what the agent depends on: the container runtime and its socket, cgroups and their driver, the pod network,
the clock, ports, disks, and the connection to the cloud. Nothing is changed. The agent may be running or not.

An error prevents pods from running (exit status 1). A warning affects some pods, or something that they may
need (exit status 0). Each finding includes a remedy.`,
		Example: `  edgecore preflight
  edgecore preflight --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" {
				return fmt.Errorf("--output=%s: want json, or nothing for text", output)
			}
			cfg, err := configfile.Load(opts.Config)
			if err != nil {
				return err
			}
			findings := preflight.Check(preflight.Collect(cmd.Context(), agentconfig.PreflightOptions(cfg)))
			if output == "json" {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(findings)
			} else {
				err = printFindings(cmd.OutOrStdout(), findings)
			}
			if err == nil && preflight.Worst(findings) == preflight.Error {
				err = errPreflight
			}
			return err
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "the `format`: json, or text without it")
	return cmd
}

func printFindings(out io.Writer, findings []preflight.Finding) error {
	for _, f := range findings {
		if _, err := fmt.Fprintf(out, "%-9s %s: %s\n", "["+string(f.Level)+"]", f.Check, f.Text); err != nil {
			return err
		}
		if f.Remedy != "" {
			if _, err := fmt.Fprintf(out, "%-9s remedy: %s\n", "", f.Remedy); err != nil {
				return err
			}
		}
	}
	return nil
}
