package edgecontroller

import (
	"context"
	"fmt"
)

// AwaitRequests waits until a node may make n requests more, within its rate limit. Other controllers call it, so that
// a node has one limit for all that it asks for. It returns an error when ctx ends before.
func (c *Controller) AwaitRequests(ctx context.Context, node string, n int) error {
	l := c.sessions.limiter(node)
	if l == nil {
		return nil
	}
	if err := l.WaitN(ctx, min(n, l.Burst())); err != nil {
		return fmt.Errorf("node %s sends more than %g requests a second: %w", node, c.options.NodeQPS, err)
	}
	return nil
}
