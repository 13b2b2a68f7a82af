package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/edgecore-io/edgecore/edged/agentconfig"
	"github.com/edgecore-io/edgecore/edged/node/preflight"
	"github.com/edgecore-io/edgecore/edgehub/cloudprobe"
	"github.com/edgecore-io/edgecore/edgehub/join"
	"github.com/edgecore-io/edgecore/pkg/configfile"
)

// errPreflight makes the exit status 1 where pods would not run, and errJoin where a join would fail.
var (
	errPreflight = errors.New("pods do not run here yet; see the errors above")
	errJoin      = errors.New("this device cannot join that cloud yet; see the errors above")
)

// preflightOptions are the flags of preflight.
type preflightOptions struct {
	*globalOptions
	output           string
	server           string
	certPort         int
	token, tokenFile string
}

func newPreflightCommand(opts *globalOptions) *cobra.Command {
	o := &preflightOptions{globalOptions: opts}
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Check whether this device can run pods, or join a cloud, and list what is missing",
		Long: `Check what the agent depends on: the container runtime and its socket, cgroups and their driver, the pod network,
the clock, ports, disks, and the connection to the cloud. Nothing is changed. The agent may be running or not.

An error prevents pods from running (exit status 1). A warning affects some pods, or something that they may
need (exit status 0). Each finding includes a remedy.

With -e, check only the way to a cloud that this device is to join: its name, the proxy, both ports, TLS and the
clock. An error prevents the join (exit status 1). No token is sent. With a token, the CA of the cloud is compared
with it.`,
		Example: `  edgecore preflight
  edgecore preflight --output json
  edgecore preflight -e cloud.example:10000
  edgecore preflight -e cloud.example:30000 --certport 30002 --token-file token.txt`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.output != "" && o.output != "json" {
				return fmt.Errorf("--output=%s: want json, or nothing for text", o.output)
			}
			findings, bad, err := o.check(cmd)
			if err != nil {
				return err
			}
			if o.output == "json" {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(findings)
			} else {
				err = printFindings(cmd.OutOrStdout(), findings)
			}
			if err == nil && preflight.Worst(findings) == preflight.Error {
				err = bad
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.output, "output", "o", "", "the `format`: json, or text without it")
	f.StringVarP(&o.server, "cloudcore-ipport", "e", "",
		"check the way to the cloud at this `address`, HOST:PORT; the port is 10000 if it is missing")
	f.IntVarP(&o.certPort, "certport", "s", 10002, "with -e: the cloud's `port` for certificates")
	f.StringVarP(&o.token, "token", "t", "", "with -e: the `token` to join with")
	f.StringVar(&o.tokenFile, "token-file", "", "with -e: the `file` with the token; - is standard input")
	return cmd
}

// check returns the findings, and the error to return if the worst of them is one.
func (o *preflightOptions) check(cmd *cobra.Command) ([]preflight.Finding, error, error) {
	if !cmd.Flags().Changed("cloudcore-ipport") {
		for _, name := range []string{"certport", "token", "token-file"} {
			if cmd.Flags().Changed(name) {
				return nil, nil, fmt.Errorf("--%s is for the way to a cloud: add -e HOST:PORT", name)
			}
		}
		cfg, err := configfile.Load(o.Config)
		if err != nil {
			return nil, nil, err
		}
		return preflight.Check(preflight.Collect(cmd.Context(), agentconfig.PreflightOptions(cfg))), errPreflight, nil
	}
	host, port, err := join.ParseServer(o.server)
	if err != nil {
		return nil, nil, err
	}
	if o.certPort < 1 || o.certPort > 65535 {
		return nil, nil, fmt.Errorf("--certport %d: want 1 to 65535", o.certPort)
	}
	_, token, err := join.ReadToken(cmd.InOrStdin(), o.token, o.tokenFile)
	if err != nil {
		return nil, nil, err
	}
	return cloudprobe.Check(cloudprobe.Probe(cmd.Context(), cloudprobe.Options{
		Host: host, Port: port, CertPort: strconv.Itoa(o.certPort), Token: token,
	})), errJoin, nil
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
