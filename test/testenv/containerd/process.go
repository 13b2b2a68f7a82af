package containerd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

// Run starts the daemon of an instance whose daemon does not run, and waits until its CRI answers.
func (i *Instance) Run(ctx context.Context) error {
	if i.Running() {
		return fmt.Errorf("containerd %s runs already", i.Name)
	}
	path := "PATH=" + filepath.Dir(i.Binary) + ":" + os.Getenv("PATH") + ":/usr/local/sbin:/usr/sbin:/sbin"
	proc, err := daemon.Start(i.LogFile(), []string{path}, i.Binary, "--config", i.configFile())
	if err != nil {
		return err
	}
	i.proc, i.Process = proc, proc.Identity
	if err := JoinCgroup(filepath.Join(i.CgroupRoot(), "runtime"), i.Process.PID); err != nil {
		return err
	}
	if err := i.save(); err != nil {
		return err
	}
	return i.waitReady(ctx)
}

// waitReady returns when the runtime and its network are ready.
func (i *Instance) waitReady(ctx context.Context) error {
	ctx, cancel := daemon.Within(ctx)
	defer cancel()
	client, err := i.Dial()
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	return daemon.Poll(ctx, func() error {
		if !i.proc.Running() {
			return daemon.Fatal(fmt.Errorf("containerd ended at once; the end of %s:\n%s", i.LogFile(),
				daemon.Tail(i.LogFile(), 10)))
		}
		status, err := client.Status(ctx, &runtimeapi.StatusRequest{})
		if err != nil {
			return err
		}
		for _, c := range status.GetStatus().GetConditions() {
			// containerd 2 has one more, which tells of deprecations.
			if known := c.GetType() == runtimeapi.RuntimeReady || c.GetType() == runtimeapi.NetworkReady; known &&
				!c.GetStatus() {
				return fmt.Errorf("condition %s is false: %s", c.GetType(), c.GetMessage())
			}
		}
		return nil
	})
}

// Terminate ends the daemon gracefully; pods run on.
func (i *Instance) Terminate(ctx context.Context) error { return i.proc.End(ctx, syscall.SIGTERM) }

// Kill9 ends the daemon at once; pods run on.
func (i *Instance) Kill9(ctx context.Context) error { return i.proc.End(ctx, syscall.SIGKILL) }

// Restart ends the daemon and starts it again; pods run on.
func (i *Instance) Restart(ctx context.Context) error {
	if err := i.Terminate(ctx); err != nil {
		return err
	}
	return i.Run(ctx)
}

// Pause makes the daemon hang: its socket accepts connections and nothing answers.
func (i *Instance) Pause(ctx context.Context) error { return i.Process.Pause(ctx) }

// Resume ends what Pause began.
func (i *Instance) Resume() error { return i.Process.Resume() }
