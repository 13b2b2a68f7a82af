package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/devicetwin"
	"github.com/edgecore-io/edgecore/local/agentclient"
	"github.com/edgecore-io/edgecore/pkg/configfile"
)

func newGetDevicesCommand(opts *globalOptions) *cobra.Command {
	var output, namespace string
	cmd := &cobra.Command{
		Use:     "devices [NAME]",
		Aliases: []string{"device"},
		Short:   "List the devices attached to this node, with their last values",
		Long: `List the devices that are bound to this node, such as sensors, with the last value that the mapper of each reported,
its age, and the desired value. It works without a cloud.

A device without a state has no mapper that serves it yet. Why a device is offline or unhealthy is in the message that
-o wide shows, if its mapper says so.`,
		Example: `  edgecore get devices
  edgecore get devices -o wide
  edgecore get devices thermometer -o yaml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := configfile.Running(opts.Config)
			if err != nil {
				return err
			}
			if !cfg.Modules.DeviceTwin.Enable {
				return fmt.Errorf("devices are switched off: set modules.deviceTwin.enable to true in the " +
					"configuration, " +
					"and restart edgecore")
			}
			list, err := agentclient.New(cfg).Devices(cmd.Context())
			if err != nil {
				return err
			}
			list = slices.DeleteFunc(list, func(d devicetwin.Device) bool {
				return namespace != "" && d.Namespace != namespace || len(args) > 0 && d.Name != args[0]
			})
			if len(args) > 0 && len(list) == 0 {
				return fmt.Errorf("device %q not found; `edgecore get devices` shows those there are", args[0])
			}
			return printDevices(cmd.OutOrStdout(), list, output, time.Now())
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "the form: wide, json, yaml or name")
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "show one namespace; all without it")
	return cmd
}

func printDevices(out io.Writer, list []devicetwin.Device, form string, now time.Time) error {
	switch form {
	case "json":
		enc := json.NewEncoder(out)
		enc.SetIndent("", "    ")
		return enc.Encode(devicetwin.DeviceList{Items: list})
	case "yaml":
		data, err := yaml.Marshal(devicetwin.DeviceList{Items: list})
		if err == nil {
			_, err = out.Write(data)
		}
		return err
	case "name":
		for i := range list {
			fmt.Fprintf(out, "device/%s\n", list[i].Name)
		}
		return nil
	case "", "wide":
	default:
		return fmt.Errorf("-o %s: want wide, json, yaml or name", form)
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(out, "No devices are bound to this node.")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	head := "NAMESPACE\tDEVICE\tSTATE\tPROPERTY\tVALUE\tAGE\tDESIRED"
	if form == "wide" {
		head += "\tPROTOCOL\tMODEL\tLAST ONLINE\tMESSAGE"
	}
	fmt.Fprintln(w, head)
	for i := range list {
		printDevice(w, &list[i], form == "wide", now)
	}
	return w.Flush()
}

// printDevice prints a line for each property of a device, or one for a device without values.
func printDevice(w io.Writer, d *devicetwin.Device, wide bool, now time.Time) {
	names := slices.Sorted(maps.Keys(d.Twin.Properties))
	if len(names) == 0 {
		names = []string{""}
	}
	for _, name := range names {
		p := d.Twin.Properties[name]
		value, age, desired := "<none>", "<none>", "<none>"
		if v := p.Reported; v != nil {
			value, age = fmt.Sprintf("%q", v.Value), ageOf(v.At, now)
		}
		if p.Desired != nil {
			desired = fmt.Sprintf("%q", p.Desired.Value)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s", d.Namespace, d.Name, orNone(d.Twin.State), orNone(name),
			plainText(value),
			age, plainText(desired))
		if wide {
			message := "<none>"
			if d.Twin.StateMessage != "" {
				message = plainText(fmt.Sprintf("%q", d.Twin.StateMessage))
			}
			fmt.Fprintf(w, "\t%s\t%s\t%s\t%s", orNone(d.Protocol), orNone(d.Model), ageOf(d.Twin.LastOnline, now),
				message)
		}
		fmt.Fprintln(w)
	}
}

// plainText removes the quotes of a value that needs none: devices choose their values, and a terminal must not obey
// them.
func plainText(quoted string) string {
	if len(quoted) > 2 && quoted[0] == '"' && !slices.Contains([]byte(quoted), '\\') {
		return quoted[1 : len(quoted)-1]
	}
	return quoted
}

// ageOf returns how long ago a time in milliseconds since 1970 is.
func ageOf(at int64, now time.Time) string {
	if at == 0 {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(time.UnixMilli(at)))
}
