package edgecontroller

import (
	"context"
	"fmt"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/requests"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// Handle implements cloudhub.Upstream: it carries out a request of a node.
func (c *Controller) Handle(ctx context.Context, node string, m *model.Message) *model.Message {
	return c.requests.Handle(ctx, node, m)
}

// Heartbeat implements cloudhub.Upstream: it renews the lease of a node.
func (c *Controller) Heartbeat(ctx context.Context, node string) error {
	return c.leases.Heartbeat(ctx, node)
}

// ClientCA returns the CA that signs client certificates, in PEM.
func (c *Controller) ClientCA(ctx context.Context) ([]byte, error) { return c.reviews.ClientCA(ctx) }

// Reviewer asks the API server in a node's name who its callers are and what they may do, for a node that cannot. It
// implements auth.Cloud.
func (c *Controller) Reviewer(node string) *requests.Reviewer { return c.reviews.Reviewer(node) }

// Duplicate implements cloudhub.Upstream: it reports that two devices use the certificate of a node.
func (c *Controller) Duplicate(ctx context.Context, node, message string) {
	c.nodes.Duplicate(ctx, node, message)
}

// WatchHistory returns an error if the version of a cached resource went back at the API server; see caches.History.
func (c *Controller) WatchHistory(ctx context.Context) error { return c.history.WatchHistory(ctx) }

// Desired implements cloudhub.Downstream.
func (c *Controller) Desired(node string) []cloudhub.Ref { return c.desired.Desired(node) }

// Object implements cloudhub.Downstream.
func (c *Controller) Object(node string, key resource.Key) (*cloudhub.Object, error) {
	return c.desired.Object(node, key)
}

// Filled reports whether the caches have synced.
func (c *Controller) Filled() bool { return c.desired.Filled() }

// AwaitRequests waits until a node may make n requests more, within its rate limit. Other controllers call it, so that
// a node has one limit for all that it asks for. It returns an error when ctx ends before.
func (c *Controller) AwaitRequests(ctx context.Context, node string, n int) error {
	l := c.sessions.Limiter(node)
	if l == nil {
		return nil
	}
	if err := l.WaitN(ctx, min(n, l.Burst())); err != nil {
		return fmt.Errorf("node %s sends more than %g requests a second: %w", node, c.options.NodeQPS, err)
	}
	return nil
}
