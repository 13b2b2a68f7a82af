package main

import (
	"context"
	"fmt"
	"os"
	"sync"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/sdnotify"
)

// manager is the service manager that started the agent, if one did.
type manager struct {
	notifier   *sdnotify.Notifier
	conditions *health.Registry
	wg         sync.WaitGroup
}

// newManager reads who wants to know how the agent is. Programs that the agent starts are not to say it in its stead.
func newManager(conditions *health.Registry) *manager {
	notifier, err := sdnotify.FromEnv(os.Getenv, os.Getpid())
	if err != nil {
		klog.ErrorS(err, "Service manager is not told how the agent is")
	}
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		if err := os.Unsetenv(name); err != nil {
			klog.V(2).InfoS("Environment not changed", "variable", name, "err", err)
		}
	}
	return &manager{notifier: notifier, conditions: conditions}
}

// ready says that the modules run. The runtime or the cloud may be away: the agent is there.
func (m *manager) ready() { m.tell(sdnotify.Ready) }

func (m *manager) tell(lines ...string) {
	if err := m.notifier.Send(lines...); err != nil {
		klog.ErrorS(err, "Service manager not told", "what", lines)
	}
}

// keep says that the agent lives as long as it does, and at its end that it ends. What it returns waits for that.
func (m *manager) keep(ctx context.Context, alive func() error) (wait func()) {
	m.wg.Go(func() {
		m.notifier.Keep(ctx, alive, m.status)
		<-ctx.Done()
		m.tell(sdnotify.Stopping)
	})
	return m.wg.Wait
}

// status is the worst that is wrong, for systemctl status.
func (m *manager) status() string {
	if worst, ok := m.conditions.Healthy(); !ok {
		return fmt.Sprintf("%s: %s", worst.Title, worst.Detail)
	}
	return "Running"
}
