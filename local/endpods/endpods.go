// Package endpods ends the pods of a device whose agent does not run: those that the agent has started, by their
// runtime or, where there is none any more, by their cgroups. Pods that others have started in the same runtime are
// left alone.
package endpods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/containers/gc"
	"github.com/edgecore-io/edgecore/edged/containers/runtime"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/storage/volume"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

const (
	// DefaultWait bounds the wait for a runtime that does not answer: one that restarts is back in seconds.
	DefaultWait = 30 * time.Second
	// DefaultInterval is the pause between two requests to such a runtime.
	DefaultInterval = time.Second
	// endAtOnce is how many pods are ended side by side.
	endAtOnce = 8
	// killWithin bounds the second, rough attempt at pods that did not end in time, and unmounting.
	killWithin = 30 * time.Second
)

// Cgroups are the cgroups of pods, by which their processes are found; see package cgroups.
type Cgroups interface {
	Pods() ([]types.UID, error)
	RemovePod(uid types.UID) error
	RemoveAll() error
}

// Options say what to end, and how.
type Options struct {
	// RuntimeEndpoint and ImageEndpoint are the runtime's, which answers within RuntimeTimeout.
	RuntimeEndpoint, ImageEndpoint string
	RuntimeTimeout                 time.Duration
	// RootDir is the agent's folder, PodLogsDir that of pods' logs, and Links that of the links to them.
	RootDir, PodLogsDir, Links string
	// Within is how long pods have to end by themselves.
	Within time.Duration
	// Wait bounds the wait for a runtime that does not answer, and Within bounds it, too. Zero: ask once.
	Wait time.Duration
	// Interval is the pause between two requests to such a runtime.
	Interval time.Duration
	// Kill kills the processes of pods when no runtime can stop them.
	Kill bool
	// Cgroups are those of pods. OwnCgroups: all below them are the agent's, and go when no pod of others is left.
	// NoPodCgroups: pods have none of their own.
	Cgroups                  Cgroups
	OwnCgroups, NoPodCgroups bool
	// Out gets what was done, Progress that there is a wait.
	Out, Progress io.Writer
}

// End ends the pods, and removes containers, sandboxes, logs and what is mounted. It goes on after an error, to leave
// as little as it can.
func End(ctx context.Context, o Options) error {
	e := ender{o}
	errs := []error{e.endAll(ctx)}
	for _, folder := range []string{"pods", "plugins"} {
		if err := volume.UnmountAll(filepath.Join(o.RootDir, folder)); err != nil {
			errs = append(errs, fmt.Errorf("volumes: %w", err))
		}
	}
	if _, err := gc.RemoveDeadLinks(o.Links, o.PodLogsDir); err != nil {
		errs = append(errs, fmt.Errorf("links to logs: %w", err))
	}
	return errors.Join(errs...)
}

type ender struct{ Options }

// endAll ends the pods that the agent has started.
func (o *ender) endAll(ctx context.Context) error {
	if folders, err := os.ReadDir(filepath.Join(o.RootDir, "pods")); errors.Is(err, fs.ErrNotExist) ||
		err == nil && len(folders) == 0 {
		fmt.Fprintln(o.Out, "This agent has no pods") // nor does it matter whether there is a runtime
		return nil
	}
	client, err := cri.Dial(o.RuntimeEndpoint, o.ImageEndpoint, o.RuntimeTimeout)
	if err != nil {
		return err
	}
	defer client.Close()
	r := runtime.New(runtime.Options{
		Client:           client,
		Recorder:         events.New("", nil), // nobody reads them: the agent has stopped
		RootDir:          o.RootDir,
		PodLogsDir:       o.PodLogsDir,
		ContainerLogsDir: o.Links,
	})
	pods, err := o.awaitPods(ctx, r.ListPods)
	if o.Kill && status.Code(err) == codes.Unavailable && !listening(ctx, o.RuntimeEndpoint) {
		fmt.Fprintf(o.Out, "There is no container runtime at %s\n", o.RuntimeEndpoint)
		return o.killAll()
	}
	if err != nil {
		return fmt.Errorf("the container runtime at %s does not list its pods: %w\n"+
			"start it and try again; if it is gone for good, edgecore end-pods --kill kills what it left running",
			o.RuntimeEndpoint, err)
	}
	mine, others := ownPods(pods, o.RootDir)
	ended, err := o.endEach(ctx, r, mine, &outage{
		endpoint: o.RuntimeEndpoint,
		wait:     o.Wait,
		interval: o.Interval,
		out:      o.Progress,
	})
	fmt.Fprintf(o.Out, "Ended %d of %d pods\n", ended, len(mine))
	if err != nil && o.Kill && restarting(err) && !listening(ctx, o.RuntimeEndpoint) {
		fmt.Fprintf(o.Out, "The container runtime at %s is gone\n", o.RuntimeEndpoint)
		return o.killAll()
	}
	for _, p := range others {
		fmt.Fprintf(o.Out, "Left alone pod %s/%s, which has no folder in %s\n", p.Namespace, p.Name,
			filepath.Join(o.RootDir, "pods"))
	}
	if err != nil || len(others) > 0 || !o.OwnCgroups {
		return err
	}
	if err := o.Cgroups.RemoveAll(); err != nil {
		return fmt.Errorf("cgroups: %w", err)
	}
	return nil
}

// awaitPods lists the pods of the runtime. While the runtime is not ready, awaitPods asks again every o.Interval, for
// o.Wait or o.Within, whichever is shorter, and then returns the last error. It says once that it waits.
func (o *ender) awaitPods(
	ctx context.Context, list func(context.Context) ([]*observed.Pod, error),
) ([]*observed.Pod, error) {
	limit := min(o.Wait, o.Within)
	start := time.Now()
	for said := false; ; said = true {
		pods, err := list(ctx)
		if !notReady(err) || time.Since(start)+o.Interval > limit {
			return pods, err
		}
		if !said {
			fmt.Fprintf(o.Progress, "The container runtime at %s does not answer yet, waiting for up to %s: %v\n",
				o.RuntimeEndpoint, limit, err)
		}
		if !retry.Sleep(ctx, o.Interval) {
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
func (o *ender) killAll() error {
	if o.NoPodCgroups {
		return errors.New(
			"pods have no cgroups (cgroupsPerQOS is false), so that their processes cannot be told from others: " +
				"restart the device to end them")
	}
	uids, err := o.Cgroups.Pods()
	if err != nil {
		return err
	}
	killed, errs := 0, []error(nil)
	for _, uid := range uids {
		if mine, _ := ownPods([]*observed.Pod{{UID: uid}}, o.RootDir); len(mine) == 0 {
			continue
		}
		if err := o.Cgroups.RemovePod(uid); err != nil {
			errs = append(errs, fmt.Errorf("kill pod %s: %w", uid, err))
			continue
		}
		killed++
	}
	fmt.Fprintf(o.Out, "Killed the processes of %d pods\n", killed)
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
func (o *ender) endEach(ctx context.Context, r *runtime.Runtime, pods []*observed.Pod, away *outage) (int, error) {
	gentle, cancel := context.WithTimeout(ctx, o.Within)
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
	now, err := r.GetPod(ctx, p.UID, nil)
	if err != nil {
		return err
	}
	if err := r.KillPod(ctx, p.UID, nil, now, grace); err != nil {
		return err
	}
	return r.RemovePod(ctx, now)
}
