package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/edged/serve/podprinter"
	"github.com/edgecore-io/edgecore/local/agentclient"
	"github.com/edgecore-io/edgecore/pkg/configfile"
)

func newGetCommand(opts *globalOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get",
		Short: "List the pods, events and attached devices of this device",
		Long: "List what the agent on this device knows. It is read from the agent's read-only port, not from the " +
			"cloud.",
	}
	cmd.AddCommand(newGetPodsCommand(opts), newGetEventsCommand(opts), newGetDevicesCommand(opts))
	return cmd
}

func newGetPodsCommand(opts *globalOptions) *cobra.Command {
	var output, namespace string
	cmd := &cobra.Command{
		Use:     "pods [NAME]",
		Aliases: []string{"pod", "po"},
		Short:   "List the pods of this device",
		Example: `  edgecore get pods
  edgecore get pods -o wide
  edgecore get pods web-edge1 -o yaml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := configfile.Running(opts.Config)
			if err != nil {
				return err
			}
			list, err := agentclient.New(cfg).Pods(cmd.Context())
			if err != nil {
				return err
			}
			list.Items = slices.DeleteFunc(list.Items, func(p v1.Pod) bool {
				return (namespace != "" && p.Namespace != namespace) || (len(args) > 0 && p.Name != args[0])
			})
			if len(args) > 0 && len(list.Items) == 0 {
				return fmt.Errorf("pod %q not found; `edgecore get pods` shows those there are", args[0])
			}
			return printPods(cmd.OutOrStdout(), list, output, time.Now())
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "the form: wide, json, yaml or name")
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "show one namespace; all without it")
	return cmd
}

func printPods(out io.Writer, list *v1.PodList, form string, now time.Time) error {
	switch form {
	case "json":
		enc := json.NewEncoder(out)
		enc.SetIndent("", "    ")
		return enc.Encode(list)
	case "yaml":
		data, err := yaml.Marshal(list)
		if err == nil {
			_, err = out.Write(data)
		}
		return err
	case "name":
		for i := range list.Items {
			fmt.Fprintf(out, "pod/%s\n", list.Items[i].Name)
		}
		return nil
	case "", "wide":
	default:
		return fmt.Errorf("-o %s: want wide, json, yaml or name", form)
	}
	if len(list.Items) == 0 {
		_, err := fmt.Fprintln(out, "No pods on this device.")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	head := "NAMESPACE\tNAME\tREADY\tSTATUS\tRESTARTS\tAGE"
	if form == "wide" {
		head += "\tIP\tNODE"
	}
	fmt.Fprintln(w, head)
	for i := range list.Items {
		p := &list.Items[i]
		line := podprinter.Summarize(p, now)
		fmt.Fprintf(w, "%s\t%s\t%d/%d\t%s\t%s\t%s", p.Namespace, p.Name, line.Ready, line.Total, line.Status,
			line.Restarts, line.Age)
		if form == "wide" {
			fmt.Fprintf(w, "\t%s\t%s", orNone(p.Status.PodIP), orNone(p.Spec.NodeName))
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

func orNone(s string) string {
	if s == "" {
		return "<none>"
	}
	return s
}

func newGetEventsCommand(opts *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use:     "events",
		Aliases: []string{"event", "ev"},
		Short:   "List recent events of this device and its pods",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := configfile.Running(opts.Config)
			if err != nil {
				return err
			}
			events, err := agentclient.New(cfg).Events(cmd.Context())
			if err != nil {
				return err
			}
			return printEvents(cmd.OutOrStdout(), events, time.Now())
		},
	}
}

func printEvents(out io.Writer, events []v1.Event, now time.Time) error {
	if len(events) == 0 {
		_, err := fmt.Fprintln(out, "No events since the agent started.")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "LAST SEEN\tTYPE\tREASON\tCOUNT\tOBJECT\tMESSAGE")
	for i := range events {
		e := &events[i]
		object := e.InvolvedObject.Namespace + "/" + e.InvolvedObject.Name
		if e.InvolvedObject.Namespace == "" { // the node's own
			object = e.InvolvedObject.Name
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\n", duration.HumanDuration(now.Sub(e.LastTimestamp.Time)), e.Type,
			e.Reason, e.Count, object, e.Message)
	}
	return w.Flush()
}
