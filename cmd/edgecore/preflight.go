package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/edgecore-io/edgecore/edged"
	"github.com/edgecore-io/edgecore/edged/preflight"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
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
			findings := preflight.Check(preflight.Collect(cmd.Context(), preflightOptions(cfg)))
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

// preflightOptions are what the configuration says of the device.
func preflightOptions(cfg *v1alpha2.EdgeCore) preflight.Options {
	own, hub := &cfg.Modules.Edged, &cfg.Modules.EdgeHub
	kubelet := &own.TailoredKubeletConfig
	o := preflight.Options{
		Endpoint:     kubelet.ContainerRuntimeEndpoint,
		CgroupDriver: kubelet.CgroupDriver,
		ClockBound:   clockBound(cfg),
		Disks: []preflight.Disk{
			{
				What: "pods",
				Path: own.RootDirectory,
			}, {What: "the store", Path: filepath.Dir(cfg.Database.DataSource)},
			{What: "logs", Path: kubelet.PodLogsDir},
		},
	}
	for _, p := range []struct {
		what, key, address string
		port               int32
	}{
		{"the read-only server", "readOnlyPort", kubelet.Address, kubelet.ReadOnlyPort},
		{"the kubelet API", "port", apiAddress(own), kubelet.Port},
	} {
		if address := edged.ListenAddress(p.address, p.port); address != "" {
			o.Ports = append(o.Ports, preflight.Port{What: p.what, Key: p.key, Address: address})
		}
	}
	if _, err := os.Stat(hub.TLSCertFile); hub.Enable && err == nil && hub.WebSocket.Enable {
		o.Cloud.Joined, o.Cloud.Server = true, hub.WebSocket.Server
	}
	return o
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
