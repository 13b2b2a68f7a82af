package kube

import (
	"context"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

// Start starts a cluster for the test alone and removes it when the test ends. When the test has
// failed, the end of each log is in the test's output and the logs are kept.
func Start(t testing.TB, opts Options) *Cluster {
	t.Helper()
	c, err := Launch(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := daemon.Within(context.Background())
		defer cancel()
		if !t.Failed() {
			if err := c.Stop(ctx); err != nil {
				t.Errorf("stop cluster %s: %v", c.Name(), err)
			}
			return
		}
		for _, p := range c.components() {
			if p.proc != nil {
				t.Logf("the end of %s's log:\n%s", p.Name, daemon.Tail(p.Log(), 5))
			}
		}
		kept, err := c.StopAndKeepLogs(ctx)
		if err != nil {
			t.Errorf("stop cluster %s: %v", c.Name(), err)
		}
		t.Logf("the logs of cluster %s are kept in %s", c.Name(), kept)
	})
	return c
}
