package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/cgroups"
	"github.com/edgecore-io/edgecore/edged/cri"
	"github.com/edgecore-io/edgecore/edged/gc"
	"github.com/edgecore-io/edgecore/edged/observed"
	"github.com/edgecore-io/edgecore/edged/runtime"
	"github.com/edgecore-io/edgecore/edged/volume"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

const (
	// endAtOnce is how many pods are ended side by side.
	endAtOnce = 8
	// killWithin bounds the second, rough attempt at pods that did not end in time, and unmounting.
	killWithin = 30 * time.Second
	// runtimeWait bounds the wait for a runtime that does not answer: one that restarts is back in seconds.
	runtimeWait = 30 * time.Second
	// runtimeInterval is the pause between two requests to such a runtime.
	runtimeInterval = time.Second
	// containerLinks are the links to containers' logs that log collectors follow.
	containerLinks = "/var/log/containers"
)

// endPodsOptions are the flags of end-pods.
type endPodsOptions struct {
	*globalOptions
	within    time.Duration
	leftOvers string
	links     string
	// kill has pods killed where there is no runtime that could end them.
	kill bool
	// wait bounds the wait for a runtime that does not answer, and within bounds it, too. Zero: ask once.
	wait time.Duration
	// interval is the pause between two requests to such a runtime.
	interval time.Duration
	// groups are the cgroups of pods.
	groups func(*v1alpha2.Edged) podGroups
}

// podGroups are the cgroups of pods, by which their processes are found; see package cgroups.
type podGroups interface {
	Pods() ([]types.UID, error)
	RemovePod(uid types.UID) error
	RemoveAll() error
}

func podGroupsOf(own *v1alpha2.Edged) podGroups {
	k := &own.TailoredKubeletConfig
	return cgroups.New(cgroups.Options{Driver: k.CgroupDriver, Root: k.CgroupRoot, PerQOS: ptr.Deref(k.CgroupsPerQOS, true)})
}

func newEndPodsCommand(opts *globalOptions) *cobra.Command {
	o := &endPodsOptions{
		globalOptions: opts,
		links:         containerLinks,
		wait:          runtimeWait,
		interval:      runtimeInterval,
		groups:        podGroupsOf,
	}
	cmd := &cobra.Command{
		Use:   "end-pods",
		Short: "End the pods of this device, when the agent is stopped for good",
		Long: `End the pods of this device: those that the agent has started, in good order, with their hooks and grace periods,
until --within is over; what runs then is killed. Containers, sandboxes and their logs are removed, volumes are
unmounted. Pods that others have started in the same container runtime are left alone.

The agent must be stopped before, or it starts them again. What pods have stored and what the store knows of them stays:
an agent that is started later runs the same pods again, with their volumes as they are. Removing the Debian package
does the same; purging it deletes the rest, too.

Containers run on when their runtime is stopped or removed, and only it can end them in good order. A runtime that does
not answer is asked again for up to 30 seconds, and for no longer than --within: it may be restarting, also while pods
end. If nothing listens at its socket then, --kill finds the pods' processes by their cgroups and kills them: no hooks
are run, and there is no grace period.`,
		Example: `  systemctl stop edgecore && edgecore end-pods
  edgecore end-pods --kill       # the container runtime was removed, and its containers run on`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().DurationVar(&o.within, "within", time.Minute, "how `long` pods have to end by themselves")
	cmd.Flags().BoolVar(&o.kill, "kill", false, "kill the pods if there is no container runtime")
	cmd.Flags().StringVar(&o.leftOvers, "left-overs", "", "write to this `file` what is left of pods and agent, a path a line")
	hide(cmd, "left-overs")
	return cmd
}

func (o *endPodsOptions) run(ctx context.Context, out, errOut io.Writer) error {
	cfg, err := configured(o.globalOptions)
	if err != nil {
		return err
	}
	if store := cfg.Database.DataSource; inUse(store) {
		return fmt.Errorf("an agent runs with store %s, and would start the pods again: stop it first (systemctl stop edgecore)", store)
	}
	errs := []error{o.endAll(ctx, out, errOut, cfg)}
	own := &cfg.Modules.Edged
	for _, folder := range []string{"pods", "plugins"} {
		if err := volume.UnmountAll(filepath.Join(own.RootDirectory, folder)); err != nil {
			errs = append(errs, fmt.Errorf("volumes: %w", err))
		}
	}
	if _, err := gc.RemoveDeadLinks(o.links, own.TailoredKubeletConfig.PodLogsDir); err != nil {
		errs = append(errs, fmt.Errorf("links to logs: %w", err))
	}
	if err := errors.Join(errs...); err != nil || o.leftOvers == "" {
		return err // what may be mounted still, or in use, is not to be deleted by anybody
	}
	return certs.WriteFile(o.leftOvers, []byte(strings.Join(leftOversOf(cfg), "\n")+"\n"))
}

// endAll ends the pods that the agent has started.
func (o *endPodsOptions) endAll(ctx context.Context, out, errOut io.Writer, cfg *v1alpha2.EdgeCore) error {
	own := &cfg.Modules.Edged
	kubelet := &own.TailoredKubeletConfig
	if folders, err := os.ReadDir(filepath.Join(own.RootDirectory, "pods")); errors.Is(err, fs.ErrNotExist) || err == nil && len(folders) == 0 {
		fmt.Fprintln(out, "There are no pods of this agent") // nor does it matter whether there is a runtime
		return nil
	}
	client, err := cri.Dial(kubelet.ContainerRuntimeEndpoint, kubelet.ImageServiceEndpoint, kubelet.RuntimeRequestTimeout.Duration)
	if err != nil {
		return err
	}
	defer client.Close()
	r := runtime.New(runtime.Options{
		Client: client, Recorder: silent{}, RootDir: own.RootDirectory, PodLogsDir: kubelet.PodLogsDir, ContainerLogsDir: o.links,
	})
	pods, err := o.awaitPods(ctx, errOut, kubelet.ContainerRuntimeEndpoint, r.ListPods)
	if o.kill && status.Code(err) == codes.Unavailable && !listening(ctx, kubelet.ContainerRuntimeEndpoint) {
		fmt.Fprintf(out, "There is no container runtime at %s\n", kubelet.ContainerRuntimeEndpoint)
		return o.killAll(out, own)
	}
	if err != nil {
		return fmt.Errorf("the container runtime at %s does not say which pods there are: %w\n"+
			"start it and try again; if it is gone for good, edgecore end-pods --kill kills what it left running",
			kubelet.ContainerRuntimeEndpoint, err)
	}
	mine, others := ownPods(pods, own.RootDirectory)
	ended, err := o.endEach(ctx, r, mine, &outage{
		endpoint: kubelet.ContainerRuntimeEndpoint,
		wait:     o.wait,
		interval: o.interval,
		out:      errOut,
	})
	fmt.Fprintf(out, "Ended %d of %d pods\n", ended, len(mine))
	if err != nil && o.kill && restarting(err) && !listening(ctx, kubelet.ContainerRuntimeEndpoint) {
		fmt.Fprintf(out, "The container runtime at %s is gone\n", kubelet.ContainerRuntimeEndpoint)
		return o.killAll(out, own)
	}
	for _, p := range others {
		fmt.Fprintf(out, "Left alone pod %s/%s, which has no folder in %s\n", p.Namespace, p.Name, filepath.Join(own.RootDirectory, "pods"))
	}
	if err != nil || len(others) > 0 || strings.Trim(kubelet.CgroupRoot, "/") != "" {
		return err
	}
	if err := o.groups(own).RemoveAll(); err != nil {
		return fmt.Errorf("cgroups: %w", err)
	}
	return nil
}

// awaitPods lists the pods of the runtime. While the runtime is not ready, awaitPods asks again every o.interval, for
// o.wait or o.within, whichever is shorter, and then returns the last error. It says once on errOut that it waits.
func (o *endPodsOptions) awaitPods(ctx context.Context, errOut io.Writer, endpoint string,
	list func(context.Context) ([]*observed.Pod, error),
) ([]*observed.Pod, error) {
	limit := min(o.wait, o.within)
	start := time.Now()
	for said := false; ; said = true {
		pods, err := list(ctx)
		if !notReady(err) || time.Since(start)+o.interval > limit {
			return pods, err
		}
		if !said {
			fmt.Fprintf(errOut, "The container runtime at %s does not answer yet, waiting for up to %s: %v\n",
				endpoint, limit, err)
		}
		if !retry.Sleep(ctx, o.interval) {
			return nil, ctx.Err()
		}
	}
}

// notReady reports whether an error may be that of a runtime that is starting: without a socket, or, in containerd, not
// initialized yet. containerd 1 reports the latter with code Unknown, containerd 2 with Unavailable.
func notReady(err error) bool {
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.Unknown
}

// listening reports whether a process accepts connections at the runtime's socket: such a runtime is not gone, although
// it may answer Unavailable.
func listening(ctx context.Context, endpoint string) bool {
	path, err := cri.SocketPath(endpoint)
	if err != nil {
		return false
	}
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", path)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED)
	}
	_ = conn.Close()
	return true
}

// killAll kills the processes of the pods that have a folder of the agent's, by their cgroups.
func (o *endPodsOptions) killAll(out io.Writer, own *v1alpha2.Edged) error {
	if !ptr.Deref(own.TailoredKubeletConfig.CgroupsPerQOS, true) {
		return errors.New("pods have no cgroups (cgroupsPerQOS is false), so that their processes cannot be told from others: " +
			"restart the device to end them")
	}
	groups := o.groups(own)
	uids, err := groups.Pods()
	if err != nil {
		return err
	}
	killed, errs := 0, []error(nil)
	for _, uid := range uids {
		if mine, _ := ownPods([]*observed.Pod{{UID: uid}}, own.RootDirectory); len(mine) == 0 {
			continue
		}
		if err := groups.RemovePod(uid); err != nil {
			errs = append(errs, fmt.Errorf("kill pod %s: %w", uid, err))
			continue
		}
		killed++
	}
	fmt.Fprintf(out, "Killed what ran of %d pods\n", killed)
	return errors.Join(errs...)
}

// ownPods parts the pods of a runtime into those of this agent, which have a folder of its, and others.
func ownPods(pods []*observed.Pod, root string) (mine, others []*observed.Pod) {
	for _, p := range pods {
		uid := string(p.UID)
		info, err := os.Lstat(filepath.Join(root, "pods", uid))
		if err == nil && info.IsDir() && filepath.IsLocal(uid) && filepath.Base(uid) == uid && uid != "." {
			mine = append(mine, p)
		} else {
			others = append(others, p)
		}
	}
	return mine, others
}

// endEach ends pods side by side, and returns how many have ended. A pod waits for a runtime that restarts.
func (o *endPodsOptions) endEach(ctx context.Context, r *runtime.Runtime, pods []*observed.Pod, away *outage) (int, error) {
	gentle, cancel := context.WithTimeout(ctx, o.within)
	defer cancel()
	errs := make(chan error, len(pods))
	turn := make(chan struct{}, endAtOnce)
	for _, p := range pods {
		go func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			err := away.retry(gentle, func(ctx context.Context) error { return endPod(ctx, r, p, nil) })
			if err != nil && ctx.Err() == nil {
				rough, cancel := context.WithTimeout(ctx, killWithin)
				err = away.retry(rough, func(ctx context.Context) error { return endPod(ctx, r, p, ptr.To[int64](0)) })
				cancel()
			}
			if err != nil {
				err = fmt.Errorf("end pod %s/%s: %w", p.Namespace, p.Name, err)
			}
			errs <- err
		}()
	}
	ended, all := 0, []error(nil)
	for range pods {
		if err := <-errs; err != nil {
			all = append(all, err)
		} else {
			ended++
		}
	}
	return ended, errors.Join(all...)
}

// endPod ends a pod and removes it from the runtime. A grace period of 0 skips its hooks.
func endPod(ctx context.Context, r *runtime.Runtime, p *observed.Pod, grace *int64) error {
	now, err := r.GetPod(ctx, p.UID)
	if err != nil {
		return err
	}
	if err := r.KillPod(ctx, p.UID, nil, now, grace); err != nil {
		return err
	}
	return r.RemovePod(ctx, now)
}

// silent records no events: nobody reads them any more.
type silent struct{}

func (silent) Eventf(*v1.Pod, string, string, string, ...any)                         {}
func (silent) ContainerEventf(*v1.Pod, *v1.Container, string, string, string, ...any) {}
