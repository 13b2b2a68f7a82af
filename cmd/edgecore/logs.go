package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/crilog"
)

// logsOptions are the flags of logs.
type logsOptions struct {
	namespace, container string
	since                time.Duration
	crilog.Options
}

func newLogsCommand(opts *globalOptions) *cobra.Command {
	o := &logsOptions{}
	cmd := &cobra.Command{
		Use:   "logs POD [-c CONTAINER]",
		Short: "Print the logs of a container of this device",
		Long: `Print the output of a container from its log files on this device. This works without a cloud, and while the agent
or the container runtime is stopped.`,
		Example: `  edgecore logs web-edge1
  edgecore logs web-edge1 -c sidecar --tail 20
  edgecore logs web-edge1 -f
  edgecore logs web-edge1 --previous      # of the previous container: why did it crash?`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := newAgent(opts)
			if err != nil {
				return err
			}
			dir, err := findLogs(cmd.Context(), a, args[0], o)
			if err != nil {
				return err
			}
			if o.since > 0 {
				o.Since = time.Now().Add(-o.since)
			}
			err = crilog.Print(cmd.Context(), dir, cmd.OutOrStdout(), cmd.ErrOrStderr(), o.Options)
			if errors.Is(err, crilog.ErrNoLog) {
				return fmt.Errorf("pod %q has written no such log yet: %w", args[0], err)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.namespace, "namespace", "n", "", "the pod's namespace; needed only if several pods have the name")
	f.StringVarP(&o.container, "container", "c", "", "the container; needed only if the pod has several")
	f.BoolVarP(&o.Follow, "follow", "f", false, "keep printing what is written later")
	f.Int64Var(&o.Tail, "tail", -1, "begin with the last `N` lines; -1 is all")
	f.DurationVar(&o.since, "since", 0, "leave out what is older than this, such as 10m")
	f.BoolVarP(&o.Previous, "previous", "p", false, "print the attempt before the newest")
	f.BoolVar(&o.Timestamps, "timestamps", false, "print the time before each line")
	return cmd
}

// logPod is a pod that has logs.
type logPod struct {
	namespace, name, uid string
	containers           []string
}

// findLogs returns the folder of a container's logs.
func findLogs(ctx context.Context, a *agent, name string, o *logsOptions) (string, error) {
	root := a.cfg.Modules.Edged.TailoredKubeletConfig.PodLogsDir
	pods, err := podsOfAgent(ctx, a)
	if err != nil {
		klog.V(2).InfoS("The agent does not answer; looking at the log folder alone", "err", err)
		if pods, err = podsOfFolder(root); err != nil {
			return "", err
		}
	}
	pods = slices.DeleteFunc(pods, func(p logPod) bool { return o.namespace != "" && p.namespace != o.namespace })
	pod, err := choosePod(pods, name)
	if err != nil {
		return "", err
	}
	container, err := chooseContainer(pod, o.container)
	if err != nil {
		return "", err
	}
	return filepath.Join(root, pod.namespace+"_"+pod.name+"_"+pod.uid, container), nil
}

func podsOfAgent(ctx context.Context, a *agent) ([]logPod, error) {
	list, err := a.pods(ctx)
	if err != nil {
		return nil, err
	}
	var pods []logPod
	for i := range list.Items {
		p := &list.Items[i]
		lp := logPod{namespace: p.Namespace, name: p.Name, uid: string(p.UID)}
		for j := range p.Spec.Containers {
			lp.containers = append(lp.containers, p.Spec.Containers[j].Name)
		}
		for j := range p.Spec.InitContainers {
			lp.containers = append(lp.containers, p.Spec.InitContainers[j].Name)
		}
		pods = append(pods, lp)
	}
	return pods, nil
}

// podsOfFolder reads the pods from the names of their log folders.
func podsOfFolder(root string) ([]logPod, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, fmt.Errorf("the agent does not answer, and its log folder cannot be read: %w", err)
	}
	var pods []logPod
	for _, e := range entries {
		parts := strings.Split(e.Name(), "_")
		if len(parts) != 3 || !e.IsDir() {
			continue
		}
		p := logPod{namespace: parts[0], name: parts[1], uid: parts[2]}
		containers, err := os.ReadDir(filepath.Join(root, e.Name()))
		if err != nil {
			continue // it has just been removed
		}
		for _, c := range containers {
			if c.IsDir() {
				p.containers = append(p.containers, c.Name())
			}
		}
		pods = append(pods, p)
	}
	return pods, nil
}

func choosePod(pods []logPod, name string) (logPod, error) {
	var found []logPod
	var names []string
	for _, p := range pods {
		names = append(names, p.name)
		if p.name == name {
			found = append(found, p)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		slices.Sort(names)
		return logPod{}, fmt.Errorf("pod %q not found; there are: %s", name, strings.Join(slices.Compact(names), ", "))
	}
	var where []string
	for _, p := range found {
		where = append(where, p.namespace)
	}
	return logPod{}, fmt.Errorf("pod %q is in several namespaces (%s); choose one with -n", name, strings.Join(where, ", "))
}

// chooseContainer takes the named container, or the first of the spec, as kubectl does; where there are several
// it has to be named.
func chooseContainer(p logPod, name string) (string, error) {
	switch {
	case name == "" && len(p.containers) == 1:
		return p.containers[0], nil
	case name == "":
		return "", fmt.Errorf("pod %q has several containers (%s); choose one with -c", p.name, strings.Join(p.containers, ", "))
	case !slices.Contains(p.containers, name):
		return "", fmt.Errorf("container %q is not in pod %q; it has: %s", name, p.name, strings.Join(p.containers, ", "))
	}
	return name, nil
}
