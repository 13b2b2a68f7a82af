package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

// Guest is a program that a test runs beside a cluster: cloudcore, or the agent of a node. Sweep removes it together
// with a cluster whose owner was killed.
type Guest struct {
	Process daemon.Identity `json:"process"`
	// Dir is the folder of its files, which goes with it, with all mounts below. Empty: it has none of its own.
	Dir string `json:"dir,omitempty"`
}

// Host records a guest under a name; one of the same name, an earlier start of it, is forgotten. Anyone who starts the
// guest ends it: only Sweep does it for an owner that was killed.
func (c *Cluster) Host(name string, g Guest) error {
	c.guestsMu.Lock()
	if c.guests == nil {
		c.guests = map[string]Guest{}
	}
	c.guests[name] = g
	c.guestsMu.Unlock()
	if err := c.save(); err != nil {
		return fmt.Errorf("record %s as a guest of cluster %s: %w", name, c.name, err)
	}
	return nil
}

// remove ends a guest and removes its folder.
func (g Guest) remove(ctx context.Context) error {
	if err := kill(ctx, g.Process); err != nil || g.Dir == "" {
		return err
	}
	if err := agent.Unmount(g.Dir); err != nil {
		return err
	}
	// What is still mounted may be a folder of the host: never delete through it.
	left, err := mountinfo.GetMounts(mountinfo.PrefixFilter(g.Dir))
	if err != nil {
		return err
	}
	if len(left) > 0 {
		points := make([]string, len(left))
		for i, m := range left {
			points[i] = m.Mountpoint
		}
		return errors.New("still mounted: " + strings.Join(points, ", "))
	}
	return os.RemoveAll(g.Dir)
}
