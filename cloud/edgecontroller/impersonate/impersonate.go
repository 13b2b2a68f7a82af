// Package impersonate makes the clients with which cloudcore acts at the API server: as itself, or as one of its nodes.
package impersonate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/client-go/util/flowcontrol"
)

// Clients are cloudcore's two identities at the API server. They share one connection pool and one rate limiter.
type Clients struct {
	// Own acts as cloudcore itself.
	Own kubernetes.Interface
	// AsNode acts as the node of the context (see WithNode), and fails without one.
	AsNode kubernetes.Interface
	// Metadata acts as cloudcore itself, and reads only the metadata of objects.
	Metadata metadata.Interface

	connections http.RoundTripper
}

// Close closes the idle connections. The clients may be used after it.
func (c Clients) Close() {
	if c.connections != nil {
		utilnet.CloseIdleConnectionsFor(c.connections)
	}
}

// Mode is how cloudcore impersonates a node.
type Mode int

const (
	// UserAndGroup names the node's user and the group of nodes. It works with any Kubernetes, and needs the verb
	// impersonate on users.
	UserAndGroup Mode = iota
	// UserOnly names the node's user; the API server adds the group. It needs Kubernetes 1.36 or newer and the narrow
	// verb impersonate:arbitrary-node, with which cloudcore can act only as nodes.
	UserOnly
)

// New makes the clients from a configuration.
func New(config *rest.Config, how Mode) (Clients, error) {
	own := rest.CopyConfig(config)
	if own.ContentType == "" {
		own.ContentType, own.AcceptContentTypes = "application/vnd.kubernetes.protobuf",
			"application/vnd.kubernetes.protobuf,application/json"
	}
	if own.WarningHandler == nil && own.WarningHandlerWithContext == nil {
		own.WarningHandler = rest.NoWarnings{} // warnings concern edges' requests; nobody here can act on them
	}
	if own.RateLimiter == nil && own.QPS > 0 {
		own.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(own.QPS, max(own.Burst, 1))
	}
	client, err := rest.HTTPClientFor(own)
	if err != nil {
		return Clients{}, fmt.Errorf("create the client of the API server %s: %w", config.Host, err)
	}
	ours, err := kubernetes.NewForConfigAndClient(own, client)
	if err != nil {
		return Clients{}, fmt.Errorf("create the client of the API server %s: %w", config.Host, err)
	}
	base := client.Transport
	if base == nil {
		base = http.DefaultTransport // as in net/http
	}
	asNode := *client
	asNode.Transport = &impersonating{base: base, group: how == UserAndGroup}
	nodes, err := kubernetes.NewForConfigAndClient(own, &asNode)
	if err != nil {
		return Clients{}, fmt.Errorf("create the client that impersonates nodes at the API server %s: "+
			"%w", config.Host, err)
	}
	ofMetadata, err := metadata.NewForConfigAndClient(metadata.ConfigFor(own), client)
	if err != nil {
		return Clients{}, fmt.Errorf("create the client of metadata at the API server %s: %w", config.Host, err)
	}
	return Clients{Own: ours, AsNode: nodes, Metadata: ofMetadata, connections: base}, nil
}

// NodesGroup is the group of every node's user.
const NodesGroup = "system:nodes"

type nodeKey struct{}

// WithNode returns a context that makes Clients.AsNode act as the node.
func WithNode(ctx context.Context, node string) context.Context {
	return context.WithValue(ctx, nodeKey{}, node)
}

// impersonating sets the impersonation headers of each request.
type impersonating struct {
	base  http.RoundTripper
	group bool
}

func (t *impersonating) RoundTrip(r *http.Request) (*http.Response, error) {
	node, _ := r.Context().Value(nodeKey{}).(string)
	if node == "" {
		return nil, fmt.Errorf("%s %s: refused: no node to impersonate", r.Method, r.URL.Path)
	}
	r = r.Clone(r.Context())
	r.Header.Set(transport.ImpersonateUserHeader, "system:node:"+node)
	r.Header.Del(transport.ImpersonateGroupHeader)
	if t.group {
		r.Header.Set(transport.ImpersonateGroupHeader, NodesGroup)
	}
	return t.base.RoundTrip(r)
}

// WrappedRoundTripper lets client-go reach the transport below.
func (t *impersonating) WrappedRoundTripper() http.RoundTripper { return t.base }

// probeNode is a node that does not exist.
const probeNode = "cloudcore-probe"

// Choose finds out which impersonation the API server and its rules allow, preferring the narrow one.
func Choose(ctx context.Context, config *rest.Config) (Mode, error) {
	refusal := errors.New("the API server does not recognise the impersonated user as a node")
	for _, how := range []Mode{UserOnly, UserAndGroup} {
		clients, err := New(config, how)
		if err != nil {
			return how, err
		}
		defer clients.Close()
		review, err := clients.AsNode.AuthenticationV1().SelfSubjectReviews().Create(WithNode(ctx, probeNode),
			&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		switch {
		case err == nil && slices.Contains(review.Status.UserInfo.Groups, NodesGroup):
			return how, nil
		case apierrors.IsForbidden(err):
			refusal = err
		case err != nil:
			return how, fmt.Errorf("ask the API server %s whether cloudcore may impersonate nodes: "+
				"%w", config.Host, err)
		}
	}
	return UserAndGroup, fmt.Errorf("cloudcore may not impersonate nodes at the API server %s: "+
		"apply deploy/cloudcore/base/rbac.yaml, and before Kubernetes 1.36 also before-1.36/rbac.yaml: %w", config.Host,
		refusal)
}
