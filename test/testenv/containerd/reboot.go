package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

// PowerOff does to the instance what a power cut does to a machine: the daemon, the shims and the
// containers are killed; mounts, cgroups, network and /run are gone; what is on disk stays.
func (i *Instance) PowerOff(ctx context.Context) error {
	if err := i.Kill9(ctx); err != nil {
		return err
	}
	if err := i.clear(ctx); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(i.stateDir()), os.RemoveAll(i.runcRoot()))
}

// PowerOn starts what PowerOff ended, with the same subnet.
func (i *Instance) PowerOn(ctx context.Context) error {
	if err := i.makeNetwork(ctx); err != nil {
		return err
	}
	return i.Run(ctx)
}

// Forget removes containerd's own disk too, as when its partition was formatted: it knows no
// sandbox, no container and no image. Between PowerOff and PowerOn only; load images afterwards.
func (i *Instance) Forget() error {
	return errors.Join(os.RemoveAll(i.rootDir()), os.RemoveAll(filepath.Join(i.Root, "cni")))
}

// Sweep removes the instances whose owner has died without stopping them: a test binary that was
// killed or that ran into its time limit. None of them is left when it returns, also when others
// sweep at the same time.
func Sweep(ctx context.Context) error {
	records, err := filepath.Glob(filepath.Join(runDir, namePrefix+"*", "instance.json"))
	if err != nil {
		panic(err) // a fixed pattern
	}
	for _, path := range records {
		i, err := Attach(filepath.Base(filepath.Dir(path)))
		if err != nil || i.Owner == (daemon.Identity{}) || i.Owner.Alive() {
			continue // being made or removed just now, or wanted
		}
		if err := i.sweep(ctx, path); err != nil {
			return fmt.Errorf("remove containerd %s, whose owner (process %d) died: %w", i.Name, i.Owner.PID, err)
		}
	}
	return nil
}

// sweep removes the instance of a record, or waits until another process has.
func (i *Instance) sweep(ctx context.Context, path string) error {
	claim, err := daemon.Claim(ctx, path)
	if claim == nil {
		return err
	}
	defer claim.Close()
	return i.Stop(ctx)
}

// Leaks lists what is left of the instance on the machine, which after Stop must be nothing:
// processes, mounts, cgroups, links, iptables rules and folders. It waits a moment for what the
// kernel frees late.
func (i *Instance) Leaks(ctx context.Context) []string {
	ctx, cancel := daemon.Within(ctx)
	defer cancel()
	var left []string
	_ = daemon.Poll(ctx, func() error {
		left = i.leaks(ctx)
		if len(left) == 0 {
			return nil
		}
		return fmt.Errorf("left: %s", strings.Join(left, "; "))
	})
	return left
}

func (i *Instance) leaks(ctx context.Context) []string {
	var left []string
	found := func(kind string, names []string, err error) {
		if err != nil {
			left = append(left, fmt.Sprintf("%s: cannot tell: %v", kind, err))
		}
		for _, n := range names {
			left = append(left, kind+" "+n)
		}
	}
	procs, err := i.processes()
	names := make([]string, len(procs))
	for n, p := range procs {
		names[n] = fmt.Sprintf("%d (%s)", p.PID, p.Command())
	}
	found("process", names, err)
	points, err := mounts(i.Root, i.dir())
	found("mount", points, err)
	for _, tree := range i.cgroupTrees() {
		groups, err := cgroupsNamed(tree)
		found("cgroup", groups, err)
	}
	rules, err := natRules(ctx)
	found("iptables rule", slices.DeleteFunc(rules, func(r string) bool { return !strings.Contains(r, i.Name) }), err)
	found("CNI result", i.cniResults(), nil)
	for _, path := range []string{filepath.Join("/sys/class/net", i.Name), i.dir(), i.Root} {
		if _, err := os.Lstat(path); err == nil {
			left = append(left, "path "+path)
		}
	}
	return left
}
